"""Oriented boxes: corners, suppression by the probabilistic IoU, and the Ultralytics obb decoder."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.vision.families.ultralytics import CELLS, ROWS, UltralyticsObb
from edged.vision.family import Family, Reading, Thresholds
from edged.vision.nms import corners_of, hull_of, nms
from edged.vision.placement import Fit, Placement, Region, Roi
from edged.vision.preprocess import Preprocess
from tests.unit.shown import placed

SIZE, SHAPE = (800, 500), (400, 320)
ROIS = [None, Roi(Region(50, 31, 640, 401)), Roi(Region(50, 31, 640, 401), 90), Roi(rotation=180), Roi(None, 270)]


def boxes(*rows: tuple[float, ...]) -> np.ndarray:
    return np.array(rows, np.float32).reshape(-1, 5)


def keep(rows: np.ndarray, scores: list[float], iou: float = 0.5, limit: int = 300, agnostic: bool = False, ids=None):
    class_ids = np.array(ids or [0] * len(rows), np.int32)
    return nms(rows, np.array(scores, np.float32), class_ids, iou, limit, agnostic).tolist()


def likeness(one: np.ndarray, other: np.ndarray) -> float:
    """Return the probabilistic IoU by its definition, with matrices."""

    def covariance(box: np.ndarray) -> np.ndarray:
        cos, sin = math.cos(box[4]), math.sin(box[4])
        turn = np.array([[cos, -sin], [sin, cos]])
        return turn @ np.diag(box[2:4] ** 2 / 12) @ turn.T

    a, b = covariance(one), covariance(other)
    both, apart = (a + b) / 2, one[:2] - other[:2]
    distance = apart @ np.linalg.inv(both) @ apart / 8
    distance += math.log(np.linalg.det(both) / math.sqrt(np.linalg.det(a) * np.linalg.det(b))) / 2
    return 1 - math.sqrt(max(0.0, 1 - math.exp(-distance)))


def test_corners_of_rotated_rectangle_equal_opencvs():
    found = corners_of(boxes((50, 60, 40, 20, math.radians(30))))[0]
    assert np.allclose(found.mean(axis=0), (50, 60), atol=1e-4)
    wanted = cv2.boxPoints(((50, 60), (40, 20), 30))
    assert np.allclose(sorted(map(tuple, found)), sorted(map(tuple, wanted)), atol=1e-3)
    sides = np.linalg.norm(np.roll(found, -1, axis=0) - found, axis=1)
    assert np.allclose(sides, (40, 20, 40, 20), atol=1e-3), "the corners are in order around the box"
    assert np.allclose(corners_of(boxes((5, 6, 4, 2, 0)))[0], [(3, 5), (7, 5), (7, 7), (3, 7)])
    assert corners_of(boxes()).shape == (0, 4, 2)


def test_nms_drops_a_double_and_keeps_a_crossing_box():
    plank = (100, 100, 80, 10, 0.5)
    assert keep(boxes(plank, (101, 100, 80, 10, 0.52)), [0.5, 0.9]) == [1]
    crossing = (100, 100, 80, 10, 0.5 + math.pi / 2)
    assert keep(boxes(plank, crossing), [0.5, 0.9]) == [1, 0], "their upright hulls are nearly the same"
    assert keep(boxes(plank, (100, 100, 10, 80, 0.5 + math.pi / 2)), [0.5, 0.9]) == [1], "the same box, turned"


def test_nms_oriented_applies_classes_limits_and_thresholds():
    same = boxes(*[(100, 100, 80, 10, 0.5)] * 3)
    assert keep(same, [0.5, 0.9, 0.7], ids=[0, 1, 0]) == [1, 2]
    assert keep(same, [0.5, 0.9, 0.7], ids=[0, 1, 0], agnostic=True) == [1]
    assert keep(same, [0.5, 0.9, 0.7], iou=1.0) == [1, 2, 0]
    assert keep(boxes(*[(50 * i, 0, 9, 9, 0.3) for i in range(9)]), [i / 9 for i in range(9)], limit=2) == [8, 7]
    assert keep(boxes(), []) == []
    assert keep(same[:2], [math.nan, 0.1]) == [1]
    assert keep(boxes((5, 5, 0, 0, 0), (9, 9, 1e-9, 70, 0)), [0.5, 0.6]) == [1, 0], "boxes without width are accepted"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.05, 0.9))
def test_nms_drops_each_box_that_is_similar_to_a_better_one(seed, iou):
    rng = np.random.default_rng(seed)
    n = 60
    columns = (rng.uniform(0, 200, (2, n)), rng.uniform(2, 120, (2, n)), rng.uniform(-4, 4, (1, n)))
    rows = np.concatenate(columns).T.astype(np.float32)
    scores = (rng.permutation(n) / n).astype(np.float32)
    kept: list[int] = []
    for i in np.argsort(-scores):
        better = np.flatnonzero(scores > scores[i])
        alike = [likeness(rows[i].astype(float), rows[j].astype(float)) for j in better]
        if any(abs(value - iou) < 1e-6 for value in alike):
            return  # rounding decides
        if not any(value > iou for value in alike):
            kept.append(int(i))
    assert keep(rows, scores.tolist(), iou) == kept


def test_nms_cost_of_oriented_noise_is_bounded():
    rng = np.random.default_rng(1)
    rows = np.concatenate((rng.uniform(0, 9000, (2, 20_000)), rng.uniform(2, 9, (3, 20_000)))).T.astype(np.float32)
    scores = rng.permutation(20_000) / 20_000
    assert keep(rows, scores.tolist()) == np.argsort(-scores)[:300].tolist()


# --- the decoder

PLANKS = [(300, 200, 120, 30, 0.4), (450, 300, 60, 200, 2.0)]  # in pixels of the picture


def family(form: str) -> Family:
    preprocess = Preprocess(width=SHAPE[0], height=SHAPE[1])
    return UltralyticsObb(preprocess, ("ship", "plane"), Reading(("output0",), form))


def outputs(form: str, rows: list[tuple[float, ...]], dtype: type = np.float32) -> dict[str, np.ndarray]:
    """Return outputs with rows of cx, cy, w, h, angle in input pixels as detections of class 1."""
    if form == ROWS:
        table = np.zeros((1, 20, 7), dtype)
        for i, (*size, angle) in enumerate(rows):
            table[0, i] = (*size, 0.9 - i / 8, 1, angle)
    else:
        table = np.zeros((1, 4 + 2 + 1, 2625), dtype)
        for i, (*size, angle) in enumerate(rows):
            table[0, :, 100 + i] = (*size, 0, 0.9 - i / 8, angle)
    return {"output0": table}


def in_input(placement: Placement, plank: tuple[float, ...]) -> tuple[float, ...]:
    """Return a box of the picture in pixels of an unstretched input, from its middle and that of its right side."""
    x, y, w, h, angle = plank
    middle = placement.to_input() @ (x, y, 1)
    side = placement.to_input() @ (x + math.cos(angle), y + math.sin(angle), 1) - middle
    scale = math.hypot(*side)
    return (*middle, w * scale, h * scale, math.atan2(side[1], side[0]))


@pytest.mark.parametrize("form", [CELLS, ROWS])
@pytest.mark.parametrize("roi", ROIS)
def test_decode_corners_in_pixels_of_the_picture(roi, form):
    placement = placed(roi, SIZE, SHAPE, Fit.LETTERBOX)
    rows = [in_input(placement, plank) for plank in PLANKS]
    found = family(form).decode(outputs(form, rows), 0, placement, Thresholds())
    wanted = corners_of(boxes(*PLANKS))
    for got, want in zip(found.corners, wanted, strict=True):
        assert np.allclose(sorted(map(tuple, got.round(1))), sorted(map(tuple, want.round(1))), atol=0.2)
    assert np.allclose(found.boxes, hull_of(wanted), atol=0.6)
    assert found.class_ids.tolist() == [1, 1]
    assert (found.boxes.dtype, found.corners.dtype) == (np.float32, np.float32)


def test_decode_stretched_input_gives_a_parallelogram():
    placement = placed(None, (800, 320), SHAPE, Fit.STRETCH)
    found = family(ROWS).decode(outputs(ROWS, [(200, 160, 100, 100, math.pi / 4)]), 0, placement, Thresholds())
    reach = 50 * math.sqrt(2)
    wanted = [(400, 160 - reach), (400 + 2 * reach, 160), (400, 160 + reach), (400 - 2 * reach, 160)]
    assert np.allclose(found.corners[0], wanted, atol=1e-3)


def test_decode_cuts_hulls_and_not_corners():
    placement = placed(None, (400, 320), SHAPE, Fit.STRETCH)
    rows = [(0, 0, 100, 100, 0.0), (-200, 0, 100, 50, 0.3)]
    found = family(ROWS).decode(outputs(ROWS, rows), 0, placement, Thresholds())
    assert found.boxes.tolist() == [[0, 0, 50, 50]]
    assert found.corners.tolist() == [[[-50, -50], [50, -50], [50, 50], [-50, 50]]]


def test_decode_suppresses_cells_and_not_rows():
    placement = placed(None, (400, 320), SHAPE, Fit.STRETCH)
    rows = [(100, 100, 80, 20, 0.3), (101, 100, 80, 20, 0.3)]
    assert len(family(CELLS).decode(outputs(CELLS, rows), 0, placement, Thresholds())) == 1
    assert len(family(ROWS).decode(outputs(ROWS, rows), 0, placement, Thresholds())) == 2
    assert len(family(ROWS).decode(outputs(ROWS, rows), 0, placement, Thresholds(class_agnostic=True))) == 1


@pytest.mark.parametrize("form", [CELLS, ROWS])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("row", [(np.nan, 9, 9, 9, 0), (9, 9, np.inf, 9, 0), (9, 9, 9, 9, np.nan), (9, 9, -9, 9, 0)])
def test_decode_impossible_boxes_are_dropped(form, dtype, row):
    placement = placed(None, (400, 320), SHAPE, Fit.STRETCH)
    found = family(form).decode(outputs(form, [row, (200, 160, 64, 32, 0)], dtype), 0, placement, Thresholds())
    assert found.boxes.tolist() == [[168, 144, 232, 176]]
    assert len(family(form).decode(outputs(form, [], dtype), 0, placement, Thresholds())) == 0
