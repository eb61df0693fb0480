"""Tracks objects in the zones of a picture and across its lines. Pure; times are seconds.

An object's position is the middle of the lower edge of its box, in the rotated picture.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edged.client.result import Result
from edged.config.cameras import Line, Point, Zone
from edged.ipc.capture_messages import Happened, LineState, ZoneState

Points = npt.NDArray[np.float64]

_GAP = 1.0  # an object that the detector misses for at most this many seconds keeps its progress to on_seconds
_MOST_COUNTED = 99  # objects of a class in a zone
_SURE = 0.01  # distance from a line, as a fraction of the picture, at which an object's side is certain
_FORGET_SECONDS = 60.0  # an object that was not seen for this time counts as a new one
_MOST_TRACKS = 4096


class Standing(NamedTuple):
    """An object: its class, its tracker id (or None), and its position x, y as fractions of the picture."""

    label: str
    tracker_id: int | None
    x: float
    y: float


def standing(result: Result, rotation: int = 0) -> list[Standing]:
    """Return the positions of a result's detections. Boxes are in pixels of the picture before its rotation."""
    width, height = max(1, result.width), max(1, result.height)
    found: list[Standing] = []
    for each in result.detections:
        left, top, right, bottom = each.x1 / width, each.y1 / height, each.x2 / width, each.y2 / height
        match rotation:
            case 90:
                left, top, right, bottom = 1 - bottom, left, 1 - top, right
            case 180:
                left, top, right, bottom = 1 - right, 1 - bottom, 1 - left, 1 - top
            case 270:
                left, top, right, bottom = top, 1 - right, bottom, 1 - left
        found.append(Standing(each.label, each.tracker_id, (left + right) / 2, bottom))
    return found


class Presence:
    """Decides whether an object is present. `is_on` is set after an object was present for `on_seconds`, and cleared
    after objects were absent for `off_seconds`. Pictures need not arrive at regular intervals. If two successive
    pictures show an object, an object counts as present in the time between the two pictures."""

    def __init__(self, on_seconds: float, off_seconds: float) -> None:
        self.is_on = False
        self._on_seconds, self._off_seconds = on_seconds, off_seconds
        self._began = self._seen = -float("inf")
        self._was_there = False  # in the last picture

    def update(self, is_there: bool, now: float) -> bool:
        """Update with one picture; return whether `is_on` changed."""
        if is_there:
            if not self._was_there and now - self._seen > _GAP:
                self._began = now
            self._seen = now
        self._was_there = is_there
        before = self.is_on
        if self.is_on:
            self.is_on = now - self._seen < self._off_seconds or is_there
        else:
            self.is_on = is_there and now - self._began >= self._on_seconds
        return self.is_on != before


class ZoneWatch:
    """The state of one zone of a camera."""

    def __init__(self, name: str, zone: Zone) -> None:
        self._name, self._zone = name, zone
        self._corners = np.asarray(zone.points, np.float64)
        self._any = self._presence()
        self._levels: dict[str, list[Presence]] = {}  # for each class: at least one object, at least two, ...
        self._since_unix_s, self._visits = 0.0, 0

    @property
    def state(self) -> ZoneState:
        counts = {label: _count(levels) for label, levels in sorted(self._levels.items())}
        return ZoneState(self._any.is_on, self._since_unix_s, counts, self._visits)

    def update(self, objects: Iterable[Standing], now: float, unix_s: float) -> Iterator[Happened]:
        """Update with the objects of a picture; yield an event if the zone became occupied or free."""
        wanted = [each for each in objects if not self._zone.classes or each.label in self._zone.classes]
        inside = contains(self._corners, np.array([(each.x, each.y) for each in wanted]).reshape(-1, 2))
        counts = Counter(each.label for each, is_inside in zip(wanted, inside, strict=True) if is_inside)
        for label in counts.keys() | self._levels.keys():
            self._update_levels(label, counts[label], now)
        if self._any.update(bool(counts), now):
            self._since_unix_s = unix_s
            self._visits += self._any.is_on
            labels = sorted(counts)
            label = labels[0] if len(labels) == 1 else ""
            yield Happened("occupied" if self._any.is_on else "free", self._name, label, unix_s)

    def _update_levels(self, label: str, count: int, now: float) -> None:
        levels = self._levels.setdefault(label, [])
        while len(levels) < min(count, _MOST_COUNTED):
            levels.append(self._presence())
        for number, level in enumerate(levels, 1):
            level.update(count >= number, now)

    def _presence(self) -> Presence:
        return Presence(self._zone.on_seconds, self._zone.off_seconds)


def _count(levels: list[Presence]) -> int:
    return next((number for number, level in enumerate(levels) if not level.is_on), len(levels))


def contains(corners: Points, points: Points) -> npt.NDArray[np.bool_]:
    """Return which points lie inside a polygon, bool [n]. `points` is float64 [n, 2]; `corners` is float64 [m, 2]."""
    x, y = points[:, :1], points[:, 1:]
    (x1, y1), (x2, y2) = corners.T, np.roll(corners, -1, axis=0).T
    is_level = (y1 > y) != (y2 > y)
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = (x2 - x1) * (y - y1) / (y2 - y1) + x1
    result: npt.NDArray[np.bool_] = np.count_nonzero(is_level & (x < crossing), axis=1) % 2 == 1
    return result


class _Track:
    """A tracked object. `side` is the last certain side of the line: the sign of `_distance`, or 0 if unknown. `x` and
    `y` are its position then. `seen` is the time of the last picture with it."""

    __slots__ = ("seen", "side", "x", "y")

    def __init__(self) -> None:
        self.x = self.y = self.seen = 0.0
        self.side = 0


class LineWatch:
    """The state of one line of a camera. An object counts if it crosses the line between the line's two ends. An object
    that passes beyond an end does not count.

    An object's side is certain only if the object is at least a small distance away from the line. So an object that
    stays on the line does not count several times.
    """

    def __init__(self, name: str, line: Line) -> None:
        self._name, self._line = name, line
        self._entered: Counter[str] = Counter()
        self._left: Counter[str] = Counter()
        self._tracks: dict[int, _Track] = {}

    @property
    def state(self) -> LineState:
        return LineState(dict(sorted(self._entered.items())), dict(sorted(self._left.items())))

    def update(self, objects: Iterable[Standing], now: float, unix_s: float) -> Iterator[Happened]:
        """Update with the objects of a picture; yield an event for each crossing."""
        for each in objects:
            if each.tracker_id is None or (self._line.classes and each.label not in self._line.classes):
                continue
            direction = self._move(each.tracker_id, each.x, each.y, now)
            if direction:
                (self._entered if direction > 0 else self._left)[each.label] += 1
                yield Happened("entered" if direction > 0 else "left", self._name, each.label, unix_s)
        if len(self._tracks) > _MOST_TRACKS:
            self._forget(now)

    def _move(self, tracker_id: int, x: float, y: float, now: float) -> int:
        """Move an object. Return 1 if the object crossed the line inwards, -1 if outwards, otherwise 0."""
        known = self._tracks.get(tracker_id)
        if known is None or now - known.seen > _FORGET_SECONDS:
            known = self._tracks[tracker_id] = _Track()
        known.seen = now
        distance = _distance(self._line.points, x, y)
        if abs(distance) < _SURE:
            return 0
        side = 1 if distance > 0 else -1
        crossed = known.side == -side and _cross(self._line.points, (known.x, known.y), (x, y))
        known.x, known.y, known.side = x, y, side
        return side if crossed else 0

    def _forget(self, now: float) -> None:
        kept = {key: each for key, each in self._tracks.items() if now - each.seen <= _FORGET_SECONDS}
        self._tracks = dict(sorted(kept.items(), key=lambda item: -item[1].seen)[:_MOST_TRACKS])


def _distance(ends: tuple[Point, Point], x: float, y: float) -> float:
    """Return a point's distance from the line through both ends: positive on the left side, looking from the first end
    to the second."""
    (x1, y1), (x2, y2) = ends
    length = float(np.hypot(x2 - x1, y2 - y1))
    return ((y2 - y1) * (x - x1) - (x2 - x1) * (y - y1)) / length


def _cross(ends: tuple[Point, Point], start: Point, end: Point) -> bool:
    """Whether the path from `start` to `end` passes between the ends of the line. The two points must be on different
    sides of the line."""
    first, second = _distance((start, end), *ends[0]), _distance((start, end), *ends[1])
    return first * second <= 0


class Watch:
    """All zones and lines of a camera."""

    def __init__(self, zones: Mapping[str, Zone], lines: Mapping[str, Line], rotation: int = 0) -> None:
        """`rotation` is the clockwise rotation of the picture in degrees."""
        self._zones = {name: ZoneWatch(name, zone) for name, zone in zones.items()}
        self._lines = {name: LineWatch(name, line) for name, line in lines.items()}
        self._rotation = rotation

    def update(self, result: Result, now: float, unix_s: float) -> tuple[Happened, ...]:
        """Update with a result that is not an error; return the events. `now` is monotonic, `unix_s` the wall clock."""
        return self._updated(standing(result, self._rotation), now, unix_s)

    def pass_time(self, now: float, unix_s: float) -> tuple[Happened, ...]:
        """Update while no frames arrive; return the events. Objects count as absent, so zones become free after their
        `off_seconds`."""
        return self._updated([], now, unix_s)

    def zones(self) -> dict[str, ZoneState]:
        return {name: each.state for name, each in self._zones.items()}

    def lines(self) -> dict[str, LineState]:
        return {name: each.state for name, each in self._lines.items()}

    def _updated(self, objects: list[Standing], now: float, unix_s: float) -> tuple[Happened, ...]:
        watches: tuple[ZoneWatch | LineWatch, ...] = (*self._zones.values(), *self._lines.values())
        return tuple(happened for each in watches for happened in each.update(objects, now, unix_s))
