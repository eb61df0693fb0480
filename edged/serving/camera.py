"""Keeps counts, rates, frame ages and the last error of each camera that sends frames. Operators see these values.

The id of a camera and its model identify a record, so counts survive a reconnection. A record is dropped ten minutes
after the last connection of its camera ends.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from typing import Literal, TypeAlias

import msgspec

from edged.api_types import CameraInfo
from edged.errors import InvalidInput
from edged.serving.schedule import Share
from edged.serving.statistics import Histogram
from edged.serving.taps import Tap

_WINDOW = 10.0  # seconds
_KEPT = 1024


class Rate:
    """Measures events per second over the last ten seconds. `add` costs one append."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_KEPT)

    def add(self, now: float) -> None:
        self._times.append(now)

    def per_second(self, now: float) -> float:
        """Return the rate; 0 if fewer than two events happened in the last ten seconds."""
        recent = [time for time in self._times if now - time <= _WINDOW]
        if len(recent) < 2 or recent[-1] <= recent[0]:
            return 0.0
        gap = (recent[-1] - recent[0]) / (len(recent) - 1)
        # Silence that is longer than the mean gap counts too, so that the rate falls when a camera stops.
        return (len(recent) - 1) / max(recent[-1] - recent[0], now - recent[0] - gap)


class Limit:
    """Admits at most `per_second` events a second on average (0: no limit). After a late event, the next event is
    admitted even if it is up to one period early."""

    def __init__(self, per_second: float) -> None:
        self._period = 1 / per_second if per_second > 0 else 0.0
        self._due: float | None = None

    def admits(self, now: float) -> bool:
        """Whether to admit an event at `now` (seconds). An admitted event counts towards the limit."""
        if not self._period:
            return True
        if self._due is not None and now < self._due:
            return False
        # The next event may be early by up to one missed period, so irregular frames still reach the rate.
        self._due = (now if self._due is None else max(self._due, now - self._period)) + self._period
        return True


Mode: TypeAlias = Literal["freshest", "every_frame"]

_MOST_FPS = 1_000_000
_WEIGHTS = (0.01, 100.0)
_PRIORITIES = (-100, 100)


class StreamOptions(msgspec.Struct, frozen=True):
    """Options of one camera. In mode `freshest`, one frame waits, and a newer frame replaces it. In mode `every_frame`,
    all frames are answered in order.

    max_fps: the largest number of frames per second that are inferred, 0 for no limit. max_staleness: frames older than
    this many seconds are skipped, 0 for no limit. The clocks of client and box must then be synchronised. share: the
    camera's share of the engine. track: whether detections get ids that follow objects from frame to frame.
    """

    mode: Mode = "freshest"
    max_fps: float = 0.0
    max_staleness: float = 0.0
    share: Share = Share()
    track: bool = False

    @classmethod
    def checked(
        cls,
        mode: Mode = "freshest",
        max_fps: float = 0.0,
        max_staleness: float = 0.0,
        weight: float = 0.0,
        priority: int = 0,
        track: bool = False,
    ) -> StreamOptions:
        """Return the options that a client set. A weight of 0 means 1. Raises InvalidInput if a value is out of
        range."""
        weight = weight or 1.0
        if not 0 <= max_fps <= _MOST_FPS:  # false for NaN
            raise InvalidInput(f"max_fps={max_fps:g} must be between 0 (no limit) and {_MOST_FPS}")
        if not 0 <= max_staleness < math.inf:  # clients send it as max_staleness_ms
            raise InvalidInput(f"max_staleness_ms={max_staleness * 1e3:g} must be 0 (no limit) or more")
        if not _WEIGHTS[0] <= weight <= _WEIGHTS[1]:
            raise InvalidInput(f"weight={weight:g} must be between {_WEIGHTS[0]:g} and {_WEIGHTS[1]:g}")
        if not _PRIORITIES[0] <= priority <= _PRIORITIES[1]:
            raise InvalidInput(f"priority={priority} must be between {_PRIORITIES[0]} and {_PRIORITIES[1]}")
        return cls(mode, max_fps, max_staleness, Share(weight, priority), track)


_AGES = 512
_FORGET_SECONDS = 600.0
_LONGEST_ERROR = 400  # characters
_MOST = 1024  # records: clients choose the ids, so the number is not limited otherwise


class CameraRecord:
    """The counts of one camera: received = answered + failed + skipped + dropped + in flight."""

    def __init__(self, camera: str, model: str) -> None:
        self.camera, self.model = camera, model
        self.protocol = ""  # of the newest connection
        self.connections = 0
        self.received = self.answered = self.failed = self.dropped = 0
        self.skipped: Counter[str] = Counter()
        self.options = StreamOptions()
        self.width = self.height = 0
        self.last_error, self.last_error_unix_s = "", 0.0
        self.last_frame_unix_s = 0.0
        self.tracked_by: object = None  # the connection that continues its tracks
        self.seen = time.monotonic()  # when its last frame came or its last connection ended
        self._ages: deque[float] = deque(maxlen=_AGES)
        self.age_seconds = Histogram()
        self._arrivals, self._answers = Rate(), Rate()

    def receive(self, now: float, unix_ns: int) -> None:
        """Count a frame that was received."""
        self.received += 1
        self.seen = now
        self.last_frame_unix_s = unix_ns / 1e9
        self._arrivals.add(now)

    def answer(self, now: float, age_ms: float, width: int, height: int) -> None:
        """Count a frame that was answered `age_ms` after its capture."""
        self.answered += 1
        self._answers.add(now)
        self._ages.append(age_ms)
        self.age_seconds.add(age_ms / 1e3)
        self.width, self.height = width, height

    def fail(self, message: str, unix_s: float) -> None:
        """Count a frame that was answered with an error, and record the error's message."""
        self.failed += 1
        self.last_error, self.last_error_unix_s = message[:_LONGEST_ERROR], unix_s

    def note_old_frame(self, age: float, unix_s: float) -> None:
        """Set `last_error` to the message that a frame was `age` seconds old on arrival. The operator then sees why
        frames are skipped."""
        self.last_error = f"a frame was too old on arrival, {age:.4g} s after its capture; check the camera's clock"
        self.last_error_unix_s = unix_s

    def report(self, now: float) -> CameraInfo:
        """Return the current state of the camera."""
        ages = sorted(self._ages)
        return CameraInfo(
            camera=self.camera,
            model=self.model,
            protocol=self.protocol,
            connections=self.connections,
            received=self.received,
            answered=self.answered,
            failed=self.failed,
            dropped=self.dropped,
            skipped=dict(self.skipped),
            fps_in=self._arrivals.per_second(now),
            fps_answered=self._answers.per_second(now),
            age_p50_ms=_quantile(ages, 0.5),
            age_p99_ms=_quantile(ages, 0.99),
            last_error=self.last_error,
            last_error_unix_s=self.last_error_unix_s,
            last_frame_unix_s=self.last_frame_unix_s,
            width=self.width,
            height=self.height,
            mode=self.options.mode,
            tracked=self.options.track,
        )


class Cameras:
    """The records of all cameras of the daemon. Each of the `taps` may copy frames of any camera."""

    def __init__(self) -> None:
        self.taps: tuple[Tap, ...] = ()
        self._records: dict[tuple[str, str], CameraRecord] = {}

    def connect(self, camera: str, model: str, protocol: str) -> CameraRecord:
        """Add a connection that sends frames of a camera to a model, and return the camera's record. The caller must
        call `disconnect` when the connection ends."""
        record = self._records.get((camera, model))
        if record is None:
            self._forget(time.monotonic())
            record = self._records[camera, model] = CameraRecord(camera, model)
        record.protocol = protocol
        record.connections += 1
        return record

    def disconnect(self, record: CameraRecord) -> None:
        """Remove a connection."""
        record.connections -= 1
        record.seen = time.monotonic()

    def records(self) -> list[CameraRecord]:
        """Return the records of all connected or recently connected cameras, unordered."""
        self._forget(time.monotonic())
        return list(self._records.values())

    def reports(self) -> list[CameraInfo]:
        """Return the state of all connected or recently connected cameras, sorted by id and model."""
        now = time.monotonic()
        self._forget(now)
        return [self._records[key].report(now) for key in sorted(self._records)]

    def _forget(self, now: float) -> None:
        idle = sorted((r for r in self._records.values() if not r.connections), key=lambda record: record.seen)
        excess = max(0, len(self._records) - _MOST + 1)
        for index, record in enumerate(idle):
            if index < excess or now - record.seen > _FORGET_SECONDS:
                del self._records[record.camera, record.model]


def _quantile(ordered: list[float], share: float) -> float | None:
    """Return the quantile by nearest rank; None if the list is empty."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
