"""Regions and rotations: the input of the model, and conversion of boxes and points back to the picture."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.errors import InvalidInput
from edged.vision.image import Decoded
from edged.vision.placement import Fit, Region, Roi, crop_window, place
from edged.vision.prepare import Preparer
from edged.vision.preprocess import Preprocess
from tests.unit.shown import shown

RNG = np.random.default_rng(11)
ROTATIONS = (0, 90, 180, 270)
FITS = st.sampled_from([Fit.LETTERBOX, Fit.STRETCH, Fit.TOP_LEFT])


def prepared(picture: np.ndarray | Decoded, roi: Roi | None, shape: tuple[int, int], fit: Fit):
    """Return the pixels of the input, [h, w, 3], and the placement."""
    wanted = Preprocess(*shape, layout="NHWC", datatype="UINT8", color="bgr", fit=fit, pad=0)
    out = np.empty(wanted.shape, np.uint8)
    placement = Preparer(wanted).prepare(picture, out, roi)
    return out, placement


@st.composite
def rois(draw, width: int, height: int) -> Roi:
    x, y = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    w, h = draw(st.integers(1, width - x)), draw(st.integers(1, height - y))
    region = draw(st.sampled_from([None, Region(x, y, w, h)]))
    return Roi(region, draw(st.sampled_from(ROTATIONS)))


@st.composite
def bright_rectangles(draw):
    """Draw a dark picture with a bright rectangle, and a region that contains the rectangle."""
    width, height = draw(st.integers(8, 400)), draw(st.integers(8, 400))
    x1, y1 = draw(st.integers(0, width - 4)), draw(st.integers(0, height - 4))
    x2, y2 = draw(st.integers(x1 + 4, width)), draw(st.integers(y1 + 4, height))
    left, top = draw(st.integers(0, x1)), draw(st.integers(0, y1))
    right, bottom = draw(st.integers(x2, width)), draw(st.integers(y2, height))
    region = draw(st.sampled_from([None, Region(left, top, right - left, bottom - top)]))
    picture = np.zeros((height, width, 3), np.uint8)
    picture[y1:y2, x1:x2] = 255
    return picture, (x1, y1, x2, y2), Roi(region, draw(st.sampled_from(ROTATIONS)))


@settings(max_examples=300, deadline=None)
@given(bright_rectangles(), st.integers(32, 200), st.integers(32, 200), FITS)
def test_prepare_bright_rectangle_is_mapped_back(drawn, width, height, fit):
    picture, box, roi = drawn
    pixels, placement = prepared(picture, roi, (width, height), fit)
    assert (placement.width, placement.height) == (picture.shape[1], picture.shape[0])
    rows, columns = np.flatnonzero((pixels > 127).any(axis=(1, 2))), np.flatnonzero((pixels > 127).any(axis=(0, 2)))
    tolerance = 1 / min(placement.scale_x, placement.scale_y) + 1.5
    if not len(rows):
        assert min(box[2] - box[0], box[3] - box[1]) < 2 * tolerance, "only tiny rectangles may be lost by the resize"
        return
    found = np.array([[columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]], np.float32)
    assert np.abs(placement.to_original(found) - box).max() <= tolerance
    corners = placement.points_to_original(found.reshape(2, 2))
    assert np.allclose(np.sort(corners, axis=0).ravel(), box, atol=tolerance)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(1, 300), st.integers(1, 300), st.sampled_from(Fit))
def test_placement_to_input_and_back_are_inverse(data, width, height, fit):
    roi = data.draw(rois(width, height))
    _, placement = prepared(np.zeros((height, width, 3), np.uint8), roi, (160, 96), fit)
    x1, y1, x2, y2 = placement.edges
    corners = np.array([(x1, y1, 1), (x2, y2, 1)], float)
    there = corners @ placement.to_input().T
    low, high = there.min(axis=0), there.max(axis=0)
    inner = placement.pad_x + placement.inner[0], placement.pad_y + placement.inner[1]
    assert np.allclose((*low, *high), (placement.pad_x, placement.pad_y, *inner), atol=1e-6)
    back = placement.points_to_original(there.astype(np.float32))
    assert np.allclose(back, corners[:, :2], atol=0.02)
    box = placement.to_original(np.array([(*low, *high)], np.float32))
    assert np.allclose(box, [(x1, y1, x2, y2)], atol=0.02)
    assert box.dtype == back.dtype == np.float32


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("shape", [(300, 250), (40, 30)], ids=["enlarged", "reduced"])
@pytest.mark.parametrize("fit", [Fit.LETTERBOX, Fit.STRETCH, Fit.TOP_LEFT])
def test_prepare_equals_cut_and_turn_by_numpy(rotation, shape, fit):
    picture = cv2.resize(RNG.integers(0, 256, (9, 11, 3), dtype=np.uint8), (211, 133), interpolation=cv2.INTER_CUBIC)
    roi = Roi(Region(31, 17, 101, 75), rotation)
    pixels, placement = prepared(picture, roi, shape, fit)
    part = np.ascontiguousarray(shown(picture, roi))
    wanted, plain = prepared(part, None, shape, fit)
    assert (placement.inner, placement.pad_x, placement.pad_y) == (plain.inner, plain.pad_x, plain.pad_y)
    assert np.abs(pixels.astype(int) - wanted).max() <= 1, "the order of rotation and resize only affects rounding"


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("size", [(213, 120), (120, 213)])
def test_prepare_crops_the_middle_of_a_turned_region(rotation, size):
    """A cross in the middle of the region stays in the middle of the input, and the rest is cut off."""
    width, height = size
    picture = np.zeros((height, width, 3), np.uint8)
    region = Region(10, 20, width - 13, height - 21)
    x, y = region.x + region.width / 2, region.y + region.height / 2
    picture[:, round(x) - 5 : round(x) + 5] = picture[round(y) - 5 : round(y) + 5] = 255
    pixels, placement = prepared(picture, Roi(region, rotation), (64, 64), Fit.CENTER_CROP)
    x1, y1, x2, y2 = placement.edges
    assert (x2 - x1, y2 - y1) == (min(region.width, region.height),) * 2
    assert abs((x1 + x2) / 2 - x) <= 0.5
    assert abs((y1 + y2) / 2 - y) <= 0.5
    middle = placement.points_to_original(np.array([[32, 32]], np.float32))[0]
    assert np.allclose(middle, (x, y), atol=0.5)
    assert pixels[:, 30:34].min() > 127
    assert pixels[30:34].min() > 127
    assert not pixels[:20, :20].any()


def test_to_original_inverted_boxes_stay_inverted():
    for rotation in ROTATIONS:
        _, placement = prepared(np.zeros((100, 100, 3), np.uint8), Roi(rotation=rotation), (100, 100), Fit.STRETCH)
        x1, y1, x2, y2 = placement.to_original(np.array([[60, 20, 40, 80]], np.float32))[0]
        assert (x2 > x1) != (y2 > y1)


def test_to_original_cuts_boxes_to_the_region():
    region = Region(20, 30, 50, 40)
    for rotation in ROTATIONS:
        _, placement = prepared(np.zeros((100, 100, 3), np.uint8), Roi(region, rotation), (64, 64), Fit.LETTERBOX)
        everything = np.array([[-500, -500, 500, 500]], np.float32)
        assert placement.to_original(everything).tolist() == [[20, 30, 70, 70]]
        assert placement.edges == (20, 30, 70, 70)


@pytest.mark.parametrize(
    ("region", "edges"),
    [
        (Region(10, 20), (10, 20, 100, 80)),
        (Region(10, 20, 5), (10, 20, 15, 80)),
        (Region(90, 70, 500, 500), (90, 70, 100, 80)),
        (Region(-5, -5, 20, 20), (0, 0, 15, 15)),
    ],
)
def test_crop_window_cuts_the_region_to_the_picture(region, edges):
    window = crop_window(Roi(region), 100, 80)
    assert window
    assert window.region == edges


@pytest.mark.parametrize("roi", [None, Roi(), Roi(Region()), Roi(Region(0, 0, 100, 80)), Roi(Region(0, 0, 999, 999))])
def test_crop_window_of_the_whole_picture_returns_none(roi):
    assert crop_window(roi, 100, 80) is None
    preparer = Preparer(Preprocess(width=64, height=64, fit=Fit.LETTERBOX))
    picture = np.zeros((80, 100, 3), np.uint8)
    assert preparer.prepare(picture, np.empty((3, 64, 64), np.float32), roi) == place(100, 80, 64, 64, Fit.LETTERBOX)


@pytest.mark.parametrize("region", [Region(100, 0, 5, 5), Region(0, 80), Region(2**32 - 1, 0), Region(-9, 0, 9, 9)])
def test_prepare_region_outside_the_picture_is_refused(region):
    with pytest.raises(InvalidInput, match="100x80"):
        prepared(np.zeros((80, 100, 3), np.uint8), Roi(region), (64, 64), Fit.STRETCH)


@pytest.mark.parametrize("rotation", [1, -90, 45, 360])
def test_prepare_other_rotation_is_refused(rotation):
    with pytest.raises(InvalidInput, match="give 0, 90, 180 or 270"):
        prepared(np.zeros((80, 100, 3), np.uint8), Roi(rotation=rotation), (64, 64), Fit.STRETCH)


def test_preparer_cameras_with_different_rois_share_nothing():
    preparer = Preparer(Preprocess(width=48, height=32, fit=Fit.LETTERBOX))
    for number in range(200):
        width, height = int(RNG.integers(2, 90)), int(RNG.integers(2, 90))
        picture = RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)
        roi = Roi(Region(int(RNG.integers(width)), int(RNG.integers(height))), ROTATIONS[number % 4])
        before, out, alone = picture.copy(), np.empty((3, 32, 48), np.float32), np.empty((3, 32, 48), np.float32)
        assert preparer.prepare(picture, out, roi) == Preparer(preparer.preprocess).prepare(picture, alone, roi)
        assert np.array_equal(out, alone)
        assert np.array_equal(picture, before)
