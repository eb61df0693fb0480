"""Detectors of other exporters, compared on random tensors with their authors' arithmetic, box by box.

Each reference is written from the authors' description, the slow and obvious way round, and shares nothing with the
decoders. The picture has the size of the input, and an IoU threshold of 1 keeps all candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from edged.errors import ConfigError, EngineUnusable
from edged.tensors import Array, Dim, TensorSpec
from edged.vision.detections import Detections
from edged.vision.family import Family, Recognition, Thresholds, open_family, recognise
from edged.vision.placement import Fit, Placement, place

WIDTH, HEIGHT, CLASSES = 160, 96, 3
SAME = place(WIDTH, HEIGHT, WIDTH, HEIGHT, Fit.STRETCH)
Outputs = dict[str, Array]
Candidate = tuple[float, int, tuple[float, float, float, float]]  # score, class, xyxy


class Format(NamedTuple):
    """A family's tensors, random values for them, and the authors' decoding of one picture."""

    family: str
    shapes: Mapping[str, tuple[int, ...]]
    values: Callable[[np.random.Generator], Outputs]
    reference: Callable[[Outputs], Iterator[Candidate]]
    settings: Mapping[str, str] = {}
    picture: str = "images"

    def recognise(self, **settings: str) -> Recognition:
        outputs = tuple(TensorSpec(name, "FP32", shape) for name, shape in self.shapes.items())
        inputs = (TensorSpec(self.picture, "FP32", (1, 3, HEIGHT, WIDTH)),)
        return recognise(inputs, outputs, {}, {"family": self.family, **self.settings, **settings}, frozenset())

    def decode(self, outputs: Outputs, thresholds: Thresholds, placement: Placement = SAME) -> Detections:
        return opened(self.recognise()).decode(outputs, 0, placement, thresholds)


def opened(found: Recognition) -> Family:
    family = open_family(found)
    assert isinstance(family, Family)
    return family


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def cells(*strides: int) -> Iterator[tuple[int, int, int]]:
    """Column, row and stride of every cell."""
    for stride in strides:
        for row in range(math.ceil(HEIGHT / stride)):
            for column in range(math.ceil(WIDTH / stride)):
                yield column, row, stride


def mean(logits: Sequence[float]) -> float:
    """Of a distribution over 0, 1, 2, ... with these logits."""
    shares = [math.exp(value) for value in logits]
    return sum(number * share for number, share in enumerate(shares)) / sum(shares)


CELLS = len(list(cells(8, 16, 32)))
CELLS_64 = len(list(cells(8, 16, 32, 64)))


# -- Hugging Face ---------------------------------------------------------------------------------------------------

QUERIES = 40


def queries(slots: int) -> Callable[[np.random.Generator], Outputs]:
    def values(random: np.random.Generator) -> Outputs:
        logits = random.normal(0, 2, (1, QUERIES, slots)).astype(np.float32)
        return {"logits": logits, "pred_boxes": random.uniform(0.1, 0.5, (1, QUERIES, 4)).astype(np.float32)}

    return values


def relative(box: Sequence[float]) -> tuple[float, float, float, float]:
    cx, cy, w, h = box
    return (cx - w / 2) * WIDTH, (cy - h / 2) * HEIGHT, (cx + w / 2) * WIDTH, (cy + h / 2) * HEIGHT


def by_softmax(outputs: Outputs) -> Iterator[Candidate]:
    """DETR: each query once, with the best class but "no object"."""
    for logits, box in zip(outputs["logits"][0].tolist(), outputs["pred_boxes"][0].tolist(), strict=True):
        shares = [math.exp(value) for value in logits]
        best = max(range(len(shares) - 1), key=shares.__getitem__)
        yield shares[best] / sum(shares), best, relative(box)


def by_sigmoid(outputs: Outputs) -> Iterator[Candidate]:
    """Deformable DETR and RT-DETR: each query once for each class."""
    for logits, box in zip(outputs["logits"][0].tolist(), outputs["pred_boxes"][0].tolist(), strict=True):
        for class_id, value in enumerate(logits):
            yield sigmoid(value), class_id, relative(box)


def query_shapes(slots: int) -> dict[str, tuple[int, ...]]:
    return {"logits": (1, QUERIES, slots), "pred_boxes": (1, QUERIES, 4)}


# -- distances from cells -------------------------------------------------------------------------------------------


def distributions(rows: int, bins: int) -> Callable[[np.random.Generator], Outputs]:
    """Scores, and logits of distances."""

    def values(random: np.random.Generator) -> Outputs:
        scores, sides = random.random((1, rows, CLASSES)), random.normal(0, 2, (1, rows, 4 * bins))
        return {"output": np.concatenate((scores, sides), axis=2).astype(np.float32)}

    return values


def nanodet(strides: tuple[int, ...], bins: int, point: float) -> Callable[[Outputs], Iterator[Candidate]]:
    def reference(outputs: Outputs) -> Iterator[Candidate]:
        for (column, row, stride), values in zip(cells(*strides), outputs["output"][0].tolist(), strict=True):
            sides = values[CLASSES:]
            left, top, right, bottom = (mean(sides[side * bins : (side + 1) * bins]) for side in range(4))
            x, y = column + point, row + point
            box = (x - left) * stride, (y - top) * stride, (x + right) * stride, (y + bottom) * stride
            for class_id, score in enumerate(values[:CLASSES]):
                yield score, class_id, box

    return reference


def grid_shapes(*strides: int) -> dict[str, tuple[int, ...]]:
    sizes = {stride: len(list(cells(stride))) for stride in strides}
    scores = {f"cls_pred_stride_{stride}": (1, size, CLASSES) for stride, size in sizes.items()}
    return {**scores, **{f"dis_pred_stride_{stride}": (1, size, 32) for stride, size in sizes.items()}}


def grid_values(*strides: int) -> Callable[[np.random.Generator], Outputs]:
    """Scores of each stride, then logits of distances of each."""

    def values(random: np.random.Generator) -> Outputs:
        return {
            name: (random.random(shape) if name.startswith("cls") else random.normal(0, 2, shape)).astype(np.float32)
            for name, shape in grid_shapes(*strides).items()
        }

    return values


def separate(*strides: int) -> Callable[[Outputs], Iterator[Candidate]]:
    """PicoDet with four grids, old exports of NanoDet with three: from the centre of the cell."""

    def reference(outputs: Outputs) -> Iterator[Candidate]:
        names = [(f"cls_pred_stride_{stride}", f"dis_pred_stride_{stride}") for stride in strides]
        parts = [np.concatenate((outputs[scores], outputs[sides]), axis=2) for scores, sides in names]
        return nanodet(strides, 8, 0.5)({"output": np.concatenate(parts, axis=1)})

    return reference


PICO = grid_shapes(8, 16, 32, 64)


RTM = {
    f"{name}{s}": (1, channels, HEIGHT // s, WIDTH // s)
    for name, channels in (("classes", CLASSES), ("sides", 4))
    for s in (8, 16, 32)
}
RTM_JOINED = {f"head{s}": (1, CLASSES + 4, HEIGHT // s, WIDTH // s) for s in (8, 16, 32)}


def rtmdet_heads(random: np.random.Generator) -> Outputs:
    return {name: random.uniform(0, 4, shape).astype(np.float32) for name, shape in RTM.items()}


def rtmdet(unit: Callable[[int], float]) -> Callable[[Outputs], Iterator[Candidate]]:
    """RTMDet: distances in units of `unit(stride)` pixels, from the upper left corner of the cell."""

    def reference(outputs: Outputs) -> Iterator[Candidate]:
        for column, row, stride in cells(8, 16, 32):
            left, top, right, bottom = (outputs[f"sides{stride}"][0, :, row, column] * unit(stride)).tolist()
            x, y = column * stride, row * stride
            for class_id, value in enumerate(outputs[f"classes{stride}"][0, :, row, column].tolist()):
                yield sigmoid(value), class_id, (x - left, y - top, x + right, y + bottom)

    return reference


def joined_rtmdet(outputs: Outputs) -> Iterator[Candidate]:
    parts = {f"classes{s}": outputs[f"head{s}"][:, :CLASSES] for s in (8, 16, 32)}
    return rtmdet(float)({**parts, **{f"sides{s}": outputs[f"head{s}"][:, CLASSES:] for s in (8, 16, 32)}})


FAST = (1, 5 + CLASSES, HEIGHT // 16, WIDTH // 16)


def fastest_values(random: np.random.Generator) -> Outputs:
    grid = random.normal(0, 1, FAST)
    grid[:, 0] = random.random(grid[:, 0].shape)
    powers = np.exp(grid[:, 5:])
    grid[:, 5:] = powers / powers.sum(axis=1, keepdims=True)
    return {"758": grid.astype(np.float32)}


def fastestdet(outputs: Outputs) -> Iterator[Candidate]:
    grid = outputs["758"][0]
    _, down, across = grid.shape
    for row in range(down):
        for column in range(across):
            objectness, x, y, w, h, *classes = grid[:, row, column].tolist()
            best = max(range(CLASSES), key=classes.__getitem__)
            centre = (column + math.tanh(x)) / across, (row + math.tanh(y)) / down
            yield objectness**0.6 * classes[best] ** 0.4, best, relative((*centre, sigmoid(w), sigmoid(h)))


# -- tables ---------------------------------------------------------------------------------------------------------


def corners_of(random: np.random.Generator, rows: int) -> Array:
    first, size = random.uniform(0, 60, (1, rows, 2)), random.uniform(1, 40, (1, rows, 2))
    return np.concatenate((first, first + size), axis=2).astype(np.float32)


def damo_values(random: np.random.Generator) -> Outputs:
    return {"output": random.random((1, CELLS, CLASSES)).astype(np.float32), "99": corners_of(random, CELLS)}


def damo(outputs: Outputs) -> Iterator[Candidate]:
    for scores, box in zip(outputs["output"][0].tolist(), outputs["99"][0].tolist(), strict=True):
        for class_id, score in enumerate(scores):
            yield score, class_id, tuple(box)


def paddle_values(random: np.random.Generator) -> Outputs:
    scores = random.random((1, CLASSES, CELLS_64)).astype(np.float32)
    return {"boxes": corners_of(random, CELLS_64), "scores": scores}


def paddle(outputs: Outputs) -> Iterator[Candidate]:
    for class_id, row in enumerate(outputs["scores"][0].tolist()):
        for score, box in zip(row, outputs["boxes"][0].tolist(), strict=True):
            yield score, class_id, tuple(box)


ANCHORS = {"regression": (1, CELLS, 4), "classification": (1, CELLS, CLASSES), "anchors": (1, CELLS, 4)}


def anchor_values(random: np.random.Generator) -> Outputs:
    return {
        "regression": random.normal(0, 0.3, ANCHORS["regression"]).astype(np.float32),
        "classification": random.random(ANCHORS["classification"]).astype(np.float32),
        "anchors": corners_of(random, CELLS)[:, :, [1, 0, 3, 2]],
    }


def efficientdet(outputs: Outputs) -> Iterator[Candidate]:
    tables = (outputs[name][0].tolist() for name in ANCHORS)
    for (dy, dx, dh, dw), scores, (y1, x1, y2, x2) in zip(*tables, strict=True):
        height, width = y2 - y1, x2 - x1
        cy, cx = (y1 + y2) / 2 + dy * height, (x1 + x2) / 2 + dx * width
        h, w = math.exp(dh) * height, math.exp(dw) * width
        best = max(range(CLASSES), key=scores.__getitem__)
        yield scores[best], best, (cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2)


FORMATS = {
    "detr": Format("detr", query_shapes(CLASSES + 1), queries(CLASSES + 1), by_softmax),
    "deformable-detr": Format("deformable-detr", query_shapes(CLASSES), queries(CLASSES), by_sigmoid),
    "rtdetr-transformers": Format("rtdetr-transformers", query_shapes(CLASSES), queries(CLASSES), by_sigmoid),
    "nanodet-plus": Format(
        "nanodet-plus",
        {"output": (1, CELLS_64, CLASSES + 32)},
        distributions(CELLS_64, 8),
        nanodet((8, 16, 32, 64), 8, 0.0),
    ),
    "nanodet, 8 bins": Format(
        "nanodet",
        {"output": (1, CELLS, CLASSES + 32)},
        distributions(CELLS, 8),
        nanodet((8, 16, 32), 8, 0.5),
        {"names": "a,b,c"},
    ),
    "nanodet, 11 bins": Format(
        "nanodet",
        {"output": (1, CELLS, CLASSES + 44)},
        distributions(CELLS, 11),
        nanodet((8, 16, 32), 11, 0.5),
        {"names": "a,b,c"},
    ),
    "nanodet, an output for each stride": Format(
        "nanodet", grid_shapes(8, 16, 32), grid_values(8, 16, 32), separate(8, 16, 32), picture="input.1"
    ),
    "picodet, raw heads": Format("picodet", PICO, grid_values(8, 16, 32, 64), separate(8, 16, 32, 64), picture="image"),
    "picodet": Format("picodet", {"boxes": (1, CELLS_64, 4), "scores": (1, CLASSES, CELLS_64)}, paddle_values, paddle),
    "rtmdet": Format("rtmdet", RTM, rtmdet_heads, rtmdet(lambda stride: 1)),
    "rtmdet, grid": Format("rtmdet", RTM, rtmdet_heads, rtmdet(float), {"decode.boxes": "grid"}),
    "rtmdet, joined": Format(
        "rtmdet",
        RTM_JOINED,
        lambda random: {
            f"head{s}": np.concatenate((heads[f"classes{s}"], heads[f"sides{s}"]), axis=1)
            for heads in (rtmdet_heads(random),)
            for s in (8, 16, 32)
        },
        joined_rtmdet,
    ),
    "fastestdet": Format("fastestdet", {"758": FAST}, fastest_values, fastestdet),
    "damo-yolo": Format("damo-yolo", {"output": (1, CELLS, CLASSES), "99": (1, CELLS, 4)}, damo_values, damo),
    "efficientdet": Format("efficientdet", ANCHORS, anchor_values, efficientdet),
}
EVERY = pytest.mark.parametrize("name", FORMATS)


def clipped(box: Sequence[float]) -> tuple[float, float, float, float]:
    x1, y1, x2, y2 = box
    return max(x1, 0), max(y1, 0), min(x2, WIDTH), min(y2, HEIGHT)


@EVERY
@pytest.mark.parametrize("seed", range(3))
def test_decode_random_tensors_gives_the_boxes_of_the_authors(name: str, seed: int) -> None:
    found = FORMATS[name]
    outputs = found.values(np.random.default_rng(seed))
    candidates = sorted(found.reference(outputs), reverse=True)
    score = (candidates[99][0] + candidates[100][0]) / 2 if len(candidates) > 100 else candidates[-1][0] - 0.01
    boxes = [(each, class_id, clipped(box)) for each, class_id, box in candidates if each > score]
    expected = [each for each in boxes if each[2][2] > each[2][0] and each[2][3] > each[2][1]]
    assert len(expected) > 20
    decoded = found.decode(outputs, Thresholds(score, 1.0, 4096))
    assert decoded.class_ids.tolist() == [class_id for _, class_id, _ in expected]
    np.testing.assert_allclose(decoded.scores, [each for each, _, _ in expected], atol=1e-5)
    np.testing.assert_allclose(decoded.boxes, [box for _, _, box in expected], atol=1e-3)


@EVERY
def test_decode_suppresses_the_worse_of_two_boxes_unless_queries(name: str) -> None:
    found = FORMATS[name]
    outputs = found.values(np.random.default_rng(7))
    everything = found.decode(outputs, Thresholds(0.3, 1.0, 4096))
    kept = found.decode(outputs, Thresholds(0.3, 0.1, 4096))
    assert len(kept) == len(everything) if "logits" in found.shapes else len(kept) < len(everything)


@EVERY
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_decode_values_that_are_not_finite_are_dropped(name: str, bad: float) -> None:
    found = FORMATS[name]
    for spoiled in found.shapes:
        outputs = found.values(np.random.default_rng(1))
        outputs[spoiled] = np.full_like(outputs[spoiled], bad)
        decoded = found.decode(outputs, Thresholds(0.1, 0.7))
        assert np.isfinite(decoded.boxes).all()
        assert np.isfinite(decoded.scores).all()
    nothing = {name: np.full(shape, bad, np.float32) for name, shape in found.shapes.items()}
    assert len(found.decode(nothing, Thresholds(0.1))) == 0


@EVERY
@pytest.mark.filterwarnings("error")
@hypothesis_settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from([1, 100, 1e6, 1e30]), st.floats(0, 1))
def test_decode_any_tensors_give_boxes_inside_the_picture(name: str, seed: int, scale: float, score: float) -> None:
    random, found = np.random.default_rng(seed), FORMATS[name]
    outputs = {name: (random.standard_normal(shape) * scale).astype(np.float32) for name, shape in found.shapes.items()}
    for array in outputs.values():
        array.flags.writeable = False
    decoded = found.decode(outputs, Thresholds(score, 0.7, 50), place(333, 1001, WIDTH, HEIGHT, Fit.LETTERBOX))
    assert len(decoded) <= 50
    assert np.isfinite(decoded.scores).all()
    assert (decoded.boxes >= 0).all()
    assert (decoded.boxes <= np.array((333, 1001) * 2)).all()
    assert (np.diff(decoded.scores) <= 0).all()
    assert ((decoded.class_ids >= 0) & (decoded.class_ids < CLASSES)).all()


@EVERY
def test_decode_half_precision(name: str) -> None:
    found = FORMATS[name]
    outputs = found.values(np.random.default_rng(2))
    whole = found.decode(outputs, Thresholds(0.7, 1.0, 20))
    half = found.decode({name: array.astype(np.float16) for name, array in outputs.items()}, Thresholds(0.69, 1.0, 20))
    assert len(half) >= len(whole) > 0
    np.testing.assert_allclose(half.scores[0], whole.scores[0], atol=2e-3)


@EVERY
def test_decode_tensor_of_another_size_is_refused(name: str) -> None:
    found = FORMATS[name]
    for changed, shape in found.shapes.items():
        for axis in (0, len(shape) - 1):
            outputs = found.values(np.random.default_rng(3))
            outputs[changed] = outputs[changed][:0] if axis == 0 else np.delete(outputs[changed], -1, axis)
            with pytest.raises(EngineUnusable, match="family=raw"):
                found.decode(outputs, Thresholds(0.5))


# -- recognition ----------------------------------------------------------------------------------------------------


def see(
    picture: str,
    outputs: Mapping[str, tuple[Dim, ...]],
    *extras: TensorSpec,
    operators: frozenset[str] = frozenset(),
    heads: Mapping[str, str] | None = None,
    **settings: str,
) -> Recognition:
    inputs = (TensorSpec(picture, "FP32", (1, 3, HEIGHT, WIDTH)), *extras)
    specs = tuple(TensorSpec(name, "FP32", shape) for name, shape in outputs.items())
    return recognise(inputs, specs, {}, settings, operators, heads)


QUERY_NAMES = {"logits": ("n", QUERIES, 92), "pred_boxes": ("n", QUERIES, 4)}
DETS = {"dets": ("n", "k", 5), "labels": ("n", "k")}
FACTOR = TensorSpec("scale_factor", "FP32", (1, 2))
LISTED: dict[str, tuple[Dim, ...]] = {
    "save_infer_model/scale_0.tmp_0": ("m", 6),
    "save_infer_model/scale_1.tmp_0": (1,),
}
NINE = 9 * len(list(cells(8, 16, 32, 64, 128)))


@pytest.mark.parametrize(
    ("found", "families"),
    [
        (see("pixel_values", QUERY_NAMES), ("detr", "deformable-detr", "rtdetr-transformers")),
        (
            see("pixel_values", QUERY_NAMES, operators=frozenset({"GridSample"})),
            ("deformable-detr", "rtdetr-transformers"),
        ),
        (see("input", DETS), ("rtmdet", "mmdet")),
        (see("input", {**DETS, "dets": ("n", "k", "Reshapedets_dim_2")}), ("rtmdet", "mmdet")),
        (
            see("images", {"num_dets": (1, 1), "boxes": (1, 9, 4), "scores": (1, 9), "labels": (1, 9)}),
            ("rtmdet", "mmdet"),
        ),
        (see("input", RTM), ("rtmdet", "mmdet")),
        (see("image", LISTED, FACTOR), ("picodet", "ppyoloe-plus")),
        (
            see("image", {"a": (1, CELLS, 4), "b": (1, 80, CELLS)}, FACTOR),
            ("picodet", "ppyoloe-plus"),
        ),
        (
            see("input.1", {"758": FAST}, operators=frozenset({"Softmax"}), heads={"758": "Concat"}),
            ("fastestdet",),
        ),
        (see("input", {"a": (1, NINE, 4), "b": (1, NINE, 90), "c": (1, NINE, 4)}), ("efficientdet",)),
        (see("input.1", dict(zip("abcdef", grid_shapes(8, 16, 32).values(), strict=True))), ("nanodet",)),
    ],
    ids=range(11),
)
def test_recognise_format_of_several_models_names_the_settings(found: Recognition, families: tuple[str, ...]) -> None:
    assert found.family is None
    assert found.between == families
    assert found.preprocess is not None or found.picture.startswith("besides")


@pytest.mark.parametrize(
    ("found", "family"),
    [
        (see("data", {"output": (1, CELLS_64, 112)}), "nanodet-plus"),
        (see("data", {"output": (1, CELLS, 112)}), "nanodet"),
        (see("data", {"output": (1, CELLS, 124)}), "nanodet"),
        (see("data", {"output": (1, CELLS, 47)}, names="a,b,c"), "nanodet"),
        (see("images", {"output": (1, CELLS, 112)}), "yolox"),
        (see("input.1", grid_shapes(8, 16, 32)), "nanodet"),
        (see("image", PICO), "picodet"),
        (see("image", {"a": (1, CELLS_64, 4), "b": (1, 80, CELLS_64)}), "picodet"),
        (see("images", {"output": (1, CELLS, 80), "1234": (1, CELLS, 4)}), "damo-yolo"),
        (see("images", {"outputs": ("n", CELLS, 85)}), "yolov6"),
        (see("images", {"outputs": ("n", CELLS_64, 85)}), "yolov6"),
        (see("images", {"outputs": ("batch", "Concatoutputs_dim_1", 85)}), "yolov6"),
        (see("input", {"boxes": ("m", 4), "labels": ("m",), "scores": ("m",)}), "torchvision"),
        (see("image_arrays:0", {"detections:0": (1, 100, 7)}), "efficientdet"),
        (
            see(
                "image_tensor:0",
                {
                    "detection_boxes:0": (1, 100, 4),
                    "detection_classes:0": (1, 100),
                    "detection_scores:0": (1, 100),
                    "num_detections:0": (1,),
                },
            ),
            "ssd",
        ),
    ],
    ids=range(15),
)
def test_recognise_names_of_an_exporter(found: Recognition, family: str) -> None:
    assert found.family == family, found.reason


@pytest.mark.parametrize(
    ("found", "between"),
    [
        (see("pixel_values", {**QUERY_NAMES, "text_embeds": (1, 9, 512)}), ()),
        (see("data", {"output": (1, CELLS_64 + 1, 112)}), ()),
        (see("images", {"outputs": (1, CELLS + 1, 85)}), ()),
        (see("images", {"output": (1, CELLS + 1, 80), "1234": (1, CELLS + 1, 4)}), ("ssd",)),
        (see("images", {"output": (1, CELLS, 80), "1234": (1, CELLS, 5)}), ()),
        (see("input.1", {"758": FAST}), ()),
        (see("input", {name: shape for name, shape in RTM.items() if name != "sides32"}), ()),
        (see("image", LISTED), ()),
        (see("input", PICO), ("picodet", "ppyoloe-plus")),
        (see("input", {"a": (1, NINE - 1, 4), "b": (1, NINE - 1, 90), "c": (1, NINE - 1, 4)}), ()),
    ],
    ids=range(10),
)
def test_recognise_similar_tensors_are_not_claimed(found: Recognition, between: tuple[str, ...]) -> None:
    assert (found.family, found.between) == (None, between), found.reason


@pytest.mark.parametrize(
    ("shape", "names", "words"),
    [
        ((1, CELLS, 100), {}, "68 .* or 56"),
        ((1, CELLS, 47), {"names": "a,b"}, "15 .* or 3"),
        ((1, CELLS, 20), {"names": "a,b"}, "family=nanodet needs"),
        ((1, CELLS_64, 112), {}, "family=nanodet needs"),
    ],
)
def test_recognise_nanodet_of_unknown_classes_is_refused(
    shape: tuple[int, ...], names: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        see("data", {"output": shape}, family="nanodet", **names)


@pytest.mark.parametrize(
    ("family", "extra"),
    [
        ("detr", TensorSpec("pixel_mask", "INT64", (1, 64))),
        ("picodet", TensorSpec("scale_factor", "FP32", (1,))),
    ],
)
def test_recognise_input_of_another_rank_is_not_filled(family: str, extra: TensorSpec) -> None:
    outputs = QUERY_NAMES if family == "detr" else LISTED
    with pytest.raises(ConfigError, match=f"family={family} needs"):
        see("image", outputs, extra, family=family)


def test_recognise_pixel_values_with_open_channels_is_a_picture() -> None:
    inputs = (TensorSpec("pixel_values", "FP32", ("batch_size", "num_channels", "height", "width")),)
    outputs = tuple(TensorSpec(name, "FP32", shape) for name, shape in QUERY_NAMES.items())
    sized = {"preprocess.width": "1280", "preprocess.height": "736", "family": "detr"}
    found = recognise(inputs, outputs, {}, sized, frozenset())
    assert found.preprocess is not None
    assert found.preprocess.shape == (3, 736, 1280)
    mask = TensorSpec("pixel_mask", "INT64", ("batch_size", "height", "width"))
    extra = opened(recognise((*inputs, mask), outputs, {}, sized, frozenset())).extra_inputs([SAME])
    assert {name: array.shape for name, array in extra.items()} == {"pixel_mask": (1, 736, 1280)}


# -- lists ----------------------------------------------------------------------------------------------------------


def test_decode_paddle_counts_share_the_rows_among_the_pictures() -> None:
    rows = np.array([(number % 3, 0.9 - number / 100, 10, 10, 20 + number, 30) for number in range(5)], np.float32)
    family = opened(see("image", LISTED, FACTOR, family="picodet"))
    names = tuple(LISTED)

    def widths(counts: Sequence[float], index: int) -> list[float]:
        outputs = {names[0]: rows, names[1]: np.array(counts)}
        return (family.decode(outputs, index, SAME, Thresholds(0.1)).boxes[:, 2] - 20).tolist()

    assert [widths([2, 0, 3], index) for index in range(3)] == [[0, 1], [], [2, 3, 4]]
    assert widths([9], 0) == [0, 1, 2, 3, 4]
    assert widths([-1, 2], 1) == [0, 1]
    assert widths([np.nan, np.inf], 0) == []
    with pytest.raises(EngineUnusable, match=r"scale_1.*expected numbers \[>=2\]"):
        widths([5], 1)


def test_decode_torchvision_one_picture_without_a_batch_dimension() -> None:
    family = opened(see("input", {"boxes": ("m", 4), "labels": ("m",), "scores": ("m",)}))
    outputs: Outputs = {
        "boxes": np.array([[10, 10, 50, 60], [12, 10, 50, 60], [0, 0, 0, 0], [5, 5, 20, 20]], np.float32),
        "labels": np.array([1, 1, 2, 3], np.int64),
        "scores": np.array([0.9, 0.8, 0.7, 0.2], np.float32),
    }
    found = family.decode(outputs, 0, SAME, Thresholds())
    assert (found.class_ids.tolist(), found.boxes[0].tolist()) == ([1, 1], [10, 10, 50, 60])
    empty = {name: array[:0] for name, array in outputs.items()}
    assert len(family.decode(empty, 0, SAME, Thresholds())) == 0
    with pytest.raises(EngineUnusable, match=r"batch\.max=1"):
        family.decode(outputs, 1, SAME, Thresholds())
    with pytest.raises(EngineUnusable, match="output labels"):
        family.decode({**outputs, "labels": outputs["labels"][:-1]}, 0, SAME, Thresholds())


# -- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nanodet-plus", "nanodet, 8 bins", "picodet, raw heads", "fastestdet"])
def test_file_that_returns_the_tensors_is_inspected_recognised_and_decoded(name: str, tmp_path: Path) -> None:
    import onnxruntime

    from edged.jobs.inspect import inspect
    from tests.vision_exports import Export
    from tests.vision_graphs import graph

    found = FORMATS[name]
    outputs = found.values(np.random.default_rng(5))
    specs = tuple(TensorSpec(each, "FP32", shape) for each, shape in found.shapes.items())
    inputs = (TensorSpec(found.picture, "FP32", (1, 3, HEIGHT, WIDTH)),)
    path = graph(Export(found.family, specs, lambda batch: outputs, inputs=inputs), outputs, tmp_path / "model.onnx")
    seen = inspect(path)
    settings = {"family": found.family, **found.settings}
    recognition = recognise(
        seen.signature.inputs, seen.signature.outputs, seen.metadata, settings, seen.operators, seen.heads
    )
    assert recognition.preprocess is not None
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    picture = np.zeros((1, *recognition.preprocess.shape), np.float32)
    answer = dict(zip(found.shapes, session.run(list(found.shapes), {found.picture: picture}), strict=True))
    decoded = opened(recognition).decode(answer, 0, SAME, Thresholds(0.5))
    wanted = found.decode(outputs, Thresholds(0.5))
    assert len(decoded) == len(wanted) > 0
    np.testing.assert_allclose(decoded.boxes, wanted.boxes, atol=1e-3)
