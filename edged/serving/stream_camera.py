"""One camera of one client's call: its frames in flight, its options, and its skipped frames."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from edged.errors import EdgedError, InvalidInput
from edged.serving.camera import CameraRecord, Cameras, Limit, StreamOptions
from edged.serving.sound import AnySlot
from edged.serving.taps import Copy
from edged.serving.work import FrameWork

# Why a frame is skipped. Reasons found when the frame's turn comes are in subclasses of `errors.FrameSkipped`.
OVERTAKEN = "overtaken"
RATE = "rate"
FULL = "full"
_SEVERAL = "several"
_MOST_RUNS = 256


class Skips(msgspec.Struct, frozen=True):
    """A run of successive frames that were skipped for the same reason; `first` and `last` are the client's numbers."""

    first: int
    last: int
    count: int
    reason: str


class SkipLedger:
    """The skipped frames of a camera that have not been reported."""

    def __init__(self) -> None:
        self._runs: list[Skips] = []
        self._last = -1  # the place, among all frames of the camera, of the frame that was added last

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, place: int, sequence: int, reason: str) -> None:
        """Add a skipped frame. `place` is its number among the camera's frames, `sequence` the client's number of
        it."""
        run = self._runs[-1] if self._runs else None
        if run is not None and run.reason == reason and place == self._last + 1:
            self._runs[-1] = Skips(run.first, sequence, run.count + 1, reason)
        else:
            self._runs.append(Skips(sequence, sequence, 1, reason))
            if len(self._runs) > _MOST_RUNS:  # nothing has been reported for a long time
                first, second = self._runs[:2]
                self._runs[:2] = [Skips(first.first, second.last, first.count + second.count, _SEVERAL)]
        self._last = place

    def take(self) -> tuple[Skips, ...]:
        """Return and remove all runs; they count as reported."""
        runs, self._runs = tuple(self._runs), []
        return runs


# Frames of a camera: one waits, two are in a host with one instance, one is answered but not yet accepted by the
# connection.
_IN_FLIGHT = 4
# The same in mode every_frame: enough to keep an engine with batches busy, few enough to add little delay.
EVERY_IN_FLIGHT = 16
_LONGEST_ID = 200  # characters: people read ids in a table

Tag = TypeVar("Tag")


def check_camera(name: str) -> None:
    """Raise InvalidInput for an invalid name of a camera."""
    if len(name) > _LONGEST_ID or not name.isprintable():
        raise InvalidInput(f"invalid camera id {name[:40]!r}: use at most {_LONGEST_ID} printable characters")


@dataclass(slots=True, eq=False)
class Entry(Generic[Tag]):
    """A frame that was put into the stream."""

    tag: Tag
    work: FrameWork
    slot: AnySlot | EdgedError  # answers the frame, or is the error that answers it
    place: int  # among all frames of its camera
    sequence: int
    captured_ns: int
    received_ns: int
    record: CameraRecord | None
    ids: asyncio.Future[tuple[int, ...]] | None = None
    copy: Copy | None = None  # for taps

    @property
    def captured(self) -> float:
        """Seconds since the epoch at capture, or at receipt if the capture time is unknown."""
        return (self.captured_ns if self.captured_ns > 0 else self.received_ns) / 1e9

    def drop(self) -> None:
        """Cancel the frame and count it as dropped: its stream has ended."""
        self.work.future.cancel()
        if self.record is not None:
            self.record.dropped += 1


@dataclass(slots=True, eq=False)
class StreamCamera(Generic[Tag]):
    """One camera of a stream; `connection` is that stream."""

    name: str
    connection: object
    options: StreamOptions = field(default_factory=StreamOptions)
    limit: Limit = field(default_factory=lambda: Limit(0))
    pending: deque[Entry[Tag]] = field(default_factory=deque)  # offered, in order
    held: Entry[Tag] | None = None  # the newest frame, not offered while too many others are in flight
    unread: int = 0
    places: int = 0
    skips: SkipLedger = field(default_factory=SkipLedger)
    reporting: asyncio.TimerHandle | None = None
    records: dict[str, CameraRecord] = field(default_factory=dict)  # by model
    tracks: dict[str, Hashable] = field(default_factory=dict)  # the connection's own keys of tracks, by model

    def __post_init__(self) -> None:
        check_camera(self.name)

    @property
    def queue_key(self) -> Hashable:
        """The key of the camera's queue in a slot. If two calls use the same camera id, each has its own queue."""
        return id(self.connection), self.name

    @property
    def in_flight(self) -> int:
        return len(self.pending) + self.unread

    @property
    def is_full(self) -> bool:
        return self.in_flight >= (_IN_FLIGHT if self.options.mode == "freshest" else EVERY_IN_FLIGHT)

    def adopt(self, options: StreamOptions) -> None:
        """Apply options from the next frame on."""
        if options.max_fps != self.options.max_fps:
            self.limit = Limit(options.max_fps)
        self.options = options

    def record(self, slot: AnySlot | EdgedError, known: Cameras, protocol: str) -> CameraRecord | None:
        """Return the record that counts a frame for a slot. A frame without a slot counts for the latest model. Return
        None if there is no model yet."""
        if isinstance(slot, EdgedError):
            return next(reversed(self.records.values()), None)
        record = self.records.get(slot.model)
        if record is None:
            record = self.records[slot.model] = known.connect(self.name, slot.model, protocol)
        return record

    def tracks_of(self, record: CameraRecord) -> Hashable:
        """Return the key of the tracks that this connection's frames continue. The newest connection continues the
        camera's tracks, because a lost connection may look alive for hours. Other connections get separate keys,
        because frames from two connections would break each other's tracks."""
        if record.model not in self.tracks:
            self.tracks[record.model] = (record.camera, record.model, id(self.connection))
            record.tracked_by = self.connection
        return (record.camera, record.model) if record.tracked_by is self.connection else self.tracks[record.model]

    def leave(self, known: Cameras) -> None:
        """Remove the connection from the records."""
        for record in self.records.values():
            if record.tracked_by is self.connection:
                record.tracked_by = None
            known.disconnect(record)
