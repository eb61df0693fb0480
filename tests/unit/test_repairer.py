"""Repair of models step by step in real children. A failure is one line and leaves the original unchanged."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto

from edged.config.child_limits import Limits
from edged.engines import repairer
from edged.engines.child import run
from edged.engines.repairer import Repaired, repair
from edged.errors import BuildFailed, ModelRefused
from edged.ipc.job_messages import LoadedRuntime, Lower, Lowered, Prove
from edged.models.identity import file_digest, model_digest
from edged.models.repair import RepairOptions
from tests import repair_models as models

NEEDED = RepairOptions(needed=True)
_ORT = ("onnxruntime",)


def runtimes_take(monkeypatch: pytest.MonkeyPatch, opsets: dict[str, int]) -> None:
    async def newest(work: object, backend: str) -> LoadedRuntime:
        return LoadedRuntime("1.0", opsets[backend], 10)

    monkeypatch.setattr(repairer._Work, "_newest", newest)


@pytest.fixture(autouse=True)
def older_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that ONNX Runtime is older than models of new exporters, whichever version is installed."""
    runtimes_take(monkeypatch, {"onnxruntime": 20})


def _repair(path: Path, options: RepairOptions = NEEDED, settings: dict[str, str] | None = None) -> Repaired:
    return asyncio.run(repair(path, options, settings or {}, _ORT, source=str(path)))


def test_repair_converts_to_the_installed_runtimes_opset(tmp_path: Path) -> None:
    path = models.save(models.classifier(), tmp_path / "new.onnx")
    original = file_digest(path)
    repaired = _repair(path)
    record = repaired.record
    assert [done.step for done in record.steps] == ["opset", "ir"]
    assert record.original == original
    assert record.digest == file_digest(path) != original
    assert all(done.proof.by.startswith("onnx.reference ") for done in record.steps)
    assert [entry.name for entry in tmp_path.iterdir()] == ["new.onnx"]
    model = onnx.load(path)
    assert (str(model.opset_import[0].version), str(model.ir_version)) == tuple(done.after for done in record.steps)


def test_repair_servable_model_is_unchanged(tmp_path: Path) -> None:
    path = models.save(models.classifier(opset=20, ir=8), tmp_path / "good.onnx")
    before = path.read_bytes()
    record = _repair(path).record
    assert (record.steps, record.left_out) == ((), ())
    assert record.digest == record.original
    assert path.read_bytes() == before


@pytest.mark.long
def test_repair_with_a_named_step_makes_only_that_step(tmp_path: Path) -> None:
    path = models.save(models.mean(), tmp_path / "mean.onnx")
    record = _repair(path, RepairOptions.parse(False, ["opset=13"])).record
    (done,) = record.steps
    assert (done.before, done.after) == ("18", "13")
    assert done.proof.by.startswith("onnxruntime ")  # ONNX Runtime also supports opset 18
    assert done.details == ("1 ReduceMean converted for opset 17",)


@pytest.mark.long
def test_repair_to_a_named_version_suits_every_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtimes_take(monkeypatch, {"onnxruntime": 20, "tensorrt": 17})
    path = models.save(models.mean(), tmp_path / "mean.onnx")  # opset 18, which ONNX Runtime supports
    both, before = ("onnxruntime", "tensorrt"), path.read_bytes()

    def done(options: RepairOptions) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
        path.write_bytes(before)
        record = asyncio.run(repair(path, options, {}, both, source=str(path))).record
        return [(done.before, done.after) for done in record.steps], record.left_out

    assert done(NEEDED) == ([], ())
    assert done(RepairOptions.parse(False, ["opset"])) == ([("18", "17")], ())
    runtimes_take(monkeypatch, {"onnxruntime": 20, "tensorrt": 64})
    assert done(RepairOptions.parse(False, ["opset"])) == (
        [],
        ("opset: it is already 18; every installed runtime supports this version",),
    )
    assert done(RepairOptions.parse(False, ["opset=18"])) == ([], ("opset: it is already 18",))


def test_repair_to_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = models.save(models.mean(), tmp_path / "mean.onnx")
    with pytest.raises(ModelRefused, match="opset=19: the model has 18, and a repair can only lower it"):
        _repair(path, RepairOptions.parse(False, ["opset=19"]))


@pytest.mark.long
def test_repair_external_data_is_shared_and_part_of_the_identity(tmp_path: Path) -> None:
    path = tmp_path / "big.onnx"
    onnx.save(models.classifier(), path, save_as_external_data=True, location="w.bin", size_threshold=64)
    original = model_digest(path, ["w.bin"])
    weights = (tmp_path / "w.bin").read_bytes()
    repaired = _repair(path)
    assert repaired.external == ("w.bin",)
    assert repaired.record.original == original
    assert repaired.record.digest == model_digest(path, ["w.bin"]) != original
    assert (tmp_path / "w.bin").read_bytes() == weights
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["big.onnx", "w.bin"]


def test_repair_without_a_conversion_is_refused_in_one_line(tmp_path: Path) -> None:
    path = models.save(models.scatter(), tmp_path / "scatter.onnx")
    before = path.read_bytes()
    with pytest.raises(ModelRefused, match=r"scatter.onnx cannot be repaired: operator TensorScatter \(node 'cache'\)"):
        _repair(path, RepairOptions.parse(False, ["opset=21"]))
    assert path.read_bytes() == before


def test_repair_file_that_is_no_model_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(models.classifier().SerializeToString()[:300])
    with pytest.raises(ModelRefused):
        _repair(path)


@pytest.mark.long
def test_repair_frees_fixed_sizes_if_settings_need_others(tmp_path: Path) -> None:
    path = models.save(models.classifier(1, size=32, opset=20, ir=8), tmp_path / "m.onnx")
    assert _repair(path).record.steps == ()
    asked = {"preprocess.width": "64", "preprocess.height": "64"}
    (done,) = _repair(path, settings=asked).record.steps
    assert (done.step, done.after) == ("sizes", "x 1x3xHxW")


def test_repair_named_size_that_cannot_be_freed_is_refused(tmp_path: Path) -> None:
    path = models.save(models.split(), tmp_path / "m.onnx")
    with pytest.raises(ModelRefused, match="sizes: no input takes pictures of a fixed size"):
        _repair(path, RepairOptions.parse(False, ["sizes"]))


@pytest.mark.long
def test_repair_simplifies_on_request(tmp_path: Path) -> None:
    pytest.importorskip("onnxslim", reason="it is an optional package")
    made = models.classifier(opset=20, ir=8)
    made.graph.node.append(onnx.helper.make_node("Identity", ["y"], ["z"]))
    made.graph.node.append(onnx.helper.make_node("Relu", ["z"], ["out"]))
    made.graph.output[0].name = "out"
    path = models.save(made, tmp_path / "m.onnx")
    record = _repair(path, RepairOptions.parse(False, ["simplify"])).record
    assert [done.step for done in record.steps] == ["simplify"], record.left_out
    assert record.steps[0].details[0].startswith("by onnxslim")
    simple = onnx.load(path)
    assert len(simple.graph.node) < len(made.graph.node)
    assert simple.metadata_props == made.metadata_props


# -- when children fail ---------------------------------------------------------------------------------------------


class _Runs:
    """Runs jobs as usual, except jobs of one kind, which have the given outcome."""

    def __init__(self, kind: type, outcome: Any) -> None:
        self._kind, self._outcome = kind, outcome

    async def __call__(self, job: Any, answer: Any, limits: Limits) -> Any:
        if not isinstance(job, self._kind):
            return await run(job, answer, limits)
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome(job)


def _stamps_only(job: Lower) -> Lowered:
    model = onnx.load(job.path)
    model.opset_import[0].version, model.ir_version = job.opset, 10
    Path(job.out).write_bytes(model.SerializeToString())
    return Lowered(by_definition=True)


def test_repair_wrong_conversion_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = models.save(models.softmax(1), tmp_path / "m.onnx")
    before = path.read_bytes()
    monkeypatch.setattr(repairer, "run", _Runs(Lower, _stamps_only))
    with pytest.raises(ModelRefused, match="differ from the original's: cosine"):
        _repair(path, RepairOptions.parse(False, ["opset=12"]))
    assert path.read_bytes() == before


def test_repair_converter_that_crashes_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = models.save(models.classifier(), tmp_path / "m.onnx")
    monkeypatch.setattr(repairer, "run", _Runs(Lower, BuildFailed("lower child crashed (SIGSEGV)")))
    with pytest.raises(ModelRefused, match=r"m.onnx cannot be repaired: lower child crashed \(SIGSEGV\)"):
        _repair(path)


def test_repair_is_proved_by_definitions_if_nothing_runs_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.save(models.classifier(), tmp_path / "m.onnx")
    monkeypatch.setattr(
        repairer, "run", _Runs(Prove, BuildFailed("prove child was stopped, because it took longer than 300 s"))
    )
    first = _repair(path).record.steps[0]
    assert first.proof.by == "definitions"
    assert "took longer than 300 s" in first.proof.detail


def test_repair_without_a_proof_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = models.save(models.mean(), tmp_path / "m.onnx")
    monkeypatch.setattr(
        repairer, "run", _Runs(Prove, BuildFailed("prove child was stopped, because it took longer than 300 s"))
    )
    with pytest.raises(ModelRefused, match="cannot verify that the model answers as before"):
        _repair(path, RepairOptions.parse(False, ["opset=13"]))


@pytest.mark.long
def test_repair_avoids_taken_file_names(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(models.classifier(), path, save_as_external_data=True, location="m.lowered.onnx", size_threshold=64)
    weights = (tmp_path / "m.lowered.onnx").read_bytes()
    repaired = _repair(path)
    assert repaired.external == ("m.lowered.onnx",)
    assert (tmp_path / "m.lowered.onnx").read_bytes() == weights


@pytest.mark.long
def test_repair_of_a_copied_original_gives_the_same_model(tmp_path: Path) -> None:
    path = models.save(models.gelu(), tmp_path / "one.onnx")
    other = Path(shutil.copy(path, tmp_path / "other.onnx"))
    options = RepairOptions.parse(False, ["opset=19", "ir=9"])
    assert _repair(path, options).record.digest == _repair(other, options).record.digest
    assert onnx.load(path).graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT
