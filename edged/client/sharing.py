"""Sends the raw pictures of a stream through shared memory, once the daemon has confirmed that it can read it."""

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
"""Sends a frame to `DetectOne` and calls back with the status, at once or later, from any thread."""

_UNIX = "unix:"


class Sharing:
    """Puts pictures into a ring until `close`. With `required` a picture that cannot be shared raises an error."""

    def __init__(self, target: str, model: str, ask: Ask, *, required: bool = False, slots: int = _SLOTS) -> None:
        self._model, self._ask, self._required, self._slots = model, ask, required, slots
        self._socket = Path(target.removeprefix(_UNIX))
        self._ring: SharedRing | None = None
        self._asked = threading.Event()
        self._problem = "" if is_possible(target) else f"{target} is not a unix socket, or {layout.FOLDER} is missing"
        self._usable = False

    def put(self, image: Pixels) -> pb.SharedImage | None:
        """Return the place of a picture; None if it has to be sent as bytes."""
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
        """Stop sharing if a frame failed since the daemon, perhaps a new one, cannot read it."""
        if code == grpc.StatusCode.FAILED_PRECONDITION.name and self._usable:
            self._problem = "the daemon cannot read it any more"

    def close(self) -> None:
        self._problem = self._problem or "the stream is over"
        if self._ring is not None:
            self._ring.close()

    def _offer(self, size: int) -> None:
        """Send an empty picture in a new segment: the status says whether the daemon could open the segment."""
        try:
            self._ring = SharedRing(self._slots, size, group=readers_group(self._socket))
        except (EdgedError, OSError) as error:
            self._problem = str(error)
            return
        nothing = pb.SharedImage(segment=self._ring.segment, offset=0, stamp=1, size=0)
        self._ask(pb.Frame(model=self._model, shared=nothing), self._settle)

    def _settle(self, status: grpc.StatusCode | None) -> None:
        """Take the status of the empty picture: INVALID_ARGUMENT if the daemon has read it."""
        self._usable = status is grpc.StatusCode.INVALID_ARGUMENT
        if not self._usable:
            self._problem = "it does not read them"
            if self._ring is not None:
                self._ring.close()


def is_possible(target: str) -> bool:
    """Whether the target is a unix socket and this machine has shared memory."""
    return target.startswith(_UNIX) and layout.FOLDER.is_dir()


def sharing(target: str, model: str, ask: Ask, shared: bool | None, every_frame: bool = False) -> Sharing | None:
    """Make it for a stream's argument `shared`: None shares if possible, True insists, False never does. A stream with
    `every_frame` does not share: many frames may wait, and the ring would be too short."""
    if shared and every_frame:
        raise InvalidInput("shared=True and every_frame=True exclude each other; leave out one of them")
    if shared is None:
        return Sharing(target, model, ask) if is_possible(target) and not every_frame else None
    if shared and not is_possible(target):
        raise InvalidInput(f"pictures cannot be shared with {target}: not a unix socket; leave out shared=True")
    return Sharing(target, model, ask, required=True) if shared else None


def blocking(channel: grpc.Channel) -> Ask:
    """For a stream whose frames leave from a thread: it waits for the daemon's answer."""

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
    """For a stream of the running event loop: until the daemon has answered, frames leave as bytes."""
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
