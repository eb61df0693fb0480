"""Judges an engine on frames of the box's own cameras, with the reference's answers as ground truth. Pure.

Frames are added one at a time. Only counts, sums and a few of the worst frames are kept. The judgement compares what
clients see: detections at the model's own thresholds, matched one to one, or the content of the picture.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import msgspec
import numpy as np

from edged.store.judgement import Box, Judgement, Outcome, Point, Tally, WorstFrame
from edged.tensors import Array
from edged.verification.contents import class_ious, compare, every_class, is_legible, kind_of
from edged.verification.matching import keypoint_similarities, mask_ious, match
from edged.verification.standard import ON_FRAMES, Tolerance
from edged.verification.verify import FLOORS, beyond
from edged.vision.content import Classes, ClassMap, Content, Text, lines
from edged.vision.detections import Detections, class_name
from edged.vision.families.contract import Classifier
from edged.vision.family import ContentFamily, Family, Recognition, open_family
from edged.vision.placement import Placement

_MOST_WORST = 12
_MOST_BOXES = 24  # of each side of a worst frame
_MOST_LINES, _LONGEST = 5, 80  # lines of a content, characters of a line or of a name
_MOST_ROWS = 100  # classes or cameras
_MOST_REASONS = 4
_CURVE = tuple(round(0.05 * number, 2) for number in range(1, 20))
_MOST_LOW = 300  # detections of a frame from which the curve is made
_GROUP = 2.0  # a single class or camera may differ this many times as much as all frames together


@dataclass
class _Count:
    """Counts and sums over some frames, for all objects, for the objects of one class, or for one camera."""

    objects: int = 0
    found: int = 0
    pairs: int = 0
    pairs_75: int = 0
    most_drift: float = 0.0
    sums: dict[str, tuple[float, int]] = field(default_factory=dict)  # by figure: sum, number of values

    def take(self, figure: str, values: Iterable[float]) -> None:
        """Add values to the mean of a figure."""
        for value in values:
            total, number = self.sums.get(figure, (0.0, 0))
            self.sums[figure] = total + value, number + 1

    def add(self, other: _Count) -> None:
        self.objects, self.found = self.objects + other.objects, self.found + other.found
        self.pairs, self.pairs_75 = self.pairs + other.pairs, self.pairs_75 + other.pairs_75
        self.most_drift = max(self.most_drift, other.most_drift)
        for figure, (total, number) in other.sums.items():
            before, count = self.sums.get(figure, (0.0, 0))
            self.sums[figure] = before + total, count + number

    def figures(self, *, has_boxes: bool) -> dict[str, float]:
        """Return the figures. If the engine has detections and the reference has none, recall is 1. If the reference
        has detections and the engine has none, precision is 1. If no side has detections, both figures are left out."""
        found: dict[str, float] = {}
        if has_boxes and (self.objects or self.found):
            found["recall"], found["recall_75"] = (_share(n, self.objects) for n in (self.pairs, self.pairs_75))
            found["precision"], found["precision_75"] = (_share(n, self.found) for n in (self.pairs, self.pairs_75))
        found |= {figure: total / number for figure, (total, number) in self.sums.items() if number}
        if self.most_drift:
            found["largest_drift"] = self.most_drift
        return {name: float(f"{value:.6g}") for name, value in found.items()}


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


class FrameJudge:
    """Compares an engine's answers to frames with the reference's. Raises Unsupported if no family decodes the
    model."""

    def __init__(self, recognition: Recognition, tolerance: Tolerance, model: str, precision: str) -> None:
        """`model` and `precision` are names that appear in the texts of reasons."""
        self._tolerance, self._model, self._precision = tolerance, model, precision
        self._names, self._thresholds = recognition.names, recognition.thresholds
        self._family = open_family(recognition)
        self._low = msgspec.structs.replace(
            self._thresholds, score=min(_CURVE[0], self._thresholds.score), max_detections=_MOST_LOW
        )
        if isinstance(self._family, Classifier):  # every class counts, also those that clients do not get
            self._thresholds = every_class(self._thresholds)
        self._total, self.frames = _Count(), 0
        self._classes: dict[int, _Count] = {}
        self._cameras: dict[str, _Count] = {}
        self._curve = np.zeros((2, len(_CURVE)), np.int64)  # at each score or above: detections, and matched detections
        self._worst: list[tuple[tuple[float, float], int, WorstFrame]] = []

    def add(
        self,
        name: str,
        camera: str,
        expected: Mapping[str, Array],
        found: Mapping[str, Array],
        placement: Placement,
        size: tuple[int, int],
    ) -> None:
        """Compare the answers to one frame of `size` (width, height). Raises ValueError if the reference's answer
        cannot be decoded. If the engine's answer cannot be decoded, it counts as the worst possible answer."""
        family = self._family
        if isinstance(family, Family):
            self._add_boxes(family, name, camera, expected, found, placement, size)
        else:
            self._add_content(family, name, camera, expected, found, placement)

    def _add_boxes(
        self,
        family: Family,
        name: str,
        camera: str,
        expected: Mapping[str, Array],
        found: Mapping[str, Array],
        placement: Placement,
        size: tuple[int, int],
    ) -> None:
        ours = family.decode(expected, 0, placement, self._thresholds)
        try:
            theirs = family.decode(found, 0, placement, self._thresholds)
            low = family.boxes(found, 0, placement, self._low)
        except ValueError:
            theirs = low = Detections.empty()
        pairs, close = match(ours, theirs, 0.5), match(ours, theirs, 0.75)
        drifts = {pair: abs(float(ours.scores[pair[0]] - theirs.scores[pair[1]])) for pair in pairs}
        rows: dict[int, _Count] = {}
        for class_id in (*ours.class_ids.tolist(), *theirs.class_ids.tolist()):
            rows.setdefault(class_id, _Count())
        for class_id, row in rows.items():
            of = [pair for pair in pairs if ours.class_ids[pair[0]] == class_id]
            row.objects = int(np.count_nonzero(ours.class_ids == class_id))
            row.found = int(np.count_nonzero(theirs.class_ids == class_id))
            row.pairs = len(of)
            row.pairs_75 = sum(ours.class_ids[one] == class_id for one, _ in close)
            row.most_drift = max((drifts[pair] for pair in of), default=0.0)
            row.take("score_drift", (drifts[pair] for pair in of))
            row.take("masks", mask_ious(ours, theirs, of, *size))
            row.take("keypoints", keypoint_similarities(ours, theirs, of))
        self._add_curve(low, match(ours, low, 0.5))
        frame = _Count()
        for row in rows.values():
            frame.add(row)
        self._add_counts(camera, frame, rows)
        wrong = frame.objects + frame.found - 2 * frame.pairs
        if wrong or frame.most_drift:
            figures = frame.figures(has_boxes=True)
            worst = WorstFrame(name, camera, figures, self._drawn(ours), self._drawn(theirs))
            self._keep((wrong, frame.most_drift), worst)

    def _add_curve(self, low: Detections, pairs: Sequence[tuple[int, int]]) -> None:
        # The best scores are matched first, so a higher threshold only removes matches and does not change the others.
        matched = [row for _, row in pairs]
        for number, scores in enumerate((low.scores, low.scores[matched])):
            self._curve[number] += [int(np.count_nonzero(scores >= least)) for least in _CURVE]

    def _add_content(
        self,
        family: ContentFamily,
        name: str,
        camera: str,
        expected: Mapping[str, Array],
        found: Mapping[str, Array],
        placement: Placement,
    ) -> None:
        ours = family.content(expected, 0, placement, self._thresholds)
        theirs: Content | None
        try:
            theirs = family.content(found, 0, placement, self._thresholds)
        except ValueError:
            theirs = None
        if isinstance(ours, Text) and (theirs is None or isinstance(theirs, Text)) and not is_legible(ours, theirs):
            self.frames += 1  # a frame without an object
            return
        frame, rows = _of_classes(ours, theirs) if isinstance(ours, Classes) else _of_content(ours, theirs)
        self._add_counts(camera, frame, rows)
        figures = frame.figures(has_boxes=False)
        losses = [1 - value if figure in FLOORS else value for figure, value in figures.items()]
        if max(losses, default=0.0) > 0:
            worst = WorstFrame(name, camera, figures, (), (), self._lines(ours), self._lines(theirs))
            self._keep((max(losses), sum(losses)), worst)

    def _add_counts(self, camera: str, frame: _Count, rows: Mapping[int, _Count]) -> None:
        """Add the counts of one frame, and those of its classes."""
        for class_id, row in rows.items():
            self._classes.setdefault(class_id, _Count()).add(row)
        self._total.add(frame)
        self._cameras.setdefault(camera, _Count()).add(frame)
        self.frames += 1

    def _keep(self, badness: tuple[float, float], frame: WorstFrame) -> None:
        entry = (badness, -self.frames, frame)
        if len(self._worst) < _MOST_WORST:
            heapq.heappush(self._worst, entry)
        else:
            heapq.heappushpop(self._worst, entry)

    def _drawn(self, side: Detections) -> tuple[Box, ...]:
        return tuple(
            Box(x1, y1, x2, y2, round(score, 3), class_name(self._names, class_id)[:_LONGEST])
            for (x1, y1, x2, y2), score, class_id in zip(
                side.boxes[:_MOST_BOXES].astype(float).round(1).tolist(),
                side.scores.tolist(),
                side.class_ids.tolist(),
                strict=False,
            )
        )

    def _lines(self, side: Content | None) -> tuple[str, ...]:
        if side is None:
            return ("the answer cannot be decoded",)
        return tuple(each.text[:_LONGEST] for each in islice(lines(side, self._names), _MOST_LINES))

    def judgement(self, collection: str, skipped: int = 0, left: int = 0) -> Judgement:
        """Return the outcome over all frames. `skipped` counts frames that could not be read, and `left` counts frames
        for which there was no time. If no frame was compared or skipped, the outcome is `no_frames`."""
        if not self.frames and not skipped:
            return Judgement(collection, "no_frames")
        has_boxes = isinstance(self._family, Family)
        figures = self._total.figures(has_boxes=has_boxes)
        bounds = {figure: float(getattr(self._tolerance, figure)) for figure in ON_FRAMES if figure in figures}
        classes = _tallies(((class_name(self._names, n), each) for n, each in self._classes.items()), has_boxes)
        cameras = _tallies(self._cameras.items(), has_boxes)
        outcome: Outcome = "alike"
        if (count := self._total.objects) < self._tolerance.objects:
            outcome, reason = "too_few", self._too_few(count, left)
        elif reason := self._difference(figures, classes, cameras):
            outcome = "different"
        worst = tuple(frame for _, _, frame in sorted(self._worst, key=lambda entry: entry[:2], reverse=True))
        return Judgement(
            *(collection, outcome, reason, self.frames, skipped, count, figures, bounds, classes, cameras),
            self._points() if has_boxes else (),
            worst,
        )

    def _too_few(self, count: int, left: int) -> str:
        advice = f"collect more frames: edged samples collect {self._model}"
        if left:
            advice = f"there was no time for {left} frames; run on an idle box: edged engines verify {self._model}"
        return (
            f"too few objects to judge the {self._precision} engine: {count} on {self.frames} frames of cameras, but"
            f" {self._tolerance.objects:g} are needed; {advice}"
        )

    def _difference(self, figures: Mapping[str, float], classes: Iterable[Tally], cameras: Iterable[Tally]) -> str:
        """Return which figures are beyond their bounds; empty if all figures are within their bounds."""
        reasons = [beyond(figure, figures[figure], self._tolerance) for figure in ON_FRAMES if figure in figures]
        wide = _widened(self._tolerance)
        for kind, tallies in (("class", classes), ("camera", cameras)):
            for tally in tallies:
                if tally.objects >= self._tolerance.objects:
                    wrong = (
                        beyond(figure, tally.figures[figure], wide) for figure in ON_FRAMES if figure in tally.figures
                    )
                    reasons += [f"{kind} {tally.name!r}: {why}" for why in wrong if why]
        found = [*filter(None, reasons)]
        more = f"; {len(found) - _MOST_REASONS} more" if len(found) > _MOST_REASONS else ""
        text = "; ".join(found[:_MOST_REASONS])
        return f"{text}{more}, on {self.frames} frames of cameras" if found else ""

    def _points(self) -> tuple[Point, ...]:
        found, pairs = self._curve.tolist()
        return tuple(
            Point(score, round(_share(good, all_), 4), round(_share(good, self._total.objects), 4))
            for score, all_, good in zip(_CURVE, found, pairs, strict=True)
        )


def _tallies(counts: Iterable[tuple[str, _Count]], has_boxes: bool) -> tuple[Tally, ...]:
    """Return the figures of the classes or cameras with the most objects, sorted by the number of objects."""
    rows = heapq.nlargest(_MOST_ROWS, counts, key=lambda row: max(row[1].objects, row[1].found))
    return tuple(Tally(name[:_LONGEST], row.objects, row.found, row.figures(has_boxes=has_boxes)) for name, row in rows)


def _of_classes(ours: Classes, theirs: Content | None) -> tuple[_Count, dict[int, _Count]]:
    """Return the counts of one picture, and those of its classes. The picture counts as one object, which is the best
    class of the reference (`ours`). If that class is among the best five of the engine (`theirs`), `top5` is 1,
    otherwise 0; models with at most five classes have no `top5`."""
    frame = _Count()
    if not ours.class_ids:
        return frame, {}
    best = ours.class_ids[0]
    scores = dict(zip(theirs.class_ids, theirs.scores, strict=True)) if isinstance(theirs, Classes) else {}
    ranked = [*scores]
    frame.objects, frame.found = 1, min(1, len(ranked))
    frame.take("top1", [float(ranked[:1] == [best])])
    if len(ours.class_ids) > 5:
        frame.take("top5", [float(best in ranked[:5])])
    frame.most_drift = abs(ours.scores[0] - scores.get(best, 0.0))
    frame.take("score_drift", [frame.most_drift])
    rows = {best: _Count(1, sums=dict(frame.sums), most_drift=frame.most_drift)}
    if ranked:
        rows.setdefault(ranked[0], _Count()).found = 1
    return frame, rows


def _of_content(ours: Content, theirs: Content | None) -> tuple[_Count, dict[int, _Count]]:
    """Return the counts of one picture, and, for a class map, those of its classes."""
    figure = kind_of(ours)
    worst = 0.0 if figure in FLOORS else 1.0
    value = worst if theirs is None else compare(ours, theirs)[1]
    frame = _Count(1, 1)
    frame.take(figure, [value if math.isfinite(value) else worst])
    ious = (
        class_ious(ours.cells(), theirs.cells()) if isinstance(ours, ClassMap) and isinstance(theirs, ClassMap) else {}
    )
    return frame, {class_id: _Count(1, 1, sums={figure: (iou, 1)}) for class_id, iou in ious.items()}


def _widened(tolerance: Tolerance) -> Tolerance:
    """Return wider limits for a single class or camera, because it has fewer objects. Each limit is `_GROUP` times as
    far from the perfect value."""
    limits: dict[str, float] = {}
    for figure in ON_FRAMES:
        bound: float = getattr(tolerance, figure)
        limits[figure] = max(0.0, 1 - _GROUP * (1 - bound)) if figure in FLOORS else _GROUP * bound
    return msgspec.structs.replace(tolerance, **limits)
