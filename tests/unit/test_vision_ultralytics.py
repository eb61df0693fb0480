"""The Ultralytics decoder on tensors with planted boxes."""

from __future__ import annotations

import numpy as np
import pytest

from edged.vision.families.ultralytics import Ultralytics
from edged.vision.family import Family, Reading, Thresholds
from edged.vision.placement import Fit, place
from edged.vision.preprocess import Preprocess

NAMES = tuple(f"c{i}" for i in range(80))
FAMILY: Family = Ultralytics(Preprocess(width=640, height=640, fit=Fit.LETTERBOX), NAMES, Reading(("output0",)))
PLACEMENT = place(1280, 720, 640, 640, Fit.LETTERBOX)  # halved, 140 rows of padding above


def blank(dtype: type = np.float32, classes: int = 80, cells: int = 8400) -> np.ndarray:
    out = np.zeros((1, 4 + classes, cells), dtype)
    out[:, 2:4] = 10
    return out


def plant(out: np.ndarray, cell: int, box: tuple[float, ...], class_id: int, score: float) -> None:
    """`box` is xyxy in pixels of the original picture of PLACEMENT."""
    x1, y1, x2, y2 = (v / 2 for v in box)
    out[0, :4, cell] = (x1 + x2) / 2, (y1 + y2) / 2 + 140, x2 - x1, y2 - y1
    out[0, 4 + class_id, cell] = score


def decode(out: np.ndarray, **thresholds: float):
    return FAMILY.decode({"output0": out}, 0, PLACEMENT, Thresholds(**thresholds))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_decode_planted_boxes_of_any_float_type(dtype):
    out = blank(dtype=dtype)
    plant(out, 17, (100, 200, 300, 400), 5, 0.5)
    plant(out, 8399, (600, 0, 900, 700), 79, 0.75)
    plant(out, 4000, (600, 300, 640, 340), 0, 0.125)
    found = decode(out)
    assert found.class_ids.tolist() == [79, 5]
    assert found.scores.tolist() == [0.75, 0.5]
    assert np.array_equal(found.boxes, [[600, 0, 900, 700], [100, 200, 300, 400]])
    assert (found.boxes.dtype, found.scores.dtype, found.class_ids.dtype) == (
        np.float32,
        np.float32,
        np.int32,
    )


def test_decode_cell_counts_once_with_its_best_class():
    out = blank()
    plant(out, 1, (100, 100, 300, 300), 1, 0.5)
    out[0, 4 + 9, 1] = 0.625
    assert decode(out).class_ids.tolist() == [9]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
def test_decode_cells_with_values_that_are_not_finite_are_dropped(dtype, bad):
    out = blank(dtype=dtype)
    for cell, row in ((1, 4 + 7), (2, 0), (3, 2)):
        plant(out, cell, (100, 100, 300, 300), 1, 0.5)
        out[0, row, cell] = bad
    plant(out, 4, (500, 100, 700, 300), 1, 0.5)
    assert np.array_equal(decode(out).boxes, [[500, 100, 700, 300]])
    out[:] = bad
    assert len(decode(out)) == 0


def test_decode_negative_half_scores_are_below_every_threshold():
    out = blank(dtype=np.float16)
    out[:, 4:] = -3
    assert len(decode(out, score=0.0)) == 0
    plant(out, 5, (100, 100, 300, 300), 1, 0.5)
    assert decode(out, score=0.0).class_ids.tolist() == [1]


def test_decode_every_cell_above_the_threshold_is_limited():
    out = np.random.default_rng(1).uniform(0, 1, (1, 84, 8400)).astype(np.float32)
    out[:, :4] *= 640
    assert 0 < len(decode(out)) <= 300


def test_decode_one_class_and_any_number_of_cells():
    out = blank(classes=1, cells=21)
    plant(out, 20, (100, 100, 300, 300), 0, 0.5)
    assert decode(out).class_ids.tolist() == [0]
