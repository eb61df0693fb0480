"""Whether the raw pictures of a stream go through shared memory: only once the daemon has said that it can read them,
so that no frame is lost in finding out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import grpc
from grpc import aio

from edged import shared_layout as layout
from edged.client.shared import Pixels, SharedRing, readers_group
from edged.errors import EdgedError, InvalidInput, OutOfSpace, SegmentUnusable
from edged.proto import cameras_pb2 as pb

_DETECT_ONE = "/edged.v1.Cameras/DetectOne"
_PATIENCE_S = 2.0
_SLOTS = 5  # one is written, some are on their way, one waits for an engine, one for the client to read

Settle: TypeAlias = Callable[["grpc.StatusCode | None"], None]
Ask: TypeAlias = Callable[[pb.Frame, Settle], None]
"""Sends a frame to `DetectOne`, and calls back with the status: at once, or later, from any thread."""

_UNIX = "unix:"


class Sharing:
    """`put` until `close`. With `required` a picture that cannot be shared is an error instead of being sent."""

    def __init__(self, target: str, model: str, ask: Ask, *, required: bool = False, slots: int = _SLOTS) -> None:
        self._model, self._ask, self._required, self._slots = model, ask, required, slots
        self._socket = Path(target.removeprefix(_UNIX))
        self._ring: SharedRing | None = None
        self._asked = threading.Event()
        self._problem = "" if is_possible(target) else f"{target} is no unix socket, or {layout.FOLDER} is not there"
        self._usable = False

    def put(self, image: Pixels) -> pb.SharedImage | None:
        """Where the picture was put; None where it has to be sent as bytes."""
        if not self._problem and not self._asked.is_set():
            self._asked.set()
            self._offer(image.nbytes)
        if self._problem and self._required:
            raise SegmentUnusable(f"pictures cannot be shared with the daemon: {self._problem}")
        if not self._usable or self._ring is None or self._problem:
            return None
        try:
            place = self._ring.put(image)
        except (OutOfSpace, OSError) as error:
            self._problem = str(error)
            return self.put(image)
        return pb.SharedImage(segment=place.segment, offset=place.offset, stamp=place.stamp, size=place.size)

    def on_error(self, code: str) -> None:
        """A frame was answered by an error. Another daemon than the one that was asked may not be able to read."""
        if code == grpc.StatusCode.FAILED_PRECONDITION.name and self._usable:
            self._problem = "the daemon cannot read it any more"

    def close(self) -> None:
        self._problem = self._problem or "the stream is over"
        if self._ring is not None:
            self._ring.close()

    def _offer(self, size: int) -> None:
        """Announces nothing, in a segment that is there: the daemon says which of the two it minds."""
        try:
            self._ring = SharedRing(self._slots, size, group=readers_group(self._socket))
        except (EdgedError, OSError) as error:
            self._problem = str(error)
            return
        nothing = pb.SharedImage(segment=self._ring.segment, offset=0, stamp=1, size=0)
        self._ask(pb.Frame(model=self._model, shared=nothing), self._settle)

    def _settle(self, status: grpc.StatusCode | None) -> None:
        """With the status of what announced nothing; None or OK would be somebody else's answer."""
        self._usable = status is grpc.StatusCode.INVALID_ARGUMENT
        if not self._usable:
            self._problem = "it does not read them"
            if self._ring is not None:
                self._ring.close()


def is_possible(target: str) -> bool:
    """Whether the daemon is on this machine as far as its address tells, and there is shared memory."""
    return target.startswith(_UNIX) and layout.FOLDER.is_dir()


def sharing(target: str, model: str, ask: Ask, shared: bool | None, every_frame: bool = False) -> Sharing | None:
    """For the argument `shared` of a stream: None shares where that works, True insists, False never does. A stream of
    which every frame is to be answered does not share: many may wait, and the ring would be too short."""
    if shared and every_frame:
        raise InvalidInput("shared=True and every_frame=True exclude each other; leave out one of them")
    if shared is None:
        return Sharing(target, model, ask) if is_possible(target) and not every_frame else None
    if shared and not is_possible(target):
        raise InvalidInput(f"pictures cannot be shared with {target}: it is no unix socket; leave out shared=True")
    return Sharing(target, model, ask, required=True) if shared else None


def blocking(channel: grpc.Channel) -> Ask:
    """For a stream whose frames leave from a thread of their own: nothing leaves before the daemon has answered."""

    def ask(frame: pb.Frame, settle: Settle) -> None:
        send: Any = channel.unary_unary(_DETECT_ONE, request_serializer=_serialize)
        try:
            send(frame, timeout=_PATIENCE_S)
        except grpc.RpcError as error:
            settle(error.code())
        else:
            settle(None)

    return ask


def in_loop(channel: aio.Channel) -> Ask:
    """For a stream of an event loop, to be made in it: until the daemon has answered, frames leave as bytes."""
    loop = asyncio.get_running_loop()
    asking: set[asyncio.Task[None]] = set()

    async def send(frame: pb.Frame, settle: Settle) -> None:
        call: Any = channel.unary_unary(_DETECT_ONE, request_serializer=_serialize)(frame, timeout=_PATIENCE_S)
        settle(await call.code())

    def begin(frame: pb.Frame, settle: Settle) -> None:
        task = loop.create_task(send(frame, settle))
        asking.add(task)
        task.add_done_callback(asking.discard)

    def ask(frame: pb.Frame, settle: Settle) -> None:
        loop.call_soon_threadsafe(begin, frame, settle)

    return ask


def _serialize(frame: pb.Frame) -> bytes:
    return frame.SerializeToString()
