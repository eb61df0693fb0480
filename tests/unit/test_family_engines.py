"""Detectors of every format as model files: inspection, recognition, golden answers, comparison of boxes."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import cv2
import msgspec
import numpy as np
import pytest

import edged
from edged.backends import registry
from edged.backends.contract import UNOPTIMISED, Recipe
from edged.jobs.inspect import inspect
from edged.models.entries import plain_entry
from edged.models.model import Model
from edged.store.record import Verdict
from edged.tensors import Array
from edged.verification import golden, pictures, probes
from edged.verification.golden import Sample
from edged.verification.probes import PICTURE
from edged.verification.standard import TOLERANCES, Standard
from edged.verification.verify import Pair, judge, matcher_for
from tests.vision_encoders import HEIGHT, WIDTH, Outputs, Planted
from tests.vision_exports import EXPORTS, Export
from tests.vision_graphs import graph

SEEN = [Planted((20, 30, 120, 90), 1, 0.9), Planted((150, 40, 210, 200), 2, 0.7), Planted((230, 10, 400, 240), 3, 0.5)]
EVERY = pytest.mark.parametrize("name", EXPORTS)
LISTS = [name for name, export in EXPORTS.items() if export.recognition.reading.is_list]


def planted(export: Export, seen: list[Planted]) -> Outputs:
    outputs = export.encode([seen])
    if export.family == "rtdetr":  # the graph multiplies boxes by its second input, the sizes
        outputs["boxes"] = (outputs["boxes"] / np.float32((WIDTH, HEIGHT, WIDTH, HEIGHT))).astype(np.float32)
    return outputs


def model(export: Export, folder: Path, seen: list[Planted]) -> Model:
    path = graph(export, planted(export, seen), folder / "model.onnx")
    return Model.of(plain_entry("model", path, dict(export.settings)), inspect(path))


@pytest.fixture(scope="module", autouse=True)
def drawn_once() -> Iterator[None]:
    """Cache the drawn pictures: they are always the same, and drawing takes most of the time."""
    draw = functools.cache(lambda seed: list(pictures.draw(seed)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probes, "pictures", SimpleNamespace(draw=draw, TO_JUDGE=pictures.TO_JUDGE))
        yield


@functools.cache
def asked(name: str, *scores: float) -> tuple[Model, list[Sample]]:
    """Return the model of an export that detects `SEEN`, with these scores if given, and its golden answers."""
    seen = [one._replace(score=score) for one, score in zip(SEEN, scores, strict=True)] if scores else SEEN
    with tempfile.TemporaryDirectory() as folder:
        return _asked(model(EXPORTS[name], Path(folder), seen))


def _asked(found: Model) -> tuple[Model, list[Sample]]:
    session = registry.load("onnxruntime").open(found.order(Recipe("onnxruntime", optimization=UNOPTIMISED)))
    made = golden.make(session, found.inspection.signature, found.recognition)
    session.close()
    return found, made.samples


def verdict(found: Model, samples: list[Sample], answers: dict[str, Array], precision: str = "fp32") -> Verdict:
    """Return the verdict on an engine that gives these answers to all probes."""
    tolerance = TOLERANCES[precision]
    pairs = (Pair(sample.outputs, {**sample.outputs, **answers}, sample.name, sample.placement) for sample in samples)
    return judge(pairs, tolerance, matcher_for(found.recognition, tolerance.box_score))


@EVERY
def test_judge_model_with_its_own_answers_is_accepted(name: str) -> None:
    export, (found, samples) = EXPORTS[name], asked(name)
    assert found.recognition.family == export.family, found.recognition.reason
    pictures = [sample for sample in samples if sample.kind == PICTURE]
    assert pictures
    same = verdict(found, samples, {})
    assert same.accepted, same.reason
    assert (same.figures["boxes"], same.figures["box_score"]) == (1.0, 0.0)


@EVERY
def test_make_probes_of_a_picture_input_have_its_channels(name: str) -> None:
    found, samples = asked(name)
    preprocess = found.recognition.preprocess
    assert preprocess is not None
    axis = 1 if preprocess.layout == "NCHW" else 3
    assert {sample.inputs[found.recognition.input].shape[axis] for sample in samples} == {3}


@EVERY
def test_judge_engine_that_loses_invents_or_moves_boxes_is_rejected(name: str) -> None:
    export, (found, samples) = EXPORTS[name], asked(name)
    invented = [*SEEN, Planted((20, 130, 100, 200), 4, 0.8)]
    moved = [SEEN[0]._replace(box=(20, 130, 100, 230)), *SEEN[1:]]
    for seen in (SEEN[:2], invented, moved, [], [one._replace(score=one.score / 3) for one in SEEN]):
        spoiled = verdict(found, samples, as_reported(export, seen), "int8")
        assert not spoiled.accepted
        assert "box" in spoiled.reason or not export.recognition.reading.is_list


def as_reported(export: Export, seen: list[Planted]) -> dict[str, Array]:
    """Return the answers of an engine that detects `seen`, in pixels of the input."""
    return dict(export.encode([seen]))


@pytest.mark.parametrize("name", LISTS)
def test_judge_list_of_another_order_or_length_is_accepted(name: str) -> None:
    export, (found, samples) = EXPORTS[name], asked(name)
    nearly = [one._replace(score=one.score + 1e-4) for one in (SEEN[2], SEEN[0], SEEN[1])]
    weak = Planted((40, 150, 90, 220), 4, 0.02)
    for seen in (nearly, [*nearly, weak] if found.recognition.reading.is_suppressed else nearly):
        swapped = verdict(found, samples, as_reported(export, seen))
        assert swapped.accepted, swapped.reason
        assert swapped.figures["boxes"] == 1.0


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("what", ["no numbers", "nothing", "another type"])
def test_judge_broken_list_is_rejected(name: str, what: str) -> None:
    export, (found, samples) = EXPORTS[name], asked(name)
    answers = as_reported(export, SEEN)
    for output, array in answers.items():
        if array.dtype == np.float32:
            broken = {
                "no numbers": array + np.nan,
                "nothing": np.zeros_like(array),
                "another type": array.astype(np.float64),
            }
            answers[output] = broken[what]
    assert not verdict(found, samples, answers, "int8").accepted


@pytest.mark.parametrize("name", [name for name in LISTS if not EXPORTS[name].recognition.reading.is_suppressed])
def test_judge_lists_without_a_detection_are_compared_by_scores(name: str) -> None:
    """Drawn pictures seldom show objects of a detector's classes."""
    found, samples = asked(name, 0.09, 0.07, 0.05)
    assert verdict(found, samples, {}).accepted
    fainter = [one._replace(score=one.score / 20) for one in SEEN]
    spoiled = verdict(found, samples, as_reported(EXPORTS[name], fainter), "fp16")
    assert not spoiled.accepted
    assert "relative_l2" in spoiled.reason


def test_make_golden_size_inputs_are_the_size_of_the_input() -> None:
    _, samples = asked("rt-detr")
    assert len({sample.kind for sample in samples}) == 4
    for sample in samples:
        assert sample.inputs["orig_target_sizes"].tolist() == [[WIDTH, HEIGHT]]
        assert sample.inputs["orig_target_sizes"].dtype == np.int64


def test_standard_depends_on_the_form_of_a_list(tmp_path: Path) -> None:
    found = model(EXPORTS["rf-detr, own classes"], tmp_path, SEEN)
    reading = msgspec.structs.replace(found.recognition.reading, form="none")
    other = msgspec.structs.replace(found, recognition=msgspec.structs.replace(found.recognition, reading=reading))
    assert Standard.of(found, "fp32", {}).digest != Standard.of(other, "fp32", {}).digest


@pytest.mark.parametrize("name", ["rt-detr", "yolox", "yolo-nas, flat", "ssd, tflite", "ultralytics, nms-free"])
def test_load_in_process_returns_boxes_in_pixels_of_the_picture(name: str, tmp_path: Path) -> None:
    export = EXPORTS[name]
    width, height = 901, 500
    placement = export.place(width, height)
    objects = [Planted((100, 50, 400, 300), 1, 0.9), Planted((500, 200, 901, 500), 2, 0.6)]
    path = graph(export, planted(export, [one.lay(placement) for one in objects]), tmp_path / "model.onnx")
    picture = np.full((height, width, 3), 90, np.uint8)
    with edged.load(path, cache=tmp_path / "cache", build=False) as loaded:
        for image in (picture, cv2.imencode(".png", picture)[1].tobytes()):
            found = loaded.infer(image)
            assert [(d.class_id, round(d.score, 3)) for d in found.detections] == [(1, 0.9), (2, 0.6)]
            for detection, one in zip(found.detections, objects, strict=True):
                box = (detection.x1, detection.y1, detection.x2, detection.y2)
                np.testing.assert_allclose(box, one.box, atol=0.05)
