"""Repairs in this process: inputs with freed dimensions, and repaired models compared with their originals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import onnx
import pytest

from edged.backends.contract import REFERENCE, Order
from edged.errors import Unsuitable
from edged.ipc.job_messages import Freed, FreeDims, Prove
from edged.jobs.inspect import inspect
from edged.jobs.repair import dims, proof
from edged.jobs.repair.lowering import lower
from edged.jobs.repair.proof import NAME
from edged.verification.standard import TOLERANCES
from edged.vision.family import Recognition, recognise
from tests import repair_models as models
from tests.unit.test_user_samples import choosy, npz


def _order(path: Path) -> Order:
    inspection = inspect(path)
    return Order(str(path), inspection.signature, REFERENCE, external=tuple(file.path for file in inspection.external))


def _recognition(order: Order) -> Recognition:
    return recognise(order.signature.inputs, order.signature.outputs, {}, {}, {})


def _proof(original: Path, repaired: Path, *, evaluate: bool) -> Prove:
    order = _order(original)
    return Prove(order, _order(repaired), _recognition(order), evaluate=evaluate, seconds=0.0)


def _freed(model: onnx.ModelProto, folder: Path, *, sizes: bool = False) -> Freed:
    order = _order(models.save(model, folder / "model.onnx"))
    return dims.free(FreeDims(order, _recognition(order), str(folder / "out.onnx"), True, sizes))


# -- dimensions -----------------------------------------------------------------------------------------------------


def classifier(batch: int | str, **more: Any) -> onnx.ModelProto:
    return models.classifier(batch, opset=20, ir=8, **more)


# It accepts any batch, but its mean over the batch makes each row depend on the others.
COMPANY = models.parse(
    "(float[4,3] x) => (float[4,3] y) { m = ReduceMean<axes = [0], keepdims = 1>(x) y = Sub(x, m) }", opset=17, ir=8
)
ONE_SIZE = models.parse(
    "(float[N,3,h,w] x) => (float[N,307200] y) <int64[2] rows = {-1, 307200}> { y = Reshape(x, rows) }", opset=20, ir=8
)


@pytest.mark.parametrize(
    ("model", "sizes", "after", "detail"),
    [
        pytest.param(classifier(10), False, "x Nx3x8x8", "", id="batch that is an example"),
        pytest.param(classifier("N", rows=(1, 4)), False, "x 1x3x8x8", "no batch of 2, 3, 4", id="batch of one"),
        pytest.param(classifier("N", rows=(4, 4)), False, "x 4x3x8x8", "", id="batch of four"),
        pytest.param(classifier(0), False, "x Nx3x8x8", "x[0] is declared as 0, which means any", id="batch of 0"),
        pytest.param(classifier(-1), False, "x Nx3x8x8", "x[0] is declared as -1, which means any", id="batch of -1"),
        pytest.param(classifier(1), True, "x 1x3xHxW", "", id="sizes"),
        pytest.param(ONE_SIZE, False, "x Nx3x320x320", "", id="one size of pictures"),
    ],
)
def test_free_declares_inputs_as_the_model_accepts_them(
    tmp_path: Path, model: onnx.ModelProto, sizes: bool, after: str, detail: str
) -> None:
    freed = _freed(model, tmp_path, sizes=sizes)
    assert freed.after == after
    assert detail in freed.details[0]
    assert freed.sized is sizes
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "out.onnx"]


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(classifier(10, rows=(10, 4)), id="batch that the graph needs"),
        pytest.param(COMPANY, id="rows that depend on each other"),
        pytest.param(classifier("N"), id="open batch"),
        pytest.param(classifier(1), id="sizes that were not asked for"),
    ],
)
def test_free_correct_dimensions_are_kept(tmp_path: Path, model: onnx.ModelProto) -> None:
    assert _freed(model, tmp_path).details == ()
    assert not (tmp_path / "out.onnx").exists()


def test_free_batch_changes_inputs_and_outputs_and_measures_the_answers(tmp_path: Path) -> None:
    freed = _freed(classifier(10), tmp_path)
    assert freed.before == "x 10x3x8x8"
    assert freed.figures["cosine"] > 0.999
    signature = inspect(tmp_path / "out.onnx").signature
    assert (signature.inputs[0].shape, signature.outputs[0].shape) == (("N", 3, 8, 8), ("N", 4))


def test_free_size_that_the_graph_needs_is_refused(tmp_path: Path) -> None:
    graph = "(float[1,3,8,8] x) => (float[1,192] y) <int64[2] rows = {1, 192}> { y = Reshape(x, rows) }"
    freed = _freed(models.parse(graph, opset=20, ir=8), tmp_path, sizes=True)
    assert not freed.sized
    assert "takes no pictures of 16x16" in freed.refused


# -- proof ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_right", [True, False])
def test_prove_conversion_is_judged_by_the_reference_implementation(tmp_path: Path, is_right: bool) -> None:
    original = models.save(models.softmax(1), tmp_path / "original.onnx")
    converted = models.softmax(1)
    if is_right:
        lower(converted, 12)
    else:  # as the onnx package's converter does: the operator's meaning differs before opset 13
        converted.opset_import[0].version = 12
    proven = proof.prove(_proof(original, models.save(converted, tmp_path / "new.onnx"), evaluate=True))
    assert proven.verdict.accepted is is_right
    assert (proven.by, proven.questions) == (NAME, 1)  # the time was enough for one question


def test_prove_model_that_runs_here_is_compared_by_the_runtime(tmp_path: Path) -> None:
    original = models.save(classifier("N"), tmp_path / "original.onnx")
    proven = proof.prove(_proof(original, original, evaluate=False))
    assert proven.verdict.accepted
    assert proven.by.startswith("onnxruntime ")
    assert proven.questions > 1


def test_prove_repaired_model_that_refuses_a_probe_is_rejected(tmp_path: Path) -> None:
    original = models.save(classifier("N"), tmp_path / "original.onnx")
    broken = models.save(classifier("N", rows=(7, 9)), tmp_path / "broken.onnx")
    assert not proof.prove(_proof(original, broken, evaluate=False)).verdict.accepted


def test_prove_original_that_nothing_can_run_is_unsuitable(tmp_path: Path) -> None:
    model = models.parse("(float[1,4] x) => (float[1,4] y) { y = com.example.Frobnicate(x) }")
    model.opset_import.add(domain="com.example", version=1)
    original = models.save(model, tmp_path / "original.onnx")
    with pytest.raises(Unsuitable):
        proof.prove(_proof(original, original, evaluate=True))


def test_prove_model_of_halves_has_the_tolerance_of_float16(tmp_path: Path) -> None:
    assert proof.tolerance_for(models.save(models.gelu(), tmp_path / "a.onnx")) == TOLERANCES["fp32"]
    halves = models.gelu()
    halves.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    assert proof.tolerance_for(models.save(halves, tmp_path / "b.onnx")) == TOLERANCES["fp16"]


def test_prove_model_that_needs_certain_values_is_compared_by_the_users_samples(tmp_path: Path) -> None:
    original = models.save(choosy(50, 70), tmp_path / "original.onnx")
    job = _proof(original, models.save(choosy(50, 70), tmp_path / "same.onnx"), evaluate=True)
    with pytest.raises(Unsuitable):
        proof.prove(job)
    sample = npz(tmp_path / "ask.npz", x=[50, 70, 50])
    for evaluate in (True, False):
        job = msgspec.structs.replace(job, samples=(str(sample),), evaluate=evaluate)
        proven = proof.prove(job)
        assert proven.verdict.accepted
        assert proven.questions == 1
    swapped = models.save(choosy(70, 50), tmp_path / "swapped.onnx")
    assert not proof.prove(msgspec.structs.replace(job, repaired=_order(swapped))).verdict.accepted
