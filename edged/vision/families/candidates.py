"""From what a head says of boxes to detections: the steps that families share.

What is not a number, or lies farther off than any input reaches, never becomes a detection.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, cast

import msgspec
import numpy as np
import numpy.typing as npt

from edged.tensors import Array
from edged.vision.detections import Detections
from edged.vision.families.contract import Thresholds
from edged.vision.nms import MAX_CANDIDATES, best_first, nms
from edged.vision.placement import Placement

Floats: TypeAlias = npt.NDArray[np.float32]
Rows: TypeAlias = npt.NDArray[np.intp]

FARTHEST = 60_000.0  # pixels; below the largest FP16, far beyond any input


def settle(
    boxes: Array,
    scores: Array,
    class_ids: Array,
    placement: Placement,
    thresholds: Thresholds,
    *,
    has_doubles: bool,
) -> Detections:
    """Detections in pixels of the original picture, best score first.

    Boxes are [n, 4] xyxy in input pixels, scores [n] in 0..1, class_ids [n] whole numbers, all of any number type.
    Rows with a negative class are padding. `has_doubles` says that suppression was left to the reader.
    """
    offered = offer(boxes, scores, class_ids, thresholds.score)
    return inside(suppress(offered, thresholds, has_doubles=has_doubles).found, placement)


class Candidates(NamedTuple):
    """n detections, boxes in input pixels, and which of the head's rows [n] they are."""

    found: Detections
    rows: Rows

    def select(self, chosen: Rows) -> Candidates:
        return Candidates(self.found.select(chosen), self.rows[chosen])


def offer(boxes: Array, scores: Array, class_ids: Array, score: float) -> Candidates:
    """What is above the score, in no order; of too many the best `MAX_CANDIDATES`. See `settle` for the arrays."""
    rows = np.flatnonzero(np.greater(scores, score))
    if len(rows) > MAX_CANDIDATES:
        rows = rows[best_first(scores[rows].astype(np.float32), MAX_CANDIDATES)]
    return _whole(boxes[rows].astype(np.float32), scores[rows].astype(np.float32), class_ids[rows], rows)


def suppress(offered: Candidates, thresholds: Thresholds, *, has_doubles: bool) -> Candidates:
    """What stays, best score first."""
    most = thresholds.max_detections
    # What is inside out, or has no area, takes nobody's place.
    there = visible(offered.found.boxes)
    if len(there) < len(offered.rows):
        offered = offered.select(there)
    found = offered.found
    if has_doubles or thresholds.class_agnostic:
        agnostic = thresholds.class_agnostic
        return offered.select(nms(found.boxes, found.scores, found.class_ids, thresholds.iou, most, agnostic))
    return offered.select(best_first(found.scores, most))


def inside(found: Detections, placement: Placement) -> Detections:
    """To the original picture; what lay wholly in the padding has no area there and goes."""
    boxes = placement.to_original(found.boxes)
    return msgspec.structs.replace(found, boxes=boxes).select(visible(boxes))


def visible(boxes: Floats) -> Rows:
    """Which boxes of a picture [n, 4] have an area."""
    return np.flatnonzero((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1]))


def corners(centred: Floats) -> Floats:
    """cx, cy, w, h as [n, 4] to xyxy [n, 4]."""
    half = centred[:, 2:] / 2
    with np.errstate(invalid="ignore"):  # an infinite box has corners that are no numbers, and is dropped for that
        return np.concatenate((centred[:, :2] - half, centred[:, :2] + half), axis=1, dtype=np.float32)


def strongest(scores: Floats) -> tuple[Floats, npt.NDArray[np.intp]]:
    """The best score of each row of [n, classes], NaN where one is, and its class."""
    class_ids = scores.argmax(axis=1)  # a NaN counts as the largest
    return scores[np.arange(len(scores)), class_ids], class_ids


def sigmoid(values: Floats) -> Floats:
    """1 / (1 + exp(-x)), without overflow."""
    scores: Floats = np.tanh(values * np.float32(0.5)) * np.float32(0.5) + np.float32(0.5)
    return scores


def logit(score: float) -> float:
    """The value whose sigmoid is `score`; infinite at 0 and 1."""
    if 0 < score < 1:
        return float(np.log(score / (1 - score)))
    return -np.inf if score <= 0 else np.inf


def _whole(boxes: Floats, scores: Floats, class_ids: Array, rows: Rows) -> Candidates:
    labels = np.rint(class_ids.astype(np.float64))
    sane = np.isfinite(scores) & np.all(np.abs(boxes) < FARTHEST, axis=1)
    sane &= (labels >= 0) & (labels < 1 << 31)
    return Candidates(Detections(boxes[sane], scores[sane], labels[sane].astype(np.int32)), rows[sane])


def offer_cells(table: Array, classes: int, score: float) -> Candidates:
    """The cells above a score, in no order. A cell counts once, with its best class, and not at all with a NaN score
    or a box that cannot be; of too many the best `MAX_CANDIDATES` count."""
    scores = table[4 : 4 + classes]
    best = _best_scores(scores)
    cells = np.flatnonzero(best > score)
    if len(cells) > MAX_CANDIDATES:
        cells = cells[best_first(best[cells].astype(np.float32), MAX_CANDIDATES)]
    chosen = scores[:, cells]
    class_ids = chosen.argmax(axis=0)
    boxes = corners(table[:4, cells].T.astype(np.float32))
    found, rows = offer(boxes, chosen[class_ids, np.arange(len(cells))], class_ids, score)
    return Candidates(found, cells[rows])


def _best_scores(scores: Array) -> npt.NDArray[np.float32]:
    """The best score of each column, NaN where one is NaN; scores are [classes, A].

    numpy compares FP16 value by value, forty times slower than integers. For values from zero up the bit
    patterns order as the values do, with NaN above all; negative values order below, which is all a threshold
    needs to know.
    """
    if scores.dtype == np.float16:
        return cast(npt.NDArray[np.float32], scores.view(np.int16).max(axis=0).view(np.float16))
    return cast(npt.NDArray[np.float32], scores.max(axis=0))
