"""Masks of Ultralytics segment models. Prototypes are ramps, so every mask is a half plane that is known exactly."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.errors import TooLarge
from edged.vision import masks
from edged.vision.families import ultralytics_segment
from edged.vision.families.ultralytics import CELLS, ROWS
from edged.vision.families.ultralytics_segment import UltralyticsSegment
from edged.vision.family import Family, Reading, Thresholds
from edged.vision.placement import Fit, Placement, Region, Roi
from edged.vision.preprocess import Preprocess
from tests.unit.shown import in_input, placed

SHAPE = (160, 128)  # width, height of the input
CLASSES = 3
ROIS = [
    None,
    Roi(Region(31, 17, 150, 101)),
    Roi(rotation=90),
    Roi(Region(31, 17, 150, 101), 90),
    Roi(rotation=180),
    Roi(Region(7, 3, 91, 120), 270),
]
FITS = [Fit.LETTERBOX, Fit.STRETCH, Fit.TOP_LEFT]


def family(form: str) -> Family:
    return UltralyticsSegment(
        Preprocess(width=SHAPE[0], height=SHAPE[1]), ("a", "b", "c"), Reading(("output0", "output1"), form)
    )


def ramps(dtype: type = np.float32) -> np.ndarray:
    """Return prototypes with the values x, y (in input pixels) and 1 at the middle of each of their pixels."""
    down, across = np.indices((SHAPE[1] // 4, SHAPE[0] // 4)) * 4 + 2
    return np.stack((across, down, np.ones_like(down))).astype(dtype)[None]


def tables(form: str, boxes: list[tuple[float, ...]], weights: list[tuple[float, ...]], dtype: type = np.float32):
    """Return a table, in either form, of boxes xyxy in input pixels, with class 1, and the prototypes."""
    if form == ROWS:
        table = np.zeros((1, 30, 9), dtype)
        for i, (box, w) in enumerate(zip(boxes, weights, strict=True)):
            table[0, i] = (*box, 0.9 - i / 100, 1, *w)
    else:
        table = np.zeros((1, 4 + CLASSES + 3, 420), dtype)
        for i, ((x1, y1, x2, y2), w) in enumerate(zip(boxes, weights, strict=True)):
            table[0, :, 7 + i] = ((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1, 0, 0.9 - i / 100, 0, *w)
    return {"output0": table, "output1": ramps(dtype)}


def expected(placement: Placement, roi: Roi | None, box: np.ndarray, weights: tuple[float, ...]):
    """Return the half plane inside the box, and the pixels on its rim, where rounding decides."""
    across, down = in_input(placement, roi)
    rows, columns = np.indices(across.shape) + 0.5
    x1, y1, x2, y2 = box
    inside = (columns >= x1) & (columns < x2) & (rows >= y1) & (rows < y2)
    # Beyond the middles of the outermost prototypes, the value of the nearest one is used.
    across, down = np.clip(across, 2, SHAPE[0] - 2), np.clip(down, 2, SHAPE[1] - 2)
    value = weights[0] * across + weights[1] * down + weights[2]
    return (value > 0) & inside, np.abs(value) < 0.05


@pytest.mark.parametrize("form", [CELLS, ROWS])
@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("roi", ROIS)
def test_decode_masks_are_exact_for_any_placement(roi, fit, form):
    placement = placed(roi, (213, 140), SHAPE, fit)
    boxes = [(20, 25, 120, 100), (60, 50, 70, 58), (0, 0, 160, 128)]
    weights = [(1, 0.5, -95), (-1, 1, 12), (0.25, -1, 33)]
    found = family(form).decode(tables(form, boxes, weights), 0, placement, Thresholds(class_agnostic=False))
    assert len(found) == 3
    assert found.class_ids.tolist() == [1, 1, 1]
    seen = np.clip(placement.to_original(np.array(boxes, np.float32)), 0, None)
    assert np.allclose(found.boxes, seen)
    for box, weight, counts in zip(found.boxes, weights, found.masks, strict=True):
        mask = masks.decode(counts, 213, 140)
        wanted, rim = expected(placement, roi, box, weight)
        assert mask.any()
        assert np.array_equal(mask[~rim], wanted[~rim])


@pytest.mark.parametrize("form", [CELLS, ROWS])
def test_decode_detection_with_empty_mask_is_dropped(form):
    placement = placed(None, (160, 128), SHAPE, Fit.STRETCH)
    boxes = [(10, 10, 50, 50), (60, 60, 100, 100), (110, 10, 150, 50)]
    weights = [(0, 0, 1), (0, 0, -1), (1, 0, -130)]
    found = family(form).decode(tables(form, boxes, weights), 0, placement, Thresholds())
    assert found.boxes.tolist() == [[10, 10, 50, 50], [110, 10, 150, 50]]
    assert [mask[1::2].sum() for mask in found.masks] == [40 * 40, 20 * 40]


@pytest.mark.parametrize("form", [CELLS, ROWS])
def test_decode_nothing_has_no_masks(form):
    placement = placed(None, (160, 128), SHAPE, Fit.STRETCH)
    found = family(form).decode(tables(form, [], []), 0, placement, Thresholds())
    assert (len(found), found.masks) == (0, ())
    lost = tables(form, [(-90, -90, -50, -50)], [(0, 0, 1)])  # outside of the picture
    assert family(form).decode(lost, 0, placement, Thresholds()).masks == ()


def test_decode_values_that_are_not_finite_are_dropped():
    placement = placed(None, (160, 128), SHAPE, Fit.STRETCH)
    outputs = tables(CELLS, [(10, 10, 50, 50), (60, 60, 100, 100)], [(0, 0, np.nan), (0, 0, 1)])
    assert family(CELLS).decode(outputs, 0, placement, Thresholds()).boxes.tolist() == [[60, 60, 100, 100]]
    outputs["output1"][:] = np.nan
    assert len(family(CELLS).decode(outputs, 0, placement, Thresholds())) == 0


def test_boxes_are_those_of_decode_without_masks():
    placement = placed(Roi(rotation=90), (213, 140), SHAPE, Fit.LETTERBOX)
    for form in (CELLS, ROWS):
        segment = family(form)
        outputs = tables(form, [(20, 25, 120, 100), (60, 50, 70, 58)], [(1, 0.5, -95), (0, 0, -1)])
        whole, alone = (read(outputs, 0, placement, Thresholds()) for read in (segment.decode, segment.boxes))
        assert alone.masks is None
        assert len(alone) == 2, "one has an empty mask"
        assert np.array_equal(alone.boxes[:1], whole.boxes)


def test_decode_many_large_masks_are_coarser(monkeypatch):
    placement = placed(None, (640, 512), SHAPE, Fit.STRETCH)
    boxes = [(0, 0, 160, 128)] * 4 + [(10, 10, 20, 20)]
    weights = [(1, 0.5, -95), (-1, 1, 12), (0.25, -1, 33), (0, 0, 1), (1, 0, -15)]
    outputs = tables(ROWS, boxes, weights)
    fine = family(ROWS).decode(outputs, 0, placement, Thresholds())
    monkeypatch.setattr(ultralytics_segment, "MAX_PIXELS", 640 * 512 // 16)
    made = []
    monkeypatch.setattr(cv2, "warpAffine", lambda *a, warp=cv2.warpAffine, **k: made.append(a[2]) or warp(*a, **k))
    coarse = family(ROWS).decode(outputs, 0, placement, Thresholds())
    assert sum(rows * columns for rows, columns in made) < 2 * ultralytics_segment.MAX_PIXELS
    assert np.array_equal(coarse.boxes, fine.boxes)
    for one, other in list(zip(coarse.masks, fine.masks, strict=True))[:4]:
        one, other = (masks.decode(mask, 640, 512) for mask in (one, other))
        assert (one & other).sum() / (one | other).sum() > 0.95
    assert np.array_equal(coarse.masks[4], fine.masks[4])


def test_decode_too_many_runs_are_refused(monkeypatch):
    placement = placed(None, (160, 128), SHAPE, Fit.STRETCH)
    outputs = tables(ROWS, [(0, 0, 160, 128)] * 3, [(1, 1, -140)] * 3)
    monkeypatch.setattr(ultralytics_segment, "MAX_RUNS", 400)
    assert len(family(ROWS).decode(outputs, 0, placement, Thresholds(max_detections=1))) == 1
    with pytest.raises(TooLarge, match="max_detections"):
        family(ROWS).decode(outputs, 0, placement, Thresholds())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([CELLS, ROWS]), st.sampled_from([np.float32, np.float16]))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_decode_any_tensors_give_masks_inside_their_boxes(seed, form, dtype):
    rng = np.random.default_rng(seed)
    outputs = tables(form, [], [], dtype)
    for name, tensor in outputs.items():
        wild = rng.normal(size=tensor.shape) * 10 ** rng.integers(-3, 30, tensor.shape).astype(float)
        wild[rng.random(tensor.shape) < 0.1] = rng.choice([np.nan, np.inf, -np.inf, 0])
        sane = rng.uniform(0, 160, tensor.shape)
        outputs[name] = np.where(rng.random(tensor.shape) < 0.5, wild, sane).astype(dtype)
    placement = placed(Roi(Region(31, 17, 150, 101), 90), (213, 140), SHAPE, Fit.LETTERBOX)
    found = family(form).decode(outputs, 0, placement, Thresholds(max_detections=20))
    assert np.isfinite(found.boxes).all()
    assert len(found.masks) == len(found)
    for mask, (x1, y1, x2, y2) in zip(found.masks, found.boxes, strict=True):
        part, left, top = masks.crop(mask, 213, 140)
        assert left >= x1 - 0.5
        assert top >= y1 - 0.5
        assert left + part.shape[1] <= x2 + 0.5
        assert top + part.shape[0] <= y2 + 0.5
