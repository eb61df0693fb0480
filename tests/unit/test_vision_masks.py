"""Run lengths of masks, compared with a computation pixel by pixel."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.vision.masks import crop, decode, encode, encode_coarse, polygon


def by_the_book(whole: np.ndarray) -> list[int]:
    """Return the runs off, on, off, ... down the columns, computed one pixel at a time."""
    counts, value = [0], False
    for pixel in whole.T.ravel().tolist():
        if pixel != value:
            counts.append(0)
            value = pixel
        counts[-1] += 1
    return counts


@st.composite
def placed_masks(draw):
    width, height = draw(st.integers(1, 14)), draw(st.integers(1, 14))
    w, h = draw(st.integers(0, width)), draw(st.integers(0, height))
    x, y = draw(st.integers(0, width - w)), draw(st.integers(0, height - h))
    share = draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))
    inside = np.random.default_rng(draw(st.integers(0, 2**31))).random((h, w)) < share
    return inside, x, y, width, height


@settings(max_examples=300, deadline=None)
@given(placed_masks(), st.booleans())
def test_encode_and_decode_are_inverse(placed, is_turned):
    inside, x, y, width, height = placed
    whole = np.zeros((height, width), np.bool_)
    whole[y : y + inside.shape[0], x : x + inside.shape[1]] = inside
    counts = encode(np.asfortranarray(inside) if is_turned else inside, x, y, width, height)
    assert counts.dtype == np.uint32
    assert counts.tolist() == by_the_book(whole)
    assert np.array_equal(decode(counts, width, height), whole)
    assert counts[1::2].sum() == whole.sum()
    part, left, top = crop(counts, width, height)
    assert part.sum() == whole.sum()
    if part.size:
        assert part.any(axis=1)[[0, -1]].all()
        assert part.any(axis=0)[[0, -1]].all()
        assert np.array_equal(part, whole[top : top + part.shape[0], left : left + part.shape[1]])


@settings(max_examples=200, deadline=None)
@given(placed_masks(), st.integers(1, 5), st.data())
def test_encode_coarse_equals_encode_of_the_fine_mask(placed, step, data):
    coarse, x, y, *_ = placed
    rows, columns = coarse.shape
    w = max(0, columns * step - data.draw(st.integers(0, step - 1)))
    h = max(0, rows * step - data.draw(st.integers(0, step - 1)))
    width, height = x + w + data.draw(st.integers(0, 3)), y + h + data.draw(st.integers(0, 3))
    fine = coarse.repeat(step, axis=0).repeat(step, axis=1)[:h, :w]
    if not fine.size:
        return
    wanted = encode(fine, x, y, width, height)
    assert np.array_equal(encode_coarse(coarse, step, (x, y, x + w, y + h), width, height), wanted)


def test_encode_known_masks_has_known_runs():
    inside = np.array([[True, False], [True, True]])
    assert encode(inside, 1, 1, 4, 3).tolist() == [4, 2, 2, 1, 3]
    assert encode(np.ones((3, 4), np.bool_), 0, 0, 4, 3).tolist() == [0, 12]
    assert encode(np.zeros((0, 0), np.bool_), 0, 0, 4, 3).tolist() == [12]


def test_decode_empty_runs_are_accepted():
    assert decode(np.array([2, 2, 0, 1, 0, 0, 4], np.uint32), 3, 3).T.ravel().tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(("x", "y"), [(-1, 0), (0, -1), (3, 0), (0, 2)])
def test_encode_mask_outside_the_picture_is_refused(x, y):
    with pytest.raises(ValueError):
        encode(np.ones((2, 2), np.bool_), x, y, 4, 3)


@pytest.mark.parametrize("counts", [[], [11], [4, 9], [2**32 - 1, 2**32 - 1]])
def test_decode_runs_of_another_picture_are_refused(counts):
    for read in (decode, crop, polygon):
        with pytest.raises(ValueError, match="4x3"):
            read(np.array(counts, np.uint32), 4, 3)


@settings(max_examples=100, deadline=None)
@given(placed_masks())
def test_polygon_covers_the_largest_piece(placed):
    inside, x, y, width, height = placed
    counts = encode(inside, x, y, width, height)
    points = polygon(counts, width, height)
    assert points.shape[1:] == (2,)
    if not inside.any():
        assert len(points) == 0
        return
    assert len(points) >= 3
    painted = np.zeros((height, width), np.uint8)
    cv2.fillPoly(painted, [points], 1)
    whole = decode(counts, width, height)
    pieces, labels = cv2.connectedComponents(whole.astype(np.uint8), connectivity=8)
    touched = {int(label) for label in labels[(painted > 0) & whole]}
    own = int(labels[points[0][1], points[0][0]])
    assert own > 0
    assert painted[labels == own].all(), "all of its own piece"
    assert len(touched) < pieces


def test_polygon_of_a_solid_mask_is_exact():
    disc = cv2.circle(np.zeros((70, 90), np.uint8), (40, 35), 25, 1, cv2.FILLED)
    points = polygon(encode(disc.astype(bool), 5, 3, 120, 100), 120, 100)
    painted = cv2.fillPoly(np.zeros((100, 120), np.uint8), [points], 1)
    assert np.array_equal(painted[3:73, 5:95], disc)
    assert painted.sum() == disc.sum()
