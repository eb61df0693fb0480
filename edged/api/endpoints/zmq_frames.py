"""Frames over ZeroMQ, for programs without gRPC: a ROUTER socket, one stream for each peer.

ZeroMQ does not report when a peer disconnects. A peer's stream ends when a result cannot be sent because the peer is
gone, when it has not read its results for a while, or when it was idle for longer. Until then a peer that does not read
costs a few results and one waiting frame, as with gRPC: newer frames replace older ones in its stream.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing
from functools import partial
from pathlib import Path

import zmq

from edged import tasks
from edged.api.auth.identity import ANYONE, Identify, Identity, of_socket
from edged.api.endpoints import result_json, zmq_wire
from edged.api.endpoints.publisher import Publisher
from edged.api.endpoints.result_json import Echo, Fields
from edged.api.endpoints.shared_memory import Segments
from edged.api.endpoints.zmq_socket import BoundSocket, CountedWarnings
from edged.engines.controller import Controller
from edged.errors import EdgedError, InvalidInput, NotReady, Overloaded
from edged.serving.camera import Cameras, StreamOptions
from edged.serving.slot import Slot
from edged.serving.stream import Delivery, SkipReport, Stream
from edged.serving.work import Answered, Blob, FrameWork
from edged.vision.family import Thresholds

_LOG = logging.getLogger("edged.zmq")

_LARGEST = 256 << 20  # bytes of a picture, as with gRPC
_WAITING = 16  # messages in ZeroMQ's queues to and from each peer
_MOST_PEERS = 256
_IDLE_SECONDS = 60.0
_UNREAD_SECONDS = 10.0
_RETRY_SECONDS = 0.02


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
    ) -> None:
        self._controller, self._cameras, self._address, self._publisher = controller, cameras, address, publisher
        self._idle_seconds, self._unread_seconds = idle_seconds, unread_seconds
        self._peers: dict[bytes, _Peer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._stopping = False
        self.warnings = CountedWarnings(_LOG, "zmq frames")

    def start(self) -> str:
        """Listen, and return the address. ConfigError."""
        self._socket = BoundSocket(
            zmq.ROUTER, self._address, "[zmq] frames", self._received, hwm=_WAITING, max_message=_LARGEST
        )
        self._sweeper = tasks.keep("sweeper of ZeroMQ peers", self._sweep)
        return self._socket.address

    async def stop(self, grace: float) -> None:
        """Take no more frames; let those under way finish within `grace` seconds."""
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
        # A REQ socket sends an empty part before its message, and expects it back.
        is_enveloped = len(frames) > 1 and not len(frames[1])
        parts = [frame.buffer for frame in frames[2 if is_enveloped else 1 :]]
        try:
            if self._stopping:
                raise NotReady("the daemon is stopping; send the frame again when it is back")
            message = zmq_wire.parse(parts)
            self._peer(identity, is_enveloped).put(message)
        except EdgedError as error:
            error.with_traceback(None)  # it would keep the image
            self.warnings.warn("refused", str(error))
            envelope = (identity, b"") if is_enveloped else (identity,)
            self._socket.send((*envelope, result_json.encode({"error": result_json.failure(error)})))

    def _peer(self, identity: bytes, is_enveloped: bool) -> _Peer:
        peer = self._peers.get(identity)
        if peer is None:
            if len(self._peers) >= _MOST_PEERS:
                raise Overloaded(f"{len(self._peers)} peers are connected, the maximum")
            envelope = (identity, b"") if is_enveloped else (identity,)
            stream: Stream[Echo] = Stream(self._cameras, self._controller.tracking, lane="zeromq")
            peer = self._peers[identity] = _Peer(self._controller, stream, partial(_client, self._address))
            task = asyncio.create_task(self._serve(identity, envelope, peer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return peer

    async def _serve(self, identity: bytes, envelope: tuple[bytes, ...], peer: _Peer) -> None:
        """Send a peer its results until its stream ends or it is gone."""
        try:
            async with aclosing(peer.stream.results()) as results:
                async for each in results:
                    fields, outputs = self._result(each)
                    if not await self._hand_over((*envelope, result_json.encode(fields), *outputs)):
                        return
        except Exception:
            _LOG.exception("a stream over ZeroMQ failed with an unexpected error")
        finally:
            if self._peers.get(identity) is peer:
                del self._peers[identity]
            peer.close()

    def _result(self, each: Delivery[Echo] | SkipReport) -> tuple[Fields, list[bytes]]:
        """A result as JSON, and the bytes of its raw outputs, which follow it."""
        if isinstance(each, SkipReport):
            return result_json.only_skips(each), []
        fields = result_json.delivered(each.tag, each)
        self._publisher.result(each.tag.model, each.tag.camera, lambda: fields)
        answer = each.answer
        if isinstance(answer, Answered) and answer.detections is None and answer.classes is None:
            return fields, [output.data for output in answer.outputs]
        return fields, []

    async def _hand_over(self, frames: tuple[bytes, ...]) -> bool:
        """Send a result, and return whether the peer took it. A slow peer is given some time, while its stream
        skips."""
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
                if peer.heard < oldest:
                    del self._peers[identity]  # what it sends later begins another stream
                    peer.stream.end()


class _Peer:
    """The stream of one peer, and its shared memory."""

    def __init__(self, controller: Controller, stream: Stream[Echo], client: Identify) -> None:
        self.stream, self._controller = stream, controller
        self.heard = time.monotonic()
        self._segments = Segments(client=client)

    def put(self, message: zmq_wire.Message) -> None:
        """Take a frame; an error in it becomes its result."""
        header = message.header
        self.heard = time.monotonic()
        options: StreamOptions | None = None
        place: Slot | EdgedError
        name = header.model
        try:
            slot = self._controller.slot(name)
            name = slot.model
            options = header.options.checked() if header.options is not None else None
            thresholds = self._thresholds(name)
            work, place = header.work(self._picture(message), thresholds), slot
        except EdgedError as error:
            # Its traceback would keep this message until the garbage collector runs.
            work, place = FrameWork(b""), error.with_traceback(None)
        echo = Echo(header.camera, header.sequence, name, header.captured_unix_ns)
        self.stream.put(
            header.camera,
            echo,
            work,
            place,
            sequence=header.sequence,
            captured_ns=header.captured_unix_ns,
            options=options,
        )

    def close(self) -> None:
        self.stream.close()
        self._segments.close()

    def _picture(self, message: zmq_wire.Message) -> Blob:
        shared = message.header.shared
        if shared is not None:
            return self._segments.picture(shared.segment, shared.offset, shared.stamp, shared.size)
        if not message.data:
            raise InvalidInput("the frame holds no picture; send its bytes after the header")
        return message.data

    def _thresholds(self, name: str) -> Thresholds:
        model = self._controller.find(name).model
        return model.recognition.thresholds if model is not None else Thresholds()


def _client(address: str) -> Identity:
    """The identity of clients at an address."""
    kind, _, path = address.partition("://")
    return of_socket(Path(path)) if kind == "ipc" else ANYONE
