"""Reads the messages of calls so that large ones do not come one right after the other.

gRPC hands a message over by copying it on the event loop: 30 MiB take tens of milliseconds in which no one else is
served. When many have arrived they would all be copied in one turn of the loop. So a client whose last message was
large, or that has sent none so far, waits in a lane; after each large message the lane rests for longer than the copy
took. A client that sends small messages does not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Generator
from typing import Any, Protocol

from edged.ingress.access.budget import LARGE

_REST = 2.0  # times what the copy took
_LONGEST_REST = 0.5  # seconds
_PATIENCE = 0.1  # seconds that a sender of large messages has for the next one before others go first


class Sender:
    """One client, as far as its messages to one method go. `is_light` or `is_heavy` once its last message was small or
    large."""

    __slots__ = ("is_heavy", "is_light")

    def __init__(self) -> None:
        self.is_light = self.is_heavy = False


class Readable(Protocol):
    """A call of gRPC."""

    def read(self) -> Awaitable[Any]: ...


class SlowLane:
    """Those that may be about to get a large message, one after the other. Of one event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._free_at = 0.0

    async def enter(self) -> None:
        """Returns when it is the caller's turn, who then calls `leave`."""
        await self._lock.acquire()
        try:
            if (rest := self._free_at - time.monotonic()) > 0:
                await asyncio.sleep(rest)
        except BaseException:
            self._lock.release()
            raise

    def leave(self, rest: float) -> None:
        """The next has its turn after `rest` seconds."""
        self._free_at = time.monotonic() + min(rest, _LONGEST_REST)
        self._lock.release()


async def read(call: Readable, sender: Sender, lane: SlowLane) -> Any:
    """The next message of a call as bytes; what gRPC gives at its end."""
    return await _Reading(call, sender, lane)


class _Reading:
    """gRPC's coroutine asks for the message, waits until it has come, and copies it when it is resumed. The lane is
    entered before the copy; for a sender of large messages before it is asked for one, because the threads that
    receive it take the processors from the loop."""

    def __init__(self, call: Readable, sender: Sender, lane: SlowLane) -> None:
        self._reads, self._sender, self._lane = call.read(), sender, lane
        self._has_turn = False

    def __await__(self) -> Generator[Any, Any, Any]:
        reads = self._reads.__await__()
        error: BaseException | None = None
        patience: asyncio.TimerHandle | None = None
        if self._sender.is_heavy:
            try:
                yield from self._enter()
            except BaseException as thrown:
                error = thrown
            else:
                patience = asyncio.get_running_loop().call_later(_PATIENCE, self._leave, 0.0)
        try:
            while True:
                began = time.monotonic()
                try:
                    waits_for = next(reads) if error is None else reads.throw(error)
                except BaseException as ended:
                    if patience is not None:
                        patience.cancel()
                    size = (
                        len(ended.value) if isinstance(ended, StopIteration) and isinstance(ended.value, bytes) else 0
                    )
                    if size:
                        self._sender.is_light, self._sender.is_heavy = size < LARGE, size >= LARGE
                    self._leave(_REST * (time.monotonic() - began) if size >= LARGE else 0.0)
                    if isinstance(ended, StopIteration):
                        return ended.value
                    raise
                error = None
                try:
                    yield waits_for
                    if not self._has_turn and not self._sender.is_light:
                        yield from self._enter()
                except BaseException as thrown:
                    if asyncio.isfuture(waits_for) and waits_for.done() and not waits_for.cancelled():
                        self._drop(reads)
                        raise
                    error = thrown
        finally:
            error = None  # its traceback has this frame, which would keep what the callers hold

    def _drop(self, reads: Generator[Any, Any, Any]) -> None:
        """Takes a message that no one wants any more: gRPC frees its memory only when it is handed over."""
        with contextlib.suppress(StopIteration, Exception):
            next(reads)
        reads.close()
        self._leave(0.0)

    def _enter(self) -> Generator[Any, Any, None]:
        yield from self._lane.enter().__await__()
        self._has_turn = True

    def _leave(self, rest: float) -> None:
        if self._has_turn:
            self._has_turn = False
            self._lane.leave(rest)
