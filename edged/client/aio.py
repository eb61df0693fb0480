"""The asynchronous client: the methods of `edged.client.client.Client` as coroutines."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

import grpc

from edged.client import address, calls, commands, operations
from edged.client.aio_status import Statuses
from edged.client.aio_stream import AsyncStream
from edged.client.aio_updates import AsyncUpdates
from edged.client.cameras import CameraInfo
from edged.client.credentials import Credentials, aio_channel
from edged.client.events import EventInfo
from edged.client.feed import Feed, FromAsyncIterable, FromIterable, Requests
from edged.client.frames import Captured, FrameMaker, Picture
from edged.client.ledger import Ledger
from edged.client.load import LoadInfo
from edged.client.options import Region, asked, stream_options
from edged.client.outgoing import Outgoing
from edged.client.result import Result
from edged.client.sharing import in_loop, sharing
from edged.client.status import from_rpc_error
from edged.client.upload import Package, Samples, Upload
from edged.models.repair import Wish
from edged.proto import operations_pb2

if TYPE_CHECKING:
    from typing_extensions import Self

Answer = TypeVar("Answer")


class AsyncClient:
    """Talks to one daemon from one event loop; arguments and errors as in `edged.client.client.Client`."""

    def __init__(
        self,
        target: str | os.PathLike[str] | None = None,
        *,
        timeout: float = 30.0,
        credentials: Credentials | grpc.ChannelCredentials | None = None,
    ) -> None:
        self.target = address.resolve(target)
        self.timeout = timeout
        self._channel = aio_channel(self.target, credentials, calls.CHANNEL_OPTIONS)

    async def infer(
        self,
        model: str,
        image: Picture,
        *,
        camera: str = "",
        score: float | None = None,
        iou: float | None = None,
        max_detections: int | None = None,
        class_agnostic: bool | None = None,
        region: Region | None = None,
        rotation: int = 0,
    ) -> Result:
        """One picture, one result. The thresholds, 0..1, override the model's; arrays travel as they are.

        Of the picture only `region` is looked at: x, y, width, height in its pixels, 0 for a size up to the edge. It is
        turned `rotation` degrees clockwise before, by quarters. Results are in pixels of the picture as given all the
        same. `class_agnostic` lets boxes of different classes suppress each other.
        """
        wanted = asked(score, iou, max_detections, class_agnostic, region, rotation)
        return await self._ask(calls.infer(model, image, camera, wanted))

    def stream(
        self,
        model: str,
        frames: Iterable[Picture | Captured] | AsyncIterable[Picture | Captured],
        *,
        camera: str = "camera",
        score: float | None = None,
        iou: float | None = None,
        max_detections: int | None = None,
        lossless: bool = False,
        every_frame: bool = False,
        max_fps: float = 0.0,
        max_staleness: float = 0.0,
        weight: float = 1.0,
        priority: int = 0,
        track: bool = False,
        region: Region | None = None,
        rotation: int = 0,
        class_agnostic: bool | None = None,
        shared: bool | None = None,
    ) -> AsyncStream:
        """Frames of one camera, sent as they come and answered as they come; an ordinary iterable is pulled in a
        thread. Call it inside the running event loop and close what it returns: `async with client.stream(...)`. A
        daemon that goes away ends it with NotReady; the blocking client can wait for its return.
        """
        options = stream_options(every_frame, max_fps, max_staleness, weight, priority, track)
        wanted = asked(score, iou, max_detections, class_agnostic, region, rotation, options)
        way = sharing(self.target, model, in_loop(self._channel), shared, every_frame)
        maker = FrameMaker(model, camera, wanted, way)
        requests: Requests
        if isinstance(frames, AsyncIterable):
            requests = FromAsyncIterable(frames, maker, Ledger(), lossless=lossless)
        else:
            requests = FromIterable(Outgoing(frames, maker, Ledger(), lossless=lossless))
        return AsyncStream(self._channel, requests, self.target, self.timeout)

    async def models(self) -> list[operations.ModelInfo]:
        return await self._ask(calls.models())

    async def engines(self, model: str | None = None) -> list[operations.EngineInfo]:
        """The engines of one model, or of all."""
        return await self._ask(calls.engines(model))

    async def explain(self, model: str) -> list[operations.Explanation]:
        """For each engine that the model should have here: which key part keeps the nearest stored one from fitting."""
        return await self._ask(calls.explain(model))

    async def cameras(self) -> list[CameraInfo]:
        """Every camera that sends frames or did lately, and how it fares."""
        return await self._ask(calls.camera_list())

    async def device(self) -> operations.DeviceInfo:
        return await self._ask(calls.device())

    async def refresh_device(self) -> list[operations.PartChange]:
        """Has the daemon read its device's facts again now; what changed. Engines are planned anew from them."""
        return await self._ask(calls.refresh_device())

    def events(self, after: int = 0, *, epoch: str = "", follow: bool = False) -> AsyncUpdates[EventInfo]:
        """What happened since the event numbered `after`, as far as it is kept; with `follow`, also what happens.

        Give the `epoch` of that event too where the daemon may have been started anew since: all that are kept follow
        then, instead of those with higher numbers. Call it inside the running event loop.
        """
        return self._watch(calls.events(after, epoch, follow), follow)

    async def status(self) -> commands.StatusInfo:
        """The whole box at a glance: what serves, what is being made, what is wrong."""
        return await self._ask(calls.status())

    async def load(self) -> LoadInfo:
        """What the box does right now: models, cameras, engine hosts, device. Rates follow from two of these."""
        return await self._ask(calls.load())

    async def reload(self) -> list[commands.ReloadedKey]:
        """As `Client.reload`."""
        return await self._ask(calls.reload())

    async def rebuild(
        self,
        model: str | None = None,
        *,
        engine: str | None = None,
        everything: bool = False,
        force: bool = False,
        follow: bool = True,
    ) -> AsyncUpdates[commands.EngineProgress]:
        """Makes engines of a model, the one whose key begins with `engine`, or of all: those that are missing,
        whatever kept them, or with `force` all that are selected. What serves goes on serving meanwhile.

        When this returns the work is under way, and closing what it returns does not end it: `cancel` does. The answers
        begin with one for every engine that was selected; with `follow` they go on until all have their outcome.
        Refused, NotFound or InvalidInput are raised here.
        """
        selector = commands.selector(model, engine, everything)
        return await self._watch(calls.rebuild(selector, force, follow), follow).begin(self.timeout)

    async def verify(
        self, model: str | None = None, *, engine: str | None = None, everything: bool = False, follow: bool = True
    ) -> AsyncUpdates[commands.EngineProgress]:
        """Compares engines with the reference again and times them again; the rest is as with `rebuild`."""
        selector = commands.selector(model, engine, everything)
        return await self._watch(calls.verify(selector, follow), follow).begin(self.timeout)

    async def cancel(
        self, model: str | None = None, *, engine: str | None = None, everything: bool = False
    ) -> list[str]:
        """Ends the making of engines; their keys."""
        return await self._ask(calls.select("Cancel", commands.selector(model, engine, everything)))

    async def pin(self, model: str | None = None, *, engine: str | None = None, everything: bool = False) -> list[str]:
        """Keeps engines from being evicted; their keys."""
        return await self._ask(calls.select("Pin", commands.selector(model, engine, everything)))

    async def unpin(
        self, model: str | None = None, *, engine: str | None = None, everything: bool = False
    ) -> list[str]:
        """They may be evicted again; their keys."""
        return await self._ask(calls.select("Unpin", commands.selector(model, engine, everything)))

    async def evict(
        self, model: str | None = None, *, engine: str | None = None, everything: bool = False
    ) -> list[str]:
        """Removes engines' files; their keys. Refused for one that serves or is pinned; `everything` is everything
        that nothing needs."""
        return await self._ask(calls.select("Evict", commands.selector(model, engine, everything)))

    async def add_model(
        self,
        name: str,
        path: str | os.PathLike[str],
        settings: Mapping[str, str] | None = None,
        *,
        samples: Samples = (),
        repairs: Wish | None = None,
        timeout: float = 600.0,
    ) -> operations.ModelInfo:
        """Uploads an ONNX file with its external data; `timeout` in seconds, since that may be gigabytes.

        `samples` are what its engines are verified with: pictures as JPEG or PNG files, tensors as *.npz files with an
        array for each input, or folders of them, 32 at most.
        `repairs` are made first: `edged.models.repair.Wish(needed=True)` for those without which it cannot be served.
        """
        upload = Upload(await asyncio.to_thread(Package.of, name, path, settings, samples, repairs))
        send = self._channel.stream_unary(
            calls.ADD_MODEL,
            request_serializer=calls.serialize,
            response_deserializer=operations_pb2.ModelStatus.FromString,
        )
        parts = Feed(upload)
        call = send(parts, timeout=timeout)
        statuses = Statuses(call)
        try:
            answer = await call
        except grpc.RpcError as error:
            raise upload.failure or await statuses.error(error, self.target) from None
        except asyncio.CancelledError:
            if upload.failure is not None:  # which made gRPC cancel the call
                raise upload.failure from None
            raise
        finally:
            parts.close()
        return operations.model_info(answer)

    async def remove_model(self, name: str, *, delete: bool = False) -> str:
        """As in the blocking client."""
        return await self._ask(calls.remove_model(name, delete))

    async def close(self) -> None:
        """Ends the connection, and with it every stream."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _watch(self, call: calls.Call[Answer], follow: bool) -> AsyncUpdates[Answer]:
        return AsyncUpdates(self._channel, call, self.target, None if follow else self.timeout)

    async def _ask(self, call: calls.Call[Answer]) -> Answer:
        send = self._channel.unary_unary(call.path, request_serializer=calls.serialize, response_deserializer=call.read)
        try:
            answer = await send(call.request, timeout=self.timeout)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.target) from None
        return call.parse(answer)
