"""The frames of one client's call: what waits, what is out, what comes back in order, and what was skipped.

For every camera of the call: frames put = results delivered + the sum of their `skipped`. At most a few frames of a
camera are under way at a time; while its client does not read, the newest frame waits here and older ones are skipped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Generic, TypeVar

from edged.errors import EdgedError
from edged.serving.slot import Slot
from edged.serving.work import Answered, FrameWork

# One waiting, two in flight, one answered but not yet read by the client.
_UNDER_WAY = 4

Tag = TypeVar("Tag")


@dataclass(frozen=True, slots=True)
class Delivery(Generic[Tag]):
    """One frame's outcome, with what the caller put in as its tag, and the frames skipped since the one before."""

    tag: Tag
    work: FrameWork
    answer: Answered | EdgedError
    skipped: int


@dataclass(frozen=True, slots=True)
class _Entry(Generic[Tag]):
    tag: Tag
    work: FrameWork
    slot: Slot | EdgedError  # where it goes, or why it goes nowhere


class _Camera(Generic[Tag]):
    def __init__(self) -> None:
        self.pending: deque[_Entry[Tag]] = deque()  # offered, in order
        self.held: _Entry[Tag] | None = None  # not offered: the client is behind
        self.unread = 0
        self.skipped = 0

    @property
    def under_way(self) -> int:
        return len(self.pending) + self.unread


class Stream(Generic[Tag]):
    """Used from one event loop; `put` as frames come, iterate for the results, `close` in any case."""

    def __init__(self) -> None:
        self._cameras: dict[str, _Camera[Tag]] = {}
        self._ready: deque[tuple[str, Delivery[Tag]]] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        self._closed = False
        self._failure: BaseException | None = None

    def put(self, camera: str, tag: Tag, work: FrameWork, slot: Slot | EdgedError) -> None:
        """Takes a frame for a slot, or for the error that is its answer. What a slot raises becomes its answer too."""
        state = self._cameras.setdefault(camera, _Camera())
        entry = _Entry(tag, work, slot)
        if state.held is not None or state.under_way >= _UNDER_WAY:
            state.skipped += state.held is not None
            state.held = entry
        else:
            self._offer(camera, state, entry)

    def end(self, failure: BaseException | None = None) -> None:
        """No more frames will come. With a failure, iteration raises it once everything else is delivered."""
        self._ended, self._failure = True, failure
        self._changed.set()

    async def results(self) -> AsyncGenerator[Delivery[Tag], None]:
        """Deliveries as they come, each camera's in order; ends when everything put has been delivered."""
        while True:
            while self._ready:
                camera, delivery = self._ready.popleft()
                yield delivery
                self._read(camera)
            if self._ended and not any(c.pending or c.held for c in self._cameras.values()):
                break
            self._changed.clear()
            await self._changed.wait()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Drops whatever is still under way: the client has gone."""
        self._closed = True
        for camera, state in self._cameras.items():
            for entry in state.pending:
                if isinstance(entry.slot, Slot):
                    entry.slot.withdraw((id(self), camera))
                entry.work.future.cancel()
            state.pending.clear()
            state.held = None

    def _offer(self, camera: str, state: _Camera[Tag], entry: _Entry[Tag]) -> None:
        overtaken = None
        try:
            if isinstance(entry.slot, EdgedError):
                raise entry.slot
            overtaken = entry.slot.offer((id(self), camera), entry.work)
        except EdgedError as error:
            entry.work.future.set_exception(error)
        if overtaken is not None:
            state.skipped += 1
            state.pending = deque(e for e in state.pending if e.work is not overtaken)
            overtaken.future.cancel()
        state.pending.append(entry)
        entry.work.future.add_done_callback(lambda _: self._flush(camera, state))

    def _flush(self, camera: str, state: _Camera[Tag]) -> None:
        """Moves finished frames from the head of the line to where they are read."""
        while state.pending and state.pending[0].work.future.done():
            entry = state.pending.popleft()
            if entry.work.future.cancelled():
                continue
            error = entry.work.future.exception()
            if error is not None and not isinstance(error, EdgedError):
                raise error
            answer = error or entry.work.future.result()
            self._ready.append((camera, Delivery(entry.tag, entry.work, answer, state.skipped)))
            state.skipped, state.unread = 0, state.unread + 1
        self._changed.set()

    def _read(self, camera: str) -> None:
        state = self._cameras[camera]
        state.unread -= 1
        if state.held is not None and state.under_way < _UNDER_WAY and not self._closed:
            entry, state.held = state.held, None
            self._offer(camera, state, entry)
