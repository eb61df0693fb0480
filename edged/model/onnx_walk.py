"""Going through an ONNX graph: its nodes, the graphs inside them, and what to call them when something is wrong.

Runs where a model is parsed. Graphs are nested a few dozen deep at most, since protobuf refuses more (`wire.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

ONNX_DOMAINS = ("", "ai.onnx")  # two ways to write ONNX's own


def text(value: str | bytes) -> str:
    """Protobuf hands out bytes for text that is not UTF-8."""
    return value if isinstance(value, str) else value.decode(errors="replace")


def domain(name: str | bytes) -> str:
    """A domain's name, `ai.onnx` for ONNX's own."""
    return text(name) or "ai.onnx"


def operator(node: onnx.NodeProto) -> str:
    """With its domain where that is not ONNX's own."""
    own, name = text(node.domain), text(node.op_type)
    return name if own in ONNX_DOMAINS else f"{own}.{name}"


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
        for node in current.node:
            waiting.extend(bodies(node))


def all_graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Those of the main graph, and those inside the nodes of local functions."""
    yield from graphs(proto.graph)
    for function in proto.functions:
        for node in function.node:
            for body in bodies(node):
                yield from graphs(body)


def all_nodes(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node, wherever it is."""
    for graph in all_graphs(proto):
        yield from graph.node
    for function in proto.functions:
        yield from function.node


def tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Everything that has values in the file or beside it: initialisers, and tensors in attributes."""
    for graph in all_graphs(proto):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for node in all_nodes(proto):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("sparse_tensor"):
                yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
