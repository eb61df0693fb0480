"""The graph of an engine for a device: written so that its nodes can be told apart, and what in it is about shapes.

Runs in the child that builds, as everything that parses a model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any, TypeAlias

from edged.backends.onnx_graph import Model, bodies, captured, keep_inputs, read_proto
from edged.backends.ort.placement import PlacedNode, Placement

_Graph: TypeAlias = Any  # onnx.GraphProto; the package has no types
_Node: TypeAlias = Any  # onnx.NodeProto
# The only operators that make a host's number out of a device's tensor without looking at its values.
_SHAPES = frozenset({"Shape", "Size"})
# What nearly all of a network's time is spent in, also fused or quantised: FusedConv, QLinearMatMul, QGemm, ...
_LAYERS = ("Conv", "Gemm", "MatMul")
# Precisions of those by an element type (onnx.TensorProto.DataType) that one of their inputs has, the decisive first.
_PRECISIONS = {2: "int8", 3: "int8", 10: "fp16", 16: "bf16", 1: "fp32", 11: "fp64"}


def write_named(source: Path, out: Path) -> Model:
    """Writes the model as `out`, with weights in one file beside it where it had them outside, every node named, and no
    initializer among the inputs.

    Exporters may leave nodes without names or give one to several; a name is all by which ONNX Runtime tells which
    node runs where. EngineUnusable or Unsuitable when the model cannot be read.
    """
    model = Model.read(source)
    keep_inputs(model.proto, {value.name for value in model.graph.input} - model.constants.keys())
    taken: set[str] = set()
    for node in _nodes(model.graph):
        if not node.name or node.name in taken:
            node.name = model.new_name(node.op_type)
        taken.add(node.name)
    model.write(out)
    return model


def unlist_constants(saved: Path, inputs: Set[str]) -> None:
    """Leaves a saved graph no inputs but those, and stamps it with an IR version in which constants are none.

    ONNX Runtime keeps the input of an initializer that it merged with an equal one, so that the graph, opened again,
    wants a value for it. EngineUnusable when the graph cannot be read.
    """
    saved.write_bytes(with_inputs(saved, inputs))


def with_inputs(source: Path, inputs: Set[str]) -> bytes:
    """A model without other inputs than those, its weights left where they are; EngineUnusable if it cannot be read."""
    proto = read_proto(source)
    keep_inputs(proto, inputs)
    data: bytes = proto.SerializeToString()
    return data


def everywhere(model: Model, provider: str) -> Placement:
    """The placement of a model that one provider runs wholly. Constants are no work: a session has them as weights."""
    nodes = (node for node in _nodes(model.graph) if node.op_type != "Constant")
    return tuple(PlacedNode(provider, node.name, node.op_type) for node in nodes)


def layers(model: Model, precision: str) -> tuple[dict[str, int], tuple[str, ...]]:
    """How many layers compute in which precision, and a note where none does in the one that was asked for.

    A quantised graph is only a wish: where a runtime has no kernel that takes int8, it computes the layer between the
    pair of DequantizeLinear and QuantizeLinear in floating point.
    """
    counts: Counter[str] = Counter()
    for node in _nodes(model.graph):
        if any(kind in node.op_type for kind in _LAYERS):
            types = {model.types.get(name, 0) for name in node.input}
            counts.update([found] if (found := next((p for t, p in _PRECISIONS.items() if t in types), "")) else [])
    if not counts or precision in counts or precision == "tf32":
        return dict(sorted(counts.items())), ()
    mostly = max(counts, key=lambda name: counts[name])
    return dict(counts), (f"asked for {precision}, ONNX Runtime computes its layers in {mostly}",)


def shape_work(model: Model) -> frozenset[str]:
    """Names of the nodes that compute with shapes alone: all that they read was made from sizes of tensors.

    ONNX Runtime puts these on the CPU on purpose even where the device has a kernel: Shape and Size leave their result
    in the host's memory, and what only continues from there (Gather, Concat, Mul, Cast, ... of a few numbers) costs
    less where it lies than the two copies to the device and back. What reads values of a picture, however small, is
    not shape work; if that runs on the CPU, the device waits for it. Nor is what reads nothing but weights.
    """
    return frozenset(_shape_nodes(model.graph, set(), set(model.constants)))


def _shape_nodes(graph: _Graph, sizes: set[str], constants: set[str]) -> Iterator[str]:
    """`sizes` and `constants` are values that are known to be such outside and visible here."""
    sizes, constants = set(sizes), constants | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            constants.update(node.output)
            continue
        read = {name for name in node.input if name} | captured(node)
        is_shape_work = node.op_type in _SHAPES or (read <= sizes | constants and not read <= constants)
        if is_shape_work:
            sizes.update(node.output)
            yield node.name
        for body in bodies(node):
            # The number of the turn and whether to go on are the host's to begin with.
            turn = {value.name for value in body.input[:2]} if node.op_type == "Loop" else set()
            yield from _shape_nodes(body, sizes | turn, constants)


def _nodes(graph: _Graph) -> Iterator[_Node]:
    for node in graph.node:
        yield node
        for body in bodies(node):
            yield from _nodes(body)
