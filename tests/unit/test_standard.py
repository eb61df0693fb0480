"""The standard of an engine: it changes with everything that a verdict depends on, and with nothing else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from edged.family_packages import Package
from edged.jobs.inspect import inspect
from edged.models import samples
from edged.models.collected import Collected
from edged.models.entries import plain_entry
from edged.models.model import Model
from edged.models.repository import Repository
from edged.shapes import MODEL_PATH
from edged.verification.standard import TOLERANCES, Standard, tolerance, tolerance_of
from edged.vision.family import Reading
from tests import models

FACTS = {
    "cpu.arch": "x86_64",
    "cpu.isa": "avx2",
    "cpu.model": "N100",
    "nvidia.driver": "580.1",
    "runtime.onnxruntime": "1.23.0",
    "runtime.openvino": "2026.3.1",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a model for pictures in a repository, with two samples and settings."""
    folder = tmp_path / "models" / "m"
    models.save(models.conv(), folder / "1" / "model.onnx")
    (folder / "samples").mkdir()
    (folder / "samples" / "a.jpg").write_bytes(b"first picture")
    (folder / "samples" / "b.png").write_bytes(b"second picture")
    settle(folder, {"threads": "1"})
    return folder


def settle(folder: Path, settings: dict[str, str]) -> None:
    (folder / "edged.toml").write_text("".join(f'"{key}" = "{value}"\n' for key, value in settings.items()))


def read(folder: Path) -> Model:
    entry = Repository(folder.parent).entries()[folder.name]
    assert entry.problem == ""
    return Model.of(entry, inspect(Path(entry.path)))


def of(folder: Path, precision: str = "fp32") -> Standard:
    return Standard.of(read(folder), precision, FACTS)


def test_standard_without_changes_is_equal(folder: Path) -> None:
    assert of(folder) == of(folder)
    assert of(folder).digest == of(folder).digest
    assert of(folder).tolerance == TOLERANCES["fp32"]


def test_standard_golden_answers_are_named_by_the_model_and_shared_by_precisions(folder: Path) -> None:
    digest, dash, rest = of(folder).golden.partition("-")
    assert digest == read(folder).digest
    assert dash
    assert len(rest) == 12
    assert of(folder, "fp16").golden == of(folder).golden
    assert of(folder, "fp16").digest != of(folder).digest


QUESTIONS: dict[str, Callable[[Path], object]] = {
    "a sample's content": lambda folder: (folder / "samples" / "a.jpg").write_bytes(b"other picture"),
    "one more sample": lambda folder: (folder / "samples" / "c.jpeg").write_bytes(b"third"),
    "one sample less": lambda folder: (folder / "samples" / "b.png").unlink(),
    "how pictures become values": lambda folder: settle(folder, {"preprocess.mean": "0.5"}),
    "how pictures are fitted": lambda folder: settle(folder, {"preprocess.fit": "letterbox"}),
    "the model": lambda folder: models.save(models.conv(seed=2), folder / "1" / "model.onnx"),
}


@pytest.mark.parametrize("what", QUESTIONS)
def test_standard_changes_with_the_probes(folder: Path, what: str) -> None:
    before = of(folder)
    QUESTIONS[what](folder)
    assert of(folder).golden != before.golden
    assert of(folder).digest != before.digest


SAME: dict[str, Callable[[Path], object]] = {
    "a sample's name": lambda folder: (folder / "samples" / "a.jpg").rename(folder / "samples" / "z.jpg"),
    "a sample's time": lambda folder: os.utime(folder / "samples" / "a.jpg", ns=(1, 1)),
    "a file that is no picture": lambda folder: (folder / "samples" / "README.md").write_text("from the hall"),
    "an unrelated setting": lambda folder: settle(folder, {"threads": "4"}),
    "a bound of another precision": lambda folder: settle(folder, {"verify.int8.cosine": "0.5"}),
}


@pytest.mark.parametrize("what", SAME)
def test_standard_ignores_irrelevant_settings(folder: Path, what: str) -> None:
    before = of(folder)
    SAME[what](folder)
    assert of(folder) == before


def test_standard_changes_with_the_models_bounds_without_new_golden_answers(folder: Path) -> None:
    before = of(folder)
    settle(folder, {"verify.cosine": "0.99", "verify.fp16.boxes": "0.5", "threads": "1"})
    assert of(folder).tolerance == msgspec.structs.replace(TOLERANCES["fp32"], cosine=0.99)
    assert (of(folder, "fp16").tolerance.cosine, of(folder, "fp16").tolerance.boxes) == (0.99, 0.5)
    assert of(folder).digest != before.digest
    assert of(folder).golden == before.golden


@pytest.mark.parametrize(
    "changed",
    [
        {"runtime.onnxruntime": "1.23.1"},
        {"runtime.onnxruntime_gpu": "1.23.0"},
        {"cpu.isa": "avx2 avx512f"},
        {"cpu.arch": "aarch64"},
    ],
    ids=str,
)
def test_standard_of_another_reference_has_other_golden_answers(folder: Path, changed: dict[str, str]) -> None:
    before, after = of(folder), Standard.of(read(folder), "fp32", FACTS | changed)
    assert after.golden != before.golden
    assert after.golden.partition("-")[0] == before.golden.partition("-")[0]  # so that `golden.prune` removes the old
    assert after.digest != before.digest


@pytest.mark.parametrize(
    "changed", [{"nvidia.driver": "580.2"}, {"cpu.model": "N200"}, {"runtime.openvino": "2026.4.1"}], ids=str
)
def test_standard_of_the_same_reference_ignores_other_facts(folder: Path, changed: dict[str, str]) -> None:
    assert Standard.of(read(folder), "fp32", FACTS | changed) == of(folder)


DECODED = ("top1", "boxes", "box_score", "class_score", "class_map", "depth", "embedding", "text", "anomaly")


@pytest.mark.parametrize("precision", ["tf32", "fp16", "bf16", "int8"])
def test_tolerance_of_an_unrequested_precision_has_the_exact_bounds_of_decoded_results(precision: str) -> None:
    unasked, asked = tolerance({}, precision), tolerance({"precisions": f"fp32,{precision}"}, precision)
    assert [getattr(unasked, figure) for figure in DECODED] == [getattr(TOLERANCES["fp32"], f) for f in DECODED]
    assert unasked.outliers == TOLERANCES[precision].outliers
    assert asked == TOLERANCES[precision]


@pytest.mark.parametrize(("arithmetic", "expected"), [("fp32", "fp32"), ("fp16", "fp16"), ("int8", "int8")])
def test_tolerance_of_exact_engine_is_that_of_the_models_own_arithmetic(arithmetic: str, expected: str) -> None:
    assert tolerance({}, "fp32", arithmetic) == TOLERANCES[expected]


def test_standard_depends_on_thresholds_for_detectors_only(folder: Path, tmp_path: Path) -> None:
    before = of(folder)
    settle(folder, {"thresholds.score": "0.5"})
    assert of(folder).digest == before.digest  # the model has no boxes
    detector = msgspec.structs.replace(read(folder).recognition, family="ultralytics", reading=Reading(("y",)))
    model = msgspec.structs.replace(read(folder), recognition=detector)
    low = msgspec.structs.replace(detector, thresholds=msgspec.structs.replace(detector.thresholds, score=0.1))
    other = msgspec.structs.replace(model, recognition=low)
    assert Standard.of(model, "fp32", FACTS).digest != Standard.of(other, "fp32", FACTS).digest
    assert Standard.of(model, "fp32", FACTS).golden == Standard.of(other, "fp32", FACTS).golden


def test_standard_depends_on_the_range_of_shapes(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "m"
    models.save(models.dynamic(), folder / "1" / "model.onnx")
    settle(folder, {"preprocess.width": "32", "preprocess.height": "32"})
    found = [of(folder)]
    for text in ("1x3x32x32", "1x3x32x32 1x3x32x32 8x3x32x32", "1x3x32x32 1x3x64x64 8x3x64x64"):
        settle(folder, {"preprocess.width": "32", "preprocess.height": "32", "profile.x": text})
        found.append(of(folder))
    assert len({standard.golden for standard in found}) == len({standard.digest for standard in found}) == 4


def test_standard_of_a_model_without_pictures_ignores_samples(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "m"
    models.save(models.matmul(), folder / "1" / "model.onnx")
    before = of(folder)
    (folder / "samples").mkdir()
    (folder / "samples" / "a.jpg").write_bytes(b"picture")
    assert read(folder).samples == ()
    assert of(folder) == before


def test_standard_reads_a_sample_once_until_it_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []
    real = samples.read_regular
    monkeypatch.setattr(samples, "read_regular", lambda path: reads.append(path) or real(path))
    model = read(folder)
    for _ in range(5):
        Standard.of(model, "fp32", FACTS)
    assert len(reads) == 2
    (folder / "samples" / "a.jpg").write_bytes(b"other picture")
    Standard.of(model, "fp32", FACTS)
    assert [path.name for path in reads[2:]] == ["a.jpg"]


def test_standard_with_known_contents_does_not_read_the_samples(folder: Path) -> None:
    model = read(folder)
    known = model.with_contents()
    before = Standard.of(known, "fp32", FACTS)
    shutil.rmtree(folder / "samples")
    assert Standard.of(known, "fp32", FACTS) == before
    assert Standard.of(model, "fp32", FACTS) != before


def test_standard_missing_unreadable_or_huge_sample_is_no_error(folder: Path) -> None:
    model = read(folder)
    before = Standard.of(model, "fp32", FACTS).golden
    (folder / "samples" / "a.jpg").unlink()
    gone = Standard.of(model, "fp32", FACTS).golden
    os.mkfifo(folder / "samples" / "a.jpg")
    fifo = Standard.of(model, "fp32", FACTS).golden
    (folder / "samples" / "a.jpg").unlink()
    with (folder / "samples" / "a.jpg").open("wb") as file:
        file.truncate(1 << 40)  # reading it into memory would end the daemon
    large = Standard.of(model, "fp32", FACTS).golden
    assert len({before, gone, fifo, large}) == 4


def test_standard_sample_that_could_not_be_read_is_tried_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = read(folder)

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(samples, "read_regular", refuse)
        refused = Standard.of(model, "fp32", FACTS)
    assert Standard.of(model, "fp32", FACTS) != refused


def test_standard_of_a_family_of_another_package_depends_on_its_code(folder: Path) -> None:
    model = read(folder)

    def by(package: Package | None, reading: Reading) -> Standard:
        known = msgspec.structs.replace(model.recognition, family="tiles", package=package, reading=reading)
        return Standard.of(msgspec.structs.replace(model, recognition=known), "fp32", FACTS)

    first, changed, updated = Package("p", "1", "a"), Package("p", "1", "b"), Package("p", "2", "a")
    plain, filled = Reading(("y",)), Reading(("y",), extras=(("sizes", (2,)),))
    own = by(None, plain)
    for reading in (plain, filled):
        digests = {by(package, reading).digest for package in (None, first, changed, updated)}
        assert len(digests) == 4
        assert by(first, reading).digest == by(first, reading).digest
    assert {by(package, plain).golden for package in (first, changed, updated)} == {own.golden}
    assert len({by(package, filled).golden for package in (first, changed, updated)}) == 3


def test_raw_outputs_hardly_count_in_a_named_precision_that_is_judged_on_frames() -> None:
    settings = {"precisions": "int8", "verify.int8.cosine": "0.9"}
    entry = msgspec.structs.replace(plain_entry("m", MODEL_PATH, settings))
    alone = Model.of(entry, inspect(MODEL_PATH))
    judged = msgspec.structs.replace(alone, collected=Collected("abc"))
    strict, wide = tolerance_of(alone, "int8"), tolerance_of(judged, "int8")
    assert strict.relative_l2 == TOLERANCES["int8"].relative_l2
    assert (wide.relative_l2, wide.outliers) == (1.0, 1.0)
    assert wide.cosine == 0.9  # the user's own bound counts
    assert (wide.boxes, wide.recall) == (strict.boxes, strict.recall)
    assert tolerance_of(judged, "bf16") == tolerance_of(alone, "bf16")  # the user did not name it
    assert tolerance_of(judged, "fp32") == tolerance_of(alone, "fp32")
