"""Classifiers: recognition, preprocessing, classes and scores."""

from __future__ import annotations

import numpy as np
import pytest

from edged.errors import ConfigError
from edged.tensors import TensorSpec
from edged.vision.content import Classes
from edged.vision.families.contract import Classifier
from edged.vision.family import Recognition, Thresholds, open_family, recognise
from edged.vision.placement import Fit, place
from edged.vision.prepare import Preparer
from edged.vision.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess

ALL = Thresholds(score=0.0, max_detections=4096)


def see(
    columns: int | str = 1000,
    settings: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
    name: str = "output",
    size: int = 224,
) -> Recognition:
    inputs = (TensorSpec("input", "FP32", ("n", 3, size, size)),)
    return recognise(inputs, (TensorSpec(name, "FP32", ("n", columns)),), metadata or {}, settings or {})


def classify(row: list[float], thresholds: Thresholds = ALL, dtype: type = np.float32) -> Classes:
    opened = open_family(see(4, {"family": "classification"}))
    assert isinstance(opened, Classifier)
    return opened.classify({"output": np.array([[0] * 4, row], dtype)}, 1, thresholds)


@pytest.mark.parametrize(
    ("columns", "settings", "name", "word"),
    [
        (1000, {}, "output", "ImageNet's 1000"),
        (1001, {}, "x", "ImageNet's 1001"),
        (4, {"names": "a,b,c,d"}, "output", "as many names"),
        (7, {}, "logits", "named logits"),
        (7, {}, "class_probabilities", "named "),
        ("c", {}, "softmaxout_1", "named "),
        (7, {"family": "classification"}, "output", "the setting"),
        (512, {"family": "classification"}, "embedding", "the setting"),
    ],
)
def test_recognise_classifier_by_any_evidence(
    columns: int | str, settings: dict[str, str], name: str, word: str
) -> None:
    found = see(columns, settings, name=name)
    assert found.family == "classification"
    assert word in found.reason
    assert found.preprocess == Preprocess(
        224, 224, fit=Fit.CENTER_CROP, antialias=True, mean=IMAGENET_MEAN, std=IMAGENET_STD, zoom=256 / 224
    )
    assert (found.thresholds.score, found.thresholds.max_detections) == (0.0, 5)


@pytest.mark.parametrize(
    ("columns", "settings", "size", "families"),
    [
        (512, {}, 224, "family=classification, family=embedding or"),
        (512, {}, 112, "family=arcface, family=sface, family=classification or"),
        (4, {}, 224, "family=classification or"),
        (4, {"names": "a,b,c"}, 224, "family=classification or"),
        ("c", {}, 224, "family=classification, family=embedding or"),
    ],
)
def test_recognise_row_of_numbers_is_classes_or_an_embedding(
    columns: int | str, settings: dict[str, str], size: int, families: str
) -> None:
    found = see(columns, settings, size=size)
    assert found.family is None
    assert f"{families} family=raw" in found.reason


@pytest.mark.parametrize(
    ("columns", "settings"), [(1, {}), (2, {"decode.activation": "relu"})], ids=["one column", "activation"]
)
def test_recognise_classifier_by_setting_that_does_not_fit_is_refused(columns: int, settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        see(columns, {"family": "classification", **settings})


def test_recognise_ultralytics_classifier_has_its_own_preprocessing() -> None:
    found = see(3, metadata={"task": "classify", "names": "{0: 'a', 1: 'b', 2: 'c'}", "imgsz": "[224, 224]"})
    assert found.family == "ultralytics-classify"
    assert found.names == ("a", "b", "c")
    assert found.preprocess == Preprocess(224, 224, fit=Fit.CENTER_CROP, antialias=True)


def test_classify_output_with_axes_of_one_is_accepted() -> None:
    inputs = (TensorSpec("input", "FP32", (1, 3, 224, 224)),)
    found = recognise(inputs, (TensorSpec("output", "FP32", (1, 1000, 1, 1)),), {}, {})
    assert found.family == "classification"
    family = open_family(found)
    assert isinstance(family, Classifier)
    row = np.zeros((1, 1000, 1, 1), np.float32)
    row[0, 7] = 9
    assert family.classify({"output": row}, 0, ALL).class_ids[0] == 7


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_classify_applies_softmax_to_logits_only(dtype: type) -> None:
    found = classify([1.0, 3.0, 2.0, -1.0], dtype=dtype)
    assert found.class_ids == (1, 2, 0, 3)
    np.testing.assert_allclose(sum(found.scores), 1, atol=1e-5)
    np.testing.assert_allclose(found.scores[0] / found.scores[1], np.e, rtol=1e-4)
    found = classify([0.125, 0.5, 0.25, 0.125], dtype=dtype)
    assert found.scores == (0.5, 0.25, 0.125, 0.125)
    assert found.class_ids == (1, 2, 0, 3)


def test_classify_applies_thresholds() -> None:
    row = [0.5, 0.3, 0.15, 0.05]
    assert len(classify(row, thresholds=Thresholds(score=0.15, max_detections=5)).class_ids) == 3
    assert classify(row, thresholds=Thresholds(score=0.0, max_detections=2)).class_ids == (0, 1)
    assert len(classify(row, thresholds=Thresholds(score=0.6)).class_ids) == 0


@pytest.mark.filterwarnings("error")
def test_classify_values_that_are_not_finite_have_no_class() -> None:
    found = classify([np.nan, 1.0, np.inf, -np.inf])
    assert found.class_ids == (1,)
    assert found.scores == (1.0,)
    assert len(classify([np.nan] * 4).class_ids) == 0
    assert classify([3e38, -3e38, 0, 1.0]).scores == (1.0, 0.0, 0.0, 0.0)


# -- center crop ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "zoom", "edges"),
    [
        ((640, 480), 1.0, (80, 0, 560, 480)),
        ((480, 640), 1.0, (0, 80, 480, 560)),
        ((640, 480), 256 / 224, (110, 30, 530, 450)),  # 224 of 256 of the shorter side: 420
        ((256, 256), 256 / 224, (16, 16, 240, 240)),
        ((224, 224), 1.0, (0, 0, 224, 224)),
        ((1000, 1), 1.0, (499, 0, 500, 1)),
    ],
)
def test_place_center_crop_shows_the_middle(size: tuple[int, int], zoom: float, edges: tuple[int, ...]) -> None:
    found = place(*size, 224, 224, Fit.CENTER_CROP, zoom)
    assert found.edges == edges
    assert found.inner == (224, 224)
    corners = found.to_original(np.array([[0, 0, 224, 224]], np.float32))
    np.testing.assert_allclose(corners, [edges], atol=1e-3)


def test_prepare_center_crop_writes_the_middle() -> None:
    image = np.zeros((480, 640, 3), np.uint8)
    image[30:450, 110:530] = 255
    out = np.empty((3, 224, 224), np.float32)
    Preparer(Preprocess(224, 224, fit=Fit.CENTER_CROP, zoom=256 / 224)).prepare(image, out)
    assert (out == 1).all()


# -- scores ---------------------------------------------------------------------------------------------------------


def scores_of(row: list[float], heads: dict[str, str] | None, **settings: str) -> list[float]:
    """Return the scores of one row in the order of its columns."""
    inputs = (TensorSpec("input", "FP32", ("n", 3, 224, 224)),)
    outputs = (TensorSpec("output", "FP32", ("n", len(row))),)
    given = {"family": "classification"} | {key.replace("__", "."): value for key, value in settings.items()}
    opened = open_family(recognise(inputs, outputs, {}, given, heads=heads))
    assert isinstance(opened, Classifier)
    classes = opened.classify({"output": np.array([row], np.float32)}, 0, ALL)
    return [round(float(dict(zip(classes.class_ids, classes.scores, strict=True))[n]), 3) for n in range(len(row))]


MANY_LABELS = [0.95, 0.9, 0.02, 0.01]


@pytest.mark.parametrize("heads", [{"output": "Sigmoid"}, {"output": "Softmax"}, {"output": "HardSigmoid"}, None])
def test_classify_probabilities_of_many_labels_are_unchanged(heads: dict[str, str] | None) -> None:
    assert scores_of(MANY_LABELS, heads) == MANY_LABELS


def test_classify_logits_that_sum_to_one_are_treated_as_logits() -> None:
    assert scores_of([0.5, 0.25, 0.25], {"output": "Gemm"}) == pytest.approx([0.391, 0.3045, 0.3045], abs=1e-3)


@pytest.mark.parametrize(
    ("activation", "expected"), [("none", [2.0, 0.5]), ("sigmoid", [0.881, 0.622]), ("softmax", [0.818, 0.182])]
)
@pytest.mark.parametrize("heads", [{"output": "Sigmoid"}, {"output": "Gemm"}, None])
def test_classify_setting_overrides_the_graph(
    activation: str, expected: list[float], heads: dict[str, str] | None
) -> None:
    assert scores_of([2.0, 0.5], heads, decode__activation=activation) == expected


# -- several labels -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "settings", "has_labels"),
    [
        ("Sigmoid", {}, True),
        ("HardSigmoid", {}, True),
        ("Sigmoid", {"decode.activation": "none"}, True),
        ("Gemm", {"decode.activation": "sigmoid"}, True),
        (None, {"decode.activation": "sigmoid"}, True),
        ("Gemm", {}, False),
        ("Softmax", {}, False),
        ("Sigmoid", {"decode.activation": "softmax"}, False),
        (None, {}, False),
    ],
)
def test_recognise_classifier_with_a_sigmoid_has_several_labels(
    head: str | None, settings: dict[str, str], has_labels: bool
) -> None:
    inputs = (TensorSpec("input", "FP32", ("n", 3, 224, 224)),)
    outputs = (TensorSpec("logits", "FP32", ("n", 40)),)
    found = recognise(inputs, outputs, {}, settings, (), None if head is None else {"logits": head})
    wanted = (0.5, 300) if has_labels else (0.0, 5)
    assert (found.thresholds.score, found.thresholds.max_detections) == wanted
    chosen = recognise(inputs, outputs, {}, {**settings, "thresholds.score": "0.2"}, (), None)
    assert chosen.thresholds.score == 0.2


def test_classify_several_labels_returns_each_above_the_threshold_or_none() -> None:
    settings = {"family": "classification", "decode.activation": "sigmoid"}
    found = see(8, settings)
    opened = open_family(found)
    assert isinstance(opened, Classifier)
    rows = np.array([[3, -3, 2, 1, 0.5, 4, 5, 6], [-1] * 8], np.float32)
    labels, none = (opened.classify({"output": rows}, index, found.thresholds) for index in (0, 1))
    assert labels.class_ids == (7, 6, 5, 0, 2, 3, 4)
    np.testing.assert_allclose(labels.scores, 1 / (1 + np.exp(-rows[0, list(labels.class_ids)])), rtol=1e-5)
    assert none == Classes()
