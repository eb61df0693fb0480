"""Matches the detections of two engines one to one, and compares the masks and keypoints of the pairs. Pure.

The matching is that of the COCO evaluation. Detections are matched in the order of their scores, best first. Each is
paired with the free detection of the other side that has the same class and overlaps it most. The overlap must be large
enough. A second box on an object therefore counts as wrong.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from edged.verification.boxes import overlaps
from edged.vision import masks
from edged.vision.detections import Detections

Pairs: TypeAlias = "list[tuple[int, int]]"

_VISIBLE = 0.25  # keypoints with a lower score are hidden or guessed; see `vision.draw`
_SPREAD = 0.1  # twice the usual deviation of a keypoint, as a share of the object's size: the median of COCO's points


def match(expected: Detections, found: Detections, least: float) -> Pairs:
    """Return the matched detections as pairs: row of `expected`, row of `found`. The boxes of a pair have the same
    class and an IoU of at least `least`.

    A detection matches nothing if its box or its score is not finite.
    """
    shared = overlaps(expected.boxes, found.boxes)
    same = expected.class_ids[:, None] == found.class_ids
    shared = np.where(same & (_finite(expected)[:, None] & _finite(found)), shared, 0.0)
    pairs: Pairs = []
    for row in np.argsort(-found.scores, kind="stable").tolist():
        best = int(shared[:, row].argmax()) if len(expected) else -1
        if best >= 0 and shared[best, row] >= least:
            pairs.append((best, row))
            shared[best] = 0.0  # taken
    return pairs


def _finite(side: Detections) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = np.isfinite(side.boxes).all(axis=1) & np.isfinite(side.scores)
    return found


def mask_ious(expected: Detections, found: Detections, pairs: Pairs, width: int, height: int) -> list[float]:
    """Return, for each pair, the IoU of its two masks in a picture of width x height pixels; empty without masks."""
    if expected.masks is None or found.masks is None:
        return []
    return [_mask_iou(expected.masks[one], found.masks[other], width, height) for one, other in pairs]


def _mask_iou(one: masks.Counts, other: masks.Counts, width: int, height: int) -> float:
    (a, ax, ay), (b, bx, by) = masks.crop(one, width, height), masks.crop(other, width, height)
    left, right = max(ax, bx), min(ax + a.shape[1], bx + b.shape[1])
    top, bottom = max(ay, by), min(ay + a.shape[0], by + b.shape[0])
    both = 0
    if left < right and top < bottom:
        ours, theirs = (
            a[top - ay : bottom - ay, left - ax : right - ax],
            b[top - by : bottom - by, left - bx : right - bx],
        )
        both = int(np.count_nonzero(ours & theirs))
    union = int(np.count_nonzero(a)) + int(np.count_nonzero(b)) - both
    return both / union if union else 1.0  # both masks are empty


def keypoint_similarities(expected: Detections, found: Detections, pairs: Pairs) -> list[float]:
    """Return the object keypoint similarity (OKS) of each pair, 0 to 1. It is the mean of exp(-d² / (2 · area · 0.1²))
    over the keypoints that the reference sees. Here `d` is the distance between the two keypoints in pixels, and `area`
    is the area of the reference's box. Pairs without a visible keypoint are left out."""
    if expected.keypoints is None or found.keypoints is None or expected.keypoints.shape[1] != found.keypoints.shape[1]:
        return []
    return [
        value
        for one, other in pairs
        if (value := _similarity(expected.keypoints[one], found.keypoints[other], expected.boxes[one])) is not None
    ]


def _similarity(
    expected: npt.NDArray[np.float32], found: npt.NDArray[np.float32], box: npt.NDArray[np.float32]
) -> float | None:
    visible = expected[:, 2] >= _VISIBLE
    if not visible.any():
        return None
    area = max(float((box[2] - box[0]) * (box[3] - box[1])), 1.0)
    away = (expected[visible, :2].astype(np.float64) - found[visible, :2]) ** 2
    likeness = np.exp(-away.sum(axis=1) / (2 * area * _SPREAD**2))
    return float(np.where(np.isfinite(likeness), likeness, 0.0).mean())
