"""Non-maximum suppression in numpy, of upright (axis-aligned) and of oriented boxes.

Unlike OpenCV's NMS, this NMS has a bounded cost: it compares boxes block by block in order of score and stops at
`max_detections`. Thousands of candidates that do not overlap (noise) take a tenth of the time of OpenCV's
NMSBoxesBatched. Boxes stay xyxy. Class ids are compared, because the usual alternative, moving the boxes of each class
by an offset, would cost float32 precision.

Oriented boxes are compared by their probabilistic IoU, as in the exporters' own tools, so that a threshold has the same
meaning. Each box is replaced by the normal distribution with mean and covariance of a uniform rectangle; the IoU is 1
minus the Hellinger distance (Llerena et al., "Gaussian Bounding Boxes and Probabilistic Intersection-over-Union for
Object Detection", 2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Boxes: TypeAlias = npt.NDArray[np.float32]
Scores: TypeAlias = npt.NDArray[np.float32]
ClassIds: TypeAlias = npt.NDArray[np.integer]
Index: TypeAlias = npt.NDArray[np.intp]
Hits: TypeAlias = npt.NDArray[np.bool_]
Overlaps: TypeAlias = Callable[[Index, Index], Hits]  # returns which pairs [rows, columns] overlap too much

MAX_CANDIDATES = 4096  # only the boxes with the best scores take part
_BLOCK = 256
_MIN_SIDE = 1e-3  # pixels: the covariance of a box without width is singular


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

    Boxes are float32 in any unit: [n, 4] xyxy, or [n, 5] cx, cy, w, h, and the angle in radians, clockwise if y points
    down. Scores are float32 [n], class_ids integers [n]. A box is dropped if a better box of its class (of any class,
    if class_agnostic) overlaps it by more than `iou`. An upright box is compared only with better boxes that are kept.
    An oriented box is compared with all better boxes, as in Ultralytics' `TorchNMS.fast_nms`. Boxes with a NaN score
    are dropped.
    """
    order = best_first(scores, max_candidates)
    labels = np.zeros(len(order), np.int32) if class_agnostic else class_ids[order]
    if boxes.shape[1] == 5:
        return order[_keep_fast(len(order), _oriented_overlaps(boxes[order], labels, iou), max_detections)]
    columns = np.ascontiguousarray(boxes[order].T, dtype=np.float32)
    return order[_keep_greedy(len(order), _upright_overlaps(columns, labels, iou), max_detections)]


def best_first(scores: Scores, limit: int) -> Index:
    """Return the indices of the `limit` best scores, best first. Equal scores are ordered by index; NaN is left out."""
    index = np.flatnonzero(~np.isnan(scores))
    if len(index) > limit:
        index = np.sort(index[np.argpartition(-scores[index], limit - 1)[:limit]])
    return index[np.argsort(-scores[index], kind="stable")]


def corners_of(boxes: Boxes) -> npt.NDArray[np.float32]:
    """Return the corners of boxes cx, cy, w, h, angle: float32 [n, 4, 2], in order around each box."""
    centre, half, angle = boxes[:, None, :2], boxes[:, None, 2:4] / 2, boxes[:, 4]
    cos, sin = np.cos(angle), np.sin(angle)
    upright = half * np.array(((-1, -1), (1, -1), (1, 1), (-1, 1)), np.float32)
    turn = np.stack((np.stack((cos, sin), axis=1), np.stack((-sin, cos), axis=1)), axis=1)
    found: npt.NDArray[np.float32] = (centre + upright @ turn).astype(np.float32)
    return found


def hull_of(corners: npt.NDArray[np.float32]) -> Boxes:
    """Return the upright boxes around corners [n, 4, 2]: xyxy float32 [n, 4]."""
    return np.concatenate((corners.min(axis=1), corners.max(axis=1)), axis=1, dtype=np.float32)


def _keep_greedy(n: int, overlaps: Overlaps, max_detections: int) -> Index:
    """Return the indices of the candidates to keep. The n candidates are in order, the best first. A candidate is kept
    unless it overlaps a better candidate that is kept."""
    kept = np.empty(0, np.intp)
    for start in range(0, n, _BLOCK):
        block = np.arange(start, min(start + _BLOCK, n))
        if kept.size:
            block = block[~overlaps(kept, block).any(axis=0)]
        alive, later = np.ones(len(block), np.bool_), np.triu(overlaps(block, block), k=1)
        for i in np.flatnonzero(later.any(axis=1)):
            if alive[i]:
                alive &= ~later[i]
        kept = np.concatenate((kept, block[alive]))
        if len(kept) >= max_detections:
            break
    return kept[:max_detections]


def _keep_fast(n: int, overlaps: Overlaps, max_detections: int) -> Index:
    """Return the indices of the candidates to keep. The n candidates are in order, the best first. A candidate is kept
    unless it overlaps a better candidate. Dropped candidates count, too."""
    kept = np.empty(0, np.intp)
    for start in range(0, n, _BLOCK):
        block = np.arange(start, min(start + _BLOCK, n))
        alone = ~np.triu(overlaps(block, block), k=1).any(axis=0)
        if start:
            alone &= ~overlaps(np.arange(start), block).any(axis=0)
        kept = np.concatenate((kept, block[alone]))
        if len(kept) >= max_detections:
            break
    return kept[:max_detections]


def _upright_overlaps(boxes: Boxes, labels: ClassIds, iou: float) -> Overlaps:
    """Return a function that tests pairs of boxes [4, n] for an IoU above `iou` and the same label. The function does
    not divide by the union, because the union of empty boxes is zero."""
    left, top, right, bottom = boxes
    area = (right - left) * (bottom - top)
    limit = np.float32(iou)

    def between(rows: Index, columns: Index) -> Hits:
        a = rows[:, None]
        width = np.minimum(right[a], right[columns]) - np.maximum(left[a], left[columns])
        height = np.minimum(bottom[a], bottom[columns]) - np.maximum(top[a], top[columns])
        shared = np.maximum(width, 0) * np.maximum(height, 0)
        union = area[a] + area[columns] - shared
        hit: Hits = (shared > limit * union) & (labels[a] == labels[columns])
        return hit

    return between


def _oriented_overlaps(boxes: Boxes, labels: ClassIds, iou: float) -> Overlaps:
    """Return a function that tests pairs of boxes [n, 5] for a probabilistic IoU above `iou` and the same label."""
    # The determinant of the covariance of a long thin box is zero in float32.
    x, y, w, h, angle = boxes.T.astype(np.float64)
    along, across = np.maximum(w, _MIN_SIDE) ** 2 / 12, np.maximum(h, _MIN_SIDE) ** 2 / 12
    cos, sin = np.cos(angle), np.sin(angle)
    var_x, var_y = along * cos**2 + across * sin**2, along * sin**2 + across * cos**2
    cov = (along - across) * cos * sin
    spread = np.log(along * across) / 2  # half of the logarithm of the determinant
    # An IoU above `iou` is equivalent to a Bhattacharyya distance below this limit, which needs no square root or
    # exponential per pair. If `iou` is 1 or more, no boxes overlap, even if rounding errors say otherwise.
    limit = -math.inf if iou >= 1 else math.inf if iou <= 0 else -math.log(1 - (1 - iou) ** 2)

    def between(rows: Index, columns: Index) -> Hits:
        a = rows[:, None]
        xx, yy, xy = var_x[a] + var_x[columns], var_y[a] + var_y[columns], cov[a] + cov[columns]
        dx, dy = x[a] - x[columns], y[a] - y[columns]
        determinant = xx * yy - xy**2
        apart = (yy * dx**2 + xx * dy**2 - 2 * xy * dx * dy) / (4 * determinant)
        unlike = (np.log(determinant / 4) - spread[a] - spread[columns]) / 2
        hit: Hits = (apart + unlike < limit) & (labels[a] == labels[columns])
        return hit

    return between
