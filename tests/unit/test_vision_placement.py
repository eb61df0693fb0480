"""Placement of a picture in an input, and conversion of boxes back to the picture."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.vision.placement import Fit, Placement, place

SIDE = st.integers(1, 4000)
INPUT = st.integers(32, 1280)


def to_input(p: Placement, boxes: np.ndarray) -> np.ndarray:
    scale = np.array([p.scale_x, p.scale_y] * 2)
    return (boxes * scale + np.array([p.pad_x, p.pad_y] * 2)).astype(np.float32)


# (width, height) -> (inner width, inner height, left, top) at 640x640, by the formula of LetterBox.
LETTERBOX = {
    (1280, 720): (640, 360, 0, 140),
    (720, 1280): (360, 640, 140, 0),
    (640, 640): (640, 640, 0, 0),
    (320, 240): (640, 480, 0, 80),
    (1920, 1080): (640, 360, 0, 140),
    (810, 1080): (480, 640, 80, 0),
    (1000, 333): (640, 213, 0, 213),  # 427 rows of padding: 213 above, 214 below
    (333, 1000): (213, 640, 213, 0),
    (501, 1000): (321, 640, 159, 0),  # 320.64 rounds up; 319: 159 left, 160 right
    (10000, 1): (640, 1, 0, 319),
}

WHOLE = st.sampled_from([fit for fit in Fit if fit is not Fit.CENTER_CROP])  # those that show all of a picture


@pytest.mark.parametrize(("size", "expected"), LETTERBOX.items())
def test_place_letterbox_rounds_as_ultralytics(size, expected):
    p = place(*size, 640, 640, Fit.LETTERBOX)
    assert (*p.inner, p.pad_x, p.pad_y) == expected


def test_place_top_left_truncates_without_padding():
    p = place(1000, 333, 640, 640, Fit.TOP_LEFT)
    assert (p.inner, p.pad_x, p.pad_y) == ((640, 213), 0, 0)
    assert place(501, 1000, 640, 640, Fit.TOP_LEFT).inner == (320, 640)


def test_place_stretch_fills_the_input():
    p = place(1000, 333, 320, 640, Fit.STRETCH)
    assert (p.inner, p.pad_x, p.pad_y) == ((320, 640), 0, 0)


@settings(max_examples=300, deadline=None)
@given(SIDE, SIDE, INPUT, INPUT, st.sampled_from(Fit))
def test_place_picture_is_inside_the_input(width, height, input_width, input_height, fit):
    p = place(width, height, input_width, input_height, fit)
    inner_w, inner_h = p.inner
    assert inner_w >= 1
    assert p.pad_x + inner_w <= input_width
    assert inner_h >= 1
    assert p.pad_y + inner_h <= input_height
    assert p.pad_x >= 0
    assert p.pad_y >= 0
    if fit is Fit.LETTERBOX:
        assert abs(input_width - inner_w - 2 * p.pad_x) <= 1
        assert abs(input_height - inner_h - 2 * p.pad_y) <= 1
        assert inner_w == input_width or inner_h == input_height


@settings(max_examples=300, deadline=None)
@given(SIDE, SIDE, INPUT, INPUT, WHOLE, st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_to_original_reverses_the_placement(width, height, input_width, input_height, fit, corners):
    p = place(width, height, input_width, input_height, fit)
    xs, ys = sorted(c * width for c in corners[:2]), sorted(c * height for c in corners[2:])
    boxes = np.array([[xs[0], ys[0], xs[1], ys[1]]], np.float32)
    assert np.abs(p.to_original(to_input(p, boxes)) - boxes).max() < 1


@settings(max_examples=100, deadline=None)
@given(SIDE, SIDE, st.sampled_from(Fit), st.lists(st.floats(-1e4, 1e4), min_size=4, max_size=4))
def test_to_original_clips_boxes_to_the_picture(width, height, fit, box):
    p = place(width, height, 640, 384, fit)
    x1, y1, x2, y2 = p.to_original(np.array([box], np.float32))[0]
    assert 0 <= min(x1, x2) <= max(x1, x2) <= width
    assert 0 <= min(y1, y2) <= max(y1, y2) <= height


def test_to_original_copies_and_accepts_no_boxes():
    p = place(100, 50, 640, 640, Fit.LETTERBOX)
    boxes = np.array([[0, 0, 640, 640]], np.float32)
    before = boxes.copy()
    found = p.to_original(boxes)
    assert found.dtype == np.float32
    assert np.array_equal(boxes, before)
    assert np.array_equal(found, [[0, 0, 100, 50]])
    assert p.to_original(np.empty((0, 4), np.float32)).shape == (0, 4)
