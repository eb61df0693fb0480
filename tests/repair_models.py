"""Models that need a repair, each about one thing, as exporters write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

# A new exporter stamps what its onnx package knows, whatever the graph uses.
NEW_OPSET, NEW_IR = 28, 14


def value(name: str, shape: Sequence[int | str | None] | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name: str, values: Sequence[int] | np.ndarray, dtype: type = np.int64) -> TensorProto:
    return numpy_helper.from_array(np.asarray(values, dtype), name)


def model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Iterable[TensorProto] = (),
    *,
    opset: int = NEW_OPSET,
    ir: int = 10,
) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)


def save(made: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(made.SerializeToString())
    return path


def classifier(
    batch: int | str = "N",
    *,
    rows: Sequence[int] = (0, -1),
    size: int | str = 8,
    opset: int = NEW_OPSET,
    ir: int = NEW_IR,
) -> onnx.ModelProto:
    """x FP32[batch, 3, size, size] -> y FP32[batch, 4]; `rows` is what the constant inside reshapes to."""
    weights = np.random.default_rng(7).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Reshape", ["p", "rows"], ["f"]),
        helper.make_node("Softmax", ["f"], ["y"], name="softmax", axis=1),
    ]
    constants = [constant("w", weights, np.float32), constant("rows", rows)]
    made = model(nodes, [value("x", [batch, 3, size, size])], [value("y", [batch, 4])], constants, opset=opset, ir=ir)
    made.metadata_props.add(key="author", value="somebody")
    return made


def softmax(axis: int) -> onnx.ModelProto:
    node = helper.make_node("Softmax", ["x"], ["y"], name="s", axis=axis)
    return model([node], [value("x", [2, 3, 4, 5])], [value("y", [2, 3, 4, 5])])


def split(size: int = 5, parts: int = 2) -> onnx.ModelProto:
    """x FP32[2, size] in parts, of which the last may be smaller, as before opset 18 nobody could say."""
    names = [f"y{place}" for place in range(parts)]
    node = helper.make_node("Split", ["x"], names, axis=1, num_outputs=parts)
    return model([node], [value("x", [2, size])], [value(name, [2, None]) for name in names], opset=18)


def mean(*, as_node: bool = False) -> onnx.ModelProto:
    """Axes are an input since opset 18; here a constant, or one that a node makes."""
    axes = constant("axes", [2, 3])
    nodes = [helper.make_node("ReduceMean", ["x", "axes"], ["y"], keepdims=0)]
    if as_node:
        nodes.insert(0, helper.make_node("Constant", [], ["axes"], value=axes))
    constants = [] if as_node else [axes]
    return model(nodes, [value("x", [1, 3, 4, 4])], [value("y", [1, 3])], constants, opset=18)


def resize(opset: int = 19) -> onnx.ModelProto:
    scales = constant("scales", [1, 1, 2, 2], np.float32)
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    return model([node], [value("x", [1, 3, 4, 4])], [value("y", [1, 3, 8, 8])], [scales], opset=opset)


def gelu(opset: int = NEW_OPSET) -> onnx.ModelProto:
    """An operator of opset 20 that is defined by older ones."""
    return model([helper.make_node("Gelu", ["x"], ["y"])], [value("x", ["N", 8])], [value("y", ["N", 8])], opset=opset)


def scatter() -> onnx.ModelProto:
    """An operator of opset 24 that is defined by no others."""
    node = helper.make_node("TensorScatter", ["x", "u"], ["y"], name="cache")
    return model([node], [value("x", [1, 2, 4, 8]), value("u", [1, 2, 2, 8])], [value("y", [1, 2, 4, 8])])


def branches() -> onnx.ModelProto:
    """If x sums up to more than zero, one branch, otherwise the other; both take x from outside and hold a Gelu."""

    def branch(name: str, axis: int) -> onnx.GraphProto:
        nodes = [
            helper.make_node("Constant", [], [f"{name}_axes"], value=constant("", [axis])),
            helper.make_node("ReduceSum", ["x", f"{name}_axes"], [f"{name}_sum"], keepdims=1),
            helper.make_node("Gelu", [f"{name}_sum"], [f"{name}_out"]),
        ]
        return helper.make_graph(nodes, name, [], [value(f"{name}_out", [None, None])])

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Constant", [], ["zero"], value_float=0.0),
        helper.make_node("Greater", ["total", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], then_branch=branch("rows", 1), else_branch=branch("columns", 0)),
    ]
    return model(nodes, [value("x", [3, 4])], [value("y", [None, None])])
