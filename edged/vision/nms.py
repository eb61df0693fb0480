"""Greedy non-maximum suppression in numpy.

Own code rather than OpenCV's because its cost is bounded: work goes block by block in order of score and
stops at `max_detections`, so thousands of candidates that do not overlap (a wall of noise) cost a tenth of
NMSBoxesBatched. Boxes stay xyxy, and classes are compared, not shifted apart by an offset, which would cost
float32 its precision.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Boxes: TypeAlias = npt.NDArray[np.float32]
Scores: TypeAlias = npt.NDArray[np.float32]
ClassIds: TypeAlias = npt.NDArray[np.integer]
Index: TypeAlias = npt.NDArray[np.intp]

MAX_CANDIDATES = 4096  # best scores that take part; beyond, nothing would reach the max_detections kept
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
    """Indices of the boxes that stay, best score first (equal scores: lower index first).

    Boxes are float32 [n, 4] xyxy in any unit, scores float32 [n], class_ids integers [n]. A box goes when a
    better one of its class (of any class, if class_agnostic) overlaps it by more than `iou`. NaN scores are
    dropped.
    """
    order = best_first(scores, max_candidates)
    columns = np.ascontiguousarray(boxes[order].T, dtype=np.float32)
    labels = np.zeros(len(order), np.int32) if class_agnostic else class_ids[order]
    return order[keep(len(order), _Overlaps(columns, labels, iou), max_detections)]


class Overlaps(Protocol):
    """Tells which pairs of n candidates, best first, are too much alike."""

    def between(self, rows: Index, columns: Index) -> npt.NDArray[np.bool_]:
        """[len(rows), len(columns)]."""
        ...


def keep(n: int, overlaps: Overlaps, max_detections: int) -> Index:
    """Which of n candidates, best first, stay if each goes that is too much like a better one that stays."""
    kept = np.empty(0, np.intp)
    for start in range(0, n, _BLOCK):
        block = np.arange(start, min(start + _BLOCK, n))
        if kept.size:
            block = block[~overlaps.between(kept, block).any(axis=0)]
        kept = np.concatenate((kept, block[_survivors(overlaps.between(block, block))]))
        if len(kept) >= max_detections:
            break
    return kept[:max_detections]


def keep_unlike_all(n: int, overlaps: Overlaps, max_detections: int) -> Index:
    """Which of n candidates, best first, stay if each goes that is too much like any better one, whether that stays or
    not."""
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
    """Indices of the `limit` best scores, best first, ties by index; NaN left out."""
    index = np.flatnonzero(~np.isnan(scores))
    if len(index) > limit:
        index = np.sort(index[np.argpartition(-scores[index], limit - 1)[:limit]])
    return index[np.argsort(-scores[index], kind="stable")]


class _Overlaps:
    """Which pairs of boxes overlap by more than `iou` and have the same label."""

    def __init__(self, columns: Boxes, labels: ClassIds, iou: float) -> None:
        self._x1, self._y1, self._x2, self._y2 = columns
        self._area = (self._x2 - self._x1) * (self._y2 - self._y1)
        self._labels = labels
        self._iou = np.float32(iou)

    def between(self, rows: Index, columns: Index) -> npt.NDArray[np.bool_]:
        """[len(rows), len(columns)]; the union is never divided by, so that empty boxes need no care."""
        a = rows[:, None]
        width = np.minimum(self._x2[a], self._x2[columns]) - np.maximum(self._x1[a], self._x1[columns])
        height = np.minimum(self._y2[a], self._y2[columns]) - np.maximum(self._y1[a], self._y1[columns])
        shared = np.maximum(width, 0) * np.maximum(height, 0)
        union = self._area[a] + self._area[columns] - shared
        hit: npt.NDArray[np.bool_] = (shared > self._iou * union) & (self._labels[a] == self._labels[columns])
        return hit


def _survivors(hits: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Greedy pass over one block, square and best first: row i, if alive, removes what it hits after it."""
    alive = np.ones(len(hits), np.bool_)
    later = np.triu(hits, k=1)
    for i in np.flatnonzero(later.any(axis=1)):
        if alive[i]:
            alive &= ~later[i]
    return alive
