"""Engines whose graph is converted to their precision: conversion in the child, calibration and verification."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import msgspec
import pytest

from edged.backends import registry
from edged.backends.contract import Recipe
from edged.config.child_limits import Limits
from edged.device.fingerprint import Fingerprint
from edged.engines.builder import Builder, Task
from edged.engines.desired import complete
from edged.errors import Superseded, Unsuitable
from edged.ipc import job_messages as jobs
from edged.jobs import precision, tasks
from edged.jobs.inspect import inspect
from edged.jobs.int8_pictures import Way
from edged.jobs.precision import Calibration, Converted, Precision, convert_order
from edged.models.entries import plain_entry
from edged.models.model import Model
from edged.shapes import MODEL_PATH, Scene
from edged.store.key import EngineKey
from edged.store.record import EngineRecord
from edged.store.store import Store
from edged.verification import user_samples
from edged.verification.pictures import COUNT
from edged.verification.probes import Pictures
from tests import models
from tests.waiting import run


def read(path: Path, samples: tuple[str, ...] = (), settings: dict[str, str] | None = None) -> Model:
    entry = msgspec.structs.replace(plain_entry("m", path, settings or {}), samples=samples)
    return Model.of(entry, inspect(path))


@pytest.fixture
def shapes(tmp_path: Path) -> Model:
    """The embedded detector with two user samples."""
    samples = []
    for number in range(2):
        samples.append(str(tmp_path / f"{number}.png"))
        cv2.imwrite(samples[-1], Scene(number, 640, 480, shapes=6).frame(0)[0])
    # On drawn pictures with few shapes int8 moves a score by up to 0.25, on scenes of shapes by up to 0.02.
    return read(MODEL_PATH, tuple(samples), {"verify.int8.box_score": "0.35", "verify.int8.boxes": "0.85"})


def make(model: Model, recipe: Recipe, folder: Path) -> tuple[EngineRecord, list[str]]:
    recipe, problem = complete(recipe, model, {})
    assert problem == ""
    store, phases = Store(folder / "cache"), list[str]()
    builder = Builder(store, folder / "cache", Limits(seconds=120, memory_mb=4096))

    async def plenty(need: int) -> int:
        return 0

    task = Task(model, recipe, EngineKey.of(model.digest, recipe, Fingerprint()))
    record = run(builder.make(task, lambda progress: phases.append(progress.phase), plenty), 120)
    if record.verdict.accepted:
        store.artefact(task.key.digest).check()
    assert [path for path in (folder / "cache" / "staging").iterdir() if path.is_dir()] == []
    return record, list(dict.fromkeys(phases))


@pytest.mark.parametrize(
    ("backend", "precision"),
    [
        pytest.param("onnxruntime", "fp16", marks=pytest.mark.long),
        pytest.param("onnxruntime", "int8", marks=pytest.mark.long),
        pytest.param("openvino", "int8", marks=pytest.mark.long),
    ],
)
def test_make_engine_of_lower_precision_is_built_from_a_converted_graph_and_verified(
    backend: str, precision: str, shapes: Model, tmp_path: Path
) -> None:
    plain, phases = make(shapes, Recipe(backend), tmp_path / "plain")
    assert "converting" not in phases
    record, phases = make(shapes, Recipe(backend, precision=precision), tmp_path / "other")
    assert "converting" in phases
    assert record.verdict.accepted, record.verdict.reason
    assert record.verdict.figures["boxes"] >= 0.85
    assert not any(name.startswith(".") for name in record.files)
    if precision == "int8":  # a processor without float16 arithmetic keeps the rounded weights in float32
        is_reported = any("int8" in note for note in record.composition.notes)  # OpenVINO has no int8 on ARM
        assert record.size < 0.8 * plain.size or is_reported, record.composition
    # The answers differ from the original's, so the precision is really another one.
    assert record.verdict.figures["relative_l2"] > 10 * plain.verdict.figures["relative_l2"]


def test_make_model_without_anything_to_convert_is_built_unchanged(tmp_path: Path) -> None:
    model = read(models.save(models.identity("INT32"), tmp_path / "model.onnx"))
    record, _ = make(model, Recipe("onnxruntime", precision="fp16"), tmp_path)
    assert record.verdict.accepted, record.verdict.reason


def job(model: Model, recipe: Recipe, out: Path) -> jobs.Build:
    return jobs.Build(model.order(recipe), str(out), model.recognition, model.samples)


def test_build_job_leaves_only_the_engine_in_the_stage(shapes: Model, tmp_path: Path) -> None:
    recipe, _ = complete(Recipe("onnxruntime", precision="int8"), shapes, {})
    reported: list[jobs.Progress] = []
    (tmp_path / "stage").mkdir()
    built = tasks.do(job(shapes, recipe, tmp_path / "stage"), reported.append)
    assert isinstance(built, jobs.Built)
    assert sorted(os.listdir(tmp_path / "stage")) == sorted(built.artefact.files)


def test_convert_order_samples_changed_after_planning_is_superseded(shapes: Model, tmp_path: Path) -> None:
    recipe, _ = complete(Recipe("onnxruntime", precision="int8"), shapes, {})
    cv2.imwrite(shapes.samples[0], Scene(99, 640, 480, shapes=3).frame(0)[0])
    with pytest.raises(Superseded, match="sample pictures were changed"):
        convert_order(job(shapes, recipe, tmp_path), tmp_path)
    again, _ = complete(Recipe("onnxruntime", precision="int8"), shapes, {})
    assert again.calibration != recipe.calibration


def test_calibration_unreadable_picture_is_skipped_and_reported(shapes: Model, tmp_path: Path) -> None:
    Path(shapes.samples[0]).write_bytes(b"no picture")
    recipe, _ = complete(Recipe("onnxruntime", precision="int8"), shapes, {})
    (tmp_path / "graph").mkdir()
    order, output = convert_order(job(shapes, recipe, tmp_path), tmp_path / "graph")
    assert order.model == str(tmp_path / "graph" / "model.onnx")
    assert order.signature == shapes.inspection.signature
    assert any("not calibrated on 0.png" in note for note in output.notes)


def exchange(samples: Sequence[str], monkeypatch: pytest.MonkeyPatch, after: Callable[[Path], object]) -> None:
    """Call `after` on the first sample after the samples were chosen and before they are read."""
    real = user_samples.calibration_pictures

    def chosen(given: Sequence[str]) -> dict[str, str]:
        found = real(given)
        after(Path(samples[0]))
        return found

    monkeypatch.setattr(user_samples, "calibration_pictures", chosen)


@pytest.mark.parametrize(
    "after",
    [
        lambda path: cv2.imwrite(str(path), Scene(99, 640, 480, shapes=3).frame(0)[0]),
        lambda path: path.write_bytes(b"no picture"),
        lambda path: path.unlink(),
    ],
    ids=["another picture", "no picture", "missing"],
)
def test_convert_order_sample_changed_before_it_is_read_is_superseded(
    shapes: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: Callable[[Path], object]
) -> None:
    recipe, _ = complete(Recipe("onnxruntime", precision="int8"), shapes, {})
    exchange(shapes.samples, monkeypatch, after)
    with pytest.raises(Superseded, match=r"sample 0\.png (was changed|can no longer be read)"):
        convert_order(job(shapes, recipe, tmp_path), tmp_path)


def pictures_in(folder: Path, contents: Sequence[bytes]) -> tuple[str, ...]:
    paths = [folder / f"{number}.png" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return tuple(map(str, paths))


@pytest.mark.parametrize(("count", "used"), [(0, 0), (1, 1), (3, 3), (4, 2), (5, 3), (8, 4)])
def test_calibration_holds_out_every_second_picture(count: int, used: int, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    contents = [f"picture {number}".encode() for number in range(count)]
    found = user_samples.calibration_pictures(pictures_in(tmp_path, contents))
    renamed = user_samples.calibration_pictures(pictures_in(tmp_path / "other", contents[::-1]))
    assert len(found) == used
    assert [*found] == [*renamed] == sorted(found)
    assert all(Path(path).read_bytes() in contents for path in found.values())


def test_calibration_duplicate_picture_is_not_both_used_and_held_out(tmp_path: Path) -> None:
    contents = [b"1", b"2", b"3", b"4"]
    assert [*user_samples.calibration_pictures(pictures_in(tmp_path, contents * 2))] == [
        *user_samples.calibration_pictures(pictures_in(tmp_path, contents))
    ]


def test_calibration_drawn_pictures_are_not_used_for_verification(
    shapes: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []

    def convert(model: Path, precision: Precision, out: Path, inputs: Calibration, way: Way) -> Converted:
        seen.extend(array.tobytes() for each in inputs for array in each.values())
        return Converted(str(model), precision)

    monkeypatch.setattr(precision, "convert", convert)
    recipe, _ = complete(Recipe("onnxruntime", precision="int8"), shapes, {})
    convert_order(job(shapes, recipe, tmp_path), tmp_path)
    judging = Pictures(shapes.inspection.signature, shapes.recognition).drawn()
    assert len(seen) == len(shapes.samples) + COUNT
    assert not {array.tobytes() for question in judging for array in question.inputs.values()} & set(seen)


def test_calibration_model_without_pictures_is_unsuitable(tmp_path: Path) -> None:
    model = read(models.save(models.matmul(), tmp_path / "model.onnx"))
    assert user_samples.calibration_digest(model.recognition, ()) == ""
    recipe, problem = complete(Recipe("onnxruntime", precision="int8"), model, {})
    assert problem.startswith("int8 is calibrated on pictures, and this model takes none")
    with pytest.raises(Unsuitable, match="int8 is calibrated on pictures"):
        convert_order(job(model, recipe, tmp_path), tmp_path)


def test_calibration_digest_depends_on_pictures_and_preprocessing(shapes: Model) -> None:
    one = user_samples.calibration_digest(shapes.recognition, shapes.samples)
    assert one == user_samples.calibration_digest(shapes.recognition, tuple(reversed(shapes.samples)))
    assert one != user_samples.calibration_digest(shapes.recognition, shapes.samples[:1])
    preprocess = shapes.recognition.preprocess
    assert preprocess is not None
    other = msgspec.structs.replace(
        shapes.recognition, preprocess=msgspec.structs.replace(preprocess, width=preprocess.width + 32)
    )
    assert one != user_samples.calibration_digest(other, shapes.samples)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "null"])
def test_precisions_converted_in_the_graph_are_those_that_convert_supports(name: str) -> None:
    assert registry.load(name).converted_in_graph <= {"fp16", "int8"}
