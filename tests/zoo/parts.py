"""Parts for the models of the zoo, with a fixed IR version and opset that the runtimes accept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import helper, numpy_helper

from tests.integration.onnx_files import DTYPES

OPSET, IR = 17, 9
Dims = Sequence[int | str | None]


def value(name: str, datatype: str = "FP32", dims: Dims | None = ("n", 4)) -> onnx.ValueInfoProto:
    """Return an input or output. `dims` None omits the shape; a dimension None omits its size."""
    return helper.make_tensor_value_info(name, DTYPES[datatype], dims)


def node(operator: str, inputs: str | Sequence[str], outputs: str | Sequence[str], **attributes: Any) -> onnx.NodeProto:
    """Return a node. Names are separated by spaces; pass sequences for names with spaces."""
    inputs = inputs.split() if isinstance(inputs, str) else inputs
    outputs = outputs.split() if isinstance(outputs, str) else outputs
    return helper.make_node(operator, inputs, outputs, **attributes)


def constant(name: str, numbers: Any, dtype: Any = np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(numbers, dtype), name)


def graph(
    nodes: Iterable[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Sequence[onnx.TensorProto] = (),
    name: str = "graph",
) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, inputs, outputs, constants)


def model(
    of: onnx.GraphProto,
    opset: int = OPSET,
    ir: int = IR,
    domains: Mapping[str, int] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    opsets = [helper.make_opsetid(domain, version) for domain, version in {"": opset, **(domains or {})}.items()]
    return helper.make_model(of, opset_imports=opsets, ir_version=ir, functions=functions)


def chain(
    *nodes: onnx.NodeProto,
    inputs: Sequence[onnx.ValueInfoProto] | None = None,
    outputs: Sequence[onnx.ValueInfoProto] | None = None,
    constants: Sequence[onnx.TensorProto] = (),
    **options: Any,
) -> onnx.ModelProto:
    """Return a model from `x` to `y`, by default both FP32 [n, 4]; options are those of `model`."""
    ends = [value("x")] if inputs is None else inputs, [value("y")] if outputs is None else outputs
    return model(graph(nodes, *ends, constants), **options)


def text(graph: str) -> onnx.ModelProto:
    """Parse a graph in ONNX's textual syntax (docs/Syntax.md of onnx). It may begin with inputs and outputs; by default
    those of `chain`. Braces around nodes alone may be omitted."""
    graph = graph.strip() if graph.strip()[0] in "(<" else f"{{ {graph} }}"
    ends = "" if graph.startswith("(") else "(float[n,4] x) => (float[n,4] y)"
    return model(onnx.parser.parse_graph(f"graph {ends} {graph}"))


def relu(**options: Any) -> onnx.ModelProto:
    """Return the simplest model: y = max(x, 0)."""
    return chain(node("Relu", "x", "y"), **options)


def body(*nodes: onnx.NodeProto, outputs: Sequence[onnx.ValueInfoProto], name: str = "branch") -> onnx.GraphProto:
    """Return the branch of an If: it has no inputs and sees outer names."""
    return graph(nodes, [], outputs, name=name)


def choice(then: onnx.GraphProto, other: onnx.GraphProto, condition: str = "up", output: str = "y") -> onnx.NodeProto:
    return node("If", [condition], [output], then_branch=then, else_branch=other)


def dense(layers: int = 3, width: int = 64) -> onnx.ModelProto:
    """Return a small network with most of its bytes in weights: x FP32 [n, width] to y of the same shape."""
    random = np.random.default_rng(layers)
    weights = [constant(f"w{at}", random.standard_normal((width, width)) / 8) for at in range(layers)]
    names = ["x", *(f"t{at}" for at in range(1, layers)), "y"]
    nodes = [node("MatMul", [names[at], f"w{at}"], [names[at + 1]], name=f"layer{at}") for at in range(layers)]
    rows: Dims = ["n", width]
    return chain(*nodes, inputs=[value("x", dims=rows)], outputs=[value("y", dims=rows)], constants=weights)
