"""Conversion to older opsets: the answers equal those of ONNX's reference implementation for the original."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from edged.errors import Unsuitable
from edged.jobs.repair import lowering
from edged.jobs.repair.lowering import LoweredGraph, lower, newest_known, opset_of
from edged.tensors import Array
from tests import models as plain_models
from tests import repair_models as models
from tests.models import value


def _questions(model: onnx.ModelProto) -> dict[str, Array]:
    random = np.random.default_rng(3)
    shapes = {v.name: [d.dim_value or 2 for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def _lowered(model: onnx.ModelProto, target: int) -> tuple[onnx.ModelProto, LoweredGraph]:
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    done = lower(copy, target)
    copy.ir_version = 8
    return copy, done


def _assert_same_answers(original: onnx.ModelProto, changed: onnx.ModelProto) -> None:
    onnx.checker.check_model(changed, full_check=True)
    inputs = _questions(original)
    expected = ReferenceEvaluator(original).run(None, inputs)
    try:
        session = ort.InferenceSession(changed.SerializeToString(), providers=["CPUExecutionProvider"])
    except Fail:  # an older ONNX Runtime does not support the opset
        session = ReferenceEvaluator(changed)
    answer = session.run(None, inputs)
    for one, other in zip(expected, answer, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "target"),
    [
        (models.classifier(), 26),
        (models.classifier(), 21),
        (models.classifier(), 17),
        (models.classifier(), 13),
        (models.classifier(), 11),
        (models.softmax(1), 12),
        (models.softmax(-1), 12),
        (models.softmax(-2), 11),
        (models.softmax(3), 12),
        (models.split(5, 2), 17),
        (models.split(6, 2), 17),
        (models.split(7, 3), 13),
        (models.split(7, 3), 11),
        (models.mean(), 17),
        (models.mean(as_node=True), 13),
        (models.resize(), 18),
        (models.resize(), 13),
        (models.resize(13), 11),
        (models.gelu(), 19),
        (models.branches(), 21),
        (models.branches(), 18),
    ],
)
def test_lower_model_answers_the_same(model: onnx.ModelProto, target: int) -> None:
    changed, _ = _lowered(model, target)
    assert opset_of(changed) == target
    _assert_same_answers(model, changed)


def test_lower_operators_with_equal_definitions_changes_only_the_opset() -> None:
    original = models.classifier()
    changed, done = _lowered(original, 21)
    assert done.by_definition
    assert done.details == ()
    assert changed.graph == original.graph
    assert changed.metadata_props == original.metadata_props


def test_lower_types_that_only_the_newer_version_accepts_are_no_definition() -> None:
    model = models.parse("(float[4] x) => (float[4] y) { e = Cast<to = 24>(x) y = Cast<to = 1>(e) }", opset=24)
    try:
        _, done = _lowered(model, 23)
    except Unsuitable:
        return
    assert not done.by_definition


@pytest.mark.parametrize("as_node", [False, True])
def test_lower_axes_that_become_an_attribute_leave_no_constant(as_node: bool) -> None:
    changed, done = _lowered(models.mean(as_node=as_node), 17)
    assert not changed.graph.initializer
    assert [node.op_type for node in changed.graph.node] == ["ReduceMean"]
    assert done.details == ("1 ReduceMean converted for opset 17",)
    assert not done.by_definition


def test_lower_softmax_is_rewritten() -> None:
    """The onnx package's converter leaves it unchanged, although its meaning differs before opset 13."""
    changed, done = _lowered(models.softmax(1), 12)
    assert [node.op_type for node in changed.graph.node] == ["Transpose", "Softmax", "Transpose"]
    assert not done.by_definition


def test_lower_keeps_weights() -> None:
    weights = np.random.default_rng(1).standard_normal((256, 256)).astype(np.float32)  # larger than inlined tensors
    model = models.parse("(float[N,256] x) => (float[N,256] y) { m = MatMul(x, w) y = Gelu(m) }", {"w": weights})
    changed, _ = _lowered(model, 19)
    assert changed.graph.initializer[0] == model.graph.initializer[0]
    _assert_same_answers(model, changed)


def test_lower_keeps_external_data() -> None:
    model = models.classifier()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    changed, _ = _lowered(model, 11)  # although the file does not exist
    assert changed.graph.initializer[0] == tensor


_DILATED = "[pool] y = AveragePool<kernel_shape = [2, 2], dilations = [2, 2]>(x)"


@pytest.mark.parametrize(
    ("model", "target", "problem"),
    [
        (models.scatter(), 23, r"operator TensorScatter \(node 'cache'\) was added in opset 24"),
        (
            models.parse(f"(float[1,1,8,8] x) => (float[] y) {{ {_DILATED} }}", opset=19),
            18,
            r"AveragePool \(node 'pool'\) cannot be converted to opset 18",
        ),
        (models.classifier(opset=newest_known() + 1), 21, "newer than the installed onnx package"),
    ],
    ids=["newer operator", "newer attribute", "unknown opset"],
)
def test_lower_model_that_needs_its_opset_is_unsuitable(model: onnx.ModelProto, target: int, problem: str) -> None:
    with pytest.raises(Unsuitable, match=problem):
        _lowered(model, target)


def test_lower_names_that_the_converter_makes_do_not_collide() -> None:
    nodes = [helper.make_node("Gelu", ["x"], ["y"]), helper.make_node("Gelu", ["y"], ["y.Half__1"])]
    ends = [value("x", "FP32", ["N", 8])], [value("y.Half__1", "FP32", ["N", 8])]
    model = plain_models.model(nodes, *ends, opset=models.NEW_OPSET)
    changed, _ = _lowered(model, 19)
    _assert_same_answers(model, changed)


# -- the version of the file format ---------------------------------------------------------------------------------


def test_stamp_ir_version_older_is_written() -> None:
    model = models.classifier()
    lowering.stamp_ir_version(model, 8)
    assert model.ir_version == 8


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (models.parse("(float[4] x) => (int4[4] y) { y = Cast<to = 22>(x) }", ir=14), "type INT4, which IR version 9"),
        (models.classifier(ir=onnx.IR_VERSION + 1), "newer than the installed onnx package"),
    ],
    ids=["newer type", "unknown version"],
)
def test_stamp_ir_version_that_the_model_needs_is_unsuitable(model: onnx.ModelProto, problem: str) -> None:
    with pytest.raises(Unsuitable, match=problem):
        lowering.stamp_ir_version(model, 9)
