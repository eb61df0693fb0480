"""The steps that families share: check output tensors, select candidates, suppress duplicates, map boxes to the
picture.

A model file can leave sizes open or declare them wrongly, and a runtime returns the tensors that the graph computes. So
a tensor of unexpected shape is refused. Detections with values that are not finite, or far outside any input, are
dropped.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

import msgspec
import numpy as np
import numpy.typing as npt

from edged.errors import EngineUnusable
from edged.tensors import Array
from edged.vision.detections import Detections
from edged.vision.nms import MAX_CANDIDATES, best_first, nms
from edged.vision.placement import Placement

Outputs: TypeAlias = Mapping[str, Array]
Floats: TypeAlias = npt.NDArray[np.float32]
Rows: TypeAlias = npt.NDArray[np.intp]
Size: TypeAlias = int | range

ANY = range(sys.maxsize)
AT_LEAST_ONE = range(1, sys.maxsize)
MAX_COORDINATE = 60_000.0  # pixels; below the largest FP16, far outside any input

# Floats, and integers as used for labels and counts. Shorter integers are quantised values, or hold BF16.
_NUMBERS = "efdilq"


class Thresholds(msgspec.Struct, frozen=True):
    """Which detections are returned: the best `max_detections` whose score is above `score`, and whose IoU with each
    better detection of the same class is at most `iou`.

    The defaults are those of `yolo predict` (0.25, 0.7, 300), so that a model returns the same detections as in the
    ultralytics package. A lower `iou` such as 0.45 gives fewer duplicates but loses neighbours in a crowd.

    If the model's graph includes the NMS, edged applies `iou` only if `class_agnostic` is set, and then to boxes of all
    classes. A classifier returns its best `max_detections` classes with at least `score`; the defaults are 5 and 0, or
    300 and 0.5 if a picture can have several labels. An embedding gets a name if its similarity is at least `score`. A
    picture is anomalous if its anomaly score, in the model's own scale, is at least `score`. A text whose score is
    below `score` is returned as an empty text; the default is 0.
    """

    score: float = 0.25
    iou: float = 0.7
    max_detections: int = 300
    class_agnostic: bool = False


def at_least(size: int) -> Size:
    return range(size, sys.maxsize)


def checked_tensor(outputs: Outputs, name: str, *sizes: Size) -> Array:
    """Return the tensor `name`. `sizes` has a number or a range for each axis. Raises EngineUnusable if the tensor is
    missing, is not numeric, or has another shape."""
    found = outputs.get(name)
    if found is None:
        raise EngineUnusable(f"the engine did not return output {name}; set family=raw to get the returned outputs")
    if found.dtype.char not in _NUMBERS or len(found.shape) != len(sizes) or not all(map(_fits, found.shape, sizes)):
        raise _unexpected(name, found, sizes)
    return found


def picture_tensor(outputs: Outputs, name: str, index: int, *sizes: Size) -> Array:
    """Return the part of a batched tensor that belongs to picture `index`. `sizes` are the sizes of this part. Raises
    EngineUnusable like `checked_tensor`, and if the tensor has no picture `index`."""
    found = checked_tensor(outputs, name, ANY, *sizes)
    if index >= len(found):
        raise _unexpected(name, found, (at_least(index + 1), *sizes))
    part: Array = found[index]
    return part


def picture_vector(outputs: Outputs, name: str, index: int, size: Size) -> Array:
    """Return the vector of picture `index` in a tensor [N, size]; further axes of size 1 are dropped. Raises
    EngineUnusable like `picture_tensor`."""
    found = outputs.get(name)
    if found is not None and found.ndim > 2 and all(extent == 1 for extent in found.shape[2:]):
        outputs = {name: found.reshape(found.shape[:2])}
    return picture_tensor(outputs, name, index, size)


def picture_scalar(outputs: Outputs, name: str, index: int) -> float:
    """Return the value of picture `index` in a tensor [N]; further axes of size 1 are dropped. Raises EngineUnusable
    like `picture_tensor`."""
    found = outputs.get(name)
    if found is not None and found.ndim > 1:
        return float(picture_vector(outputs, name, index, 1)[0])
    return float(picture_tensor(outputs, name, index))


def counted_rows(outputs: Outputs, names: Sequence[str], index: int) -> tuple[Array, Array, Array]:
    """Return boxes [n, 4], scores [n] and class ids [n] of picture `index`, from a graph that pads them to a fixed
    length.

    `names` are the tensors of the count ([N] or [N, 1]), the boxes [N, K, 4], scores and class ids [N, K]. A count that
    is not finite means 0, a count above K means K. Raises EngineUnusable if a tensor has another shape.
    """
    count, boxes, scores, class_ids = names
    all_boxes = picture_tensor(outputs, boxes, index, ANY, 4)
    all_scores, ids = (picture_vector(outputs, name, index, len(all_boxes)) for name in (scores, class_ids))
    value = picture_scalar(outputs, count, index)
    n = int(min(max(value, 0), len(all_boxes))) if np.isfinite(value) else 0
    return all_boxes[:n], all_scores[:n], ids[:n]


def rows_of_picture(rows: Array, index: int) -> Array:
    """Return the rows of one picture in a table whose first column is the picture's index."""
    found: Array = rows[np.equal(rows[:, 0], index)]
    return found


def _fits(extent: int, size: Size) -> bool:
    return extent in size if isinstance(size, range) else extent == size


def _unexpected(name: str, found: Array, sizes: tuple[Size, ...]) -> EngineUnusable:
    wanted = ",".join(map(_size_text, sizes))
    got = ",".join(map(str, found.shape))
    return EngineUnusable(
        f"output {name} is {found.dtype}[{got}], expected numbers [{wanted}]: the model's output differs from"
        " what its file declares, or the model is of a different family; set the right family, or family=raw"
    )


def _size_text(size: Size) -> str:
    if not isinstance(size, range):
        return str(size)
    return f">={size.start}" if size.start > 1 else "any"


class Candidates(NamedTuple):
    """n detections with boxes in input pixels. `rows` [n] are the numbers of their rows (or cells) in the output."""

    found: Detections
    rows: Rows

    def select(self, chosen: Rows) -> Candidates:
        return Candidates(self.found.select(chosen), self.rows[chosen])


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


def select_candidates(boxes: Array, scores: Array, class_ids: Array, score: float) -> Candidates:
    """Return the rows whose score is above `score`, in no particular order; of more than `MAX_CANDIDATES` rows, the
    best. Drop rows with invalid values. The arrays are as for `to_detections`."""
    rows = np.flatnonzero(np.greater(scores, score))
    if len(rows) > MAX_CANDIDATES:
        rows = rows[best_first(scores[rows].astype(np.float32), MAX_CANDIDATES)]
    return _sane(boxes[rows].astype(np.float32), scores[rows].astype(np.float32), class_ids[rows], rows)


def to_keypoint_detections(
    boxes: Array, scores: Array, points: Floats, placement: Placement, thresholds: Thresholds, *, needs_nms: bool
) -> Detections:
    """Return detections of one class with keypoints, in pixels of the original picture, best score first.

    Boxes, scores and `needs_nms` are as for `to_detections`. Points are [n, k, 2], x and y in input pixels, or
    [n, k, 3] with a score; keypoints without a score get score 1. `k` is 0 if the model has no keypoints. Keypoints may
    lie outside the picture. A detection is dropped if one of its keypoints is NaN, infinite, or far outside any input.
    """
    offered = select_candidates(boxes, scores, np.zeros(len(scores)), thresholds.score)
    points = points[offered.rows]
    sane = np.flatnonzero(np.all(np.abs(points) < MAX_COORDINATE, axis=(1, 2)))
    kept = suppress(Candidates(offered.found.select(sane), sane), thresholds, needs_nms=needs_nms)
    found = kept.found
    if points.shape[1]:
        points = points[kept.rows]
        keypoints = np.ones((*points.shape[:2], 3), np.float32)
        keypoints[..., :2] = placement.points_to_original(points[..., :2])
        keypoints[..., 2:] = np.clip(points[..., 2:], 0, 1) if points.shape[2] == 3 else 1
        found = msgspec.structs.replace(found, keypoints=keypoints)
    return to_picture(found, placement)


def select_cells(table: Array, classes: int, score: float) -> Candidates:
    """Select detections from a table with a column per grid cell, [4 + classes + more, A]: cx, cy, w, h in input
    pixels, a score per class, and further values.

    Returns the cells whose best score is above `score`, each with its best class, in no particular order. Of more than
    `MAX_CANDIDATES` cells, only the best are returned. Cells with a NaN score or an invalid box are dropped. The whole
    table is never transposed or copied, because only some dozens of its thousands of columns are needed.
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


def best_hits(scores: Array, score: float) -> tuple[Rows, Rows]:
    """Return the rows and columns of the values above `score` in a matrix; at most the best `MAX_CANDIDATES`."""
    # A search in the flat matrix takes a third of the time of a search by rows and columns.
    found = np.flatnonzero(np.greater(scores, score))
    if len(found) > MAX_CANDIDATES:
        found = found[best_first(scores.reshape(-1)[found].astype(np.float32), MAX_CANDIDATES)]
    return np.divmod(found, scores.shape[1])


def _best_scores(scores: Array) -> Floats:
    """Return the best score of each column of [classes, A]; NaN if a column contains NaN. In FP16, a NaN with the sign
    bit counts as a negative value.

    numpy compares FP16 values one by one, forty times slower than integers, so the bit patterns are compared as
    integers. The patterns of values from 0 up have the order of the values, and NaN is above them. The patterns of
    negative values are negative integers in reverse order, which does not matter: such values are below any threshold.
    """
    if scores.dtype == np.float16:
        return cast(Floats, scores.view(np.int16).max(axis=0).view(np.float16))
    return cast(Floats, scores.max(axis=0))


def _sane(boxes: Floats, scores: Floats, class_ids: Array, rows: Rows) -> Candidates:
    labels = np.rint(class_ids.astype(np.float64))
    sane = np.isfinite(scores) & np.all(np.abs(boxes) < MAX_COORDINATE, axis=1)
    sane &= (labels >= 0) & (labels < 1 << 31)
    return Candidates(Detections(boxes[sane], scores[sane], labels[sane].astype(np.int32)), rows[sane])


def suppress(offered: Candidates, thresholds: Thresholds, *, needs_nms: bool) -> Candidates:
    """Drop boxes without an area. Apply the NMS if `needs_nms` or `class_agnostic` is set. Return at most
    `max_detections` candidates, the best score first."""
    most = thresholds.max_detections
    # Inverted and empty boxes must not suppress other boxes.
    there = with_area(offered.found.boxes)
    if len(there) < len(offered.rows):
        offered = offered.select(there)
    found = offered.found
    if needs_nms or thresholds.class_agnostic:
        agnostic = thresholds.class_agnostic
        return offered.select(nms(found.boxes, found.scores, found.class_ids, thresholds.iou, most, agnostic))
    return offered.select(best_first(found.scores, most))


def to_picture(found: Detections, placement: Placement) -> Detections:
    """Convert detections to pixels of the original picture. Boxes that lie entirely in the padding have no area in the
    picture and are dropped."""
    boxes = placement.to_original(found.boxes)
    return msgspec.structs.replace(found, boxes=boxes).select(with_area(boxes))


def with_area(boxes: Floats) -> Rows:
    """Return the indices of the boxes [n, 4] that have an area."""
    return np.flatnonzero((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1]))


def corners(centred: Floats) -> Floats:
    """Convert cx, cy, w, h [n, 4] to xyxy [n, 4]."""
    half = centred[:, 2:] / 2
    with np.errstate(invalid="ignore"):  # an infinite box gets NaN corners and is dropped later
        return np.concatenate((centred[:, :2] - half, centred[:, :2] + half), axis=1, dtype=np.float32)


def best_class(scores: Floats) -> tuple[Floats, Rows]:
    """Return the best score of each row of [n, classes], and the class of this score. The score is NaN if the row
    contains NaN."""
    class_ids = scores.argmax(axis=1)  # argmax returns the index of NaN if the row has NaN
    return scores[np.arange(len(scores)), class_ids], class_ids


def sigmoid(values: Floats) -> Floats:
    """Return 1 / (1 + exp(-x)) without overflow. Return NaN for infinity, because 0 or 1 would look like a score."""
    scores: Floats = np.tanh(values * np.float32(0.5)) * np.float32(0.5) + np.float32(0.5)
    return np.where(np.isfinite(values), scores, np.float32(np.nan))


def softmax(values: Floats) -> Floats:
    """Return the softmax along the last axis; NaN for rows with NaN, positive infinity or only negative infinity."""
    with np.errstate(invalid="ignore"):
        powers: Floats = np.exp(values - values.max(axis=-1, keepdims=True))
        shares: Floats = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def logit(score: float) -> float:
    """Return the value whose sigmoid is `score`; infinite for 0 and 1."""
    if 0 < score < 1:
        return float(np.log(score / (1 - score)))
    return -np.inf if score <= 0 else np.inf
