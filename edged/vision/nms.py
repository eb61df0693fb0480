"""Non-maximum suppression in numpy, of upright and of oriented boxes.

Unlike OpenCV's its cost is bounded: it works block by block in order of score and stops at `max_detections`, so
thousands of candidates that do not overlap (noise) cost a tenth of NMSBoxesBatched. Boxes stay xyxy, and classes are
compared, not shifted apart by an offset, which would cost float32 precision.

Oriented boxes are compared by their probabilistic IoU, as in the exporters' own tools, so that a threshold means the
same: each box is taken as the normal distribution with mean and covariance of a uniform rectangle, and compared by 1
minus the Hellinger distance (Llerena et al., "Gaussian Bounding Boxes and Probabilistic Intersection-over-Union for
Object Detection", 2021).
"""

from __future__ import annotations

import math
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Boxes: TypeAlias = npt.NDArray[np.float32]
Scores: TypeAlias = npt.NDArray[np.float32]
ClassIds: TypeAlias = npt.NDArray[np.integer]
Index: TypeAlias = npt.NDArray[np.intp]

MAX_CANDIDATES = 4096  # best scores that take part
_BLOCK = 256


def nms(
    boxes: Boxes,
    scores: Scores,
    class_ids: ClassIds,
    iou: float,
    max_detections: int,
    class_agnostic: bool = False,
    max_candidates: int = MAX_CANDIDATES,
) -> Index:
    """Return the indices of the boxes to keep, best score first (equal scores: lower index first).

    Boxes are float32 [n, 4] xyxy in any unit, scores float32 [n], class_ids integers [n]. A box is dropped if a better
    one of its class (of any class, if class_agnostic) overlaps it by more than `iou`. NaN scores are dropped.
    """
    order = best_first(scores, max_candidates)
    columns = np.ascontiguousarray(boxes[order].T, dtype=np.float32)
    labels = np.zeros(len(order), np.int32) if class_agnostic else class_ids[order]
    return order[keep_greedy(len(order), _BoxOverlaps(columns, labels, iou), max_detections)]


class Overlaps(Protocol):
    """Which pairs of n candidates, best first, overlap too much."""

    def between(self, rows: Index, columns: Index) -> npt.NDArray[np.bool_]:
        """[len(rows), len(columns)]."""
        ...


def keep_greedy(n: int, overlaps: Overlaps, max_detections: int) -> Index:
    """Return which of n candidates, best first, to keep: those that overlap no better one that is kept."""
    kept = np.empty(0, np.intp)
    for start in range(0, n, _BLOCK):
        block = np.arange(start, min(start + _BLOCK, n))
        if kept.size:
            block = block[~overlaps.between(kept, block).any(axis=0)]
        kept = np.concatenate((kept, block[_survivors(overlaps.between(block, block))]))
        if len(kept) >= max_detections:
            break
    return kept[:max_detections]


def keep_fast(n: int, overlaps: Overlaps, max_detections: int) -> Index:
    """Return which of n candidates, best first, to keep: those that overlap no better one, kept or not."""
    kept = np.empty(0, np.intp)
    for start in range(0, n, _BLOCK):
        block = np.arange(start, min(start + _BLOCK, n))
        alone = ~np.triu(overlaps.between(block, block), k=1).any(axis=0)
        if start:
            alone &= ~overlaps.between(np.arange(start), block).any(axis=0)
        kept = np.concatenate((kept, block[alone]))
        if len(kept) >= max_detections:
            break
    return kept[:max_detections]


def best_first(scores: Scores, limit: int) -> Index:
    """Return the indices of the `limit` best scores, best first, ties by index, without NaN."""
    index = np.flatnonzero(~np.isnan(scores))
    if len(index) > limit:
        index = np.sort(index[np.argpartition(-scores[index], limit - 1)[:limit]])
    return index[np.argsort(-scores[index], kind="stable")]


class _BoxOverlaps:
    """Which pairs of boxes overlap by more than `iou` and have the same label."""

    def __init__(self, columns: Boxes, labels: ClassIds, iou: float) -> None:
        self._x1, self._y1, self._x2, self._y2 = columns
        self._area = (self._x2 - self._x1) * (self._y2 - self._y1)
        self._labels = labels
        self._iou = np.float32(iou)

    def between(self, rows: Index, columns: Index) -> npt.NDArray[np.bool_]:
        """[len(rows), len(columns)]; without a division by the union, which is zero for empty boxes."""
        a = rows[:, None]
        width = np.minimum(self._x2[a], self._x2[columns]) - np.maximum(self._x1[a], self._x1[columns])
        height = np.minimum(self._y2[a], self._y2[columns]) - np.maximum(self._y1[a], self._y1[columns])
        shared = np.maximum(width, 0) * np.maximum(height, 0)
        union = self._area[a] + self._area[columns] - shared
        hit: npt.NDArray[np.bool_] = (shared > self._iou * union) & (self._labels[a] == self._labels[columns])
        return hit


def _survivors(hits: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Suppress within one block [n, n], best first: each row that is alive removes the later ones that it hits."""
    alive = np.ones(len(hits), np.bool_)
    later = np.triu(hits, k=1)
    for i in np.flatnonzero(later.any(axis=1)):
        if alive[i]:
            alive &= ~later[i]
    return alive


Oriented = npt.NDArray[np.float32]

_MIN_SIDE = 1e-3  # pixels: the covariance of a box without width is singular


def rotated_nms(
    boxes: Oriented,
    scores: Scores,
    class_ids: ClassIds,
    iou: float,
    max_detections: int,
    class_agnostic: bool = False,
    max_candidates: int = MAX_CANDIDATES,
) -> Index:
    """Return the indices of the boxes to keep, as `nms`, of boxes float32 [n, 5]: cx, cy, w, h, and the angle in
    radians, clockwise if y points down. Suppressed boxes suppress others too, as in Ultralytics' `TorchNMS.fast_nms`.
    """
    order = best_first(scores, max_candidates)
    labels = np.zeros(len(order), np.int32) if class_agnostic else class_ids[order]
    return order[keep_fast(len(order), _RotatedOverlaps(boxes[order], labels, iou), max_detections)]


def corners_of(boxes: Oriented) -> npt.NDArray[np.float32]:
    """Corners of cx, cy, w, h, angle: float32 [n, 4, 2], in order around each box."""
    centre, half, angle = boxes[:, None, :2], boxes[:, None, 2:4] / 2, boxes[:, 4]
    cos, sin = np.cos(angle), np.sin(angle)
    upright = half * np.array(((-1, -1), (1, -1), (1, 1), (-1, 1)), np.float32)
    turn = np.stack((np.stack((cos, sin), axis=1), np.stack((-sin, cos), axis=1)), axis=1)
    found: npt.NDArray[np.float32] = (centre + upright @ turn).astype(np.float32)
    return found


def hull_of(corners: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The upright boxes around corners [n, 4, 2]: xyxy float32 [n, 4]."""
    return np.concatenate((corners.min(axis=1), corners.max(axis=1)), axis=1, dtype=np.float32)


class _RotatedOverlaps:
    """Which pairs of boxes have a probabilistic IoU of more than `iou` and the same label."""

    def __init__(self, boxes: Oriented, labels: ClassIds, iou: float) -> None:
        # The determinant of the covariance of a long thin box is zero in float32.
        self._x, self._y, width, height, angle = boxes.T.astype(np.float64)
        along, across = np.maximum(width, _MIN_SIDE) ** 2 / 12, np.maximum(height, _MIN_SIDE) ** 2 / 12
        cos, sin = np.cos(angle), np.sin(angle)
        self._xx = along * cos**2 + across * sin**2
        self._yy = along * sin**2 + across * cos**2
        self._xy = (along - across) * cos * sin
        self._spread = np.log(along * across) / 2  # half of the logarithm of the determinant
        self._labels = labels
        # An IoU above `iou` is a Bhattacharyya distance below this, without a square root or exponential for each pair.
        # No IoU is above 1, however the difference is rounded.
        self._limit = -math.inf if iou >= 1 else math.inf if iou <= 0 else -math.log(1 - (1 - iou) ** 2)

    def between(self, rows: Index, columns: Index) -> npt.NDArray[np.bool_]:
        """[len(rows), len(columns)]."""
        a = rows[:, None]
        xx, yy = self._xx[a] + self._xx[columns], self._yy[a] + self._yy[columns]
        xy = self._xy[a] + self._xy[columns]
        dx, dy = self._x[a] - self._x[columns], self._y[a] - self._y[columns]
        determinant = xx * yy - xy**2
        apart = (yy * dx**2 + xx * dy**2 - 2 * xy * dx * dy) / (4 * determinant)
        unlike = (np.log(determinant / 4) - self._spread[a] - self._spread[columns]) / 2
        hit: npt.NDArray[np.bool_] = (apart + unlike < self._limit) & (self._labels[a] == self._labels[columns])
        return hit
