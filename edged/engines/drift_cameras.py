"""Decides whether the pictures of a camera have changed permanently. For example, the camera was moved, turned, covered
or inverted, or its picture is dark at an unusual hour. Pure: a call receives the statistics of one picture and returns
the new state.

A picture is compared with the usual pictures of its own camera at the same hour of the day, or one hour earlier or
later. Dusk comes at about the same hour every day, so its pictures count as usual. Each usual picture is mixed into the
stored average, so the average follows the seasons. No picture is judged until the camera has been seen for
`learn_hours` (by default a day). The allowed distance from the usual picture depends on the distances of the earlier
pictures. So a camera that turns all the time rarely raises an alarm.

An alarm needs several unusual pictures in a row (`Tally`). Unusual pictures do not change the stored averages. But if
the alarm lasts longer than a day and longer than `learn_hours`, new averages are learned for this camera.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt

from edged.engines.drift_answers import Rule, Tally
from edged.vision.picture_statistics import PictureStatistics

# Five unusual pictures in a row raise the alarm, three usual ones clear it.
CHANGED_PICTURES = Rule(quiet=0.05, drifted=0.7, raise_after=5, clear_after=3)
LAYOUT, LIGHT, COLOUR, CONTRAST, SCORES = "layout", "light", "colour", "contrast", "scores"
# A smaller distance never counts. layout: 1 minus the correlation. light: the earth mover's distance of the histograms,
# as a share of the whole range. colour: the distance of the colours, as a share of 255. contrast: the ratio of the
# contrasts, in powers of two. scores: how much lower the mean score of the detections is, 0 to 1.
_LEAST = {LAYOUT: 0.6, LIGHT: 0.25, COLOUR: 0.12, CONTRAST: 1.5, SCORES: 0.2}
_WORDS = {
    LAYOUT: "the camera shows a different view: it was moved, turned, covered or inverted",
    LIGHT: "the brightness is unusual for this hour: too dark, too bright, or inverted",
    COLOUR: "the colours are unusual: they are inverted, the camera is broken, or it changed between colour and grey",
    CONTRAST: "the contrast is unusual: the camera is covered, dirty, out of focus, or in fog",
    SCORES: "objects are found with much lower scores: the camera is dirty, out of focus, or shows something else",
}
_SPREADS = 4.0  # standard deviations beyond the mean distance
_FEW = 3  # pictures of an hour that its average needs before it counts as the usual picture
_LEAST_COMPARED = 10  # pictures that are compared before the first is judged
_SLOWEST = 0.1  # the least weight of a new picture in the usual picture of an hour
_SLOWEST_SPREAD = 0.02
_STRUCTURE = 8.0  # levels: a layout with less structure counts less, because noise dominates its correlation
_LONGEST_STEP = 3600.0  # the most seconds that one check adds to the time for which a camera was seen
_HOURS = 24
DAY = 86400.0  # seconds; a change that lasts longer than this and than `learn_s` becomes usual
_Floats = npt.NDArray[np.float64]


class Usual(msgspec.Struct, frozen=True):
    """The usual picture of one hour: the means of the values of `PictureStatistics`.

    `objects` is the mean number of the reference's detections. `scored` counts the pictures that had detections;
    `score` is the mean of their scores.
    """

    count: int
    light: tuple[float, ...]
    contrast: float
    layout: tuple[float, ...]
    colour: tuple[float, float]
    objects: float = 0.0
    scored: int = 0
    score: float = 0.0


class Seen(msgspec.Struct, frozen=True):
    """One picture of a camera, and what the reference found in it: the number of objects, and their mean score."""

    picture: PictureStatistics
    objects: int = 0
    score: float = 0.0


class Spread(msgspec.Struct, frozen=True):
    """The mean and the mean square of one kind of distance between a picture and the usual picture."""

    count: int = 0
    mean: float = 0.0
    square: float = 0.0

    def after(self, distance: float) -> Spread:
        weight = max(1 / (self.count + 1), _SLOWEST_SPREAD)
        mean = self.mean + weight * (distance - self.mean)
        return Spread(self.count + 1, mean, self.square + weight * (distance**2 - self.square))

    @property
    def most(self) -> float:
        """The largest distance that counts as usual."""
        return self.mean + _SPREADS * math.sqrt(max(0.0, self.square - self.mean**2))


class Past(msgspec.Struct, frozen=True):
    """The results of the earlier checks of a camera.

    `usual` maps an hour of the day to its usual picture; the key -1 is for pictures that came before the clock was set.
    `seen_s` is the number of seconds for which the camera was seen, `changed_s` the number of seconds since its alarm
    was raised. `distance`, `bound` and `cause` describe the last unusual picture. `checked_unix_s` is when the last
    picture was checked.
    """

    usual: dict[int, Usual] = {}
    spreads: dict[str, Spread] = {}
    seen_s: float = 0.0
    tally: Tally = Tally()
    cause: str = ""
    distance: float = 0.0
    bound: float = 0.0
    changed_s: float = 0.0
    checked_unix_s: float = 0.0

    @property
    def problem(self) -> str:
        """How the pictures have changed, with the figure and its bound; empty if the alarm is not raised."""
        if not self.tally.is_raised:
            return ""
        words = _WORDS.get(self.cause, "the pictures are unusual")  # another version of edged may have written `cause`
        return f"{words} ({self.cause} differs by {self.distance:.2g}; at most {self.bound:.2g} is usual)"


def after(past: Past, seen: Seen, hour: int | None, elapsed_s: float, unix_s: float, learn_s: float) -> Past:
    """Return the past after one more picture.

    `hour` is the hour of the day in local time, None if the clock is not set. `elapsed_s` are the seconds since the
    last picture of this camera, 0 if unknown. `learn_s`: the seconds for which a camera must be seen before it is
    judged.
    """
    if past.changed_s > max(learn_s, DAY):
        past = Past()
    step = min(elapsed_s, _LONGEST_STEP)
    past = msgspec.structs.replace(past, seen_s=past.seen_s + step, checked_unix_s=unix_s)
    found = _nearest(past, seen, hour)
    if found is None:
        return _learned(past, seen, hour, {})
    compared = past.spreads.get(LAYOUT, Spread()).count
    is_judged = past.seen_s >= learn_s and compared >= _LEAST_COMPARED
    beyond = [(found[name] / _bound(past, name), name) for name in found if found[name] > _bound(past, name)]
    if not is_judged or not beyond:
        tally = past.tally.after(False, CHANGED_PICTURES) if is_judged else past.tally
        changed_s = past.changed_s + step if tally.is_raised else 0.0
        return _learned(msgspec.structs.replace(past, tally=tally, changed_s=changed_s), seen, hour, found)
    tally, cause = past.tally.after(True, CHANGED_PICTURES), max(beyond)[1]
    return msgspec.structs.replace(
        past,
        tally=tally,
        changed_s=past.changed_s + step if tally.is_raised else 0.0,
        cause=cause,
        distance=round(found[cause], 4),
        bound=round(_bound(past, cause), 4),
    )


def distances(seen: Seen, usual: Usual) -> dict[str, float]:
    """Return a mapping from each kind of distance to the distance between a picture and a usual picture."""
    picture = seen.picture
    lower = usual.score - seen.score if seen.objects and usual.scored >= _FEW else 0.0
    moved = np.cumsum(np.subtract(picture.light, usual.light))
    return {
        LAYOUT: _layout_distance(np.array(picture.layout), np.array(usual.layout)),
        LIGHT: float(np.abs(moved).sum()) / (len(picture.light) - 1),
        COLOUR: math.dist(picture.colour, usual.colour) / 255,
        CONTRAST: abs(math.log2((picture.contrast + 1) / (usual.contrast + 1))),
        SCORES: max(0.0, lower),
    }


def _layout_distance(one: _Floats, other: _Floats) -> float:
    """Return 1 minus the correlation; a smaller value if the usual picture (`other`) has little structure."""
    one, other = one - one.mean(), other - other.mean()
    structure = float(other.std())
    product = float(np.linalg.norm(one) * np.linalg.norm(other))
    correlation = float(one @ other) / product if product else 0.0
    return (1 - correlation) * min(1.0, structure / _STRUCTURE)


def _bound(past: Past, name: str) -> float:
    return max(_LEAST[name], past.spreads.get(name, Spread()).most)


def _nearest(past: Past, seen: Seen, hour: int | None) -> dict[str, float] | None:
    """Return the distances to the nearest usual picture of this time of the day; None if no usual picture is known."""
    if hour is None:
        known = list(past.usual.values())
    else:
        hours = ((hour + step) % _HOURS for step in (-1, 0, 1))
        known = [past.usual[each] for each in (*hours, -1) if each in past.usual]
    found = [distances(seen, usual) for usual in known if usual.count >= _FEW]
    return min(found, key=lambda each: max(each[name] / _bound(past, name) for name in each), default=None)


def _learned(past: Past, seen: Seen, hour: int | None, found: dict[str, float]) -> Past:
    """Return `past` with the picture `seen` mixed into its averages. `found` has the distances between `seen` and the
    usual picture; it is empty if no usual picture is known."""
    key = -1 if hour is None else hour
    spreads = past.spreads | {name: past.spreads.get(name, Spread()).after(each) for name, each in found.items()}
    return msgspec.structs.replace(past, usual=past.usual | {key: _mixed(past.usual.get(key), seen)}, spreads=spreads)


def _mixed(usual: Usual | None, seen: Seen) -> Usual:
    picture = seen.picture
    if usual is None:
        own = (1, seen.score) if seen.objects else (0, 0.0)
        return Usual(1, picture.light, picture.contrast, picture.layout, picture.colour, seen.objects, *own)
    weight = max(1 / (usual.count + 1), _SLOWEST)
    scored, score = usual.scored, usual.score
    if seen.objects:
        scored, score = scored + 1, _mean(score, seen.score, max(1 / (scored + 1), _SLOWEST))
    return Usual(
        usual.count + 1,
        tuple(_mean(*each, weight) for each in zip(usual.light, picture.light, strict=True)),
        _mean(usual.contrast, picture.contrast, weight),
        tuple(_mean(*each, weight, 1) for each in zip(usual.layout, picture.layout, strict=True)),
        (_mean(usual.colour[0], picture.colour[0], weight), _mean(usual.colour[1], picture.colour[1], weight)),
        _mean(usual.objects, seen.objects, weight),
        scored,
        score,
    )


def _mean(before: float, now: float, weight: float, digits: int = 4) -> float:
    return round(before + weight * (now - before), digits)
