"""Models that need a repair, each for one reason, as exporters write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from edged.tensors import Array
from tests import models
from tests.models import save as save

# A new exporter writes the newest versions that its onnx package knows, whatever the graph uses.
NEW_OPSET, NEW_IR = 28, 14


def parse(
    graph: str, constants: Mapping[str, Array] | None = None, *, opset: int = NEW_OPSET, ir: int = 10
) -> onnx.ModelProto:
    return models.parse(graph, constants, opset=opset, ir_version=ir)


def classifier(
    batch: int | str = "N",
    *,
    rows: Sequence[int] = (0, -1),
    size: int | str = 8,
    opset: int = NEW_OPSET,
    ir: int = NEW_IR,
) -> onnx.ModelProto:
    """x FP32[batch, 3, size, size] -> y FP32[batch, 4]; `rows` is the target shape of the constant Reshape inside."""
    weights = np.random.default_rng(7).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = models.nodes(
        "[conv] c = Conv<pads = [1, 1, 1, 1]>(x, w)",
        "r = Relu(c)",
        "p = GlobalAveragePool(r)",
        "f = Reshape(p, rows)",
        "[softmax] y = Softmax<axis = 1>(f)",
    )
    ends = [models.value("x", "FP32", [batch, 3, size, size])], [models.value("y", "FP32", [batch, 4])]
    constants = [onnx.numpy_helper.from_array(weights, "w")]
    constants.append(onnx.numpy_helper.from_array(np.array(rows, np.int64), "rows"))
    return models.model(nodes, *ends, constants, opset=opset, ir_version=ir, metadata={"author": "Ada"})


def softmax(axis: int) -> onnx.ModelProto:
    return parse(f"(float[2,3,4,5] x) => (float[2,3,4,5] y) {{ [s] y = Softmax<axis = {axis}>(x) }}")


def split(size: int = 5, parts: int = 2) -> onnx.ModelProto:
    """x FP32[2, size] in parts. The last may be smaller, which a model can express only since opset 18."""
    names = [f"y{place}" for place in range(parts)]
    outputs = ", ".join(f"float[2,?] {name}" for name in names)
    node = f"{', '.join(names)} = Split<axis = 1, num_outputs = {parts}>(x)"
    return parse(f"(float[2,{size}] x) => ({outputs}) {{ {node} }}", opset=18)


def mean(*, as_node: bool = False) -> onnx.ModelProto:
    """Axes are an input since opset 18: here a constant, or the output of a Constant node."""
    constant, node = "<int64[2] axes = {2, 3}>", ""
    if as_node:
        constant, node = "", "axes = Constant<value = int64[2] {2, 3}>()"
    graph = f"(float[1,3,4,4] x) => (float[1,3] y) {constant} {{ {node} y = ReduceMean<keepdims = 0>(x, axes) }}"
    return parse(graph, opset=18)


def resize(opset: int = 19) -> onnx.ModelProto:
    graph = """(float[1,3,4,4] x) => (float[1,3,8,8] y) <float[4] scales = {1, 1, 2, 2}>
        { y = Resize<mode = "linear">(x, , scales) }"""
    return parse(graph, opset=opset)


def gelu(opset: int = NEW_OPSET) -> onnx.ModelProto:
    """An operator of opset 20 that is defined by older operators."""
    return parse("(float[N,8] x) => (float[N,8] y) { y = Gelu(x) }", opset=opset)


def scatter() -> onnx.ModelProto:
    """An operator of opset 24 without a definition by other operators."""
    return parse("(float[1,2,4,8] x, float[1,2,2,8] u) => (float[1,2,4,8] y) { [cache] y = TensorScatter(x, u) }")


def branches() -> onnx.ModelProto:
    """An If: both branches read x from the outer graph and have a Gelu."""

    def branch(name: str, axis: int) -> str:
        return f"""{name} () => (float[?,?] {name}_out) {{
            {name}_axes = Constant<value = int64[1] {{{axis}}}>()
            {name}_sum = ReduceSum<keepdims = 1>(x, {name}_axes)
            {name}_out = Gelu({name}_sum)
        }}"""

    return parse(
        f"""(float[3,4] x) => (float[?,?] y) {{
            total = ReduceSum<keepdims = 0>(x)
            zero = Constant<value_float = 0.0>()
            positive = Greater(total, zero)
            y = If(positive) <then_branch = {branch("rows", 1)}, else_branch = {branch("columns", 0)}>
        }}"""
    )
