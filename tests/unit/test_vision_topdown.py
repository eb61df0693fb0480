"""RTMPose, HRNet and MoveNet: random tensors, decoded as by the authors' own scripts, one keypoint after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

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
from edged.vision.placement import Fit, Placement, Region, Roi
from edged.vision.prepare import Preparer
from edged.vision.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from tests.unit.shown import placed
from tests.vision_encoders import Outputs
from tests.vision_exports import Export, see, spec
from tests.vision_graphs import graph

WIDTH, HEIGHT, K = 48, 64, 17
SIZES = ((48, 64), (333, 201), (45, 150))  # of pictures
Point: TypeAlias = tuple[float, float, float]  # x and y in pixels of the input, score
Person: TypeAlias = tuple[float, tuple[float, float, float, float], list[Point]]  # score, box, keypoints

TOPDOWN = Preprocess(WIDTH, HEIGHT, fit=Fit.LETTERBOX, zoom=1 / 1.25, pad=0, mean=IMAGENET_MEAN, std=IMAGENET_STD)
PIXELS = Preprocess(WIDTH, HEIGHT, layout="NHWC", datatype="INT32", fit=Fit.LETTERBOX, pad=0, scale=1.0)
BYTES = msgspec.structs.replace(PIXELS, datatype="UINT8")


@dataclass(frozen=True)
class Format:
    """One form of one exporter: its tensors, random values for them, and what its authors' script finds in them."""

    export: Export
    read: Callable[[Outputs, int], list[Person]]
    fed: Preprocess

    def outputs(self, seed: int, pictures: int = 2) -> Outputs:
        random = np.random.default_rng(seed)
        shapes = {each.name: [pictures if dim == "n" else dim for dim in each.shape] for each in self.export.outputs}
        return {name: random.random(shape).astype(np.float32) for name, shape in shapes.items()}


# -- the authors' scripts, slowly ------------------------------------------------------------------------------------


def simcc(outputs: Outputs, picture: int) -> list[Person]:
    points = []
    for across, down in zip(outputs["simcc_x"][picture].tolist(), outputs["simcc_y"][picture].tolist(), strict=True):
        x, y = across.index(max(across)), down.index(max(down))
        points.append((x / 2.0, y / 2.0, min(max(across), max(down))))
    return [whole(points)]


def heatmaps(outputs: Outputs, picture: int) -> list[Person]:
    points = []
    for each in outputs["output"][picture].tolist():
        score, px, py = max((value, -x, -y) for y, line in enumerate(each) for x, value in enumerate(line))
        px, py = -px, -py
        x, y = float(px), float(py)
        if 1 < px < WIDTH // 4 - 1 and 1 < py < HEIGHT // 4 - 1:
            x += math.copysign(0.25, each[py][px + 1] - each[py][px - 1])
            y += math.copysign(0.25, each[py + 1][px] - each[py - 1][px])
        points.append((x * 4, y * 4, score))
    return [whole(points)]


def single(outputs: Outputs, picture: int) -> list[Person]:
    rows = outputs["output_0"][picture, 0].tolist()
    return [whole([(x * WIDTH, y * HEIGHT, score) for y, x, score in rows])]


def multi(outputs: Outputs, picture: int) -> list[Person]:
    people = []
    for row in outputs["output_0"][picture].tolist():
        points = [(row[3 * i + 1] * WIDTH, row[3 * i] * HEIGHT, row[3 * i + 2]) for i in range(17)]
        y1, x1, y2, x2, score = row[51:]
        people.append((score, (x1 * WIDTH, y1 * HEIGHT, x2 * WIDTH, y2 * HEIGHT), points))
    return people


def whole(points: list[Point]) -> Person:
    """The only person, whose box is the input."""
    scores = [score for *_, score in points if score > 0.2] or [score for *_, score in points]
    return sum(scores) / len(scores), (0, 0, WIDTH, HEIGHT), points


# -- the formats -----------------------------------------------------------------------------------------------------

INPUT = (TensorSpec("input", "FP32", ("n", 3, HEIGHT, WIDTH)),)
INTEGERS = (TensorSpec("input", "INT32", ("n", HEIGHT, WIDTH, 3)),)
SIMCC = (spec("simcc_x", "n", K, WIDTH * 2), spec("simcc_y", "n", K, HEIGHT * 2))
MAPS = (spec("output", "n", K, HEIGHT // 4, WIDTH // 4),)
SINGLE, MULTI = (spec("output_0", "n", 1, 17, 3),), (spec("output_0", "n", 6, 56),)


def export(
    family: str, outputs: tuple[TensorSpec, ...], inputs: tuple[TensorSpec, ...], settings: Mapping[str, str] = {}
) -> Export:
    return Export(family, outputs, lambda batch: {}, settings=settings, inputs=inputs)


FORMATS = {
    "rtmpose": Format(export("rtmpose", SIMCC, INPUT), simcc, TOPDOWN),
    "hrnet": Format(export("hrnet", MAPS, INPUT, {"family": "hrnet"}), heatmaps, TOPDOWN),
    "movenet": Format(export("movenet", SINGLE, INTEGERS), single, PIXELS),
    "movenet, bytes": Format(
        export("movenet", SINGLE, (msgspec.structs.replace(INTEGERS[0], datatype="UINT8"),)), single, BYTES
    ),
    "movenet, multi": Format(export("movenet", MULTI, INTEGERS), multi, PIXELS),
}
EVERY = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
ONE = pytest.mark.parametrize("form", [form for name, form in FORMATS.items() if "multi" not in name])


def decode(form: Format, outputs: Outputs, placement: Placement, index: int = 0, score: float = 0.3) -> Detections:
    family = open_family(form.export.recognition)
    assert isinstance(family, Family)
    return family.decode(outputs, index, placement, Thresholds(score))


def original(placement: Placement, x: float, y: float) -> tuple[float, float]:
    return (x - placement.pad_x) / placement.scale_x, (y - placement.pad_y) / placement.scale_y


def check(found: Detections, people: list[Person], placement: Placement, score: float) -> None:
    """That these people, in pixels of the input, were found, in those of the picture."""
    wanted = []
    for rated, (x1, y1, x2, y2), points in sorted(people, key=lambda person: -person[0]):
        left, top = original(placement, x1, y1)
        right, bottom = original(placement, x2, y2)
        box = (max(left, 0), max(top, 0), min(right, placement.width), min(bottom, placement.height))
        if rated > score and box[2] > box[0] and box[3] > box[1]:
            wanted.append((rated, box, [(*original(placement, x, y), s) for x, y, s in points]))
    np.testing.assert_allclose(found.scores, [person[0] for person in wanted], rtol=1e-5)
    np.testing.assert_allclose(found.boxes, np.reshape([person[1] for person in wanted], (-1, 4)), atol=1e-3)
    assert found.keypoints is not None
    assert found.keypoints.dtype == np.float32
    np.testing.assert_allclose(found.keypoints, np.reshape([person[2] for person in wanted], (-1, 17, 3)), atol=1e-3)
    assert found.class_ids.tolist() == [0] * len(wanted)


# -- recognition -----------------------------------------------------------------------------------------------------


@EVERY
def test_recognise_pose_is_fed_as_by_the_authors(form: Format) -> None:
    found = form.export.recognition
    assert (found.family, found.preprocess) == (form.export.family, form.fed), found.reason
    assert (found.thresholds, found.reading.keypoints) == (Thresholds(score=0.3), (17, 3))
    assert found.names == (("person",) if form.export.family == "movenet" else ())
    assert msgspec.json.decode(msgspec.json.encode(found), type=Recognition) == found
    assert see(form.export, {"family": form.export.family}).reading == found.reading


@EVERY
def test_recognise_pose_of_other_shapes_is_raw(form: Format) -> None:
    last = form.export.outputs[-1]
    for shape in ((*last.shape[:-1], 8), last.shape[1:], (*last.shape, 1)):
        outputs = (*form.export.outputs[:-1], msgspec.structs.replace(last, shape=shape))
        assert see(form.export, outputs=outputs).family is None
        with pytest.raises(ConfigError, match=f"family={form.export.family} needs .*; set family=raw"):
            see(form.export, {"family": form.export.family}, outputs=outputs)


def test_recognise_heatmaps_are_not_guessed() -> None:
    """Classes of pixels have maps of the same shape."""
    hrnet = FORMATS["hrnet"].export
    found = see(hrnet)
    assert found.family is None
    assert "set family=hrnet or family=raw" in found.reason
    assert "hrnet" not in see(hrnet, outputs=(spec("output", 1, 21, HEIGHT // 4, WIDTH // 4),)).reason.split(";")[0]
    other = see(hrnet, {"family": "hrnet"}, outputs=(spec("output", 1, 21, HEIGHT // 4, WIDTH // 4),))
    assert other.reading.keypoints == (21, 3)


def test_recognise_movenet_of_floats_is_not_guessed() -> None:
    """Some conversions take 0..1, some 0..255."""
    movenet = FORMATS["movenet"].export
    floats = (TensorSpec("input", "FP32", (1, HEIGHT, WIDTH, 3)),)
    found = see(movenet, inputs=floats)
    assert found.family is None
    assert "set family=movenet or family=raw" in found.reason
    found = see(movenet, {"family": "movenet"}, inputs=floats)
    assert found.preprocess == msgspec.structs.replace(PIXELS, datatype="FP32")
    planes = (TensorSpec("input", "INT32", (1, 3, HEIGHT, WIDTH)),)
    assert see(movenet, inputs=planes).preprocess is None


def test_recognise_simcc_of_other_steps() -> None:
    rtmpose = FORMATS["rtmpose"].export
    finer = (spec("simcc_x", "n", 21, WIDTH * 3), spec("simcc_y", "n", 21, HEIGHT * 3))
    assert see(rtmpose, outputs=finer).reading.keypoints == (21, 3)
    assert see(rtmpose, outputs=(finer[0], SIMCC[1])).family is None
    assert see(rtmpose, outputs=(spec("simcc_x", "n", "k", "w"), spec("simcc_y", "n", "k", "h"))).family == "rtmpose"


# -- decoding --------------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 32), size=st.sampled_from(SIZES), score=st.sampled_from([0.1, 0.3, 0.55]))
@EVERY
def test_decode_pose_as_the_authors_do(form: Format, seed: int, size: tuple[int, int], score: float) -> None:
    outputs, placement = form.outputs(seed), form.export.place(*size)
    for index in range(2):
        check(decode(form, outputs, placement, index, score), form.read(outputs, index), placement, score)


@ONE
@pytest.mark.parametrize(("least", "most", "score"), [(0, 0.1, None), (0.5, 0.8, 0.6), (1.5, 2.0, 1.0)])
def test_decode_score_is_the_mean_of_the_visible_keypoints(
    form: Format, least: float, most: float, score: float | None
) -> None:
    outputs = {name: (least + array * (most - least)).astype(np.float32) for name, array in form.outputs(1).items()}
    found = decode(form, outputs, form.export.place(*SIZES[1]))
    if score is None:
        assert len(found) == 0
        return
    assert found.keypoints is not None
    assert found.scores[0] >= score
    assert found.keypoints[..., 2].max() <= 1
    np.testing.assert_allclose(found.scores[0], found.keypoints[0, :, 2].mean(), rtol=1e-5)


@ONE
@pytest.mark.parametrize("turn", [0, 90, 180, 270])
def test_decode_person_of_a_region(form: Format, turn: int) -> None:
    """The region of interest is the person's box."""
    roi, size = Roi(Region(100, 51, 120, 90), turn), (640, 360)
    placement = placed(roi, size, (WIDTH, HEIGHT), form.fed.fit)
    outputs = form.outputs(2, pictures=1)
    found = decode(form, outputs, placement)
    np.testing.assert_allclose(found.boxes, [[100, 51, 220, 141]], atol=1e-3)
    matrix = placement.to_input()
    points = np.array([(x, y, 1) for x, y, _ in form.read(outputs, 0)[0][2]])
    assert found.keypoints is not None
    there = np.column_stack((found.keypoints[0, :, :2], np.ones(17)))
    np.testing.assert_allclose(there @ matrix.T, points[:, :2], atol=1e-3)


@EVERY
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_decode_values_that_are_not_finite_are_dropped(form: Format, bad: float) -> None:
    placement = form.export.place(*SIZES[1])
    for name, array in form.outputs(3).items():
        outputs = form.outputs(3)
        outputs[name] = np.full_like(array, bad)
        assert len(decode(form, outputs, placement)) == 0
        outputs[name] = array.copy()
        outputs[name][:, 0, 0] = bad if bad > 0 or np.isnan(bad) else array[:, 0, 0]
        found = decode(form, outputs, placement)
        assert np.isfinite(found.boxes).all()
        assert found.keypoints is not None
        assert np.isfinite(found.keypoints).all()


STRANGE: dict[str, Callable[[Array], Array | None]] = {
    "missing": lambda tensor: None,
    "of more axes": lambda tensor: tensor[None],
    "texts": lambda tensor: tensor.astype(object),
    "quantised": lambda tensor: tensor.astype(np.uint8),
    "empty": lambda tensor: tensor[:0],
    "a keypoint less": lambda tensor: tensor[:, :-1] if tensor.shape[1] > 6 else tensor[..., :-1],
    "a value more": lambda tensor: np.concatenate([tensor, tensor[..., :1]], axis=-1),
}


@EVERY
@pytest.mark.parametrize("how", STRANGE)
def test_decode_tensor_of_another_kind_is_refused(form: Format, how: str) -> None:
    for name in form.export.recognition.reading.outputs:
        outputs = form.outputs(4)
        strange = STRANGE[how](outputs.pop(name))
        if strange is not None:
            outputs[name] = strange
        with pytest.raises(EngineUnusable, match=r"simcc_[xy]|output") as caught:
            decode(form, outputs, form.export.place(*SIZES[0]))
        assert "family=raw" in str(caught.value)


@EVERY
def test_decode_short_batch_is_refused(form: Format) -> None:
    with pytest.raises(EngineUnusable):
        decode(form, form.outputs(5, pictures=1), form.export.place(*SIZES[0]), index=1)


@pytest.mark.parametrize("color", ["rgb", "bgr"])
def test_prepare_pixels_as_integers(color: str) -> None:
    wanted = msgspec.structs.replace(PIXELS, color=color, pad=7)
    picture = np.random.default_rng(1).integers(0, 256, (32, 48, 3), dtype=np.uint8)
    out = np.full(wanted.shape, -1, np.int32)
    Preparer(wanted).prepare(picture, out)
    assert (out[16:48] == (picture[:, :, ::-1] if color == "rgb" else picture)).all()
    assert (out[:16] == 7).all()
    assert (out[48:] == 7).all()


def test_recognise_scale_of_integers_is_refused() -> None:
    with pytest.raises(ConfigError, match="input is INT32 and takes pixels as they are"):
        see(FORMATS["movenet"].export, {"preprocess.scale": "1/255"})


@EVERY
def test_loaded_file_finds_keypoints_in_pixels_of_the_picture(form: Format, tmp_path: Path) -> None:
    """A model file of these tensors is inspected, recognised, opened and asked."""
    outputs = form.outputs(6, pictures=1)
    path = graph(form.export, outputs, tmp_path / "model.onnx")
    width, height = SIZES[1]
    settings = dict(form.export.settings)
    with edged.load(path, cache=tmp_path / "cache", build=False, settings=settings) as loaded:
        found = loaded.infer(np.full((height, width, 3), 90, np.uint8)).detections
    placement = form.export.place(width, height)
    arrays = Detections.of(
        [(d.x1, d.y1, d.x2, d.y2) for d in found],
        [d.score for d in found],
        [d.class_id for d in found],
        keypoints=np.reshape([d.keypoints for d in found], (-1, 17, 3)),
    )
    check(arrays, form.read(outputs, 0), placement, 0.3)
