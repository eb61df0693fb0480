"""The clients of a daemon: `Client` blocks, `AsyncClient` is for an event loop; `edged.client.calls` has their methods.

There are two since gRPC has two interfaces, one for threads and one for event loops. A blocking client on top of the
other would switch threads twice for each call.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TypeVar

import grpc

from edged.api_types import EventInfo, ModelInfo
from edged.client import address
from edged.client.backoff import Backoff
from edged.client.calls import ADD_MODEL, CHANNEL_OPTIONS, Call, DaemonCalls, serialize, watch_events
from edged.client.credentials import Credentials, aio_channel, channel
from edged.client.frames import Captured, FrameMaker, Picture, Region, frame_options, stream_options
from edged.client.requests import AsyncFrameRequests, FrameRequests, ThreadedIterator, ThreadedRequests
from edged.client.sharing import blocking, in_loop, sharing
from edged.client.status import Statuses, from_rpc_error
from edged.client.stream import AsyncStream, Stream
from edged.client.updates import AsyncUpdates, Updates
from edged.client.upload import Package, Samples, Upload
from edged.message_mapper import to_struct
from edged.models.repair import Wish
from edged.proto import operations_pb2

Answer = TypeVar("Answer")


class Client(DaemonCalls, AbstractContextManager["Client"]):
    """Talks to one daemon; may be shared by threads.

    `target` is `unix:/path`, `/path`, `host:port` or `:port`, behind `tls:` for TLS; None is EDGED_TARGET, else the
    daemon's default socket.
    `timeout` is the longest that one call may take, in seconds; in a stream, the longest that frames may wait without
    any answer. `credentials` are a CA, a certificate or a token; None is what the environment says, see
    `edged.client.credentials`. gRPC's own (grpc.ssl_channel_credentials and its like) are taken as they are.

    Every method raises an `edged.errors.EdgedError` with a one-line message: NotReady where no daemon answers.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | None = None,
        *,
        timeout: float = 30.0,
        credentials: Credentials | grpc.ChannelCredentials | None = None,
    ) -> None:
        self.target = address.resolve(target)
        self.timeout = timeout
        self._channel = channel(self.target, credentials, CHANNEL_OPTIONS)

    def stream(
        self,
        model: str,
        frames: Iterable[Picture | Captured],
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
        reconnect: bool = False,
        shared: bool | None = None,
    ) -> Stream:
        """Frames of one camera, sent as they come and answered as they come.

        The daemon answers the newest frame and counts those it skipped for it. With `every_frame` it answers all, some
        waiting there; with `lossless` one is in flight at a time and the next is only then taken from `frames`. A frame
        that fails is a Result with `error` set, and the stream goes on.

        The daemon takes at most `max_fps` frames a second (0: all) and none that is older than `max_staleness` seconds
        when its turn comes (0: any). `weight` is the camera's share of the engine against other cameras of the model,
        `priority`, -100 to 100, puts it before or behind them always. `track` gives detections a `tracker_id`. The
        thresholds, `region` and `rotation` are as in `infer`.

        Arrays go through shared memory where the daemon is behind a unix socket and can read it, otherwise as bytes:
        `shared` False always sends bytes, as does `every_frame`; True raises SegmentUnusable instead. A frame whose
        place was used again before its turn counts as skipped.

        With `reconnect` a daemon that goes away after it has answered once is waited for, 1, 5, 10, then each 60
        seconds; the camera goes on under its name and with its numbers, and frames that were on their way count as
        failed. Without it that is NotReady.
        """
        options = stream_options(every_frame, max_fps, max_staleness, weight, priority, track)
        wanted = frame_options(score, iou, max_detections, class_agnostic, region, rotation, options)
        way = sharing(self.target, model, blocking(self._channel), shared, every_frame)
        maker = FrameMaker(model, camera, wanted, way)
        requests = FrameRequests(frames, maker, lossless=lossless)
        return Stream(self._channel, requests, self.target, self.timeout, Backoff() if reconnect else None)

    def events(self, after: int = 0, *, epoch: str = "", follow: bool = False) -> Updates[EventInfo]:
        """Return the events since the one numbered `after`, as far as they are kept; with `follow`, also new ones.

        Give the `epoch` of that event too if the daemon may have been restarted since: all kept events follow then,
        instead of those with higher numbers.
        """
        return self._watch(watch_events(after, epoch, follow))

    def add_model(
        self,
        name: str,
        path: str | os.PathLike[str],
        settings: Mapping[str, str] | None = None,
        *,
        samples: Samples = (),
        repairs: Wish | None = None,
        timeout: float = 600.0,
    ) -> ModelInfo:
        """Uploads an ONNX file with its external data; `timeout` in seconds, since that may be gigabytes.

        `samples` are what its engines are verified with: pictures as JPEG or PNG files, tensors as *.npz files with an
        array for each input, or folders of them, 32 at most.
        `repairs` are made first: `edged.models.repair.Wish(needed=True)` for those without which it cannot be served.
        """
        return self.upload(Package.of(name, path, settings, samples, repairs), timeout=timeout)

    def upload(self, package: Package, *, timeout: float = 600.0) -> ModelInfo:
        """As `add_model`, of a package that may go to several daemons, also at once."""
        upload = Upload(package)
        read = operations_pb2.ModelStatus.FromString
        send = self._channel.stream_unary(ADD_MODEL, request_serializer=serialize, response_deserializer=read)
        try:
            answer = send(upload, timeout=timeout)
        except grpc.RpcError as error:
            raise upload.failure or from_rpc_error(error, self.target) from None
        return to_struct(answer, ModelInfo)

    def close(self) -> None:
        """Ends the connection, and with it every stream."""
        self._channel.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _watch(self, call: Call[Answer]) -> Updates[Answer]:
        return Updates(self._channel, call, self.target, self.timeout)

    def _ask(self, call: Call[Answer]) -> Answer:
        read = call.kind.FromString
        send = self._channel.unary_unary(call.path, request_serializer=serialize, response_deserializer=read)
        try:
            answer = send(call.request, timeout=self.timeout)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.target) from None
        return call.parse(answer)


class AsyncClient(DaemonCalls, AbstractAsyncContextManager["AsyncClient"]):
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
        self._channel = aio_channel(self.target, credentials, CHANNEL_OPTIONS)

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
        wanted = frame_options(score, iou, max_detections, class_agnostic, region, rotation, options)
        way = sharing(self.target, model, in_loop(self._channel), shared, every_frame)
        maker = FrameMaker(model, camera, wanted, way)
        requests = (
            AsyncFrameRequests(frames, maker, lossless=lossless)
            if isinstance(frames, AsyncIterable)
            else ThreadedRequests(frames, maker, lossless=lossless)
        )
        return AsyncStream(self._channel, requests, self.target, self.timeout)

    def events(self, after: int = 0, *, epoch: str = "", follow: bool = False) -> AsyncUpdates[EventInfo]:
        """As `Client.events`. Call it inside the running event loop."""
        return self._watch(watch_events(after, epoch, follow))

    async def add_model(
        self,
        name: str,
        path: str | os.PathLike[str],
        settings: Mapping[str, str] | None = None,
        *,
        samples: Samples = (),
        repairs: Wish | None = None,
        timeout: float = 600.0,
    ) -> ModelInfo:
        """As `Client.add_model`."""
        upload = Upload(await asyncio.to_thread(Package.of, name, path, settings, samples, repairs))
        read = operations_pb2.ModelStatus.FromString
        send = self._channel.stream_unary(ADD_MODEL, request_serializer=serialize, response_deserializer=read)
        parts = ThreadedIterator(upload)
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
        return to_struct(answer, ModelInfo)

    async def close(self) -> None:
        """Ends the connection, and with it every stream."""
        await self._channel.close()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _watch(self, call: Call[Answer]) -> AsyncUpdates[Answer]:
        return AsyncUpdates(self._channel, call, self.target, self.timeout)

    async def _ask(self, call: Call[Answer]) -> Answer:
        read = call.kind.FromString
        send = self._channel.unary_unary(call.path, request_serializer=serialize, response_deserializer=read)
        try:
            answer = await send(call.request, timeout=self.timeout)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.target) from None
        return call.parse(answer)
