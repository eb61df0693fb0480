"""Maps of a picture: the best class of each place, the part that shows the picture, and the layouts of outputs."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.errors import EngineUnusable
from edged.tensors import Dim, TensorSpec
from edged.vision.families.contract import Evidence
from edged.vision.families.maps import (
    Layout,
    best_classes,
    enlarged_classes,
    layout_of,
    part,
    shown,
    single_map,
)
from edged.vision.metadata import ExportMetadata
from edged.vision.placement import Fit, Placement, Region, Roi
from edged.vision.prepare import Preparer
from edged.vision.preprocess import Layout as PictureLayout
from edged.vision.preprocess import PictureInput, Preprocess
from edged.vision.tilted import upright

SIDES = st.integers(1, 7)


def noise(classes: int, height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((classes, height, width)).astype(np.float32)


# -- the best class -------------------------------------------------------------------------------------------------


@given(st.integers(1, 300), SIDES, SIDES, st.integers(0, 99))
def test_best_classes_equals_argmax(classes: int, height: int, width: int, seed: int) -> None:
    planes = np.round(noise(classes, height, width, seed) * 2)  # with many equal scores
    assert np.array_equal(best_classes(planes), planes.argmax(axis=0))


@pytest.mark.filterwarnings("error")
def test_best_classes_nan_never_wins() -> None:
    planes = np.array([[np.nan, np.nan, np.inf], [-1, np.nan, np.nan], [-2, np.nan, np.inf]], np.float32)
    assert best_classes(planes).tolist() == [1, 0, 0]


def check_enlarged(planes: np.ndarray, across: int, down: int) -> None:
    """Compare with the interpolation of all scores; rounding may decide between equal scores."""
    size = planes.shape[2] * across, planes.shape[1] * down
    scores = np.stack([cv2.resize(plane, size, interpolation=cv2.INTER_LINEAR) for plane in planes])
    found = enlarged_classes(planes, across, down)
    assert found.shape == size[::-1]
    chosen = np.take_along_axis(scores, found[None].astype(np.int64), axis=0)[0]
    np.testing.assert_allclose(chosen, scores.max(axis=0), atol=1e-5)


@settings(deadline=None)
@given(st.integers(1, 20), SIDES, SIDES, st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_enlarged_classes_equals_interpolation_of_all_scores(
    classes: int, height: int, width: int, across: int, down: int, seed: int
) -> None:
    check_enlarged(noise(classes, height, width, seed), across, down)


def test_enlarged_classes_of_noise_with_many_classes_equals_interpolation() -> None:
    check_enlarged(noise(300, 30, 40), 4, 4)  # in several steps


def test_enlarged_classes_finds_a_class_that_is_best_in_no_cell() -> None:
    planes = np.array([[[10, 0]], [[0, 10]], [[9, 9]]], np.float32)
    assert enlarged_classes(planes, 4, 1).tolist() == [[0, 0, 2, 2, 2, 2, 1, 1]]


@pytest.mark.filterwarnings("error")
def test_enlarged_classes_of_scores_that_are_not_finite() -> None:
    planes = noise(3, 4, 4)
    planes[:, 0] = np.nan
    planes[1, 2] = np.inf
    planes[2, 3] = -np.inf
    assert enlarged_classes(planes, 3, 2).shape == (8, 12)


# -- the part that shows the picture --------------------------------------------------------------------------------


def prepared(preprocess: Preprocess, width: int, height: int, roi: Roi | None) -> tuple[Placement, np.ndarray]:
    """Return the placement of a picture whose pixels' blue is x and green is y, and the input [h, w, 3]."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    picture = np.stack((x, y, x * 0), axis=-1).astype(np.uint8)
    out = np.zeros(preprocess.shape, np.uint8)
    return Preparer(preprocess).prepare(picture, out, roi), out


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(Fit)),
    st.tuples(st.integers(30, 250), st.integers(30, 250)),
    st.sampled_from([0, 90, 180, 270]),
    st.booleans(),
)
def test_shown_part_of_the_input_looks_like_the_picture(
    fit: Fit, size: tuple[int, int], rotation: int, has_region: bool
) -> None:
    width, height = size
    preprocess = Preprocess(96, 64, layout="NHWC", datatype="UINT8", color="bgr", fit=fit, scale=1.0)
    region = Region(7, 5, width - 20, height - 15) if has_region else None
    placement, pixels = prepared(preprocess, width, height, Roi(region, rotation))
    left, top, right, bottom = part(placement) or (0, 0, width, height)
    for channel, low, high in ((0, left, right), (1, top, bottom)):
        cells = shown(pixels[..., channel], placement, preprocess)
        places = np.arange(cells.shape[1 - channel]) + 0.5
        expected = low + places * (high - low) / len(places) - 0.5
        found = cells if channel == 0 else cells.T
        # A pixel of the picture, and one of the input that is rounded.
        np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), atol=1.5 + (high - low) / len(places))


@pytest.mark.parametrize("fit", list(Fit))
@pytest.mark.parametrize("size", [(30, 20), (120, 80)])
def test_shown_of_a_tilted_window_looks_like_the_picture(fit: Fit, size: tuple[int, int]) -> None:
    preprocess = Preprocess(96, 64, layout="NHWC", datatype="UINT8", color="bgr", fit=fit, scale=1.0)
    turn = np.array(((0.8, 0.6), (-0.6, 0.8)))
    corners = np.array(((-1, -1), (1, -1), (1, 1), (-1, 1))) / 2 * size @ turn + (110, 100)
    placement, pixels = prepared(preprocess, 230, 220, Roi(corners=upright(corners.astype(np.float32))))
    left, top, right, bottom = part(placement) or (0, 0, 0, 0)
    x, y = (shown(pixels[..., channel], placement, preprocess).astype(float) for channel in (0, 1))
    columns, rows = ((np.arange(n) + 0.5) / n for n in x.shape[::-1])
    points = np.stack(np.meshgrid(left + columns * (right - left), top + rows * (bottom - top)), axis=-1)
    at = placement.to_input() @ np.concatenate((points, np.ones((*x.shape, 1))), axis=-1)[..., None]
    first, inner = np.array((placement.pad_x, placement.pad_y)), np.array(placement.inner)
    is_inside = ((at[..., 0] >= first + 1) & (at[..., 0] < first + inner - 1)).all(axis=-1)
    assert is_inside.mean() > 0.3
    # A pixel of the picture, and one of the input that is rounded.
    room = 1.5 + 1.5 * max((right - left) / x.shape[1], (bottom - top) / x.shape[0])
    assert np.abs(np.stack((x, y), axis=-1) + 0.5 - points)[is_inside].max() <= room


def test_part_is_none_for_the_whole_picture() -> None:
    preprocess = Preprocess(96, 64, layout="NHWC", datatype="UINT8", fit=Fit.LETTERBOX, scale=1.0)
    assert part(prepared(preprocess, 200, 100, None)[0]) is None
    assert part(prepared(preprocess, 200, 100, Roi(None, 90))[0]) is None
    assert part(prepared(preprocess, 200, 100, Roi(Region(10, 20, 30, 40)))[0]) == (10, 20, 40, 60)


def test_shown_of_a_coarse_map_keeps_at_least_a_cell() -> None:
    preprocess = Preprocess(640, 640, fit=Fit.LETTERBOX)
    placement = Placement(0.01, 0.01, 0, 317, 64000, 600)
    assert shown(np.zeros((20, 20)), placement, preprocess).shape == (1, 20)
    assert shown(np.zeros((1, 1)), placement, preprocess).shape == (1, 1)


# -- layouts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "layout", "found"),
    [
        (("n", 21, 64, 96), "NCHW", Layout(21, (64, 96))),
        (("n", 64, 96, 21), "NCHW", Layout(21, (64, 96), True)),
        (("n", 150, 16, 24), "NCHW", Layout(150, (16, 24))),
        (("n", 1, 64, 96), "NHWC", Layout(1, (64, 96))),
        (("n", 64, 96, 1), "NCHW", Layout(1, (64, 96), True)),
        (("n", 64, 96), "NCHW", Layout(1, (64, 96))),
        (("n", 9, 13), "NCHW", Layout(1, (9, 13))),  # a stride of 7.4, rounded
        (("n", "c", "h", "w"), "NCHW", Layout("c", ("h", "w"))),
        (("n", "h", "w", "c"), "NHWC", Layout("c", ("h", "w"), True)),
        (("n", 1000, 1, 1), "NCHW", None),
        (("n", 300, 6), "NCHW", None),
        (("n", 64, 64), "NCHW", None),
        (("n", 128, 192), "NCHW", None),  # more cells than pixels
        (("n", 0, 64, 96), "NCHW", None),
        (("n", 3, 0, 0), "NCHW", None),
        (("n", 21), "NCHW", None),
        (("n", 2, 3, 64, 96), "NCHW", None),
    ],
    ids=str,
)
def test_layout_of_outputs(shape: tuple[Dim, ...], layout: PictureLayout, found: Layout | None) -> None:
    picture = PictureInput("images", "FP32", layout, 3, 96, 64)
    evidence = Evidence((), (), ExportMetadata(), picture, (96, 64))
    assert layout_of(TensorSpec("output", "FP32", shape), evidence) == found


@pytest.mark.parametrize("shape", [(2, 4, 5), (2, 1, 4, 5), (2, 4, 5, 1)])
def test_single_map_drops_the_dimension_of_the_channel(shape: tuple[int, ...]) -> None:
    values = np.arange(40).reshape(shape)
    assert np.array_equal(single_map({"x": values}, "x", 1), np.arange(20, 40).reshape(4, 5))


@pytest.mark.parametrize("shape", [(1, 4, 5), (2, 2, 4, 5), (2, 4), (2, 0, 4), (2, 1, 1, 4, 5)])
def test_single_map_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(EngineUnusable, match="output x"):
        single_map({"x": np.zeros(shape)}, "x", 1)
