"""From raw boxes and scores to detections: the steps that families share.

Values that are not finite, and boxes far outside any input, are dropped.
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

MAX_COORDINATE = 60_000.0  # pixels; below the largest FP16, far outside any input


def to_detections(
    boxes: Array,
    scores: Array,
    class_ids: Array,
    placement: Placement,
    thresholds: Thresholds,
    *,
    needs_nms: bool,
) -> Detections:
    """Return detections in pixels of the original picture, best score first.

    Boxes are [n, 4] xyxy in input pixels, scores [n] in 0..1, class_ids [n] whole numbers, all of any number type.
    Rows with a negative class are padding. `needs_nms`: the graph does not include the NMS.
    """
    offered = select_candidates(boxes, scores, class_ids, thresholds.score)
    return to_picture(suppress(offered, thresholds, needs_nms=needs_nms).found, placement)


class Candidates(NamedTuple):
    """n detections, boxes in input pixels, and their rows [n] in the output."""

    found: Detections
    rows: Rows

    def select(self, chosen: Rows) -> Candidates:
        return Candidates(self.found.select(chosen), self.rows[chosen])


def select_candidates(boxes: Array, scores: Array, class_ids: Array, score: float) -> Candidates:
    """Select rows above the score, unordered, at most the best `MAX_CANDIDATES`; arrays as for `to_detections`."""
    rows = np.flatnonzero(np.greater(scores, score))
    if len(rows) > MAX_CANDIDATES:
        rows = rows[best_first(scores[rows].astype(np.float32), MAX_CANDIDATES)]
    return _finite(boxes[rows].astype(np.float32), scores[rows].astype(np.float32), class_ids[rows], rows)


def suppress(offered: Candidates, thresholds: Thresholds, *, needs_nms: bool) -> Candidates:
    """Apply the NMS, if needed, and the limit; best score first."""
    most = thresholds.max_detections
    # Inverted and empty boxes must not displace others.
    there = with_area(offered.found.boxes)
    if len(there) < len(offered.rows):
        offered = offered.select(there)
    found = offered.found
    if needs_nms or thresholds.class_agnostic:
        agnostic = thresholds.class_agnostic
        return offered.select(nms(found.boxes, found.scores, found.class_ids, thresholds.iou, most, agnostic))
    return offered.select(best_first(found.scores, most))


def to_picture(found: Detections, placement: Placement) -> Detections:
    """Convert to the original picture; boxes entirely in the padding have no area there and are dropped."""
    boxes = placement.to_original(found.boxes)
    return msgspec.structs.replace(found, boxes=boxes).select(with_area(boxes))


def with_area(boxes: Floats) -> Rows:
    """Indices of the boxes [n, 4] that have an area."""
    return np.flatnonzero((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1]))


def corners(centred: Floats) -> Floats:
    """Convert cx, cy, w, h [n, 4] to xyxy [n, 4]."""
    half = centred[:, 2:] / 2
    with np.errstate(invalid="ignore"):  # the corners of an infinite box are NaN, and it is dropped later
        return np.concatenate((centred[:, :2] - half, centred[:, :2] + half), axis=1, dtype=np.float32)


def best_class(scores: Floats) -> tuple[Floats, npt.NDArray[np.intp]]:
    """The best score of each row of [n, classes] and its class; NaN if a row has one."""
    class_ids = scores.argmax(axis=1)  # argmax returns a NaN if there is one
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


def _finite(boxes: Floats, scores: Floats, class_ids: Array, rows: Rows) -> Candidates:
    labels = np.rint(class_ids.astype(np.float64))
    sane = np.isfinite(scores) & np.all(np.abs(boxes) < MAX_COORDINATE, axis=1)
    sane &= (labels >= 0) & (labels < 1 << 31)
    return Candidates(Detections(boxes[sane], scores[sane], labels[sane].astype(np.int32)), rows[sane])


def select_cells(table: Array, classes: int, score: float) -> Candidates:
    """Select from a table of one column per grid cell, [4 + classes + more, A]: cx, cy, w, h in input pixels, a score
    per class, and further values.

    Returns cells above the score, unordered, each once with its best class; at most the best `MAX_CANDIDATES`. Cells
    with a NaN score or an invalid box are dropped. The table is never transposed or copied: thousands of columns are
    scanned and some dozens read.
    """
    scores = table[4 : 4 + classes]
    best = _best_scores(scores)
    cells = np.flatnonzero(best > score)
    if len(cells) > MAX_CANDIDATES:
        cells = cells[best_first(best[cells].astype(np.float32), MAX_CANDIDATES)]
    chosen = scores[:, cells]
    class_ids = chosen.argmax(axis=0)
    boxes = corners(table[:4, cells].T.astype(np.float32))
    found, rows = select_candidates(boxes, chosen[class_ids, np.arange(len(cells))], class_ids, score)
    return Candidates(found, cells[rows])


def _best_scores(scores: Array) -> npt.NDArray[np.float32]:
    """The best score of each column of [classes, A]; NaN if a column has one.

    numpy compares FP16 value by value, forty times slower than integers. Bit patterns of values from zero up sort as
    the values do, with NaN above all; negative values sort below, which is sufficient for a threshold.
    """
    if scores.dtype == np.float16:
        return cast(npt.NDArray[np.float32], scores.view(np.int16).max(axis=0).view(np.float16))
    return cast(npt.NDArray[np.float32], scores.max(axis=0))
