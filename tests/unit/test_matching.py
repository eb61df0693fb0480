"""Matching of detections one to one, and the figures of what matched, by hand-computed cases."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from edged.verification.matching import keypoint_similarities, mask_ious, match
from edged.vision import masks
from edged.vision.detections import Detections

Row = tuple[float, float, float, float, float, int]  # xyxy, score, class

ONE: Row = (0, 0, 10, 10, 0.9, 0)
FAR: Row = (50, 50, 60, 60, 0.8, 0)


def detections(*rows: Row) -> Detections:
    return Detections.of([row[:4] for row in rows], [row[4] for row in rows], [row[5] for row in rows])


@pytest.mark.parametrize(
    ("expected", "found", "least", "pairs"),
    [
        pytest.param([], [], 0.5, [], id="empty frame"),
        pytest.param([ONE], [], 0.5, [], id="missed"),
        pytest.param([], [ONE], 0.5, [], id="invented"),
        pytest.param([ONE, FAR], [FAR, ONE], 0.5, [(0, 1), (1, 0)], id="another order"),
        pytest.param([ONE], [(0, 0, 10, 5, 0.9, 0)], 0.5, [(0, 0)], id="IoU of exactly the limit"),
        pytest.param([ONE], [(0, 0, 10, 4.9, 0.9, 0)], 0.5, [], id="IoU just below the limit"),
        pytest.param([ONE], [(0, 0, 10, 7.5, 0.9, 0)], 0.75, [(0, 0)], id="IoU of exactly the stricter limit"),
        pytest.param([ONE], [(10, 0, 20, 10, 0.9, 0)], 0.0001, [], id="only the edges touch"),
        pytest.param([ONE], [(*ONE[:5], 1)], 0.5, [], id="class swapped"),
        pytest.param([ONE], [ONE, (0, 0, 10, 9, 0.5, 0)], 0.5, [(0, 0)], id="second box on an object"),
        pytest.param([ONE], [(0, 0, 10, 8, 0.3, 0), (0, 0, 10, 9, 0.6, 0)], 0.5, [(0, 1)], id="best score first"),
        pytest.param([ONE, (0, 2, 10, 12, 0.7, 0)], [(0, 2, 10, 12, 0.9, 0), ONE], 0.5, [(1, 0), (0, 1)], id="crowd"),
        pytest.param([ONE], [(math.nan, 0, 10, 10, 0.9, 0)], 0.5, [], id="box is NaN"),
        pytest.param([ONE], [(*ONE[:4], math.nan, 0)], 0.5, [], id="score is NaN"),
        pytest.param([(5, 5, 5, 5, 0.9, 0)], [(5, 5, 5, 5, 0.9, 0)], 0.5, [], id="boxes without an area"),
    ],
)
def test_match(expected: list[Row], found: list[Row], least: float, pairs: list[tuple[int, int]]) -> None:
    assert sorted(match(detections(*expected), detections(*found), least)) == sorted(pairs)


def masked(*sides: tuple[int, int, int, int]) -> Detections:
    """Return detections whose masks are rectangles x, y, width, height in a picture of 20 x 10."""
    shapes = [masks.encode(np.ones((height, width), np.bool_), x, y, 20, 10) for x, y, width, height in sides]
    boxes = [(x, y, x + width, y + height) for x, y, width, height in sides]
    return Detections.of(boxes, [0.9] * len(sides), [0] * len(sides), masks=shapes)


@pytest.mark.parametrize(
    ("one", "other", "iou"),
    [
        ((2, 2, 4, 4), (2, 2, 4, 4), 1.0),
        ((2, 2, 4, 4), (4, 2, 4, 4), 8 / 24),
        ((2, 2, 4, 4), (3, 3, 2, 2), 4 / 16),
        ((0, 0, 4, 4), (10, 0, 4, 4), 0.0),
        ((0, 0, 20, 10), (0, 0, 10, 10), 0.5),
    ],
)
def test_mask_ious(one: tuple[int, int, int, int], other: tuple[int, int, int, int], iou: float) -> None:
    assert mask_ious(masked(one), masked(other), [(0, 0)], 20, 10) == [pytest.approx(iou)]


def test_mask_ious_without_masks_is_empty() -> None:
    assert mask_ious(detections(ONE), detections(ONE), [(0, 0)], 20, 10) == []


def test_mask_ious_of_two_empty_masks_is_one() -> None:
    empty = Detections.of([ONE[:4]], [0.9], [0], masks=[masks.encode(np.zeros((1, 1), np.bool_), 0, 0, 20, 10)])
    assert mask_ious(empty, empty, [(0, 0)], 20, 10) == [1.0]


def posed(*points: tuple[float, float, float]) -> Detections:
    """Return one detection of 10 x 10 pixels with keypoints x, y, score."""
    return Detections.of([ONE[:4]], [0.9], [0], keypoints=np.array([points], np.float32))


def test_keypoint_similarities_falls_with_the_distance() -> None:
    truth = posed((5, 5, 0.9), (2, 2, 0.9))
    assert keypoint_similarities(truth, truth, [(0, 0)]) == [1.0]
    (found,) = keypoint_similarities(truth, posed((6, 5, 0.9), (2, 2, 0.1)), [(0, 0)])
    assert found == pytest.approx((math.exp(-1 / (2 * 100 * 0.01)) + 1) / 2)


def test_keypoint_similarities_leaves_out_what_the_reference_does_not_see() -> None:
    truth = posed((5, 5, 0.9), (2, 2, 0.1))
    assert keypoint_similarities(truth, posed((5, 5, 0.9), (9, 9, 0.9)), [(0, 0)]) == [1.0]
    assert keypoint_similarities(posed((5, 5, 0.1)), posed((5, 5, 0.9)), [(0, 0)]) == []


def test_keypoint_similarities_of_nan_is_zero() -> None:
    points: list[npt.ArrayLike] = [(math.nan, 5, 0.9)]
    found = Detections.of([ONE[:4]], [0.9], [0], keypoints=np.array([points], np.float32))
    assert keypoint_similarities(posed((5, 5, 0.9)), found, [(0, 0)]) == [0.0]
