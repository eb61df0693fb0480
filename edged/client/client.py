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
    """A connection to one daemon; threads may share it.

    `target` is `unix:/path`, `/path`, `host:port` or `:port`, with `tls:` in front for TLS; None means EDGED_TARGET,
    else the daemon's default socket. `timeout` is the longest that one call may take, in seconds; in a stream, the
    longest that frames may wait without any answer. `credentials` are a CA, a certificate or a token, or those of gRPC;
    None reads them from the environment, see `edged.client.credentials`.

    Every method raises an `edged.errors.EdgedError` with a one-line message: NotReady if no daemon answers.
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
        """Send frames of one camera as they come; iterate over the results as they come.

        The daemon answers the newest frame and counts the frames that it skipped for it. With `every_frame` it queues
        and answers all; with `lossless` the next frame is taken from `frames` only after the last was answered. A frame
        that fails is a Result with `error` set, and the stream goes on.

        The daemon takes at most `max_fps` frames a second (0: all) and none that is older than `max_staleness` seconds
        when its turn comes (0: any). `weight` is the camera's share of the engine relative to other cameras of the
        model; those with a higher `priority`, -100 to 100, always go first. `track` gives detections a `tracker_id`.
        The thresholds, `region` and `rotation` are as in `infer`.

        Arrays go through shared memory if the daemon is behind a unix socket and can read it, otherwise as bytes:
        `shared` False always sends bytes, as does `every_frame`; True raises SegmentUnusable instead. A frame whose
        place was overwritten before its turn counts as skipped.

        With `reconnect` the stream survives a daemon that goes away after it has answered once: it calls again after
        1, 5, 10, then every 60 seconds, and goes on counting frames; those in flight count as failed. Otherwise that
        raises NotReady.
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
        """Upload an ONNX file with its external data; `timeout` in seconds, since that may be gigabytes.

        Engines are verified with `samples`: pictures as JPEG or PNG files, tensors as *.npz files with an array for
        each input, or folders of them, 32 at most. `repairs` are made first:
        `edged.models.repair.Wish(needed=True)` for those without which the model cannot be served.
        """
        return self.upload(Package.of(name, path, settings, samples, repairs), timeout=timeout)

    def upload(self, package: Package, *, timeout: float = 600.0) -> ModelInfo:
        """Upload a package; it may go to several daemons, also at the same time."""
        upload = Upload(package)
        read = operations_pb2.ModelStatus.FromString
        send = self._channel.stream_unary(ADD_MODEL, request_serializer=serialize, response_deserializer=read)
        try:
            answer = send(upload, timeout=timeout)
        except grpc.RpcError as error:
            raise upload.failure or from_rpc_error(error, self.target) from None
        return to_struct(answer, ModelInfo)

    def close(self) -> None:
        """Close the connection, and with it every stream."""
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
    """A connection to one daemon for one event loop; arguments and errors as in `Client`."""

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
        """As `Client.stream`, without `reconnect`; a thread pulls an ordinary iterable.

        Call it inside the running event loop and close what it returns: `async with client.stream(...)`.
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
        """Close the connection, and with it every stream."""
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
