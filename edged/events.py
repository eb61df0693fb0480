"""Events of the daemon: typed and numbered. The newest are kept, so that a client can catch up after a disconnection.

One event loop writes and reads the events. Sequence numbers begin at 1 in each run of the daemon and have no gaps;
`EventLog.epoch` identifies the run.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import TypeAlias

import msgspec

_KEPT = 4096


class ModelRead(msgspec.Struct, frozen=True, tag="model_read"):
    """A model was read and can be served."""

    digest: str


class ModelRefused(msgspec.Struct, frozen=True, tag="model_refused"):
    """A model on disk cannot be served. `category` and `stage` are those of the finding (`edged.models.finding`); empty
    for a refusal without a finding."""

    reason: str
    category: str = ""
    stage: str = ""


class ModelRemoved(msgspec.Struct, frozen=True, tag="model_removed"):
    """A model was removed from the repository."""


class ModelRepaired(msgspec.Struct, frozen=True, tag="model_repaired"):
    """A model was repaired and added; `steps` is a short list of the steps."""

    digest: str
    original: str
    steps: str


class EngineMoved(msgspec.Struct, frozen=True, tag="engine_state"):
    """An engine changed its state."""

    state: str
    backend: str
    reason: str


class EngineProgress(msgspec.Struct, frozen=True, tag="engine_progress"):
    """Progress of making an engine. `fraction` is the finished share of the step `phase`, 0 to 1, or None if unknown.
    `elapsed_s` is the time so far, `estimate_s` the expected total time."""

    phase: str
    fraction: float | None
    elapsed_s: float
    estimate_s: float | None


class EngineServes(msgspec.Struct, frozen=True, tag="engine_serves"):
    """An engine began to serve its model."""

    backend: str


class EngineEvicted(msgspec.Struct, frozen=True, tag="engine_evicted"):
    """An engine's files were removed, to free space or because of a command."""

    bytes: int
    reason: str


class HostLost(msgspec.Struct, frozen=True, tag="host_lost"):
    """The host of engines or of a language model died or hung."""

    backend: str
    reason: str


class FactChange(msgspec.Struct, frozen=True):
    """One fact about the device that differs; `old` or `new` is empty if the fact is absent."""

    name: str
    old: str
    new: str


class DeviceChanged(msgspec.Struct, frozen=True, tag="device_changed"):
    """Drivers, libraries or hardware changed."""

    changes: tuple[FactChange, ...]


class AlarmRaised(msgspec.Struct, frozen=True, tag="alarm_raised"):
    """An alarm began."""

    alarm: str
    message: str


class AlarmCleared(msgspec.Struct, frozen=True, tag="alarm_cleared"):
    """An alarm ended."""

    alarm: str
    message: str


class CameraMoved(msgspec.Struct, frozen=True, tag="camera_state"):
    """A configured camera began or stopped streaming, was lost, or failed. `state` is its new state."""

    camera: str
    state: str
    reason: str


class ZoneChanged(msgspec.Struct, frozen=True, tag="zone_changed"):
    """A zone of a camera became occupied or free. `file`: the picture or video that was saved; empty if none was."""

    camera: str
    zone: str
    occupied: bool
    file: str


class CollectionStarted(msgspec.Struct, frozen=True, tag="collection_started"):
    """The daemon began to collect `frames` frames for a model, over `over_s` seconds."""

    frames: int
    over_s: float


class CollectionFinished(msgspec.Struct, frozen=True, tag="collection_finished"):
    """The collection of frames for a model ended, with `frames` frames."""

    frames: int


class Described(msgspec.Struct, frozen=True, tag="described"):
    """A language model described what a camera saw, because of a rule of the configuration. The description took
    `seconds`."""

    camera: str
    rule: str
    text: str
    seconds: float


class Commanded(msgspec.Struct, frozen=True, tag="commanded"):
    """An operator ran a command."""

    verb: str


What: TypeAlias = (
    ModelRead
    | ModelRefused
    | ModelRemoved
    | ModelRepaired
    | EngineMoved
    | EngineProgress
    | EngineServes
    | EngineEvicted
    | HostLost
    | DeviceChanged
    | AlarmRaised
    | AlarmCleared
    | CameraMoved
    | ZoneChanged
    | Described
    | CollectionStarted
    | CollectionFinished
    | Commanded
)


class Event(msgspec.Struct, frozen=True):
    """One event. `unix_s` are seconds of the wall clock, which may jump; `sequence` gives the order."""

    sequence: int
    unix_s: float
    model: str
    engine: str
    what: What


class EventLog:
    """Keeps the newest events and passes new ones to its followers."""

    def __init__(self, kept: int = _KEPT) -> None:
        self.epoch = uuid.uuid4().hex[:12]
        self._events: deque[Event] = deque(maxlen=kept)
        self._last = 0
        self._news = asyncio.Event()
        self.hearers: list[Callable[[Event], None]] = []  # called synchronously with each event; must not raise

    @property
    def last(self) -> int:
        """The number of the newest event, 0 before the first."""
        return self._last

    def recent(self, count: int) -> list[Event]:
        """Return the newest `count` events, or all if fewer are kept, the oldest first."""
        return list(itertools.islice(reversed(self._events), count))[::-1]

    def emit(self, what: What, model: str = "", engine: str = "") -> None:
        """Append an event. `model` and `engine` (a key) name the model and the engine that the event is about, if
        any."""
        self._last += 1
        event = Event(self._last, time.time(), model, engine, what)
        self._events.append(event)
        self._news.set()
        for hear in self.hearers:
            hear(event)

    async def follow(self, after: int = 0, epoch: str = "", live: bool = True) -> AsyncGenerator[Event, None]:
        """Yield the kept events with sequence numbers above `after`; then, if `live`, each new event until cancelled.

        If `epoch` identifies another run of the daemon, yield all kept events. A follower that falls behind the oldest
        kept event continues with that event: the sequence numbers show the gap.
        """
        if (epoch and epoch != self.epoch) or after > self._last:
            after = 0
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
