"""Moving figures, simulated detections of them, and a score for ids that follow them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from edged.shapes.scene import Disc, Scene, Track
from edged.vision.detections import Detections

FRAMES_PER_SECOND = 30  # of the motion; a camera may have a lower rate
Boxes = npt.NDArray[np.float64]
Motion = Callable[[int], tuple[Boxes, npt.NDArray[np.int32]]]
"""Returns the boxes and classes of all figures in a frame."""


@dataclass(frozen=True)
class Seen:
    """One frame: the detections, and the object of each detection (-1: none)."""

    captured: float
    found: Detections
    objects: npt.NDArray[np.int64]
    present: int  # number of objects, detected or not


@dataclass(frozen=True)
class Sight:
    """A detector's quality. Shares are 0 to 1; noise is relative to a box's width; false alarms are per frame."""

    noise: float = 0.0
    missed: float = 0.0
    unsure: float = 0.0
    false_alarms: float = 0.0


def drawn(seed: int, shapes: int = 6) -> Motion:
    """Return the motion of a drawn scene, whose figures bounce off each other."""
    scene = Scene(seed, 320, 240, shapes)

    def at(frame: int) -> tuple[Boxes, npt.NDArray[np.int32]]:
        truths = scene.frame(frame)[1]
        boxes = np.array([(t.x1, t.y1, t.x2, t.y2) for t in truths], np.float64).reshape(-1, 4)
        return boxes, np.array([t.class_id for t in truths], np.int32)

    return at


def crossing(seed: int, count: int = 6, size: float = 480) -> Motion:
    """Return the motion of figures of one class that pass through each other and bounce off the walls only."""
    rng = np.random.default_rng(seed)
    tracks = []
    for _ in range(count):
        radius = float(rng.uniform(0.05, 0.09)) * size
        x, y = (float(v) for v in rng.uniform(radius, size - radius, 2))
        heading, speed = float(rng.uniform(0, 2 * math.pi)), float(rng.uniform(0.003, 0.012)) * size
        disc = Disc(x, y, speed * math.cos(heading), speed * math.sin(heading), radius)
        tracks.append(Track((disc,), size, size))

    def at(frame: int) -> tuple[Boxes, npt.NDArray[np.int32]]:
        discs = [track.at(frame)[0] for track in tracks]
        boxes = np.array([(d.x - d.radius, d.y - d.radius, d.x + d.radius, d.y + d.radius) for d in discs])
        return boxes, np.zeros(count, np.int32)

    return at


def watch(
    at: Motion,
    frames: Iterable[int],
    sight: Sight = Sight(),
    seed: int = 0,
) -> Iterator[Seen]:
    """Yield what a detector finds in these frames, with the best score first."""
    rng = np.random.default_rng((seed, 7))
    for frame in frames:
        boxes, classes = at(frame)
        objects = np.flatnonzero(rng.random(len(boxes)) >= sight.missed)
        width = boxes[objects, 2:3] - boxes[objects, :1]
        boxes = boxes[objects] + rng.normal(0, 1, (len(objects), 4)) * width * sight.noise
        sure = rng.random(len(objects)) >= sight.unsure
        scores = np.where(sure, rng.uniform(0.5, 1, len(objects)), rng.uniform(0.1, 0.39, len(objects)))
        alarms = int(rng.poisson(sight.false_alarms))
        corners = rng.uniform(0, 400, (alarms, 2))
        found = Detections.of(
            np.concatenate([boxes, np.concatenate([corners, corners + rng.uniform(20, 80, (alarms, 2))], axis=1)]),
            np.concatenate([scores, rng.uniform(0.2, 0.6, alarms)]),
            np.concatenate([classes[objects], np.zeros(alarms, np.int32)]),
        )
        order = np.argsort(-found.scores)
        which = np.concatenate([objects, np.full(alarms, -1)])[order]
        yield Seen(frame / FRAMES_PER_SECOND, found.select(order), which, len(classes))


@dataclass
class Score:
    """The score of ids: `switches`, and the share of boxes that have their object's id (IDF1)."""

    switches: int = 0
    given: set[int] = field(default_factory=set)
    _together: Counter[tuple[int, int]] = field(default_factory=Counter)
    _last: dict[int, int] = field(default_factory=dict)
    _present: int = 0
    _identified: int = 0

    def add(self, seen: Seen, ids: Iterable[int]) -> None:
        self._present += seen.present
        for which, given in zip(seen.objects.tolist(), ids, strict=True):
            if given < 0:
                continue
            self._identified += 1
            self.given.add(given)
            if which >= 0:
                self.switches += self._last.get(which, given) != given
                self._last[which] = given
                self._together[which, given] += 1

    @property
    def idf1(self) -> float:
        objects, ids = sorted({o for o, _ in self._together}), sorted({i for _, i in self._together})
        table = np.zeros((len(objects), len(ids)))
        for (which, given), count in self._together.items():
            table[objects.index(which), ids.index(given)] = count
        rows, columns = linear_sum_assignment(table, maximize=True)
        return float(2 * table[rows, columns].sum() / max(1, self._present + self._identified))
