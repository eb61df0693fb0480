"""Frames over ZeroMQ, for programs without gRPC: a ROUTER socket, one stream for each peer.

A message begins with a JSON header. The picture's bytes follow the header, or are in shared memory. A header with
unknown keys is refused.

ZeroMQ does not report when a peer disconnects. A peer's stream ends if a result cannot reach the peer, if the peer does
not read its results for 10 seconds, or if the peer sends no frame for a minute. Until then, a peer that does not read
occupies memory for a few results and for the frames that wait. In mode `freshest`, one frame of each camera waits,
because a newer frame replaces it, as with gRPC. In mode `every_frame`, the number of frames of a camera is limited.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import zmq

from edged import tasks
from edged.api.auth.identity import ANYONE, Identify, Identity, of_socket
from edged.api.endpoints import publisher as results
from edged.api.endpoints.publisher import Echo, Fields, Publisher
from edged.api.endpoints.shared_memory import Segments
from edged.api.endpoints.zmq_socket import BoundSocket, CountedWarnings
from edged.api.grpc.cameras import thresholds_of
from edged.decoding import explain
from edged.engines.controller import Controller
from edged.errors import EdgedError, InvalidInput, NotReady, Overloaded
from edged.files import NOT_JSON
from edged.serving.camera import Cameras, Mode, StreamOptions
from edged.serving.pipeline_slot import FrameSlot
from edged.serving.stream import Delivery, SkipReport, Stream
from edged.serving.work import Answered, Blob, FrameWork
from edged.vision.family import Thresholds
from edged.vision.placement import Region, Roi

_LOG = logging.getLogger("edged.zmq")

_LARGEST = 256 << 20  # limit of a picture, in bytes, as with gRPC
_LONGEST_HEADER = 1 << 16
_WAITING = 16  # limit of messages in each of ZeroMQ's queues to and from a peer
_MOST_PEERS = 256
_IDLE_SECONDS = 60.0
_UNREAD_SECONDS = 10.0
_RETRY_SECONDS = 0.02

_Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Limits(_Strict, frozen=True):
    """Thresholds, as in `edged.v1.Thresholds`; None keeps the model's value."""

    score: _Share | None = None
    iou: _Share | None = None
    max_detections: Annotated[int, msgspec.Meta(ge=1, lt=1 << 32)] | None = None
    class_agnostic: bool | None = None


class Area(_Strict, frozen=True):
    """A part of the picture, in pixels of the picture; a width or height of 0 means up to the edge."""

    x: _Size = 0
    y: _Size = 0
    width: _Size = 0
    height: _Size = 0


class Options(_Strict, frozen=True):
    """Options of a stream, as in `edged.v1.StreamOptions`."""

    mode: Mode = "freshest"
    max_fps: float = 0.0
    max_staleness_ms: float = 0.0
    weight: float = 0.0
    priority: int = 0
    track: bool = False

    def checked(self) -> StreamOptions:
        staleness = self.max_staleness_ms / 1e3
        return StreamOptions.checked(self.mode, self.max_fps, staleness, self.weight, self.priority, self.track)


class Shared(_Strict, frozen=True):
    """The place of a picture in shared memory, as in `edged.v1.SharedImage`; the header of the frame has the picture's
    format, width, height and stride."""

    segment: str
    offset: _Count
    stamp: Annotated[int, msgspec.Meta(ge=0)]
    size: _Count


class Header(_Strict, frozen=True):
    """The header of a frame, as in `edged.v1.Frame`. `format` is empty for encoded pictures such as JPEG; for raw
    pixels, width, height and stride are as in RawImage."""

    camera: str = ""
    sequence: _Count = 0
    model: str = ""
    captured_unix_ns: _Count = 0
    format: Literal["", "bgr", "rgb", "gray", "nv12", "i420"] = ""
    width: _Size = 0
    height: _Size = 0
    stride: _Size = 0
    thresholds: Limits | None = None
    region: Area | None = None
    rotation: Literal[0, 90, 180, 270] = 0
    options: Options | None = None
    shared: Shared | None = None

    def work(self, picture: Blob, thresholds: Thresholds | None) -> FrameWork:
        """Return the work for the frame. If `thresholds` is None, the model's own thresholds apply."""
        area = self.region
        region = None if area is None else Region(area.x, area.y, area.width, area.height)
        roi = Roi(region, self.rotation) if region is not None or self.rotation else None
        return FrameWork(picture, self.format, self.width, self.height, self.stride, thresholds=thresholds, roi=roi)


class Message(msgspec.Struct, frozen=True):
    """One message: the header, and the picture's bytes after it. `data` is None for a picture in shared memory."""

    header: Header
    data: memoryview | None


_decoder = msgspec.json.Decoder(Header)


def parse(frames: Sequence[memoryview]) -> Message:
    """Parse a message. Raises InvalidInput."""
    if not 1 <= len(frames) <= 2:
        raise InvalidInput(f"the message has {len(frames)} parts; send a JSON header, then the picture's bytes")
    if len(frames[0]) > _LONGEST_HEADER:
        raise InvalidInput(f"the frame's header has {len(frames[0])} bytes; send at most {_LONGEST_HEADER}")
    try:
        header = _decoder.decode(frames[0])
    except NOT_JSON as error:
        raise InvalidInput(f"the frame's header cannot be used: {explain(error)}") from None
    data = frames[1] if len(frames) == 2 else None
    if (data is None) == (header.shared is None):
        raise InvalidInput(
            "the frame must have exactly one picture; send the picture's bytes after the header, or set 'shared'"
        )
    return Message(header, data)


class FrameEndpoint:
    """Answers frames from `start` until `stop`."""

    def __init__(
        self,
        controller: Controller,
        cameras: Cameras,
        address: str,
        publisher: Publisher,
        *,
        idle_seconds: float = _IDLE_SECONDS,
        unread_seconds: float = _UNREAD_SECONDS,
        most_peers: int = _MOST_PEERS,
    ) -> None:
        self._controller, self._cameras, self._address, self._publisher = controller, cameras, address, publisher
        self._idle_seconds, self._unread_seconds, self._most_peers = idle_seconds, unread_seconds, most_peers
        self._peers: dict[bytes, _Peer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._stopping = False
        self.warnings = CountedWarnings(_LOG, "frames over ZeroMQ")

    def start(self) -> str:
        """Listen, and return the address. Raises ConfigError."""
        self._socket = BoundSocket(
            zmq.ROUTER, self._address, "[zmq] frames", self._received, hwm=_WAITING, max_message=_LARGEST
        )
        self._sweeper = tasks.keep("sweeper of ZeroMQ peers", self._sweep)
        return self._socket.address

    async def stop(self, grace: float) -> None:
        """Accept no more frames; let running frames finish within `grace` seconds."""
        self._stopping = True
        if self._sweeper is None:
            return
        self._sweeper.cancel()
        for peer in self._peers.values():
            peer.stream.end()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(self._sweeper, *self._tasks, return_exceptions=True)
        self._socket.close()

    @property
    def peers(self) -> int:
        """The number of peers with a stream."""
        return len(self._peers)

    def _received(self, frames: list[zmq.Frame]) -> None:
        identity = frames[0].bytes
        # A REQ socket sends an empty part before its message, and expects one before the answer.
        envelope = (identity, b"") if len(frames) > 1 and not len(frames[1]) else (identity,)
        parts = [frame.buffer for frame in frames[len(envelope) :]]
        try:
            if self._stopping:
                raise NotReady("the daemon is stopping; send the frame again when it is back")
            message = parse(parts)
            self._peer(envelope).put(message)
        except EdgedError as error:
            error.with_traceback(None)  # the traceback would keep the picture in memory
            self.warnings.warn("refused", str(error))
            self._socket.send((*envelope, results.encode({"error": results.failure(error)})))

    def _peer(self, envelope: tuple[bytes, ...]) -> _Peer:
        peer = self._peers.get(envelope[0])
        if peer is None:
            if len(self._peers) >= self._most_peers:
                raise Overloaded(f"{len(self._peers)} peers are connected, the maximum; disconnect others first")
            stream: Stream[Echo] = Stream(self._cameras, self._controller.tracking, protocol="zeromq")
            peer = self._peers[envelope[0]] = _Peer(self._controller, stream, partial(_client, self._address))
            task = asyncio.create_task(self._serve(envelope, peer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return peer

    async def _serve(self, envelope: tuple[bytes, ...], peer: _Peer) -> None:
        """Send a peer its results until its stream ends or a result cannot be sent."""
        try:
            async with aclosing(peer.stream.results()) as found:
                async for each in found:
                    fields, outputs = self._result(each)
                    if not await self._hand_over((*envelope, results.encode(fields), *outputs)):
                        return
        except Exception:
            _LOG.exception("the stream of a peer at %s ended because of an unexpected error", self._address)
        finally:
            if self._peers.get(envelope[0]) is peer:
                del self._peers[envelope[0]]
            peer.close()

    def _result(self, each: Delivery[Echo] | SkipReport) -> tuple[Fields, list[bytes]]:
        """Return the fields of a result, and the bytes of its raw outputs, which follow the JSON."""
        if isinstance(each, SkipReport):
            return results.only_skips(each), []
        fields = results.delivered(each.tag, each)
        self._publisher.result(each.tag.model, each.tag.camera, lambda: fields)
        answer = each.answer
        if isinstance(answer, Answered) and answer.detections is None and answer.content is None:
            return fields, [output.data for output in answer.outputs]
        return fields, []

    async def _hand_over(self, frames: tuple[bytes, ...]) -> bool:
        """Send a result, and return whether it was sent. If the peer does not read, wait up to `unread_seconds`; the
        peer's stream skips frames meanwhile."""
        give_up = time.monotonic() + self._unread_seconds
        while True:
            sent = self._socket.send(frames)
            if sent is not None:
                if not sent:
                    self.warnings.counts["gone"] += 1
                return sent
            if time.monotonic() > give_up:
                seconds = f"{self._unread_seconds:g} s"
                self.warnings.warn("unread", f"a peer has not read its results for {seconds}; ending its stream")
                return False
            await asyncio.sleep(_RETRY_SECONDS)

    async def _sweep(self) -> None:
        """End the streams of idle peers."""
        while True:
            await asyncio.sleep(self._idle_seconds / 4)
            oldest = time.monotonic() - self._idle_seconds
            for identity, peer in list(self._peers.items()):
                if peer.last_frame < oldest:
                    del self._peers[identity]  # a later message begins another stream
                    peer.stream.end()


class _Peer:
    """The stream of one peer, and its shared memory."""

    def __init__(self, controller: Controller, stream: Stream[Echo], client: Identify) -> None:
        self.stream, self._controller = stream, controller
        self.last_frame = time.monotonic()
        self._segments = Segments(client=client)

    def put(self, message: Message) -> None:
        """Put a frame into the stream; if the frame has an error, the error becomes its result."""
        header, name = message.header, message.header.model
        self.last_frame = time.monotonic()
        options: StreamOptions | None = None
        place: FrameSlot | EdgedError
        try:
            slot = self._controller.slot(name)
            name = slot.model
            options = header.options.checked() if header.options is not None else None
            thresholds = None
            if header.thresholds is not None:
                limits = msgspec.structs.asdict(header.thresholds)
                given = {key: value for key, value in limits.items() if value is not None}
                thresholds = thresholds_of(self._controller, name, given)
            work, place = header.work(self._picture(message), thresholds), slot
        except EdgedError as error:
            # The traceback would keep this message until the garbage collector runs.
            work, place = FrameWork(b""), error.with_traceback(None)
        captured_ns = header.captured_unix_ns
        echo = Echo(header.camera, header.sequence, name, captured_ns)
        self.stream.put(
            header.camera, echo, work, place, sequence=header.sequence, captured_ns=captured_ns, options=options
        )

    def close(self) -> None:
        self.stream.close()
        self._segments.close()

    def _picture(self, message: Message) -> Blob:
        shared = message.header.shared
        if shared is not None:
            return self._segments.picture(shared.segment, shared.offset, shared.stamp, shared.size)
        if not message.data:
            raise InvalidInput("the frame holds no picture; send its bytes after the header")
        return message.data


def _client(address: str) -> Identity:
    """Return the identity of clients at an address."""
    kind, _, path = address.partition("://")
    return of_socket(Path(path)) if kind == "ipc" else ANYONE
