"""Walks an ONNX graph: its nodes, the graphs inside them, and names for them in messages.

Runs where a model is parsed. Graphs are nested a few dozen deep at most, since protobuf refuses more (`model_file.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx

ONNX_DOMAINS = ("", "ai.onnx")  # two ways to write ONNX's own
# What passes values on as they are: shapes, types and the numbers that stand for them change.
_PASSING = frozenset(
    (
        *("Cast", "DequantizeLinear", "Dropout", "Flatten", "Identity", "QuantizeLinear"),
        *("Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"),
    )
)
_MOST_STEPS = 64  # a cycle is no graph, and a file may hold one


def text(value: str | bytes) -> str:
    """Protobuf hands out bytes for text that is not UTF-8."""
    return value if isinstance(value, str) else value.decode(errors="replace")


def domain(name: str | bytes) -> str:
    """A domain's name, `ai.onnx` for ONNX's own."""
    return text(name) or "ai.onnx"


def operator(node: onnx.NodeProto) -> str:
    """With its domain if that is not ONNX's own."""
    return operator_name(node.domain, node.op_type)


def operator_name(domain: str | bytes, name: str | bytes) -> str:
    """As `operator`, of what a node says of itself."""
    own = text(domain)
    return text(name) if own in ONNX_DOMAINS else f"{own}.{text(name)}"


def label(node: onnx.NodeProto) -> str:
    """A node's name; one without is named by what it makes."""
    return text(node.name) or ", ".join(text(name) for name in node.output if name) or text(node.op_type)


def called(node: onnx.NodeProto) -> str:
    """`node 'conv1' (Conv)`, for messages."""
    return f"node {label(node)[:100]!r} ({operator(node)[:100]})"


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that a node holds, such as the branches of an If."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and every graph inside its nodes."""
    waiting = [graph]
    while waiting:
        current = waiting.pop()
        yield current
        waiting += _inside(current.node)


def all_graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Those of the main graph, and those inside the nodes of local functions."""
    yield from graphs(proto.graph)
    for function in proto.functions:
        for body in _inside(function.node):
            yield from graphs(body)


@dataclass(frozen=True)
class Walk:
    """All that is in a model, gone through once: graphs may hold hundreds of thousands of nodes, and going through them
    is most of what looking at one costs. What is listed is the model's own, so changing it changes the model."""

    proto: onnx.ModelProto
    graphs: Sequence[onnx.GraphProto]  # the main one first, then those inside its nodes
    nodes: Sequence[onnx.NodeProto]  # wherever they are, those of the main graph first, those of functions last
    tensors: Sequence[onnx.TensorProto]  # with values in the file or next to it: initialisers, then those in attributes

    @classmethod
    def of(cls, proto: onnx.ModelProto) -> Walk:
        main = list(graphs(proto.graph))
        inner = [body for function in proto.functions for body in _inside(function.node)]
        every = [*main, *(graph for body in inner for graph in graphs(body))]
        nodes = [node for graph in every for node in graph.node]
        nodes += [node for function in proto.functions for node in function.node]
        tensors = [tensor for graph in every for tensor in _constants(graph)]
        tensors += [tensor for node in nodes if node.attribute for tensor in _attached(node)]
        return cls(proto, main, nodes, tensors)


def _inside(nodes: Iterable[onnx.NodeProto]) -> list[onnx.GraphProto]:
    return [body for node in nodes if node.attribute for body in bodies(node)]


def _constants(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)


def _attached(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("sparse_tensor"):
            yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)


def heads(graph: onnx.GraphProto) -> dict[str, str]:
    """For every output the operator that computes its values; empty for one that is an input or a constant.

    A softmax that was written out, Exp and then Div, counts as Softmax.
    """
    makers = {name: node for node in graph.node for name in node.output}
    return {text(value.name): _head(makers, value.name) for value in graph.output}


def _head(makers: dict[str, onnx.NodeProto], name: str) -> str:
    for _ in range(_MOST_STEPS):
        node = makers.get(name)
        if node is None:
            return ""
        if node.op_type not in _PASSING or not node.input:
            numerator = makers.get(node.input[0]) if node.op_type == "Div" and node.input else None
            is_softmax = numerator is not None and numerator.op_type == "Exp"
            return "Softmax" if is_softmax else operator(node)
        name = node.input[0]
    return ""
