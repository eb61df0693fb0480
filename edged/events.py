"""What happened, in order: typed, numbered, kept for a while, so that a watcher that was away can catch up.

One loop writes and reads. Sequence numbers start at 1 with the daemon and have no gaps.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections import deque
from collections.abc import AsyncGenerator

import msgspec

_KEPT = 4096


class Kind(str, enum.Enum):
    """Everything that is told. `detail` of an event holds the names given here."""

    MODEL_READ = "model_read"  # digest
    MODEL_REFUSED = "model_refused"  # reason
    MODEL_REMOVED = "model_removed"
    ENGINE_STATE = "engine_state"  # state, backend, reason
    ENGINE_SERVES = "engine_serves"  # backend
    HOST_LOST = "host_lost"  # backend, reason
    DEVICE_CHANGED = "device_changed"  # one entry a fact: "old -> new"


class Event(msgspec.Struct, frozen=True):
    """One thing that happened; `unix_s` is the wall clock's seconds, which may jump, `sequence` never does."""

    sequence: int
    unix_s: float
    kind: Kind
    model: str
    engine: str
    detail: dict[str, str]


class EventLog:
    """Keeps the newest events and wakes whoever follows."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._events: deque[Event] = deque(maxlen=kept)
        self._last = 0
        self._news = asyncio.Event()

    def tell(self, kind: Kind, model: str = "", engine: str = "", **detail: str) -> None:
        """Something happened."""
        self._last += 1
        self._events.append(Event(self._last, time.time(), kind, model, engine, detail))
        self._news.set()

    async def follow(self, after: int = 0, live: bool = True) -> AsyncGenerator[Event, None]:
        """Events later than `after`, as far as they are kept; then, if `live`, each as it happens, until cancelled.

        A follower that falls behind by more than is kept goes on with the oldest there is: the numbers show the gap.
        """
        while True:
            for event in [event for event in self._events if event.sequence > after]:
                after = event.sequence
                yield event
            if not live:
                return
            if after < self._last:
                continue
            self._news.clear()
            await self._news.wait()
