"""Models through all stages, in real children: what each ends as, what is remembered, and that nothing stays behind."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edged.backends import registry
from edged.backends.contract import REFERENCE, Order
from edged.config.limits import AdmissionLimits, Limits
from edged.engines import trials
from edged.engines.admission import admit, examine, prove
from edged.engines.builder import Builder
from edged.errors import BuildFailed, ConfigError, ModelRefused
from edged.ipc.job_messages import Check, Checked, RuntimeSupport
from edged.models.entries import plain_entry
from edged.models.finding import Category, Finding, Reason, Stage
from edged.models.model import Model
from edged.store.store import Store
from edged.verification import golden
from edged.vision.family import recognise
from tests import models
from tests.waiting import children as processes
from tests.waiting import run

pytestmark = pytest.mark.timeout(240)
node = helper.make_node


def constant(name: str, value: object, dtype: type) -> TensorProto:
    return numpy_helper.from_array(np.array(value, dtype), name)


def chain(*nodes: onnx.NodeProto, constants: tuple[TensorProto, ...] = (), **more: object) -> onnx.ModelProto:
    value = models.value
    inputs, outputs = [value("x", "FP32", [1, 4])], [value("y", "FP32", None)]
    return models.model(nodes, inputs, outputs, constants, **more)  # type: ignore[arg-type]


def endless() -> onnx.ModelProto:
    """A Loop that goes on as long as true is true."""
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Add", ["v", "v"], ["w"])],
        "body",
        [models.value("i", "INT64", []), models.value("go", "BOOL", []), models.value("v", "FP32", [1, 4])],
        [models.value("on", "BOOL", []), models.value("w", "FP32", [1, 4])],
    )
    yes = constant("yes", True, np.bool_)
    return chain(node("Loop", ["", "yes", "x"], ["y"], "for_ever", body=body), constants=(yes,))


def hungry() -> onnx.ModelProto:
    """Fills sixteen gibibytes, which nothing says before it runs."""
    nodes = [
        node("ReduceMax", ["x"], ["m"], keepdims=0),
        node("Mul", ["m", "zero"], ["z"]),
        node("Add", ["z", "many"], ["n"]),
        node("Cast", ["n"], ["count"], to=TensorProto.INT64),
        node("Reshape", ["count", "one"], ["shape"]),
        node("ConstantOfShape", ["shape"], ["all"]),
        node("ReduceSum", ["all"], ["y"], keepdims=0),
    ]
    constants = (constant("zero", 0, np.float32), constant("many", 1 << 32, np.float32), constant("one", [1], np.int64))
    return chain(*nodes, constants=constants)


def one(kind: str, **more: object) -> Callable[[], onnx.ModelProto]:
    domain = str(more.pop("domain", ""))
    opsets = {domain: 1} if domain else {}
    return lambda: chain(node(kind, ["x"], ["y"], "odd", domain=domain, **more), domains=opsets)


ENDS: dict[str, tuple[Callable[[], onnx.ModelProto], Stage, Category, str]] = {
    "opset": (lambda: models.identity(opset=500), Stage.OPSET, Category.OPSET_TOO_NEW, ""),
    "old opset": (lambda: models.identity(opset=0), Stage.OPSET, Category.OPSET_TOO_OLD, ""),
    "other domain's opset": (
        lambda: models.identity(domains={"ai.onnx.ml": 99}),
        Stage.OPSET,
        Category.OPSET_TOO_NEW,
        "",
    ),
    "IR": (lambda: models.identity(ir_version=2**33), Stage.OPSET, Category.IR_TOO_NEW, ""),
    "operator": (one("Frobnicate"), Stage.OPERATORS, Category.UNKNOWN_OPERATOR, "odd"),
    "operator of a later opset": (
        lambda: chain(node("Gelu", ["x"], ["y"], "odd"), opset=19),
        Stage.OPERATORS,
        Category.UNKNOWN_OPERATOR,
        "odd",
    ),
    "domain": (one("Relu", domain="nowhere"), Stage.OPERATORS, Category.UNKNOWN_DOMAIN, "odd"),
    "attribute": (one("Relu", colour=3), Stage.GRAPH, Category.INVALID_NODE, "odd"),
    "types": (
        lambda: chain(node("Add", ["x", "w"], ["y"], "odd"), constants=(constant("w", [1], np.int64),)),
        Stage.GRAPH,
        Category.TYPE_MISMATCH,
        "",
    ),
    "shapes": (
        lambda: chain(node("MatMul", ["x", "w"], ["y"], "odd"), constants=(constant("w", [[1] * 3] * 3, np.float32),)),
        Stage.GRAPH,
        Category.SHAPE_MISMATCH,
        "odd",
    ),
    "four tebibytes": (
        lambda: chain(
            node("ConstantOfShape", ["s"], ["h"]),
            node("ReduceSum", ["h"], ["y"]),
            constants=(constant("s", [1 << 40], np.int64),),
        ),
        Stage.MEMORY,
        Category.TOO_MUCH_MEMORY,
        "h",
    ),
    "hungry": (hungry, Stage.INFERENCE, Category.TOO_MUCH_MEMORY, ""),
    "beyond the table": (
        lambda: chain(node("Gather", ["x", "i"], ["y"], axis=1), constants=(constant("i", [9], np.int64),)),
        Stage.INFERENCE,
        Category.FAILED,
        "",
    ),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def builder_in(cache: Path, **limits: float) -> Builder:
    admission = AdmissionLimits(**limits)  # type: ignore[arg-type]
    return Builder(Store(cache), cache, Limits(seconds=60), admission)


@pytest.mark.parametrize("what", ENDS)
def test_a_model_that_cannot_be_served_ends_at_its_stage(tmp_path: Path, cache: Path, what: str) -> None:
    make, stage, category, where = ENDS[what]
    path = models.save(make(), tmp_path / "model.onnx")
    admission = run(examine(builder_in(cache), path, {}, ["onnxruntime"]), 200)
    finding = admission.finding
    assert finding is not None
    assert (finding.stage, finding.category) == (stage, category), finding
    assert finding.node == where or not where
    assert finding.message
    assert "\n" not in finding.line()
    assert admission.backends == {"onnxruntime": finding.line()}


def test_versions_are_told_as_the_runtime_here_takes_them(tmp_path: Path, cache: Path) -> None:
    path = models.save(models.identity(opset=500), tmp_path / "model.onnx")
    admission = run(examine(builder_in(cache), path, {}, ["onnxruntime", "openvino"]), 200)
    assert admission.finding is not None
    assert admission.finding.message.startswith("opset 500 is newer than ONNX Runtime ")
    assert "edged models add NAME FILE --convert" in admission.finding.remedy
    assert admission.backends["onnxruntime"]


def test_a_loop_without_end_is_ended_and_nothing_of_it_runs_on(tmp_path: Path, cache: Path) -> None:
    path = models.save(endless(), tmp_path / "model.onnx")
    before = set(processes(os.getpid()))
    admission = run(examine(builder_in(cache, seconds=3.0), path, {}, ["onnxruntime"]), 200)
    finding = admission.finding
    assert finding is not None
    assert (finding.stage, finding.category) == (Stage.INFERENCE, Category.TIMED_OUT)
    assert "admission.seconds" in finding.remedy
    assert set(processes(os.getpid())) <= before


def refused_after(finding: Finding, tried: list[object]) -> Callable[..., object]:
    """Stands for a child that ends so, and counts how often it was started."""

    async def attempt(job: Check, *_: object) -> Checked:
        tried.append(job)
        return Checked(RuntimeSupport("", 0, 0, 0), finding)

    return attempt


HANGS = Finding(Stage.INFERENCE, Category.TIMED_OUT, "running it did not end")


def test_prove_model_that_hangs_is_tried_again_only_as_often_as_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, tried = models.save(models.matmul(), tmp_path / "model.onnx"), list[object]()
    model = Model.of(plain_entry("m", path, {}), run(builder_in(tmp_path).inspect(path), 200))
    monkeypatch.setattr(trials, "attempt", refused_after(HANGS, tried))
    started = []
    for tries in (1, 1, 4, 1, 4, 4, 4, 4, 1):  # each by a daemon that was just started
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


def test_inspect_file_whose_reader_hangs_is_read_again_only_as_often_as_asked_for(
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


def picky() -> onnx.ModelProto:
    """Counts for ever, unless x is 50."""
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Identity", ["v"], ["w"])],
        "body",
        [models.value("i", "INT64", []), models.value("go", "BOOL", []), models.value("v", "INT64", [1])],
        [models.value("on", "BOOL", []), models.value("w", "INT64", [1])],
    )
    nodes = [
        node("Sub", ["x", "fifty"], ["d"]),
        node("Mul", ["d", "d"], ["dd"]),
        node("Mul", ["dd", "much"], ["n"]),
        node("Squeeze", ["n"], ["trips"]),
        node("Loop", ["trips", "yes", "x"], ["y"], body=body),
    ]
    constants = (constant("fifty", [50], np.int64), constant("much", [10**15], np.int64))
    ends = [models.value("x", "INT64", [1])], [models.value("y", "INT64", [1])]
    return models.model(nodes, *ends, [*constants, constant("yes", True, np.bool_)])


@pytest.mark.long
def test_examine_model_that_hangs_on_made_up_questions_is_admitted_with_a_sample(tmp_path: Path, cache: Path) -> None:
    path, sample = models.save(picky(), tmp_path / "model.onnx"), tmp_path / "ask.npz"
    np.savez(sample, x=np.array([50]))
    builder = builder_in(cache, seconds=6.0)
    alone = run(examine(builder, path, {}, ["onnxruntime"]), 200)
    assert alone.finding is not None
    assert alone.finding.category is Category.TIMED_OUT
    assert run(examine(builder, path, {}, ["onnxruntime"], [sample]), 200).finding is None


def test_make_golden_model_that_hangs_on_made_up_questions_keeps_the_users_answer(tmp_path: Path) -> None:
    path, sample = models.save(picky(), tmp_path / "model.onnx"), tmp_path / "ask.npz"
    np.savez(sample, x=np.array([50]))
    signature = models.signature(picky())
    recognition = recognise(signature.inputs, signature.outputs, {}, {})
    session = registry.load("onnxruntime").open(Order(str(path), signature, REFERENCE))
    made = golden.make(session, signature, recognition, [str(sample)], least_seconds=0.1)
    assert [question.name for question in made.samples if question.kind == "given"] == ["ask.npz"]
    assert not {question.kind for question in made.samples} & {"unit", "normal"}


def test_what_is_not_finite_is_told_and_served(tmp_path: Path, cache: Path) -> None:
    path = models.save(
        chain(node("Div", ["x", "zero"], ["y"]), constants=(constant("zero", 0, np.float32),)), tmp_path / "model.onnx"
    )
    admission = run(admit(builder_in(cache), path, {}, ["onnxruntime"]), 200)
    assert admission.finding is None
    assert [(warning.category, warning.node) for warning in admission.warnings] == [(Category.NOT_FINITE, "y")]


def test_an_output_whose_declared_shape_went_stale_is_served_with_a_warning(tmp_path: Path, cache: Path) -> None:
    proto = models.identity()
    proto.graph.output[0].CopyFrom(models.value("y", "FP32", [1, 5]))
    admission = run(admit(builder_in(cache), models.save(proto, tmp_path / "m.onnx"), {}, ["onnxruntime"]), 200)
    assert [warning.category for warning in admission.warnings] == [Category.SHAPE_MISMATCH]


def test_what_was_found_is_remembered_for_the_same_question_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.save(models.matmul(), tmp_path / "model.onnx")
    builder = builder_in(tmp_path / "cache")
    model = Model.of(plain_entry("m", path, {}), run(builder.inspect(path), 200))
    assert run(prove(builder, model), 200) == ()
    asked: list[object] = []

    async def attempt(*arguments: object) -> None:
        asked.append(arguments)
        raise BuildFailed("no child may start")

    monkeypatch.setattr(trials, "attempt", attempt)
    assert run(prove(builder_in(tmp_path / "cache"), model)) == ()
    assert not asked
    with pytest.raises(BuildFailed):
        run(prove(builder_in(tmp_path / "cache", seconds=30.0), model))
    for kept in (tmp_path / "cache" / "admissions").iterdir():
        kept.write_bytes(b'{"reach": {"version": "\xff"}}')  # no text: it is asked anew
    with pytest.raises(BuildFailed):
        run(prove(builder, model))


def test_what_was_found_is_forgotten_with_its_model(tmp_path: Path, cache: Path) -> None:
    path = models.save(models.matmul(), tmp_path / "model.onnx")
    builder = builder_in(tmp_path / "cache")
    model = Model.of(plain_entry("m", path, {}), run(builder.inspect(path), 200))
    assert run(prove(builder, model), 200) == ()
    assert list((tmp_path / "cache" / "admissions").iterdir())
    builder.forget(model.digest)
    assert not list((tmp_path / "cache" / "admissions").iterdir())
    assert not list((tmp_path / "cache" / "inspections").iterdir())


def test_golden_answers_of_models_that_nobody_has_are_removed(tmp_path: Path) -> None:
    builder = builder_in(tmp_path / "cache")
    golden = tmp_path / "cache" / "golden"
    for name in ("aa-1.golden", "aa.golden", "bb-1.golden"):
        (golden / name).write_bytes(b"answers")
    builder.forget_others({"aa"})
    assert sorted(place.name for place in golden.iterdir()) == ["aa-1.golden", "aa.golden"]


def test_a_file_that_is_no_model_is_refused_with_its_finding(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "model.onnx").write_text("no model at all")
    with pytest.raises(ModelRefused) as raised:
        run(examine(builder_in(cache), tmp_path / "model.onnx", {}, ["onnxruntime"]), 200)
    finding = Finding.of(raised.value)
    assert finding is not None
    assert (finding.stage, finding.category) == (Stage.PARSE, Category.NOT_ONNX)


def test_settings_that_do_not_exist_are_no_fault_of_the_model(tmp_path: Path, cache: Path) -> None:
    path = models.save(models.matmul(), tmp_path / "model.onnx")
    with pytest.raises(ConfigError):
        run(examine(builder_in(cache), path, {"colour": "blue"}, ["onnxruntime"]))


def test_external_data_that_is_missing_is_told_after_what_the_runtime_lacks(tmp_path: Path, cache: Path) -> None:
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


def test_a_child_that_cannot_be_started_is_not_the_models_fault(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.save(models.conv(seed=77), tmp_path / "model.onnx")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(BuildFailed, match="could not be started"):
        run(examine(builder_in(cache), path, {}, ["onnxruntime"]))
