"""Finds the nodes and nested graphs of an ONNX graph, and describes nodes in messages.

Runs in a child. Graphs are nested at most a few dozen deep, because protobuf refuses more (`model_file.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx

ONNX_DOMAINS = ("", "ai.onnx")  # both names of the default domain
# Operators that keep values and change only their shape, type or representation.
_PASSING = frozenset(
    (
        *("Cast", "DequantizeLinear", "Dropout", "Flatten", "Identity", "QuantizeLinear"),
        *("Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"),
    )
)
_MOST_STEPS = 64  # a limit, because an invalid file may contain a cycle


def text(value: str | bytes) -> str:
    """Return a protobuf string as text. Protobuf returns bytes if a string is not UTF-8."""
    return value if isinstance(value, str) else value.decode(errors="replace")


def domain(name: str | bytes) -> str:
    """Return a domain's name, `ai.onnx` for the default domain."""
    return text(name) or "ai.onnx"


def operator(node: onnx.NodeProto) -> str:
    """Return the operator of a node, such as `Conv` or `com.microsoft.FusedConv`."""
    return operator_name(node.domain, node.op_type)


def operator_name(domain: str | bytes, name: str | bytes) -> str:
    """Return an operator's name. Outside of the default domain, the name begins with the domain."""
    own = text(domain)
    return text(name) if own in ONNX_DOMAINS else f"{own}.{text(name)}"


def label(node: onnx.NodeProto) -> str:
    """Return the name of a node; without a name its outputs, and without outputs its operator."""
    return text(node.name) or ", ".join(text(name) for name in node.output if name) or text(node.op_type)


def called(node: onnx.NodeProto) -> str:
    """Return a node's description for messages: `node 'conv1' (Conv)`."""
    return f"node {label(node)[:100]!r} ({operator(node)[:100]})"


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs inside a node, for example the branches of an If."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield the graph and all graphs nested in it."""
    waiting = [graph]
    while waiting:
        current = waiting.pop()
        yield current
        waiting += _inside(current.node)


def all_graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Yield the main graph, all graphs nested in it, and all graphs nested in local functions."""
    yield from graphs(proto.graph)
    for function in proto.functions:
        for body in _inside(function.node):
            yield from graphs(body)


@dataclass(frozen=True)
class Walk:
    """All graphs, nodes and tensors of a model, collected in one pass, because a graph may have hundreds of thousands
    of nodes. The lists contain the model's own messages: a change of a message changes the model."""

    proto: onnx.ModelProto
    graphs: Sequence[onnx.GraphProto]  # the main graph first, then the graphs nested in it; not those in functions
    nodes: Sequence[onnx.NodeProto]  # all nodes: those of the main graph first, those of functions last
    tensors: Sequence[onnx.TensorProto]  # all initializers, then all tensors in attributes

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
    """Return for each output the operator that computes its values (not Reshape, for example); empty if the output
    comes from an input or a constant.

    Exp followed by Div, as some exporters write a softmax, counts as Softmax.
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
