"""Admission in real child processes: the stage that refuses a model, and which results are cached."""

from __future__ import annotations

import errno
import itertools
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from edged.backends import registry
from edged.backends.contract import REFERENCE, Order
from edged.config.child_limits import AdmissionLimits, Limits
from edged.engines import job_server, trials
from edged.engines.admission import Proven, admit, examine, prove, try_families
from edged.engines.builder import Builder
from edged.errors import BuildFailed, ConfigError, ModelRefused
from edged.ipc.job_messages import Check, Checked, RuntimeSupport, TriedFamilies
from edged.models.entries import plain_entry
from edged.models.finding import Category, Finding, Reason, Stage
from edged.models.model import Model
from edged.store.store import Store
from edged.verification import golden
from edged.vision.family import recognise
from tests import models
from tests.vision_exports import EXPORTS
from tests.vision_graphs import graph
from tests.waiting import children as processes
from tests.waiting import run

pytestmark = pytest.mark.timeout(240)


def chain(nodes: str, constants: str = "", **more: object) -> onnx.ModelProto:
    return models.parse(f"(float[1,4] x) => (float[] y) {f'<{constants}>' if constants else ''} {{ {nodes} }}", **more)


def forever(kind: str, condition: str) -> str:
    """Return an ONNX Loop over x that does not end."""
    return f"""y = Loop({condition}, yes, x) <
        body = body (int64 i, bool go, {kind} v) => (bool on, {kind} w) {{ on = Identity(go) w = Identity(v) }}
    >"""


ENDLESS = chain(forever("float[1,4]", ""), "bool yes = {1}")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def builder_in(cache: Path, **limits: float) -> Builder:
    admission = AdmissionLimits(**limits)  # type: ignore[arg-type]
    return Builder(Store(cache), cache, Limits(seconds=60), admission)


def test_examine_opset_too_new_names_the_runtime(tmp_path: Path, cache: Path) -> None:
    path = models.save(models.identity(opset=500), tmp_path / "model.onnx")
    admission = run(examine(builder_in(cache), path, {}, ["onnxruntime", "openvino"]), 200)
    assert admission.finding is not None
    assert admission.finding.message.startswith("opset 500 is newer than ONNX Runtime ")
    assert admission.backends["onnxruntime"] == admission.finding.line()


def test_examine_endless_loop_is_stopped_with_its_processes(tmp_path: Path, cache: Path) -> None:
    path = models.save(ENDLESS, tmp_path / "model.onnx")
    before = set(processes(os.getpid()))
    admission = run(examine(builder_in(cache, seconds=3.0), path, {}, ["onnxruntime"]), 200)
    finding = admission.finding
    assert finding is not None
    assert (finding.stage, finding.category) == (Stage.INFERENCE, Category.TIMED_OUT)
    assert "admission.seconds" in finding.remedy
    assert set(processes(os.getpid())) <= before


def refused_after(finding: Finding, tried: list[object]) -> Callable[..., object]:
    """Return a replacement for the child that ends with this finding and appends each job to `tried`."""

    async def attempt(job: Check, *_: object) -> Checked:
        tried.append(job)
        return Checked(RuntimeSupport("", 0, 0, 0), finding)

    return attempt


def test_docs_page_describes_every_category() -> None:
    page = Path(__file__, "../../../docs/admission.md").resolve().read_text()
    _, _, table = page.partition("| category | stages | meaning |")
    rows = itertools.takewhile(lambda line: line.startswith("|"), table.splitlines()[2:])
    named = [name for row in rows for name in re.findall(r"`([a-z_]+)`", row.split("|")[1])]
    assert sorted(named) == sorted(category.value for category in Category)


HANGS = Finding(Stage.INFERENCE, Category.TIMED_OUT, "running it did not end")


def test_prove_model_that_hangs_is_retried_up_to_the_requested_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, tried = models.save(models.matmul(), tmp_path / "model.onnx"), list[object]()
    model = Model.of(plain_entry("m", path, {}), run(builder_in(tmp_path).inspect(path), 200))
    monkeypatch.setattr(trials, "attempt", refused_after(HANGS, tried))
    started = []
    for tries in (1, 1, 4, 1, 4, 4, 4, 4, 1):  # each time in a new daemon
        with pytest.raises(ModelRefused) as refused:
            run(prove(builder_in(tmp_path), model, tries))
        assert Reason.of(refused.value) == Reason("timed_out", "inference")
        started.append(len(tried))
    assert started == [1, 1, 2, 2, 3, 4, 4, 4, 4]
    with pytest.raises(ModelRefused):
        run(prove(builder_in(tmp_path, seconds=30.0), model))
    assert len(tried) == 5  # other limits
    run(examine(builder_in(tmp_path), path, {}, ["onnxruntime"]))
    assert len(tried) == 6  # an operator's command


def test_inspect_file_that_hangs_its_reader_is_retried_up_to_the_requested_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, tried = models.save(models.matmul(), tmp_path / "model.onnx"), list[object]()

    async def read(*arguments: object) -> None:
        tried.append(arguments)
        raise Finding(Stage.PARSE, Category.TIMED_OUT, "parsing the model did not end").refusal()

    monkeypatch.setattr(trials, "read", read)
    for _ in range(2):
        with pytest.raises(ModelRefused) as refused:
            run(builder_in(tmp_path).inspect(path))
        assert Reason.of(refused.value) == Reason("timed_out", "parse")
    assert len(tried) == 1
    os.utime(path)
    for tries in (4, 1):
        with pytest.raises(ModelRefused):
            run(builder_in(tmp_path).inspect(path, tries))
    assert len(tried) == 2
    models.save(models.conv(), path)
    with pytest.raises(ModelRefused):
        run(builder_in(tmp_path).inspect(path))
    assert len(tried) == 3


# Loops for ever unless x is 50.
PICKY = models.parse(
    f"""(int64[1] x) => (int64[1] y)
        <int64[1] fifty = {{50}}, int64[1] much = {{1000000000000000}}, bool yes = {{1}}> {{
        d = Sub(x, fifty)
        dd = Mul(d, d)
        n = Mul(dd, much)
        trips = Squeeze(n)
        {forever("int64[1]", "trips")}
    }}"""
)


@pytest.mark.long
def test_examine_model_that_hangs_on_generated_probes_is_admitted_with_a_sample(tmp_path: Path, cache: Path) -> None:
    path, sample = models.save(PICKY, tmp_path / "model.onnx"), tmp_path / "ask.npz"
    np.savez(sample, x=np.array([50]))
    builder = builder_in(cache, seconds=6.0)
    alone = run(examine(builder, path, {}, ["onnxruntime"]), 200)
    assert alone.finding is not None
    assert alone.finding.category is Category.TIMED_OUT
    assert run(examine(builder, path, {}, ["onnxruntime"], [sample]), 200).finding is None


def test_make_golden_model_that_hangs_on_generated_probes_keeps_the_users_sample(tmp_path: Path) -> None:
    path, sample = models.save(PICKY, tmp_path / "model.onnx"), tmp_path / "ask.npz"
    np.savez(sample, x=np.array([50]))
    signature = models.signature(PICKY)
    recognition = recognise(signature.inputs, signature.outputs, {}, {})
    session = registry.load("onnxruntime").open(Order(str(path), signature, REFERENCE))
    made = golden.make(session, signature, recognition, [str(sample)], least_seconds=0.1)
    assert [question.name for question in made.samples if question.kind == "given"] == ["ask.npz"]
    assert not {question.kind for question in made.samples} & {"unit", "normal"}


_STALE = models.identity()
_STALE.graph.output[0].CopyFrom(models.value("y", "FP32", [1, 5]))


@pytest.mark.parametrize(
    ("proto", "category"),
    [
        pytest.param(chain("y = Div(x, zero)", "float zero = {0}"), Category.NOT_FINITE, id="not finite"),
        pytest.param(_STALE, Category.SHAPE_MISMATCH, id="declared shape of an output is stale"),
    ],
)
def test_admit_model_with_doubts_is_served_with_a_warning(
    tmp_path: Path, cache: Path, proto: onnx.ModelProto, category: Category
) -> None:
    path = models.save(proto, tmp_path / "model.onnx")
    admission = run(admit(builder_in(cache), path, {}, ["onnxruntime"]), 200)
    assert admission.finding is None
    assert [warning.category for warning in admission.warnings] == [category]


@pytest.mark.parametrize(
    ("y", "is_independent"),
    [("y = Softmax<axis = 1>(x)", True), ("y = Softmax<axis = 0>(x)", False)],
    ids=["over a row", "over the batch"],
)
def test_prove_reports_whether_rows_are_independent(tmp_path: Path, y: str, is_independent: bool) -> None:
    tensors = [models.value("x", "FP32", ["n", 5])], [models.value("y", "FP32", ["n", 5])]
    path = models.save(models.model(models.nodes(y), *tensors), tmp_path / "model.onnx")
    builder = builder_in(tmp_path / "cache")
    model = Model.of(plain_entry("m", path, {}), run(builder.inspect(path), 200))
    assert (run(prove(builder, model), 200).batch_gain > 0) is is_independent


def test_prove_result_is_cached_for_the_same_limits_until_the_model_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.save(models.matmul(), tmp_path / "model.onnx")
    builder = builder_in(tmp_path / "cache")
    model = Model.of(plain_entry("m", path, {}), run(builder.inspect(path), 200))
    assert run(prove(builder, model), 200) == Proven()
    asked: list[object] = []

    async def attempt(*arguments: object) -> None:
        asked.append(arguments)
        raise BuildFailed("no child may start")

    monkeypatch.setattr(trials, "attempt", attempt)
    assert run(prove(builder_in(tmp_path / "cache"), model)) == Proven()
    assert not asked
    with pytest.raises(BuildFailed):
        run(prove(builder_in(tmp_path / "cache", seconds=30.0), model))
    for file in (tmp_path / "cache" / "admissions").iterdir():
        file.write_bytes(b'{"reach": {"version": "\xff"}}')  # not UTF-8, so the model is proved again
    with pytest.raises(BuildFailed):
        run(prove(builder, model))
    builder.forget(model.digest)
    assert not list((tmp_path / "cache" / "admissions").iterdir())
    assert not list((tmp_path / "cache" / "inspections").iterdir())


def test_forget_others_removes_golden_answers_of_unknown_models(tmp_path: Path) -> None:
    builder = builder_in(tmp_path / "cache")
    golden = tmp_path / "cache" / "golden"
    for name in ("aa-1.golden", "aa.golden", "bb-1.golden"):
        (golden / name).write_bytes(b"answers")
    builder.forget_others({"aa"})
    assert sorted(place.name for place in golden.iterdir()) == ["aa-1.golden", "aa.golden"]


def test_examine_unknown_settings_are_a_configuration_error(tmp_path: Path, cache: Path) -> None:
    path = models.save(models.matmul(), tmp_path / "model.onnx")
    with pytest.raises(ConfigError):
        run(examine(builder_in(cache), path, {"colour": "blue"}, ["onnxruntime"]))


def test_examine_missing_external_data_is_reported_after_an_unsupported_opset(tmp_path: Path, cache: Path) -> None:
    path = models.external(tmp_path, write=False)
    finding = run(examine(builder_in(cache), path, {}, ["onnxruntime"]), 200).finding
    assert finding is not None
    assert (finding.stage, finding.category, finding.node) == (Stage.EXTERNAL_DATA, Category.EXTERNAL_MISSING, "w")
    proto = onnx.load(str(path), load_external_data=False)
    proto.opset_import[0].version = 500
    models.save(proto, path)
    finding = run(examine(builder_in(cache), path, {}, ["onnxruntime"]), 200).finding
    assert finding is not None
    assert finding.category is Category.OPSET_TOO_NEW


def test_examine_child_that_cannot_be_started_is_a_failed_build(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.save(models.conv(seed=77), tmp_path / "model.onnx")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    job_server.SERVER.close()
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(BuildFailed, match="cannot start"):
        run(examine(builder_in(cache), path, {}, ["onnxruntime"]))


def test_try_families_answer_for_another_number_of_families_is_refused(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hostile model may have taken over the child."""
    export = EXPORTS["deepstream-yolo"]
    path = graph(export, export.encode([[]]), tmp_path / "model.onnx")
    builder = builder_in(cache)
    admission = run(examine(builder, path, {}, ["onnxruntime"]), 200)

    async def taken_over(*_: object) -> TriedFamilies:
        return TriedFamilies((), b"")

    monkeypatch.setattr("edged.engines.admission.run", taken_over)
    with pytest.raises(BuildFailed, match="answered for 0 families"):
        run(try_families(builder, admission, path, {}, tmp_path / "street.png"), 200)
