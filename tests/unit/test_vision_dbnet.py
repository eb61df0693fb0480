"""DB text detectors: maps of planted lines, decoded as by the authors' own script, one contour after the other."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import edged
from edged.errors import ConfigError, EngineUnusable
from edged.models.settings import validate
from edged.tensors import TensorSpec
from edged.verification.boxes import doubt
from edged.verification.standard import TOLERANCES
from edged.verification.verify import Pair, judge, matcher_for
from edged.vision.detections import Detections
from edged.vision.family import Family, Recognition, Thresholds, open_family, recognise
from edged.vision.placement import CropWindow, Fit, Placement, Region, Roi, crop_window, place, place_window
from edged.vision.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from tests.vision_exports import Export, spec
from tests.vision_graphs import graph

WIDTH, HEIGHT = 320, 224
WHOLE = place(WIDTH, HEIGHT, WIDTH, HEIGHT, Fit.TOP_LEFT)
AUTHORS = Thresholds(score=0.6, max_detections=1000)
Floats = npt.NDArray[np.float32]


class Line(NamedTuple):
    """A planted line: centre, size and degrees of its inner part, in pixels of the map, and its probability."""

    x: float
    y: float
    w: float
    h: float
    degrees: float
    chance: float


LINES = (
    Line(70, 40, 90, 14, 0, 0.95),
    Line(220, 60, 120, 18, 12, 0.9),
    Line(90, 130, 140, 12, -30, 0.85),
    Line(270, 160, 16, 80, 4, 0.8),
    Line(170, 195, 60, 20, 0, 0.7),
)


def chances(lines: tuple[Line, ...] = LINES, seed: int = 0) -> Floats:
    """Return a map [H, W] with these lines: high inside, with soft edges and noise."""
    found = np.full((HEIGHT, WIDTH), 0.02, np.float32)
    for each in lines:
        corners = cv2.boxPoints(((each.x, each.y), (each.w, each.h), each.degrees))
        cv2.fillPoly(found, [np.rint(corners).astype(np.int32)], each.chance)
    soft: Floats = cv2.GaussianBlur(found, (3, 3), 0)
    return np.clip(soft + np.random.default_rng(seed).normal(0, 0.02, soft.shape), 0, 1).astype(np.float32)


def recognised(shape: tuple[int | str, ...] = ("n", 3, HEIGHT, WIDTH), **settings: str) -> Recognition:
    outputs = (spec("map", shape[0], 1, *shape[2:]),)
    return recognise((spec("x", *shape),), outputs, {}, {"family": "dbnet", **settings})


def decode(
    found: Floats, placement: Placement = WHOLE, thresholds: Thresholds = AUTHORS, **settings: str
) -> Detections:
    family = open_family(recognised(**settings))
    assert isinstance(family, Family)
    return family.decode({"map": np.stack((np.zeros_like(found), found))[:, None]}, 1, placement, thresholds)


# -- the authors' script, slowly -------------------------------------------------------------------------------------


def as_published(found: Floats, least: float, unclip: float = 1.5) -> list[tuple[float, Floats]]:
    """Return score and corners of each line. Round corners are polygons of many sides, as pyclipper makes them."""
    contours, _ = cv2.findContours((found > 0.3).astype(np.uint8) * 255, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    lines = []
    for contour in contours[:1000]:
        rectangle = cv2.minAreaRect(contour)
        if min(rectangle[1]) < 3:
            continue
        mask = np.zeros(found.shape, np.uint8)
        points = cv2.boxPoints(rectangle)
        origin = np.floor(np.clip(points.min(axis=0), 0, None))
        cv2.fillPoly(mask, [(points - origin).astype(np.int32) + origin.astype(np.int32)], 1)
        score = float(found[mask > 0].mean())
        if score < least:
            continue
        around = rectangle[1][0] * rectangle[1][1] * unclip / (2 * sum(rectangle[1]))
        angles = np.linspace(0, 2 * math.pi, 64, endpoint=False)
        circle = np.stack((np.cos(angles), np.sin(angles)), axis=1) * around
        rounded = cv2.minAreaRect((points[:, None] + circle).reshape(-1, 2).astype(np.float32))
        if min(rounded[1]) >= 5:
            lines.append((score, first_upper_left(cv2.boxPoints(rounded))))
    return sorted(lines, key=lambda line: -line[0])


def first_upper_left(corners: Floats) -> Floats:
    by_x = sorted(corners.tolist())
    (left_top, left_bottom), (right_top, right_bottom) = (
        sorted(pair, key=lambda corner: corner[1]) for pair in (by_x[:2], by_x[2:])
    )
    return np.array((left_top, right_top, right_bottom, left_bottom), np.float32)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("unclip", [1.5, 2.0])
def test_decode_lines_as_the_authors_script(seed: int, unclip: float) -> None:
    found = chances(seed=seed)
    expected = as_published(found, AUTHORS.score, unclip)
    seen = decode(found, **{"decode.unclip": str(unclip)})
    assert len(expected) == len(LINES)
    np.testing.assert_allclose(seen.scores, [score for score, _ in expected], atol=1e-5)
    assert seen.corners is not None
    np.testing.assert_allclose(seen.corners, [corners for _, corners in expected], atol=0.3)
    assert set(seen.class_ids.tolist()) == {0}


def test_decode_boxes_are_the_hulls_of_the_corners_cut_to_the_picture() -> None:
    seen = decode(chances((Line(6, 30, 30, 12, 10, 0.9),)))
    assert seen.corners is not None
    assert seen.corners.min() < 0
    np.testing.assert_allclose(seen.boxes[0, :2], np.maximum(seen.corners[0].min(axis=0), 0))
    np.testing.assert_allclose(seen.boxes[0, 2:], seen.corners[0].max(axis=0))


def test_decode_corners_are_in_pixels_of_the_picture() -> None:
    seen = decode(chances(), place(2 * WIDTH, 2 * HEIGHT, WIDTH, HEIGHT, Fit.TOP_LEFT))
    same = decode(chances())
    assert seen.corners is not None
    assert same.corners is not None
    np.testing.assert_allclose(seen.corners, same.corners * 2, atol=1e-3)


def test_decode_of_a_rotated_region_begins_at_the_upper_left_of_the_text_as_shown() -> None:
    window = crop_window(Roi(Region(100, 50, HEIGHT, WIDTH), 90), 600, 500)
    assert isinstance(window, CropWindow)
    seen = decode(chances(), place_window(window, 600, 500, WIDTH, HEIGHT, Fit.TOP_LEFT))
    shown = decode(chances())
    assert seen.corners is not None
    assert shown.corners is not None
    # The shown picture is the region turned clockwise: its x runs upwards in the region.
    expected = np.stack((shown.corners[..., 1], WIDTH - shown.corners[..., 0]), axis=2) + np.array((100, 50))
    np.testing.assert_allclose(seen.corners, expected, atol=1e-3)


def test_decode_scores_and_limit_select_the_best_lines() -> None:
    found = chances()
    third, fourth = decode(found).scores[2:4].tolist()
    assert len(decode(found, thresholds=Thresholds(score=(third + fourth) / 2, max_detections=1000))) == 3
    best = decode(found, thresholds=Thresholds(score=0.6, max_detections=2))
    np.testing.assert_allclose(best.scores, decode(found).scores[:2])
    assert len(decode(found, thresholds=Thresholds(score=1.0))) == 0


@pytest.mark.parametrize("line", [Line(50, 50, 40, 2, 0, 0.9), Line(50, 50, 2, 2, 0, 0.9)])
def test_decode_specks_are_left_out(line: Line) -> None:
    assert len(decode(chances((line,)))) == 0


def test_decode_lines_of_a_few_pixels_of_the_picture_are_left_out() -> None:
    found = chances((Line(50, 50, 40, 8, 0, 0.9),))
    assert len(decode(found)) == 1
    assert len(decode(found, place(WIDTH // 8, HEIGHT // 8, WIDTH, HEIGHT, Fit.TOP_LEFT))) == 0


def test_decode_logits_need_the_setting() -> None:
    found = chances()
    logits = np.log(np.clip(found, 1e-6, 1 - 1e-6) / (1 - np.clip(found, 1e-6, 1 - 1e-6)))
    seen = decode(logits, **{"decode.activation": "sigmoid"})
    np.testing.assert_allclose(seen.scores, decode(found).scores, atol=1e-5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_decode_lines_with_values_that_are_not_finite_are_dropped(bad: float) -> None:
    found = chances()
    found[40, 70] = bad
    assert len(decode(found)) in (4, 5)  # a hole of one pixel leaves the rest, but its mean is not finite
    assert np.isfinite(decode(found).scores).all()
    assert len(decode(np.full_like(found, bad))) == 0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from([0.5, 1, 1e6, 1e30]), st.sampled_from([0, 1, 3, 8]))
def test_decode_any_map_gives_boxes_inside_the_picture(seed: int, scale: float, blur: int) -> None:
    noise = np.random.default_rng(seed).standard_normal((HEIGHT, WIDTH)).astype(np.float32)
    noise = cv2.GaussianBlur(noise, (0, 0), blur) if blur else noise
    placement = place(900, 200, WIDTH, HEIGHT, Fit.TOP_LEFT)
    seen = decode(noise / np.abs(noise).max() * np.float32(scale), placement, Thresholds(score=0.31, max_detections=50))
    assert seen.corners is not None
    assert len(seen) <= 50
    for values in (seen.boxes, seen.scores, seen.corners):
        assert np.isfinite(values).all()
    assert (seen.boxes >= 0).all()
    assert (seen.boxes <= (900, 200, 900, 200)).all()
    assert (np.diff(seen.scores) <= 0).all()


@pytest.mark.parametrize("shape", [(1, 2, HEIGHT, WIDTH), (1, 1, HEIGHT // 4, WIDTH // 4), (1, HEIGHT, WIDTH)])
def test_decode_map_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    family = open_family(recognised())
    assert isinstance(family, Family)
    with pytest.raises(EngineUnusable, match="map"):
        family.decode({"map": np.zeros(shape, np.float32)}, 0, WHOLE, AUTHORS)


def test_decode_half_precision_finds_the_same_lines() -> None:
    family = open_family(recognised())
    assert isinstance(family, Family)
    seen = family.decode({"map": chances()[None, None].astype(np.float16)}, 0, WHOLE, AUTHORS)
    np.testing.assert_allclose(seen.scores, decode(chances()).scores, atol=2e-3)


# -- recognition -----------------------------------------------------------------------------------------------------

PADDLE = (spec("x", "n", 3, "h", "w"),)
MAP = (spec("sigmoid_0.tmp_0", "n2", 1, "h2", "w2"),)
USED = ("Conv", "ConvTranspose", "Sigmoid")


def see(
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    head: str = "Sigmoid",
    operators: tuple[str, ...] = USED,
    **settings: str,
) -> Recognition:
    return recognise(inputs, outputs, {}, settings, operators, dict.fromkeys((each.name for each in outputs), head))


@pytest.mark.parametrize("outputs", [MAP, (spec("fetch_name_0", "a", "b", "c", "d"),)])
def test_recognise_pp_ocr_has_the_preprocessing_and_thresholds_of_paddleocr(outputs: tuple[TensorSpec, ...]) -> None:
    found = see(PADDLE, outputs)
    assert found.family == "dbnet", found.reason
    assert not found.is_set
    assert found.names == ("text",)
    assert found.thresholds == AUTHORS
    fed = Preprocess(960, 960, color="bgr", fit=Fit.TOP_LEFT, pad=0, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    assert found.preprocess == fed


def test_recognise_open_size_follows_the_settings() -> None:
    found = see(PADDLE, MAP, **{"preprocess.width": "1280", "preprocess.height": "736"})
    assert found.preprocess is not None
    assert (found.preprocess.width, found.preprocess.height) == (1280, 736)


@pytest.mark.parametrize(
    ("inputs", "outputs", "more"),
    [
        ((spec("input", "n", 3, "h", "w"),), MAP, {}),
        (PADDLE, MAP, {"head": "Softmax"}),
        (PADDLE, MAP, {"operators": ("Conv", "Resize", "Sigmoid")}),
        (PADDLE, (*MAP, spec("second", "n", 1, "h", "w")), {}),
        (PADDLE, (spec("alpha", "n", 3, "h", "w"),), {}),
    ],
)
def test_recognise_other_maps_are_not_claimed(
    inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], more: dict[str, object]
) -> None:
    assert see(inputs, outputs, **more).family is None  # type: ignore[arg-type]


IMAGE = (spec("image", 1, 3, 320, 640),)


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ((spec("y", 1, 1, 320, 640),), "family=dbnet"),
        ((spec("score", 1, 1, 80, 160), spec("geometry", 1, 5, 80, 160)), "EAST"),
        ((spec("score", 1, 80, 160, 1), spec("geometry", 1, 80, 160, 5)), "EAST"),
        ((spec("y", 1, 160, 320, 2), spec("feature", 1, 32, 160, 320)), "CRAFT"),
    ],
)
def test_recognise_other_detectors_of_text_are_told(outputs: tuple[TensorSpec, ...], words: str) -> None:
    found = see(IMAGE, outputs, operators=("Conv",))
    assert found.family is None
    assert words in found.reason


@pytest.mark.parametrize("size", [("640", "360"), ("1920", "1080")])
def test_recognise_sides_that_are_no_multiples_of_32_are_refused(size: tuple[str, str]) -> None:
    sides = {"preprocess.width": size[0], "preprocess.height": size[1]}
    assert "multiples of 32" in see(PADDLE, MAP, **sides).reason
    with pytest.raises(ConfigError, match="multiples of 32"):
        recognise(PADDLE, MAP, {}, {"family": "dbnet", **sides})


def test_recognise_fixed_sides_that_are_no_multiples_of_32_do_not_name_the_family() -> None:
    inputs, outputs = (spec("image", 1, 3, 360, 640),), (spec("y", 1, 1, 360, 640),)
    assert "dbnet" not in see(inputs, outputs).reason
    with pytest.raises(ConfigError, match="family=dbnet needs"):
        recognise(inputs, outputs, {}, {"family": "dbnet"})


@pytest.mark.parametrize(
    "settings", [{"decode.unclip": "-1"}, {"decode.unclip": "wide"}, {"decode.activation": "softmax"}]
)
def test_recognise_invalid_settings_are_refused(settings: dict[str, str]) -> None:
    validate(settings)  # the names are known
    with pytest.raises(ConfigError, match=next(iter(settings))):
        recognised(**settings)


# -- the whole path --------------------------------------------------------------------------------------------------


def test_doubt_picture_without_text_is_not_doubted() -> None:
    assert doubt(recognised(), {"map": np.zeros((1, 1, HEIGHT, WIDTH), np.float32)}) == ""


def test_judge_engine_that_loses_a_line_is_rejected() -> None:
    matcher = matcher_for(recognised(), TOLERANCES["fp32"].box_score)
    expected, lost = ({"map": chances(lines)[None, None]} for lines in (LINES, LINES[:-1]))
    verdicts = [
        judge([Pair(expected, found, "page", WHOLE)], TOLERANCES["fp32"], matcher) for found in (expected, lost)
    ]
    assert [verdict.accepted for verdict in verdicts] == [True, False]
    assert verdicts[0].figures["boxes"] == 1.0
    assert verdicts[1].figures["boxes"] == pytest.approx(0.8)


def test_load_detector_finds_the_planted_lines(tmp_path: Path) -> None:
    export = Export(
        "dbnet", (spec("map", 1, 1, HEIGHT, WIDTH),), lambda _: {}, inputs=(spec("x", 1, 3, HEIGHT, WIDTH),)
    )
    file = graph(export, {"map": chances()[None, None]}, tmp_path / "det.onnx")
    with edged.load(file, settings={"family": "dbnet"}, cache=tmp_path / "cache", build=False) as model:
        result = model.infer(np.zeros((HEIGHT, WIDTH, 3), np.uint8))
    assert [one.label for one in result.detections] == ["text"] * len(LINES)
    assert [one.score for one in result.detections] == pytest.approx(decode(chances()).scores.tolist(), abs=1e-5)
    assert all(one.corners is not None and len(one.corners) == 4 for one in result.detections)
