"""Anomaly detection: recognition of anomalib's exports, scores, labels and maps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edged.errors import ConfigError, EngineUnusable
from edged.tensors import Dim, TensorSpec
from edged.vision.content import Anomaly
from edged.vision.families.contract import ContentFamily
from edged.vision.family import Recognition, Thresholds, open_family, recognise
from edged.vision.placement import CropWindow, Fit, Placement, Region, Roi, crop_window, place, place_window
from edged.vision.preprocess import Preprocess

WIDTH, HEIGHT = 64, 32
SCORE, LABEL, MAP, MASK = "pred_score", "pred_label", "anomaly_map", "pred_mask"
SHAPES: dict[str, tuple[str, tuple[Dim, ...]]] = {
    SCORE: ("FP32", ("n",)),
    LABEL: ("BOOL", ("n",)),
    MAP: ("FP32", ("n", 1, "h", "w")),
    MASK: ("BOOL", ("n", 1, "h", "w")),
}
ALL = (SCORE, LABEL, MAP, MASK)
V1 = {"family": "anomalib-v1", "thresholds.score": "30.5"}


def see(
    outputs: tuple[str, ...] = ALL, settings: dict[str, str] | None = None, **shapes: tuple[Dim, ...]
) -> Recognition:
    specs = tuple(
        TensorSpec(name, SHAPES.get(name, SHAPES[MAP])[0], shapes.get(name, SHAPES.get(name, SHAPES[MAP])[1]))
        for name in outputs
    )
    return recognise((TensorSpec("input", "FP32", ("n", 3, HEIGHT, WIDTH)),), specs, {}, settings or {})


def judge(
    found: Recognition,
    outputs: dict[str, np.ndarray],
    index: int = 0,
    placement: Placement | None = None,
    thresholds: Thresholds | None = None,
) -> Anomaly:
    family = open_family(found)
    assert isinstance(family, ContentFamily)
    where = placement or place(640, 480, WIDTH, HEIGHT, Fit.STRETCH)
    content = family.content(outputs, index, where, thresholds or found.thresholds)
    assert isinstance(content, Anomaly)
    return content


def heat_of(content: Anomaly) -> np.ndarray:
    assert content.map is not None
    return content.map.values()


@pytest.mark.parametrize("outputs", [ALL, (SCORE, MAP), (SCORE,), (SCORE, LABEL), (MAP,), (MAP, MASK)])
def test_recognise_anomalib_by_names(outputs: tuple[str, ...]) -> None:
    found = see(outputs)
    assert found.family == "anomalib"
    assert found.thresholds.score == 0.5
    assert found.preprocess == Preprocess(WIDTH, HEIGHT, fit=Fit.STRETCH)


@pytest.mark.parametrize("outputs", [(LABEL, MASK), ("output",), (SCORE, "boxes")])
def test_recognise_other_outputs_are_no_anomaly(outputs: tuple[str, ...]) -> None:
    assert see(outputs).family is None


def test_recognise_anomalib_with_tensors_that_do_not_fit_is_refused() -> None:
    assert see((SCORE,), **{SCORE: ("n", 7)}).family is None
    with pytest.raises(ConfigError, match="family=anomalib needs"):
        see(("output",), {"family": "anomalib"})
    with pytest.raises(ConfigError, match="family=anomalib-v1 needs"):
        see(("a", "b"), V1)


def test_recognise_anomalib_1_needs_its_threshold() -> None:
    with pytest.raises(ConfigError, match=r"thresholds\.score"):
        see(("output",), {"family": "anomalib-v1"})
    found = see(("output", "617"), V1)
    assert (found.family, found.output, found.thresholds.score) == ("anomalib-v1", "output", 30.5)
    assert see(("output",), {**V1, "thresholds.score": "-4"}).thresholds.score == -4


# -- scores and labels ----------------------------------------------------------------------------------------------


@given(
    arrays.arrays(np.float32, (2, 1, 4, 8), elements=st.floats(-50, 50, width=32)),
    st.floats(0, 1, width=32),
    st.integers(0, 1),
)
def test_anomaly_of_version_2_has_the_score_and_the_map(heat: np.ndarray, score: float, index: int) -> None:
    scores = np.full((2, 1), -1, np.float32)
    scores[index] = score
    content = judge(see((SCORE, MAP)), {SCORE: scores, MAP: heat}, index)
    assert (content.score, content.is_anomalous) == (np.float32(score), score >= 0.5)
    spread = float(heat[index].max() - heat[index].min())
    np.testing.assert_allclose(heat_of(content), heat[index, 0], atol=spread / 131070 + 1e-4)


@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_anomaly_label_of_the_graph_decides_unless_a_threshold_is_set(shape: tuple[int, ...]) -> None:
    outputs = {SCORE: np.array([0.1, 0.4], np.float32), LABEL: np.array([False, True]).reshape(shape)}
    found = see((SCORE, LABEL))
    assert judge(found, outputs, 1).is_anomalous
    assert not judge(found, outputs, 0).is_anomalous
    assert not judge(found, outputs, 1, thresholds=Thresholds(score=0.45)).is_anomalous
    assert not judge(see((SCORE, LABEL), {"thresholds.score": "0.41"}), outputs, 1).is_anomalous


@pytest.mark.parametrize("label", [np.array([0.4, 0.4]), np.array(True), np.ones((2, 3), bool), np.ones(1, bool)])
def test_anomaly_label_of_another_form_is_ignored(label: np.ndarray) -> None:
    assert not judge(see((SCORE, LABEL)), {SCORE: np.array([0.1, 0.4], np.float32), LABEL: label}, 1).is_anomalous


def test_anomaly_without_a_score_has_the_highest_value_of_the_map() -> None:
    heat = np.full((1, 1, 4, 8), 3, np.float32)
    heat[0, 0, 2, 5] = 31
    heat[0, 0, 0, 0] = np.nan
    content = judge(see(("output",), V1), {"output": heat})
    assert (content.score, content.is_anomalous) == (31, True)
    assert not judge(see(("output",), V1), {"output": heat - 1}).is_anomalous


def test_anomaly_of_version_1_without_a_map() -> None:
    found = see(("output",), V1, output=("n",))
    assert judge(found, {"output": np.array([7, 40], np.float32)}, 1) == Anomaly(40, True)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_anomaly_that_is_not_finite_has_score_0(bad: float) -> None:
    heat = np.full((1, 1, 4, 8), bad, np.float64)
    content = judge(see((SCORE, MAP)), {SCORE: np.array([bad], np.float64), MAP: heat})
    assert (content.score, content.is_anomalous) == (0, False)
    assert judge(see((MAP,)), {MAP: heat}).score == 0


@pytest.mark.parametrize(
    "heat", [np.ones((1, 2, 4, 8)), np.ones((1, 1, 0, 8)), np.ones((1, 8)), np.ones((1, 1, 1, 4, 8))]
)
def test_anomaly_map_of_wrong_shape_is_an_error(heat: np.ndarray) -> None:
    with pytest.raises(EngineUnusable, match=MAP):
        judge(see((MAP,)), {MAP: heat.astype(np.float32)})


# -- maps of a part of the picture ----------------------------------------------------------------------------------


def spot(x: int, y: int) -> np.ndarray:
    """A map of the input's size that is 1 at one cell and its neighbours, elsewhere 0."""
    heat = np.zeros((1, 1, HEIGHT, WIDTH), np.float32)
    heat[0, 0, y - 1 : y + 2, x - 1 : x + 2] = 1
    return heat


def window(roi: Roi, width: int, height: int) -> Placement:
    cut = crop_window(roi, width, height)
    assert isinstance(cut, CropWindow)
    return place_window(cut, width, height, WIDTH, HEIGHT, Fit.STRETCH)


@pytest.mark.parametrize(
    "placement",
    [
        window(Roi(Region(100, 40, 128, 64)), 640, 480),
        window(Roi(Region(100, 40, 64, 128), 90), 640, 480),
        window(Roi(None, 180), 640, 480),
        place(640, 480, WIDTH, HEIGHT, Fit.LETTERBOX),
        place(640, 480, WIDTH, HEIGHT, Fit.CENTER_CROP),
    ],
    ids=["region", "region at 90 degrees", "180 degrees", "letterbox", "center crop"],
)
def test_anomaly_map_covers_what_the_model_was_shown(placement: Placement) -> None:
    """A spot of the input is where `points_to_original` puts it."""
    x, y = WIDTH // 2 + 5, HEIGHT // 2 - 7
    found = judge(see((MAP,)), {MAP: spot(x, y)}, placement=placement).map
    assert found is not None
    x1, y1, x2, y2 = found.box or (0, 0, placement.width, placement.height)
    cell = ((x2 - x1) / found.width, (y2 - y1) / found.height)
    at = np.argwhere(found.values() > 0.5).mean(axis=0)[::-1] + 0.5
    expected = placement.points_to_original(np.array((x + 0.5, y + 0.5), np.float32))
    np.testing.assert_allclose((x1, y1) + at * cell, expected, atol=max(cell))
