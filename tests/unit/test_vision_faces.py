"""YuNet, SCRFD and CenterFace: random tensors, decoded as by the authors' own scripts, one box after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import edged
from edged.errors import ConfigError, EngineUnusable
from edged.tensors import Array, TensorSpec
from edged.vision.detections import Detections
from edged.vision.family import Family, Recognition, Thresholds, open_family
from edged.vision.placement import Fit, Placement
from edged.vision.preprocess import Preprocess
from tests.vision_encoders import Outputs
from tests.vision_exports import Export, see, spec
from tests.vision_graphs import graph

WIDTH, HEIGHT = 96, 64
SIZES = ((96, 64), (333, 201), (45, 150))  # of pictures
NUMBERS = np.random.Generator


class Face(NamedTuple):
    """A candidate: xyxy and landmarks in input pixels."""

    score: float
    box: tuple[float, float, float, float]
    points: list[tuple[float, float]]


@dataclass(frozen=True)
class Format:
    """One form of one exporter: its tensors, random values for them, and what its authors' script finds in them."""

    export: Export
    fill: Callable[[NUMBERS, TensorSpec], Array]
    read: Callable[[Outputs, int, float], Iterator[Face]]
    fed: Preprocess
    thresholds: Thresholds
    landmarks: bool = True

    def outputs(self, seed: int, pictures: int = 2) -> Outputs:
        random = np.random.default_rng(seed)
        specs = [replace_batch(each, pictures) for each in self.export.outputs]
        return {each.name: self.fill(random, each).astype(np.float32) for each in specs}


def replace_batch(each: TensorSpec, pictures: int) -> TensorSpec:
    return msgspec.structs.replace(each, shape=tuple(pictures if dim == "n" else dim for dim in each.shape))


def family_of(recognition: Recognition) -> Family:
    family = open_family(recognition)
    assert isinstance(family, Family)
    return family


# -- the authors' scripts, slowly ------------------------------------------------------------------------------------


def yunet(outputs: Outputs, picture: int, least: float) -> Iterator[Face]:
    for stride in (8, 16, 32):
        kinds = [outputs[f"{kind}_{stride}"][picture].tolist() for kind in ("cls", "obj", "bbox", "kps")]
        row = 0
        for r in range(HEIGHT // stride):
            for c in range(WIDTH // stride):
                (face,), (there,), (dx, dy, w, h), points = (kind[row] for kind in kinds)
                row += 1
                score = math.sqrt(max(min(face, 1.0), 0.0) * max(min(there, 1.0), 0.0))
                if score <= least:
                    continue
                cx, cy = (c + dx) * stride, (r + dy) * stride
                w, h = math.exp(w) * stride, math.exp(h) * stride
                marks = [((points[2 * n] + c) * stride, (points[2 * n + 1] + r) * stride) for n in range(5)]
                yield Face(score, (cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2), marks)


def scrfd(strides: tuple[int, ...], anchors: int) -> Callable[[Outputs, int, float], Iterator[Face]]:
    def read(outputs: Outputs, picture: int, least: float) -> Iterator[Face]:
        tensors = [tensor[picture] if tensor.ndim == 3 else tensor for tensor in outputs.values()]
        for level, stride in enumerate(strides):
            scores, boxes, *marks = tensors[level :: len(strides)]
            row = 0
            for y in range(math.ceil(HEIGHT / stride)):
                for x in range(math.ceil(WIDTH / stride)):
                    for _ in range(anchors):
                        if scores[row, 0] > least:
                            left, top, right, bottom = (float(side) * stride for side in boxes[row])
                            box = (x * stride - left, y * stride - top, x * stride + right, y * stride + bottom)
                            points = marks[0][row].reshape(5, 2).tolist() if marks else []
                            placed = [(x * stride + px * stride, y * stride + py * stride) for px, py in points]
                            yield Face(float(scores[row, 0]), box, placed)
                        row += 1

    return read


def centerface(outputs: Outputs, picture: int, least: float) -> Iterator[Face]:
    heat, scale, offset, *marks = (tensor[picture].astype(float) for tensor in outputs.values())
    for y, x in np.ndindex(*heat.shape[1:]):
        if heat[0, y, x] <= least:
            continue
        h, w = math.exp(scale[0, y, x]) * 4, math.exp(scale[1, y, x]) * 4
        left = min(max(0, (x + offset[1, y, x] + 0.5) * 4 - w / 2), WIDTH)
        top = min(max(0, (y + offset[0, y, x] + 0.5) * 4 - h / 2), HEIGHT)
        points = []
        for n in range(5 if marks else 0):
            points.append((marks[0][2 * n + 1, y, x] * w + left, marks[0][2 * n, y, x] * h + top))
        yield Face(heat[0, y, x], (left, top, min(left + w, WIDTH), min(top + h, HEIGHT)), points)


def overlap(one: Face, other: Face) -> float:
    (ax1, ay1, ax2, ay2), (bx1, by1, bx2, by2) = one.box, other.box
    shared = max(min(ax2, bx2) - max(ax1, bx1), 0) * max(min(ay2, by2) - max(ay1, by1), 0)
    return shared / ((ax2 - ax1) * (ay2 - ay1) + (bx2 - bx1) * (by2 - by1) - shared)


def expected(faces: Iterator[Face], placement: Placement, iou: float) -> list[Face]:
    """After NMS, in pixels of the picture."""
    kept: list[Face] = []
    for face in sorted(faces, key=lambda face: -face.score):
        x1, y1, x2, y2 = face.box
        if x2 > x1 and y2 > y1 and all(overlap(face, better) <= iou for better in kept):
            kept.append(face)
    found = []
    for score, (x1, y1, x2, y2), points in kept:
        left, top = original(placement, x1, y1)
        right, bottom = original(placement, x2, y2)
        box = (max(left, 0), max(top, 0), min(right, placement.width), min(bottom, placement.height))
        if box[2] > box[0] and box[3] > box[1]:
            found.append(Face(score, box, [original(placement, *point) for point in points]))
    return found


def original(placement: Placement, x: float, y: float) -> tuple[float, float]:
    return (x - placement.pad_x) / placement.scale_x, (y - placement.pad_y) / placement.scale_y


# -- the formats -----------------------------------------------------------------------------------------------------


def fill_grid(random: NUMBERS, each: TensorSpec) -> Array:
    """Scores for one column, sizes and landmarks for others."""
    if each.shape[-1] == 1:
        return random.random(each.shape)
    return random.uniform(0.1, 2, each.shape) if each.shape[-1] == 4 else random.normal(0, 2, each.shape)


def fill_maps(random: NUMBERS, each: TensorSpec) -> Array:
    if each.shape[1] == 1:
        return random.random(each.shape)
    spread = 1.0 if each.name in ("538", "536") else 0.3
    return random.normal(spread, spread, each.shape)


def grid_specs(kinds: dict[str, int], strides: tuple[int, ...], per_cell: int) -> tuple[TensorSpec, ...]:
    def rows(stride: int) -> int:
        return per_cell * math.ceil(WIDTH / stride) * math.ceil(HEIGHT / stride)

    return tuple(spec(f"{kind}_{s}", "n", rows(s), columns) for kind, columns in kinds.items() for s in strides)


def flat_specs(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """Numbers for names, no batch."""
    return tuple(msgspec.structs.replace(each, name=f"{440 + i}", shape=each.shape[1:]) for i, each in enumerate(specs))


def map_specs(names: tuple[str, ...]) -> tuple[TensorSpec, ...]:
    return tuple(spec(name, "n", n, HEIGHT // 4, WIDTH // 4) for name, n in zip(names, (1, 2, 2, 10), strict=False))


INPUT = (TensorSpec("input", "FP32", ("n", 3, HEIGHT, WIDTH)),)
ONE = (TensorSpec("input.1", "FP32", (1, 3, HEIGHT, WIDTH)),)
KINDS = {"score": 1, "bbox": 4, "kps": 10}
NO_MARKS = {"score": 1, "bbox": 4}
THREE, FIVE = (8, 16, 32), (8, 16, 32, 64, 128)
SCRFD_FED = Preprocess(
    WIDTH, HEIGHT, fit=Fit.TOP_LEFT, pad=0, scale=1.0, mean=(127.5, 127.5, 127.5), std=(128.0, 128.0, 128.0)
)


def scrfd_format(specs: tuple[TensorSpec, ...], strides: tuple[int, ...], anchors: int, landmarks: bool) -> Format:
    inputs = INPUT if len(specs[0].shape) == 3 else ONE
    export = Export("scrfd", specs, lambda batch: {}, inputs=inputs, needs_nms=True)
    return Format(export, fill_grid, scrfd(strides, anchors), SCRFD_FED, Thresholds(0.5, 0.4), landmarks)


def centerface_format(names: tuple[str, ...]) -> Format:
    export = Export("centerface", map_specs(names), lambda batch: {}, inputs=INPUT, needs_nms=True)
    fed = Preprocess(WIDTH, HEIGHT, fit=Fit.STRETCH, scale=1.0)
    return Format(export, fill_maps, centerface, fed, Thresholds(0.5, 0.3), len(names) == 4)


FORMATS = {
    "yunet": Format(
        Export(
            "yunet",
            grid_specs({"cls": 1, "obj": 1, "bbox": 4, "kps": 10}, THREE, 1),
            lambda batch: {},
            inputs=INPUT,
            needs_nms=True,
        ),
        fill_grid,
        yunet,
        Preprocess(WIDTH, HEIGHT, color="bgr", fit=Fit.TOP_LEFT, pad=0, scale=1.0),
        Thresholds(0.6, 0.3),
    ),
    "scrfd": scrfd_format(grid_specs(KINDS, THREE, 2), THREE, 2, True),
    "scrfd, no landmarks": scrfd_format(grid_specs(NO_MARKS, THREE, 2), THREE, 2, False),
    "scrfd, numbered": scrfd_format(flat_specs(grid_specs(KINDS, THREE, 2)), THREE, 2, True),
    "scrfd, numbered, no landmarks": scrfd_format(flat_specs(grid_specs(NO_MARKS, THREE, 2)), THREE, 2, False),
    "scrfd, five strides": scrfd_format(grid_specs(KINDS, FIVE, 1), FIVE, 1, True),
    "scrfd, five strides, no landmarks": scrfd_format(grid_specs(NO_MARKS, FIVE, 1), FIVE, 1, False),
    "centerface": centerface_format(("537", "538", "539", "540")),
    "centerface, no landmarks": centerface_format(("535", "536", "537")),
}
EVERY = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)


def decode(
    form: Format, outputs: Outputs, size: tuple[int, int] = SIZES[0], index: int = 0, **more: float
) -> Detections:
    thresholds = msgspec.structs.replace(form.thresholds, **more)
    return family_of(form.export.recognition).decode(outputs, index, form.export.place(*size), thresholds)


# -- recognition -----------------------------------------------------------------------------------------------------


@EVERY
def test_recognise_faces_are_fed_as_by_the_authors(form: Format) -> None:
    found = form.export.recognition
    assert (found.family, found.names) == (form.export.family, ("face",)), found.reason
    assert (found.preprocess, found.thresholds) == (form.fed, form.thresholds)
    assert found.reading.outputs == tuple(each.name for each in form.export.outputs)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Recognition) == found


@EVERY
def test_recognise_faces_by_setting_equals_by_evidence(form: Format) -> None:
    found = see(form.export, {"family": form.export.family, "names": "head"})
    assert (found.family, found.reading, found.names) == (
        form.export.family,
        form.export.recognition.reading,
        ("head",),
    )


@EVERY
def test_recognise_faces_of_other_shapes_is_raw(form: Format) -> None:
    last = form.export.outputs[-1]
    for shape in ((*last.shape[:-1], 7), (*last.shape[:-2], 5, last.shape[-1]), last.shape[1:], (*last.shape, 1)):
        outputs = (*form.export.outputs[:-1], msgspec.structs.replace(last, shape=shape))
        assert see(form.export, outputs=outputs).family is None
        with pytest.raises(ConfigError, match=f"family={form.export.family} needs .*; set family=raw"):
            see(form.export, {"family": form.export.family}, outputs=outputs)
    with pytest.raises(ConfigError, match=f"family={form.export.family} needs"):
        see(form.export, {"family": form.export.family}, outputs=(spec("y", 1, 2),))


def test_recognise_scrfd_names_in_any_order() -> None:
    export = FORMATS["scrfd"].export
    assert see(export, outputs=export.outputs[::-1]).reading == export.recognition.reading


def test_recognise_scrfd_of_open_size() -> None:
    """The scripts trace a picture of 640 x 640, and older ones declare the rows of that."""
    open_input = (TensorSpec("input.1", "FP32", (1, 3, "h", "w")),)
    example = [(s, math.ceil(640 / s) ** 2 * 2) for s in THREE]
    outputs = tuple(spec(f"o{c}_{s}", rows, c) for c in KINDS.values() for s, rows in example)
    export = replace(FORMATS["scrfd, numbered"].export, inputs=open_input, outputs=outputs)
    for side in ("640", "320"):
        found = see(export, {"preprocess.width": side, "preprocess.height": side})
        assert (found.family, found.reading.form) == ("scrfd", "flat"), found.reason
    assert "set preprocess.width" in see(export).reason
    named = tuple(spec(f"{kind}_{s}", "n", "rows", c) for kind, c in KINDS.items() for s in THREE)
    sized = {"preprocess.width": "320", "preprocess.height": "320"}
    assert see(export, sized, outputs=named).family == "scrfd"
    unnamed = tuple(spec(f"o{c}_{s}", "n", "rows", c) for c in KINDS.values() for s in THREE)
    assert see(export, sized, outputs=unnamed).family == "scrfd"
    unnamed = unnamed[:6]
    found = see(export, sized, outputs=unnamed)
    assert found.family is None
    assert "set family=scrfd or family=raw" in found.reason
    assert see(export, {**sized, "family": "scrfd"}, outputs=unnamed).family == "scrfd"


def test_recognise_maps_of_other_names_are_not_guessed() -> None:
    export = FORMATS["centerface"].export
    renamed = map_specs(("hm", "wh", "reg", "hps"))
    found = see(export, outputs=renamed)
    assert found.family is None
    assert "set family=centerface or family=raw" in found.reason
    found = see(export, {"family": "centerface"}, outputs=renamed)
    assert found.reading.outputs == ("hm", "wh", "reg", "hps")
    assert see(export, outputs=map_specs(("hm", "wh", "reg"))).family is None


# -- decoding --------------------------------------------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1 << 32), size=st.sampled_from(SIZES), score=st.sampled_from([None, 0.2, 0.6]))
@EVERY
def test_decode_faces_as_the_authors_do(form: Format, seed: int, size: tuple[int, int], score: float | None) -> None:
    outputs = form.outputs(seed)
    pictures = 2 if len(form.export.outputs[0].shape) > 2 else 1
    least = form.thresholds.score if score is None else score
    for index in range(pictures):
        found = decode(form, outputs, size, index, score=least, max_detections=4096)
        wanted = expected(form.read(outputs, index, least), form.export.place(*size), form.thresholds.iou)
        assert found.class_ids.tolist() == [0] * len(wanted)
        np.testing.assert_allclose(found.scores, [face.score for face in wanted], rtol=1e-5)
        np.testing.assert_allclose(found.boxes, np.reshape([face.box for face in wanted], (-1, 4)), atol=2e-3)
        if form.landmarks:
            assert found.keypoints is not None
            assert found.keypoints.dtype == np.float32
            points = np.reshape([face.points for face in wanted], (-1, 5, 2))
            np.testing.assert_allclose(found.keypoints[..., :2], points, atol=2e-3)
            assert (found.keypoints[..., 2] == 1).all()
        else:
            assert found.keypoints is None


@EVERY
def test_decode_no_face(form: Format) -> None:
    found = decode(form, form.outputs(1), score=1.0)
    assert len(found) == 0
    assert (found.keypoints is None) != form.landmarks
    assert form.landmarks is False or (found.keypoints is not None and found.keypoints.shape == (0, 5, 3))


@EVERY
def test_decode_limit_keeps_the_best(form: Format) -> None:
    outputs = form.outputs(2)
    every, some = decode(form, outputs, score=0.1), decode(form, outputs, score=0.1, max_detections=3)
    assert len(every) > 3
    assert some.scores.tolist() == every.scores[:3].tolist()


@EVERY
def test_decode_half_precision(form: Format) -> None:
    outputs = {name: array.astype(np.float16) for name, array in form.outputs(3).items()}
    wider = {name: array.astype(np.float32) for name, array in outputs.items()}
    found, wanted = decode(form, outputs, score=0.5), decode(form, wider, score=0.5)
    np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-3)
    np.testing.assert_allclose(found.boxes, wanted.boxes, atol=1e-3)


@EVERY
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_decode_values_that_are_not_finite_are_dropped(form: Format, bad: float) -> None:
    outputs = form.outputs(4)
    for name, array in outputs.items():
        found = decode(form, {**outputs, name: np.full_like(array, bad)}, score=0.3)
        assert np.isfinite(found.boxes).all()
        assert np.isfinite(found.scores).all()
        assert found.keypoints is None or np.isfinite(found.keypoints).all()
    assert len(decode(form, {name: np.full_like(array, bad) for name, array in outputs.items()})) == 0


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1 << 32), scale=st.sampled_from([0.5, 10, 1e4, 1e30]), size=st.sampled_from(SIZES))
@EVERY
def test_decode_any_tensors_give_boxes_inside_the_picture(form: Format, seed: int, scale: float, size) -> None:
    random = np.random.default_rng(seed)
    outputs: Outputs = {}
    for name, array in form.outputs(0).items():
        noise = random.standard_normal(array.shape) * scale
        noise[random.random(noise.shape) < 0.01] = np.nan
        outputs[name] = noise.astype(np.float32)
    found = decode(form, outputs, size, score=0.25)
    assert len(found) <= 300
    assert np.isfinite(found.scores).all()
    assert (found.boxes >= 0).all()
    assert (found.boxes <= np.array(size * 2)).all()
    assert (np.diff(found.scores) <= 0).all()
    assert found.keypoints is None or np.isfinite(found.keypoints).all()


STRANGE: dict[str, Callable[[Array], Array | None]] = {
    "missing": lambda tensor: None,
    "of more axes": lambda tensor: tensor[None],
    "texts": lambda tensor: tensor.astype(object),
    "quantised": lambda tensor: tensor.astype(np.uint8),
    "empty": lambda tensor: tensor[:0],
    "a value more": lambda tensor: np.concatenate([tensor, tensor[..., :1]], axis=-1),
    "a row less": lambda tensor: tensor[..., :-1, :],
}


@EVERY
@pytest.mark.parametrize("how", STRANGE)
def test_decode_tensor_of_another_kind_is_refused(form: Format, how: str) -> None:
    for name in form.export.recognition.reading.outputs:
        outputs = form.outputs(5)
        strange = STRANGE[how](outputs.pop(name))
        if strange is not None:
            outputs[name] = strange
        with pytest.raises(EngineUnusable, match=name) as caught:
            decode(form, outputs)
        assert "family=raw" in str(caught.value)


@EVERY
def test_decode_short_batch_is_refused(form: Format) -> None:
    with pytest.raises(EngineUnusable):
        decode(form, form.outputs(6, pictures=1), index=1)


@EVERY
def test_decode_only_reads_the_outputs(form: Format) -> None:
    outputs = form.outputs(7)
    for array in outputs.values():
        array.flags.writeable = False
    found = decode(form, outputs, score=0.3)
    kept = (found.boxes, found.scores, found.class_ids, found.keypoints)
    assert not any(np.shares_memory(array, each) for array in outputs.values() for each in kept if each is not None)


@EVERY
def test_loaded_file_finds_faces_in_pixels_of_the_picture(form: Format, tmp_path: Path) -> None:
    """A model file of these tensors is inspected, recognised, opened and asked."""
    outputs = form.outputs(8, pictures=1)
    path = graph(form.export, outputs, tmp_path / "model.onnx")
    width, height = SIZES[1]
    with edged.load(path, cache=tmp_path / "cache", build=False) as loaded:
        found = loaded.infer(np.full((height, width, 3), 90, np.uint8)).detections
    wanted = expected(
        form.read(outputs, 0, form.thresholds.score), form.export.place(width, height), form.thresholds.iou
    )
    assert len(found) == len(wanted) > 0
    for detection, face in zip(found, wanted, strict=True):
        assert (detection.label, detection.class_id) == ("face", 0)
        np.testing.assert_allclose((detection.x1, detection.y1, detection.x2, detection.y2), face.box, atol=2e-3)
        marks = [(x, y) for x, y, _ in detection.keypoints or ()]
        np.testing.assert_allclose(np.reshape(marks, (-1, 2)), np.reshape(face.points, (-1, 2)), atol=2e-3)
