"""A model on one picture, decoded by several families: the number of runs, and the results of failures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from edged.backends import registry
from edged.backends.contract import REFERENCE, Order, Signature
from edged.errors import EngineUnusable, InvalidInput
from edged.ipc import job_messages as jobs
from edged.jobs import try_families as job_module
from edged.jobs.try_families import try_families
from edged.tensors import Array, TensorSpec
from edged.vision.candidates import candidates
from edged.vision.contact_sheet import Tile, contact_sheet
from tests.vision_encoders import HEIGHT, WIDTH, Planted
from tests.vision_exports import EXPORTS, Export

PLANTED = [[Planted((20, 30, 120, 90), 1, 0.9)]]


class Backend:
    """Answers every input with the same outputs; counts the runs. A tuple of errors is raised, one in each run."""

    def __init__(self, outputs: Mapping[str, Array], errors: tuple[Exception | None, ...] = ()) -> None:
        self.outputs, self.errors, self.runs = outputs, list(errors), 0

    def trial(self, order: Order) -> Backend | None:
        return self

    def infer(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        self.runs += 1
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return self.outputs


def job_of(export: Export, picture: Path, **settings: str) -> jobs.TryFamilies:
    found = candidates(export.inputs, export.outputs, {}, settings, export.operators)
    order = Order("model.onnx", Signature(export.inputs, export.outputs), REFERENCE, None)
    titles = tuple(each.settings["family"] for each in found)
    return jobs.TryFamilies(order, tuple(each.recognition for each in found), titles, str(picture))


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "street.png"
    cv2.imwrite(str(path), np.full((HEIGHT, WIDTH, 3), 90, np.uint8))
    return path


def load(monkeypatch: pytest.MonkeyPatch, backend: object) -> None:
    monkeypatch.setattr(registry, "load", lambda name: backend)


def test_try_families_runs_once_for_each_way_to_feed(monkeypatch: pytest.MonkeyPatch, picture: Path) -> None:
    export = EXPORTS["yolov5"]
    job, backend = job_of(export, picture), Backend(export.encode(PLANTED))
    load(monkeypatch, backend)
    answer = try_families(job)
    feeds = {each.preprocess for each in job.candidates}
    assert 1 < backend.runs == len(feeds) < len(job.candidates)
    found = dict(zip(job.titles, answer.families, strict=True))
    assert [(each.count, each.error) for each in (found["yolov5"], found["yolov7"])] == [(1, ""), (1, "")]
    assert found["yolov5"].best == ("1 90%",)
    assert cv2.imdecode(np.frombuffer(answer.picture, np.uint8), cv2.IMREAD_COLOR) is not None


def test_try_families_run_that_fails_is_the_error_of_its_families(
    monkeypatch: pytest.MonkeyPatch, picture: Path
) -> None:
    export = EXPORTS["yolov5"]
    job = job_of(export, picture)
    load(monkeypatch, Backend(export.encode(PLANTED), (EngineUnusable("line one\nline two"),)))
    answer = try_families(job)
    first = job.candidates[0].preprocess
    failed = [each.error for each, how in zip(answer.families, job.candidates, strict=True) if how.preprocess == first]
    assert set(failed) == {"line one line two"}
    assert any(not each.error for each in answer.families), "other ways to feed the model still run"


@pytest.mark.parametrize("outputs", [{}, {"output0": np.zeros((1, 3), np.float32)}], ids=["none", "other shape"])
def test_try_families_outputs_that_do_not_fit_are_errors_in_one_line(
    monkeypatch: pytest.MonkeyPatch, picture: Path, outputs: dict[str, Array]
) -> None:
    load(monkeypatch, Backend(outputs))
    answer = try_families(job_of(EXPORTS["yolov5"], picture))
    assert all(each.error and "\n" not in each.error and len(each.error) <= 120 for each in answer.families)
    assert answer.picture


def test_try_families_sheet_of_noise_fits_into_a_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (360, 360, 3), np.uint8)
    cv2.imwrite(str(tmp_path / "noise.png"), noise)
    export = EXPORTS["deepstream-yolo"]
    load(monkeypatch, Backend(export.encode(PLANTED)))
    job = job_of(export, tmp_path / "noise.png")
    many = jobs.TryFamilies(job.order, job.candidates * 5, job.titles * 5, job.picture)
    assert len(try_families(many).picture) < 3 << 20


def test_try_families_without_a_picture_or_runtime_fails(monkeypatch: pytest.MonkeyPatch, picture: Path) -> None:
    export = EXPORTS["yolov5"]
    load(monkeypatch, SimpleNamespace(trial=lambda order: None))
    with pytest.raises(EngineUnusable, match="can run only built engines"):
        try_families(job_of(export, picture))
    load(monkeypatch, Backend(export.encode(PLANTED)))
    with pytest.raises(InvalidInput, match=r"missing\.png"):
        try_families(job_of(export, picture.with_name("missing.png")))


NUMBERS = np.random.default_rng(7)
MAP = NUMBERS.random((1, 1, 64, 96), np.float32)
LETTERS = "abcdefghi"


@pytest.mark.parametrize(
    ("inputs", "output", "settings", "wanted"),
    [
        (
            (1, 3, 64, 96),
            MAP,
            {"thresholds.score": "0.5"},
            {
                "depth": r"inverse depth \S+ to \S+",
                "depth-metric": r"depth \S+ to \S+ m",
                "segmentation": r"(back|fore)ground \d+%",
                "dbnet": r"\d+ found.*",
                "anomalib-v1": "anomaly .*",
            },
        ),
        ((1, 3, 64, 96), NUMBERS.random((1, 21, 16, 24), np.float32), {}, {"segmentation": r"\d+ \d+%, .*"}),
        (
            (1, 3, 112, 112),
            NUMBERS.random((1, 512), np.float32),
            {},
            {"arcface": "embedding of 512 values", "classification": r"\d+ \d+%, .*"},
        ),
        (
            (1, 3, 48, 320),
            NUMBERS.random((1, 20, 10), np.float32),
            {"decode.characters": LETTERS},
            {"ctc": rf"[{LETTERS}]+ \d+%"},
        ),
    ],
    ids=["one map", "maps of classes", "a vector", "a line of text"],
)
def test_try_families_contents_are_said_and_drawn(
    monkeypatch: pytest.MonkeyPatch,
    picture: Path,
    inputs: tuple[int, ...],
    output: Array,
    settings: dict[str, str],
    wanted: dict[str, str],
) -> None:
    def sheet(tiles: list[Tile]) -> Array:
        drawn.extend(tiles)
        return contact_sheet(tiles)

    drawn: list[Tile] = []
    monkeypatch.setattr(job_module, "contact_sheet", sheet)
    load(monkeypatch, Backend({"y": output}))
    specs = (TensorSpec("input", "FP32", inputs),), (TensorSpec("y", "FP32", output.shape),)
    export = Export("", specs[1], lambda _: {}, inputs=specs[0])
    job = job_of(export, picture, **settings)
    found = dict(zip(job.titles, try_families(job).families, strict=True))
    for family, line in wanted.items():
        assert re.fullmatch(line, found[family].line), found[family]
        (tile,) = (each for each in drawn if each.title == family)
        assert family == "dbnet" or (tile.picture != 90).any(), "a plain picture has something on it"


@pytest.mark.parametrize("name", ["transformers, owlvit", "transformers, grounding dino"])
def test_try_families_prompted_model_gets_its_texts(monkeypatch: pytest.MonkeyPatch, picture: Path, name: str) -> None:
    export = EXPORTS[name]
    backend, fed = Backend(export.encode(PLANTED)), list[Mapping[str, Array]]()

    def infer(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        fed.append(inputs)
        return backend.outputs

    monkeypatch.setattr(backend, "infer", infer)
    load(monkeypatch, backend)
    job = job_of(export, picture, prompts=export.settings["prompts"])
    answer = try_families(job)
    assert len(fed) == len(job.candidates) >= 1
    assert all(each.keys() == {spec.name for spec in export.inputs} for each in fed)
    assert dict(zip(job.titles, answer.families, strict=True))[export.family].count == 1


def test_tried_family_line_has_count_and_best_or_the_error() -> None:
    assert jobs.TriedFamily(2, ("car 91%", "bus 40%")).line == "2 found: car 91%, bus 40%"
    assert jobs.TriedFamily(0).line == "0 found"
    assert jobs.TriedFamily(None, ("car 91%",)).line == "car 91%"
    assert jobs.TriedFamily(error="no output y").line == "no output y"
