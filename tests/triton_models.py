"""The models that Triton's example clients use, with the same tensor names and shapes, made with onnx.helper.

Each is a folder of a model repository, with a config.pbtxt if Triton needs one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

I32, U32 = TensorProto.INT32, TensorProto.UINT32
ROWS = ["n", 16]


def write_all(models: Path) -> None:
    """Write all models into a folder."""
    simple(models)
    simple_int8(models)
    simple_string(models)
    simple_identity(models)
    simple_sequence(models)
    repeat_int32(models)
    classes(models)


def simple(models: Path, name: str = "simple") -> Path:
    """OUTPUT0 = INPUT0 + INPUT1 and OUTPUT1 = INPUT0 - INPUT1, INT32 [n, 16], up to 8 rows."""
    nodes = [_node("Add", "INPUT0 INPUT1", "OUTPUT0"), _node("Sub", "INPUT0 INPUT1", "OUTPUT1")]
    return _save(models, name, nodes, _pair("INPUT", I32), _pair("OUTPUT", I32), config="max_batch_size: 8\n")


def simple_int8(models: Path) -> Path:
    """As `simple`, of INT8, which is cast to INT32, because runtimes cannot add INT8."""
    nodes = [
        _node("Cast", "INPUT0", "a", to=I32),
        _node("Cast", "INPUT1", "b", to=I32),
        _node("Add", "a b", "sum"),
        _node("Sub", "a b", "difference"),
        _node("Cast", "sum", "OUTPUT0", to=TensorProto.INT8),
        _node("Cast", "difference", "OUTPUT1", to=TensorProto.INT8),
    ]
    return _save(
        models, "simple_int8", nodes, _pair("INPUT", TensorProto.INT8), _pair("OUTPUT", TensorProto.INT8),
        config="max_batch_size: 8\n",
    )  # fmt: skip


def simple_string(models: Path) -> Path:
    """As `simple`, with decimal numbers as BYTES."""
    nodes = [
        _node("Cast", "INPUT0", "a", to=I32),
        _node("Cast", "INPUT1", "b", to=I32),
        _node("Add", "a b", "sum"),
        _node("Sub", "a b", "difference"),
        _node("Cast", "sum", "OUTPUT0", to=TensorProto.STRING),
        _node("Cast", "difference", "OUTPUT1", to=TensorProto.STRING),
    ]
    return _save(
        models, "simple_string", nodes, _pair("INPUT", TensorProto.STRING), _pair("OUTPUT", TensorProto.STRING),
        config="max_batch_size: 8\n",
    )  # fmt: skip


def simple_identity(models: Path) -> Path:
    """OUTPUT0 = INPUT0, BYTES [n, m]."""
    tensors = [_value("INPUT0", TensorProto.STRING, ["n", "m"])], [_value("OUTPUT0", TensorProto.STRING, ["n", "m"])]
    return _save(models, "simple_identity", [_node("Identity", "INPUT0", "OUTPUT0")], *tensors)


def simple_sequence(models: Path) -> Path:
    """OUTPUT is the sum of the sequence's INPUTs so far, plus 1: INT32 [n, 1]. Inputs: the START flag, the kept sum."""
    nodes = [
        _node("Add", "INPUT SUM_IN", "so_far"),
        _node("Add", "so_far START", "SUM_OUT"),
        _node("Identity", "SUM_OUT", "OUTPUT"),
    ]
    inputs = [_value(name, I32, ["n", 1]) for name in ("INPUT", "SUM_IN", "START")]
    outputs = [_value(name, I32, ["n", 1]) for name in ("OUTPUT", "SUM_OUT")]
    config = """
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] }
  ]
  state [ { input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
}
"""
    return _save(models, "simple_sequence", nodes, inputs, outputs, config=config)


def repeat_int32(models: Path) -> Path:
    """A response for each element of IN, INT32 [k]: OUT is the element, IDX its index. DELAY and WAIT, the sleep times
    of Triton's model, have no effect."""
    nodes = [
        _node("Identity", "IN", "OUT"),
        _node("Shape", "IN", "shape"),
        _node("ConstantOfShape", "shape", "ones", value=numpy_helper.from_array(np.array([1], np.int32))),
        _node("CumSum", "ones zero", "numbers", exclusive=1),
        # Unused inputs would be removed from the graph.
        _node("Cast", "DELAY", "delays", to=I32),
        _node("Cast", "WAIT", "wait", to=I32),
        _node("Add", "delays wait", "seconds"),
        _node("Mul", "seconds zero", "none"),
        _node("Add", "numbers none", "index"),
        _node("Cast", "index", "IDX", to=U32),
    ]
    inputs = [_value("IN", I32, ["k"]), _value("DELAY", U32, ["k"]), _value("WAIT", U32, [1])]
    outputs = [_value("OUT", I32, ["k"]), _value("IDX", U32, ["k"])]
    constants = [numpy_helper.from_array(np.array(0, np.int32), "zero")]
    config = "model_transaction_policy { decoupled: true }\n"
    return _save(models, "repeat_int32", nodes, inputs, outputs, constants, config)


def classes(models: Path) -> Path:
    """probabilities = scores, FP32 [n, 4], with class names in a file."""
    config = """
max_batch_size: 4
output [ { name: "probabilities" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "labels.txt" } ]
input [ { name: "scores" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
    tensors = [_value("scores", TensorProto.FLOAT, ["n", 4])], [_value("probabilities", TensorProto.FLOAT, ["n", 4])]
    path = _save(models, "classes", [_node("Identity", "scores", "probabilities")], *tensors, config=config)
    (path / "labels.txt").write_text("circle\nsquare\ntriangle\n")
    return path


def _save(
    models: Path,
    name: str,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: list[onnx.TensorProto] | None = None,
    config: str = "",
) -> Path:
    """Save a model with fixed IR version and opset: onnx's newest versions are too new for the runtimes."""
    folder = models / name
    (folder / "1").mkdir(parents=True)
    graph = helper.make_graph(nodes, name, inputs, outputs, constants or [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, folder / "1" / "model.onnx")
    if config:
        (folder / "config.pbtxt").write_text(config)
    return folder


def _node(operator: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


def _value(name: str, kind: int, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _pair(name: str, kind: int) -> list[onnx.ValueInfoProto]:
    return [_value(f"{name}{index}", kind, [*ROWS]) for index in (0, 1)]
