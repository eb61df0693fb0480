"""Keypoints of Ultralytics pose models: planted in pixels of the picture, and decoded at the same places."""

from __future__ import annotations

import numpy as np
import pytest

from edged.vision.families.ultralytics import CELLS, ROWS, UltralyticsPose
from edged.vision.family import Family, Reading, Thresholds
from edged.vision.placement import Fit, Placement, Region, Roi
from edged.vision.preprocess import Preprocess
from tests.unit.shown import placed

SIZE, SHAPE = (640, 360), (320, 320)
ROIS = [
    None,
    Roi(Region(100, 51, 401, 250)),
    Roi(Region(100, 51, 401, 250), 90),
    Roi(rotation=180),
    Roi(None, 270),
]
PEOPLE = [((150, 80, 250, 280), 0.9), ((300, 100, 420, 300), 0.6)]  # boxes in pixels of the picture, and scores
POINTS = [[(160, 90, 0.75), (240, 100, 0.5), (200, 275, 0.0)], [(310, 290, 1.0), (410, 110, 0.25), (333, 222, 0.5)]]


def family(form: str, values: int = 3) -> Family:
    reading = Reading(("output0",), form, keypoints=(3, values))
    return UltralyticsPose(Preprocess(width=SHAPE[0], height=SHAPE[1]), ("person",), reading)


def outputs(form: str, placement: Placement, values: int = 3) -> dict[str, np.ndarray]:
    """Return outputs with the people; cells also contain a duplicate of the first."""
    way = placement.to_input()
    lines = []
    for (box, score), points in zip(PEOPLE, POINTS, strict=True):
        corners = np.array([(*box[:2], 1), (*box[2:], 1)]) @ way.T
        low, high = corners.min(axis=0), corners.max(axis=0)
        filled = [v for x, y, s in points for v in (*(way @ (x, y, 1)), s)[:values]]
        lines.append((low, high, score, filled))
    if form == ROWS:
        table = np.zeros((1, 12, 6 + 3 * values), np.float32)
        for i, (low, high, score, filled) in enumerate(lines):
            table[0, i] = (*low, *high, score, 0, *filled)
    else:
        table = np.zeros((1, 5 + 3 * values, 2100), np.float32)
        for cell, (low, high, score, filled) in zip((30, 1500), lines, strict=True):
            table[0, :, cell] = (*(low + high) / 2, *(high - low), score, *filled)
        table[0, :, 31] = table[0, :, 30]
        table[0, 4, 31] -= 0.125
    return {"output0": table}


@pytest.mark.parametrize("form", [CELLS, ROWS])
@pytest.mark.parametrize("fit", [Fit.LETTERBOX, Fit.STRETCH, Fit.TOP_LEFT])
@pytest.mark.parametrize("roi", ROIS)
def test_decode_keypoints_in_pixels_of_the_picture(roi, fit, form):
    placement = placed(roi, SIZE, SHAPE, fit)
    found = family(form).decode(outputs(form, placement), 0, placement, Thresholds())
    assert np.allclose(found.boxes, [box for box, _ in PEOPLE], atol=1e-3)
    assert np.allclose(found.scores, [score for _, score in PEOPLE])
    assert np.allclose(found.keypoints, POINTS, atol=1e-3)
    assert found.keypoints.dtype == np.float32
    assert found.class_ids.tolist() == [0, 0]


@pytest.mark.parametrize("form", [CELLS, ROWS])
def test_decode_keypoints_without_scores_have_score_one(form):
    placement = placed(None, SIZE, SHAPE, Fit.LETTERBOX)
    found = family(form, 2).decode(outputs(form, placement, 2), 0, placement, Thresholds())
    assert np.allclose(found.keypoints[..., :2], np.array(POINTS)[..., :2], atol=1e-3)
    assert (found.keypoints[..., 2] == 1).all()


def test_decode_keypoints_outside_the_region_are_moved_to_its_edge():
    roi = Roi(Region(200, 100, 100, 100))
    placement = placed(roi, SIZE, SHAPE, Fit.LETTERBOX)
    found = family(ROWS).decode(outputs(ROWS, placement), 0, placement, Thresholds())
    assert found.boxes.tolist() == [[200, 100, 250, 200]], "the second box only touches the region"
    assert found.keypoints[0, :, :2].tolist() == [[200, 100], [240, 100], [200, 200]]


@pytest.mark.parametrize("form", [CELLS, ROWS])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_decode_values_that_are_not_finite_are_dropped(form, bad):
    placement = placed(None, SIZE, SHAPE, Fit.LETTERBOX)
    filled = outputs(form, placement)
    if form == ROWS:
        filled["output0"][0, 0, 8] = bad
    else:
        filled["output0"][0, 7, 30:32] = bad
    found = family(form).decode(filled, 0, placement, Thresholds())
    assert np.allclose(found.boxes, [PEOPLE[1][0]], atol=1e-3)
    assert np.isfinite(found.keypoints).all()


def test_decode_nothing_has_no_keypoints():
    placement = placed(None, SIZE, SHAPE, Fit.LETTERBOX)
    for form in (CELLS, ROWS):
        found = family(form).decode(outputs(form, placement), 0, placement, Thresholds(score=0.95))
        assert found.keypoints.shape == (0, 3, 3)
