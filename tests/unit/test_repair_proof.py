"""Inputs declared as what they take, and repaired models that are compared with their original: in this process."""

from __future__ import annotations

from pathlib import Path

import msgspec
import onnx
import pytest
from onnx import helper

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


def _freed(model: onnx.ModelProto, folder: Path, *, sizes: bool = False, dims_too: bool = True) -> Freed:
    order = _order(models.save(model, folder / "model.onnx"))
    return dims.free(FreeDims(order, _recognition(order), str(folder / "out.onnx"), dims_too, sizes))


# -- dimensions -----------------------------------------------------------------------------------------------------


def test_a_batch_that_is_an_example_is_freed(tmp_path: Path) -> None:
    freed = _freed(models.classifier(10, opset=20, ir=8), tmp_path)
    assert (freed.before, freed.after) == ("x 10x3x8x8", "x Nx3x8x8")
    assert freed.figures["cosine"] > 0.999
    inspection = inspect(tmp_path / "out.onnx")
    assert inspection.signature.inputs[0].shape == ("N", 3, 8, 8)
    assert inspection.signature.outputs[0].shape == ("N", 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "out.onnx"]


def test_a_batch_that_the_graph_needs_stays(tmp_path: Path) -> None:
    freed = _freed(models.classifier(10, rows=(10, 4), opset=20, ir=8), tmp_path)
    assert freed.details == ()
    assert not (tmp_path / "out.onnx").exists()


def test_a_batch_whose_rows_depend_on_each_other_stays(tmp_path: Path) -> None:
    """It takes any batch, but what it answers for one row is another thing in company."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["x", "m"], ["y"]),
    ]
    model = models.model(nodes, [models.value("x", [4, 3])], [models.value("y", [4, 3])], opset=17, ir=8)
    assert _freed(model, tmp_path).details == ()


def test_a_batch_that_is_open_by_name_only_is_closed(tmp_path: Path) -> None:
    freed = _freed(models.classifier("N", rows=(1, 4), opset=20, ir=8), tmp_path)
    assert freed.after == "x 1x3x8x8"
    assert "none of 2, 3, 4" in freed.details[0]


def test_a_batch_that_is_open_by_name_only_need_not_be_one(tmp_path: Path) -> None:
    assert _freed(models.classifier("N", rows=(4, 4), opset=20, ir=8), tmp_path).after == "x 4x3x8x8"


def test_what_is_declared_as_it_is_stays(tmp_path: Path) -> None:
    assert _freed(models.classifier("N", opset=20, ir=8), tmp_path).details == ()
    assert _freed(models.classifier(1, opset=20, ir=8), tmp_path).details == ()
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_that_is_none_means_any(tmp_path: Path, size: int) -> None:
    freed = _freed(models.classifier(size, opset=20, ir=8), tmp_path)
    assert freed.after == "x Nx3x8x8"
    assert freed.details[0] == f"x[0] is declared as {size}, which means any size"


def test_sizes_are_tried_only_when_asked_for(tmp_path: Path) -> None:
    assert _freed(models.classifier(1, opset=20, ir=8), tmp_path).details == ()
    freed = _freed(models.classifier(1, opset=20, ir=8), tmp_path, sizes=True)
    assert freed.sized
    assert freed.after == "x 1x3xHxW"


def test_a_size_that_the_graph_needs_is_told(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "rows"], ["y"])]
    rows = models.constant("rows", [1, 192])
    model = models.model(
        nodes, [models.value("x", [1, 3, 8, 8])], [models.value("y", [1, 192])], [rows], opset=20, ir=8
    )
    freed = _freed(model, tmp_path, sizes=True)
    assert not freed.sized
    assert "takes no pictures of 16x16" in freed.refused


def test_pictures_of_one_size_that_are_declared_open_are_closed(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "rows"], ["y"])]
    rows = models.constant("rows", [-1, 3 * 320 * 320])
    shapes = [models.value("x", ["N", 3, "h", "w"])], [models.value("y", ["N", 3 * 320 * 320])]
    freed = _freed(models.model(nodes, *shapes, [rows], opset=20, ir=8), tmp_path)
    assert freed.after.endswith("3x320x320")


# -- proof ----------------------------------------------------------------------------------------------------------


def _wrong(model: onnx.ModelProto) -> onnx.ModelProto:
    """As the onnx package's converter does it: stamped only, though the operator means another thing before 13."""
    model.opset_import[0].version = 12
    return model


def test_a_conversion_that_changes_the_meaning_is_found_out(tmp_path: Path) -> None:
    original = models.save(models.softmax(1), tmp_path / "original.onnx")
    wrong = models.save(_wrong(models.softmax(1)), tmp_path / "wrong.onnx")
    proven = proof.prove(_proof(original, wrong, evaluate=True))
    assert not proven.verdict.accepted
    assert "cosine" in proven.verdict.reason


def test_a_right_conversion_is_proven_by_the_reference_implementation(tmp_path: Path) -> None:
    original = models.save(models.softmax(1), tmp_path / "original.onnx")
    right = models.softmax(1)
    lower(right, 12)
    proven = proof.prove(_proof(original, models.save(right, tmp_path / "right.onnx"), evaluate=True))
    assert proven.verdict.accepted
    assert (proven.by, proven.questions) == (NAME, 1)  # no time was given beyond the first


def test_a_model_that_runs_here_is_compared_by_the_runtime(tmp_path: Path) -> None:
    original = models.save(models.classifier(opset=20, ir=8), tmp_path / "original.onnx")
    proven = proof.prove(_proof(original, original, evaluate=False))
    assert proven.verdict.accepted
    assert proven.by.startswith("onnxruntime ")
    assert proven.questions > 1


def test_a_repaired_model_that_refuses_the_question_is_rejected(tmp_path: Path) -> None:
    original = models.save(models.classifier("N", opset=20, ir=8), tmp_path / "original.onnx")
    broken = models.save(models.classifier("N", rows=(7, 9), opset=20, ir=8), tmp_path / "broken.onnx")
    proven = proof.prove(_proof(original, broken, evaluate=False))
    assert not proven.verdict.accepted
    assert "it refuses what the original answers" in proven.verdict.reason


def test_where_nobody_answers_for_the_original_it_is_said(tmp_path: Path) -> None:
    node = helper.make_node("Frobnicate", ["x"], ["y"], domain="com.example")
    model = models.model([node], [models.value("x", [1, 4])], [models.value("y", [1, 4])])
    model.opset_import.add(domain="com.example", version=1)
    original = models.save(model, tmp_path / "original.onnx")
    with pytest.raises(Unsuitable, match="the reference implementation"):
        proof.prove(_proof(original, original, evaluate=True))


def test_quantised_models_and_halves_are_given_more_room(tmp_path: Path) -> None:
    assert proof.tolerance_for(models.save(models.gelu(), tmp_path / "a.onnx")) == TOLERANCES["fp32"]
    halves = models.gelu()
    halves.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    assert proof.tolerance_for(models.save(halves, tmp_path / "b.onnx")) == TOLERANCES["fp16"]


def test_a_model_that_answers_certain_values_only_is_compared_by_those_that_its_user_gave(tmp_path: Path) -> None:
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
