"""Models written in older versions of ONNX's operators: what comes out is what ONNX's own reference says of what went
in, and is what a runtime takes."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from edged.errors import Unsuitable
from edged.jobs.repair import lowering
from edged.jobs.repair.lowering import LoweredGraph, lower, newest_known, opset_of
from edged.tensors import Array
from tests import repair_models as models


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
    answer = ort.InferenceSession(changed.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, inputs)
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
def test_a_model_answers_the_same_in_an_older_opset(model: onnx.ModelProto, target: int) -> None:
    changed, _ = _lowered(model, target)
    assert opset_of(changed) == target
    _assert_same_answers(model, changed)


def test_operators_that_mean_the_same_are_only_stamped_anew() -> None:
    original = models.classifier()
    changed, done = _lowered(original, 21)
    assert done.by_definition
    assert done.details == ()
    assert changed.graph == original.graph
    assert changed.metadata_props == original.metadata_props


def test_types_that_only_the_newer_version_takes_are_no_definition() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["e"], to=TensorProto.FLOAT8E8M0),
        helper.make_node("Cast", ["e"], ["y"], to=1),
    ]
    model = models.model(nodes, [models.value("x", [4])], [models.value("y", [4])], opset=24)
    try:
        _, done = _lowered(model, 23)
    except Unsuitable:
        return
    assert not done.by_definition


def test_what_was_changed_is_told() -> None:
    _, done = _lowered(models.mean(), 17)
    assert done.details == ("1 ReduceMean converted for opset 17",)
    assert not done.by_definition


def test_axes_that_become_an_attribute_leave_no_constant_behind() -> None:
    for model in (models.mean(), models.mean(as_node=True)):
        changed, _ = _lowered(model, 17)
        assert not changed.graph.initializer
        assert [node.op_type for node in changed.graph.node] == ["ReduceMean"]


def test_a_softmax_is_not_just_stamped() -> None:
    """The converter of the onnx package leaves it as it is, which means something else before opset 13."""
    changed, done = _lowered(models.softmax(1), 12)
    assert [node.op_type for node in changed.graph.node] == ["Transpose", "Softmax", "Transpose"]
    assert not done.by_definition


def test_weights_are_what_they_were() -> None:
    weights = np.random.default_rng(1).standard_normal((256, 256)).astype(np.float32)  # larger than what stays in sight
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Gelu", ["m"], ["y"])]
    shape: list[int | str | None] = ["N", 256]
    model = models.model(
        nodes, [models.value("x", shape)], [models.value("y", shape)], [models.constant("w", weights, np.float32)]
    )
    changed, _ = _lowered(model, 19)
    assert changed.graph.initializer[0] == model.graph.initializer[0]
    _assert_same_answers(model, changed)


def test_external_data_stays_where_it_is() -> None:
    model = models.classifier()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    changed, _ = _lowered(model, 11)  # nothing there to be read
    assert changed.graph.initializer[0] == tensor


def test_an_operator_that_is_not_there_before_is_named() -> None:
    with pytest.raises(Unsuitable, match=r"operator TensorScatter \(node 'cache'\) was added in opset 24"):
        _lowered(models.scatter(), 23)


def test_a_node_that_uses_what_is_new_is_named() -> None:
    node = helper.make_node("AveragePool", ["x"], ["y"], name="pool", kernel_shape=[2, 2], dilations=[2, 2])
    model = models.model([node], [models.value("x", [1, 1, 8, 8])], [models.value("y", None)], opset=19)
    with pytest.raises(Unsuitable, match=r"AveragePool \(node 'pool'\) cannot be converted to opset 18"):
        _lowered(model, 18)


def test_an_opset_that_nobody_here_knows_is_not_guessed_at() -> None:
    with pytest.raises(Unsuitable, match="newer than the installed onnx package"):
        _lowered(models.classifier(opset=newest_known() + 1), 21)


def test_names_that_the_converter_makes_collide_with_none() -> None:
    nodes = [helper.make_node("Gelu", ["x"], ["y"]), helper.make_node("Gelu", ["y"], ["y.Half__1"])]
    shape: list[int | str | None] = ["N", 8]
    model = models.model(nodes, [models.value("x", shape)], [models.value("y.Half__1", shape)])
    changed, _ = _lowered(model, 19)
    _assert_same_answers(model, changed)


# -- the version of the file format ---------------------------------------------------------------------------------


def test_a_model_is_stamped_with_an_older_ir_version() -> None:
    model = models.classifier()
    lowering.stamp_ir_version(model, 8)
    assert model.ir_version == 8


def test_elements_that_an_older_ir_version_does_not_know_are_named() -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT4)
    model = models.model([node], [models.value("x", [4])], [models.value("y", [4], TensorProto.INT4)], ir=14)
    with pytest.raises(Unsuitable, match="elements of type INT4, which IR version 9 does not know"):
        lowering.stamp_ir_version(model, 9)


def test_an_ir_version_that_nobody_here_knows_is_not_guessed_at() -> None:
    with pytest.raises(Unsuitable, match="newer than the installed onnx package"):
        lowering.stamp_ir_version(models.classifier(ir=onnx.IR_VERSION + 1), 8)
