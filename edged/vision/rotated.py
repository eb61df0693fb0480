"""Oriented boxes: their corners, and their non-maximum suppression.

How much two of them are alike is told by their probabilistic IoU: each is taken for the normal distribution with the
mean and the covariance of an even rectangle, and 1 minus the Hellinger distance of the two is compared (Llerena et al.,
"Gaussian Bounding Boxes and Probabilistic Intersection-over-Union for Object Detection", 2021). It costs some dozen
operations a pair, and it is what the exporters' own tools suppress by, so that a threshold means the same.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from edged.vision.nms import MAX_CANDIDATES, ClassIds, Index, Scores, best_first, keep_unlike_all

Oriented = npt.NDArray[np.float32]

_LEAST = 1e-3  # pixels: what has no width has no covariance either


def rotated_nms(
    boxes: Oriented,
    scores: Scores,
    class_ids: ClassIds,
    iou: float,
    max_detections: int,
    class_agnostic: bool = False,
    max_candidates: int = MAX_CANDIDATES,
) -> Index:
    """Indices of the boxes that stay, best score first; boxes are float32 [n, 5]: cx, cy, w, h, and the angle in
    radians, clockwise where y points down. What is itself suppressed suppresses too, as in Ultralytics'
    `TorchNMS.fast_nms`; everything else is as for `nms.nms`."""
    order = best_first(scores, max_candidates)
    labels = np.zeros(len(order), np.int32) if class_agnostic else class_ids[order]
    return order[keep_unlike_all(len(order), _Likeness(boxes[order], labels, iou), max_detections)]


def corners_of(boxes: Oriented) -> npt.NDArray[np.float32]:
    """The corners of cx, cy, w, h, angle: float32 [n, 4, 2], one after the other round each box."""
    centre, half, angle = boxes[:, None, :2], boxes[:, None, 2:4] / 2, boxes[:, 4]
    cos, sin = np.cos(angle), np.sin(angle)
    upright = half * np.array(((-1, -1), (1, -1), (1, 1), (-1, 1)), np.float32)
    turn = np.stack((np.stack((cos, sin), axis=1), np.stack((-sin, cos), axis=1)), axis=1)
    found: npt.NDArray[np.float32] = (centre + upright @ turn).astype(np.float32)
    return found


def hull_of(corners: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The upright boxes around corners [n, 4, 2]: xyxy float32 [n, 4]."""
    return np.concatenate((corners.min(axis=1), corners.max(axis=1)), axis=1, dtype=np.float32)


class _Likeness:
    """Which pairs of boxes have a probabilistic IoU of more than `iou` and the same label."""

    def __init__(self, boxes: Oriented, labels: ClassIds, iou: float) -> None:
        # Long thin boxes have covariances whose determinant float32 cannot tell from zero.
        self._x, self._y, width, height, angle = boxes.T.astype(np.float64)
        along, across = np.maximum(width, _LEAST) ** 2 / 12, np.maximum(height, _LEAST) ** 2 / 12
        cos, sin = np.cos(angle), np.sin(angle)
        self._xx = along * cos**2 + across * sin**2
        self._yy = along * sin**2 + across * cos**2
        self._xy = (along - across) * cos * sin
        self._spread = np.log(along * across) / 2  # half of the logarithm of the determinant
        self._labels = labels
        # Alike by more than `iou` is a Bhattacharyya distance below this: no square root or exponential for each pair.
        # Nothing is alike by more than 1, however the difference is rounded.
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
