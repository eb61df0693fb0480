"""Semantic segmentation: recognition, and class maps of every layout of an output."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import edged
from edged.errors import ConfigError, EngineUnusable
from edged.tensors import Array, Dim, TensorSpec
from edged.vision.content import ClassMap
from edged.vision.family import ContentFamily, Recognition, Thresholds, open_family, recognise
from edged.vision.placement import Fit, Placement, Region, Roi, crop_window, place, place_window
from edged.vision.preprocess import IMAGENET_MEAN, IMAGENET_STD
from tests.vision_exports import Export
from tests.vision_graphs import graph

WIDTH, HEIGHT = 96, 64
WHOLE = place(WIDTH, HEIGHT, WIDTH, HEIGHT, Fit.STRETCH)
HALF = (0.5, 0.5, 0.5)


def spec(name: str, *shape: Dim, datatype: str = "FP32") -> TensorSpec:
    return TensorSpec(name, datatype, shape)


def see(
    *outputs: TensorSpec,
    settings: dict[str, str] | None = None,
    heads: dict[str, str] | None = None,
) -> Recognition:
    inputs = (spec("images", "n", 3, HEIGHT, WIDTH),)
    return recognise(inputs, outputs, {}, settings or {}, None, heads)


def decode(
    recognition: Recognition,
    outputs: dict[str, Array],
    index: int = 0,
    score: float = 0.5,
    placement: Placement = WHOLE,
) -> ClassMap:
    family = open_family(recognition)
    assert isinstance(family, ContentFamily)
    found = family.content(outputs, index, placement, Thresholds(score=score))
    assert isinstance(found, ClassMap)
    return found


# -- recognition ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outputs", "family", "form"),
    [
        # Names.
        ([spec("logits", "n", 150, 16, 24)], "segmentation", "planes"),
        ([spec("logits", "batch", "num_labels", "height", "width")], "segmentation", "planes"),
        ([spec("out", "n", 21, 64, 96)], "segmentation", "planes"),
        ([spec("out", "n", 21, 64, 96), spec("aux", "n", 21, 64, 96)], "segmentation", "planes"),
        ([spec("aux", "n", 21, 64, 96), spec("out", "n", 21, 64, 96)], "segmentation", "planes"),
        ([spec("argmax_0.tmp_0", "n", 64, 96, datatype="INT32")], "paddleseg", "ids"),
        ([spec("argmax_0.tmp_0", "n", "h", "w", datatype="INT32")], "paddleseg", "ids"),
        ([spec("fetch_name_0", "n", 64, 96, datatype="INT32")], "paddleseg", "ids"),
        # Shapes.
        ([spec("output", "n", 64, 96, datatype="INT64")], "segmentation", "ids"),
        ([spec("output", "n", 1, 64, 96, datatype="INT64")], "segmentation", "ids"),
        ([spec("SemanticPredictions:0", "n", 64, 96, 1, datatype="INT32")], "segmentation", "ids"),
    ],
    ids=str,
)
def test_recognise_segmentation_by_names_or_shapes(outputs: list[TensorSpec], family: str, form: str) -> None:
    found = see(*outputs)
    assert (found.family, found.reading.form) == (family, form)
    assert found.reading.outputs[0] != "aux"
    assert found.preprocess is not None
    assert found.preprocess.fit is Fit.STRETCH
    expected = (IMAGENET_MEAN, IMAGENET_STD) if family == "segmentation" else (HALF, HALF)
    assert (found.preprocess.mean, found.preprocess.std) == expected


def test_recognise_paddle_softmax_but_not_raw_scores() -> None:
    output = spec("save_infer_model/scale_0.tmp_1", "n", 2, 64, 96)
    assert see(output, heads={output.name: "Softmax"}).family == "paddleseg"
    assert see(output, heads={output.name: "Conv"}).family is None


def test_recognise_open_class_numbers_only_of_an_argmax() -> None:
    output = spec("output", "batch", 1, "height", "width", datatype="INT64")
    assert see(output, heads={"output": "ArgMax"}).family == "segmentation"
    assert see(output, heads={"output": "Gather"}).family is None


def test_recognise_as_many_maps_as_names() -> None:
    output, names = spec("output", "n", 4, 64, 96), {"names": "a,b,c,d"}
    found = see(output, settings=names)
    assert (found.family, found.names, found.reading.classes) == ("segmentation", ("a", "b", "c", "d"), 4)
    assert see(spec("output", "n", 5, 64, 96), settings=names).family is None


@pytest.mark.parametrize(
    ("output", "named"),
    [
        (spec("output", "n", 1, 64, 96), ["depth", "depth-metric", "segmentation"]),
        (spec("output", "n", 64, 96), ["depth", "depth-metric", "segmentation"]),
        (spec("output", "n", 64, 96, 1), ["depth", "depth-metric", "segmentation"]),
        (spec("logits", "n", 1, 64, 96), ["depth", "depth-metric", "segmentation"]),
        (spec("output", "n", 3, 64, 96), ["segmentation", "paddleseg"]),
        (spec("output", "n", 64, 96, 21), ["segmentation", "paddleseg"]),
        (spec("output", "n", 17, 16, 24), ["hrnet", "segmentation"]),
    ],
    ids=str,
)
def test_recognise_ambiguous_maps_names_the_settings(output: TensorSpec, named: list[str]) -> None:
    found = see(output)
    assert found.family is None
    assert all(f"family={name}" in found.reason for name in named), found.reason
    for name in named:
        assert see(output, settings={"family": name}).family == name


def test_recognise_mask_with_further_outputs_names_the_settings() -> None:
    outputs = spec("d0", "n", 1, 64, 96), spec("d1", "n", 1, 64, 96), spec("1959", "n", 64, 32, 48)
    assert "family=segmentation" in see(*outputs).reason
    found = see(*outputs, settings={"family": "segmentation"})
    assert found.reading.outputs == ("d0",)
    heads = spec("p3", "n", 1, 8, 12), spec("p4", "n", 1, 4, 6), spec("p5", "n", 1, 2, 3)
    assert "family=segmentation" not in see(*heads).reason


@pytest.mark.parametrize(
    "output",
    [
        spec("output", "n", 21),
        spec("output", "n", 1000, 1, 1),
        spec("output", "n", 128, 192),
        spec("output", "n", 2, 3, 64, 96),
        spec("output", "n", 85, 4, 6),  # a cell for 16 x 16 pixels, as a detector's head
        spec("output", "n", "c", "h", "w"),
        spec("output", "n", "h", "w", datatype="INT64"),
    ],
    ids=str,
)
def test_recognise_other_outputs_are_not_maps(output: TensorSpec) -> None:
    found = see(output)
    assert found.family not in ("segmentation", "paddleseg")
    assert "family=paddleseg" not in found.reason


def test_setting_of_tensors_without_a_map_is_an_error() -> None:
    with pytest.raises(ConfigError, match="family=segmentation needs"):
        see(spec("output", "n", 1000), settings={"family": "segmentation"})
    with pytest.raises(ConfigError, match=r"decode.activation"):
        see(spec("output", "n", 64, 96), settings={"family": "segmentation", "decode.activation": "tanh"})
    with pytest.raises(ConfigError, match="setting 'names' lists 3 classes, but the model has 4"):
        see(spec("logits", "n", 4, 64, 96), settings={"names": "a,b,c"})


@pytest.mark.parametrize(
    ("head", "activation", "form"),
    [
        ("Sigmoid", None, "mask"),
        ("Conv", None, "mask-logits"),
        (None, None, "mask-logits"),
        ("Sigmoid", "sigmoid", "mask-logits"),
        ("Conv", "none", "mask"),
    ],
)
def test_mask_is_logits_unless_the_graph_ends_in_a_sigmoid(head: str | None, activation: str | None, form: str) -> None:
    settings = {"family": "segmentation"} | ({} if activation is None else {"decode.activation": activation})
    found = see(spec("output", "n", 1, 64, 96), settings=settings, heads=head and {"output": head})  # type: ignore[arg-type]
    assert (found.reading.form, found.names) == (form, ("background", "foreground"))
    assert found.thresholds.score == 0.5


# -- class maps -----------------------------------------------------------------------------------------------------


def scores(classes: int, height: int, width: int, seed: int = 0) -> np.ndarray:
    """Return smooth scores of two pictures [2, classes, height, width]."""
    random = np.random.default_rng(seed).standard_normal((2 * classes, 3, 4)).astype(np.float32)
    maps = [cv2.resize(each, (width, height), interpolation=cv2.INTER_CUBIC) for each in random]
    return np.stack(maps).reshape(2, classes, height, width)


def authors(scores: np.ndarray) -> np.ndarray:
    """Return the class of each pixel of the input, as Hugging Face's processors do."""
    return np.stack([cv2.resize(plane, (WIDTH, HEIGHT), interpolation=cv2.INTER_LINEAR) for plane in scores]).argmax(0)


@pytest.mark.parametrize("stride", [1, 2, 4, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("is_last", [False, True])
def test_scores_of_any_stride_give_the_class_of_each_pixel(stride: int, dtype: type, is_last: bool) -> None:
    values = scores(5, HEIGHT // stride, WIDTH // stride).astype(dtype)
    expected = authors(values[1].astype(np.float32))
    tensor = np.moveaxis(values, 1, -1) if is_last else values
    found = see(spec("output", "n", *tensor.shape[1:]), settings={"family": "segmentation"})
    assert np.array_equal(decode(found, {"output": tensor}, 1).cells(), expected)


@given(st.integers(2, 30), st.sampled_from([(8, 13), (9, 14), (5, 7), (64, 95), (2, 2)]), st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_scores_of_an_uneven_stride_nearly_cover_the_input(classes: int, cells: tuple[int, int], seed: int) -> None:
    found = see(spec("output", "n", classes, "h", "w"), settings={"family": "segmentation"})
    map_ = decode(found, {"output": scores(classes, *cells, seed)})
    assert abs(map_.width - WIDTH) <= WIDTH / 2
    assert abs(map_.height - HEIGHT) <= HEIGHT / 2
    assert max(map_.class_ids) < classes


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(2, HEIGHT, WIDTH), (2, 1, HEIGHT, WIDTH), (2, HEIGHT, WIDTH, 1)])
def test_class_numbers_are_the_map(dtype: type, shape: tuple[int, ...]) -> None:
    expected = scores(7, HEIGHT, WIDTH).argmax(axis=1).astype(dtype)
    found = see(spec("output", "n", *shape[1:], datatype="INT64"))
    assert np.array_equal(decode(found, {"output": expected.reshape(shape)}, 1).cells(), expected[1])


@pytest.mark.parametrize("score", [0.0, 0.25, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("head", ["Sigmoid", "Conv"])
def test_mask_has_the_foreground_above_the_score(score: float, head: str) -> None:
    values = scores(1, HEIGHT, WIDTH) * 3
    probability = 1 / (1 + np.exp(-values))
    found = see(spec("output", "n", 1, HEIGHT, WIDTH), settings={"family": "segmentation"}, heads={"output": head})
    tensor = probability if head == "Sigmoid" else values
    cells = decode(found, {"output": tensor}, 1, score).cells()
    assert np.mean(cells == (probability[1, 0] > score)) > 0.999


def test_padding_is_cut_off_and_a_turned_region_is_named() -> None:
    found, values = see(spec("logits", "n", 4, 16, 24)), scores(4, 16, 24)
    whole = decode(found, {"logits": values}, placement=place(320, 80, WIDTH, HEIGHT, Fit.LETTERBOX))
    assert whole.box is None
    assert np.array_equal(whole.cells(), authors(values[0])[20:44])
    window = crop_window(Roi(Region(20, 10, 64, 96), 90), 320, 200)
    assert window is not None
    turned = decode(found, {"logits": values}, placement=place_window(window, 320, 200, WIDTH, HEIGHT, Fit.STRETCH))
    assert turned.box == (20, 10, 84, 106)
    assert np.array_equal(np.rot90(turned.cells(), -1), authors(values[0]))


@pytest.mark.parametrize(
    ("form", "tensor"),
    [
        ("planes", np.zeros((1, 3, 16, 24), np.float32)),  # three classes instead of four
        ("planes", np.zeros((1, 4, 16), np.float32)),
        ("planes", np.zeros((1, 4, 0, 24), np.float32)),
        ("planes", np.zeros((0, 4, 16, 24), np.float32)),
        ("planes", np.zeros((1, 4, 16, 24), np.uint8)),
        ("ids", np.zeros((1, 2, 16, 24), np.int64)),
        ("ids", np.full((1, 16, 24), -1)),
        ("ids", np.full((1, 16, 24), 0.5)),
        ("ids", np.full((1, 16, 24), 1 << 40)),
        ("mask", np.zeros((1, 2, 16, 24), np.float32)),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.dtype}{list(value.shape)}",
)
def test_tensors_that_differ_from_the_declaration_are_refused(form: str, tensor: np.ndarray) -> None:
    declared = {
        "planes": spec("output", "n", 4, 16, 24),
        "ids": spec("output", "n", 16, 24, datatype="INT64"),
        "mask": spec("output", "n", 1, 16, 24),
    }
    found = see(declared[form], settings={"family": "segmentation"})
    assert found.reading.form.startswith(form)
    with pytest.raises(EngineUnusable, match="output"):
        decode(found, {"output": tensor})


def test_missing_output_is_refused() -> None:
    found = see(spec("logits", "n", 4, 16, 24))
    with pytest.raises(EngineUnusable, match="did not return output logits"):
        decode(found, {})


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [(1, 4, 16, 24), (1, 64, 96, 4), (1, 1, 64, 96)])
def test_scores_that_are_not_finite_give_a_map(bad: float, shape: tuple[int, ...]) -> None:
    found = see(spec("output", "n", *shape[1:]), settings={"family": "segmentation"})
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    values[values > 0.5] = bad
    for tensor in (values, np.full(shape, bad, np.float32)):
        assert decode(found, {"output": tensor}).width == WIDTH


def test_decode_only_reads_the_outputs() -> None:
    values = scores(4, 16, 24)
    values.flags.writeable = False
    decode(see(spec("logits", "n", 4, 16, 24)), {"logits": values})


# -- from a file to the answer --------------------------------------------------------------------------------------


def test_load_in_process_returns_the_map_of_the_picture(tmp_path: Path) -> None:
    values = scores(4, 16, 24)[:1]
    export = Export(
        "segmentation", (spec("logits", "n", 4, 16, 24),), lambda _: {}, inputs=(spec("images", "n", 3, HEIGHT, WIDTH),)
    )
    path = graph(export, {"logits": values}, tmp_path / "model.onnx")
    settings = {"names": "road,car,sky,tree", "preprocess.fit": "letterbox"}
    expected = authors(values[0])[20:44]
    picture = np.full((80, 320, 3), 90, np.uint8)
    with edged.load(path, settings=settings, cache=tmp_path / "cache", build=False) as loaded:
        found = loaded.infer(picture)
    assert isinstance(found.content, ClassMap)
    assert np.array_equal(found.content.cells(), expected)
    assert found.content.resized(320, 80).shape == (80, 320)
    assert [area.class_id for area in found.areas] == [n for n, _ in found.content.shares()]
    assert {area.label for area in found.areas} <= {"road", "car", "sky", "tree"}
