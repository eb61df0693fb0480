"""Decides which frames of a model's cameras are collected, and how long they are kept. Pure.

Frames are collected at moments that are spread over the time of the collection. After each of these moments, the next
frame that arrives becomes a *candidate*. The candidate is copied, and kept unless it looks like a kept frame. If a
candidate is dropped, another frame soon becomes a candidate. There are at most four candidates for each moment, so few
frames are copied even if many arrive.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from edged.config.tables import MOST_CAMERAS
from edged.models.collected import Collected, Collection, Frame
from edged.vision.likeness import NEAR, distance

_TRIES = 4  # most candidates for each frame that is due
_LEAST_PAUSE = 1.0  # seconds between two candidates, unless frames are due more often
_SETTLING = 3600.0  # seconds after the start of a box until its wall clock is believed
_DRIFT = 60.0  # seconds by which a date may differ from the wall clock


class Clock(NamedTuple):
    """One moment on three clocks. `mono_s` is the monotonic clock, `uptime_s` the seconds since the boot with the id
    `boot`, and `unix_s` the wall clock."""

    mono_s: float
    boot: str
    uptime_s: float
    unix_s: float


class Pacer:
    """Chooses the candidates of one collection. `now` is the monotonic time in seconds at which the pacer is created.
    Before that time, the collection has run for `collection.spent_s` seconds.

    Cameras take turns. The camera that has waited longest gets a moment to send a frame. After this moment, a frame of
    the next camera is accepted too. The time of a collection begins with its first candidate.
    """

    def __init__(self, collection: Collection, now: float) -> None:
        self._spec, self._began = collection, now - collection.spent_s
        self._has_begun = bool(collection.spent_s or collection.frames)
        self._cameras = frozenset(collection.cameras)
        self._period = collection.over_s / collection.wanted
        self._pause = max(self._period / _TRIES, min(self._period, _LEAST_PAUSE))
        self._turns: dict[str, None] = {}  # cameras, the one that waits longest first
        self._last = -self._pause  # offset of the last candidate
        self._rest_until = 0.0
        self._next = 0.0  # when the next candidate is due
        if self._has_begun:
            self.plan(len(collection.frames))

    def offset(self, now: float) -> float:
        """Return the time since the collection began, in seconds."""
        return now - self._began if self._has_begun else 0.0

    def plan(self, have: int) -> None:
        """Set when the next candidate is due. `have` is the number of frames that are kept or wait to be examined."""
        due = max(have * self._period, self._last + self._pause)
        self._next = max(self._began + self._spec.after_gap(due), self._rest_until)

    def rest(self, until: float) -> None:
        """Choose no candidate before `until` (monotonic seconds)."""
        self._rest_until = until
        self._next = max(self._next, until)

    def wants(self, camera: str, now: float) -> bool:
        """Whether a frame that arrived at `now` becomes a candidate. If so, the next candidate is due after a pause,
        unless `plan` then sets another time."""
        if now < self._next or (self._cameras and camera not in self._cameras):
            return False
        before = next((place for place, name in enumerate(self._turns, 1) if name == camera), 0)  # new cameras go first
        if before and now < self._next + self._pause * before / (1 + len(self._turns)):
            return False
        if not self._has_begun:
            self._has_begun, self._began = True, now - self._spec.after_gap(0.0)
        offset = self.offset(now)
        if self._spec.use_at(offset) == "gap" and offset < self._spec.after_gap(offset):
            self._next = self._began + self._spec.after_gap(offset)
            return False
        self._turns.pop(camera, None)
        self._turns[camera] = None
        if len(self._turns) > MOST_CAMERAS:
            del self._turns[next(iter(self._turns))]
        self._last = offset
        self._next = now + self._pause
        return True

    def is_over(self, now: float, kept: int) -> bool:
        """Whether the collection is complete: it has all wanted frames, or its time is over and it has a frame."""
        return kept >= self._spec.wanted or (kept > 0 and self.offset(now) >= self._spec.over_s)


@dataclass(eq=False)
class Gathering:
    """The collection of one model, with its state while the daemon runs."""

    model: str
    collection: Collection
    pacer: Pacer
    waiting: int = 0  # candidates that are not examined yet
    waiting_bytes: int = 0
    problem: str = ""  # why nothing is kept at present
    is_ending: bool = False  # the collection finishes once its candidates are examined
    saved_mono_s: float = 0.0
    collected: Collected | None = None

    @property
    def kept(self) -> int:
        return len(self.collection.frames)

    @property
    def bytes(self) -> int:
        return self.collection.bytes + self.waiting_bytes

    def plan(self) -> None:
        """Set when the next candidate is due."""
        self.pacer.plan(self.kept + self.waiting)


def is_known(likeness: int, camera: str, frames: Iterable[Frame]) -> bool:
    """Whether a picture with this likeness looks nearly the same as one of the `frames` of the same camera."""
    return any(each.camera == camera and distance(each.likeness, likeness) <= NEAR for each in frames)


def dated(frame: Frame, now: Clock) -> Frame:
    """Return a frame with its date corrected by the clocks of the current boot.

    The age of a frame of the current boot comes from the uptime, which does not jump. Its date is the wall clock minus
    this age. The age of a frame of an earlier boot is computed once, from the wall clock. After that, the frame counts
    as a frame of the current boot. If the computed age is negative, the wall clock may not be set yet. In the first
    hour after the boot, such a frame stays unchanged. After this hour, the frame gets the age 0.
    """
    if frame.boot == now.boot:
        taken = now.unix_s - (now.uptime_s - frame.uptime_s)
        return frame if abs(taken - frame.taken_unix_s) <= _DRIFT else replace(frame, taken_unix_s=taken)
    age = now.unix_s - frame.taken_unix_s
    if age >= 0:
        return replace(frame, boot=now.boot, uptime_s=now.uptime_s - age)
    if now.uptime_s < _SETTLING:
        return frame
    return replace(frame, boot=now.boot, uptime_s=now.uptime_s, taken_unix_s=now.unix_s)


def retained(frames: Iterable[Frame], now: Clock, keep_s: float) -> tuple[Frame, ...]:
    """Return the frames that are at most `keep_s` seconds old, with the dates that `dated` returns. Frames that cannot
    be dated yet are kept."""
    found = (dated(frame, now) for frame in frames)
    return tuple(frame for frame in found if frame.boot != now.boot or now.uptime_s - frame.uptime_s <= keep_s)
