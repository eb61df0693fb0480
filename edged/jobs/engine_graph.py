"""Implements `edged.backends.contract.Graphs`: reads and rewrites ONNX graphs for builders of engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Any, TypeAlias

from edged.jobs.onnx_graph import Model, captured, keep_inputs, read_proto
from edged.jobs.onnx_walk import bodies

_Graph: TypeAlias = Any  # onnx.GraphProto; the package has no types
_Node: TypeAlias = Any  # onnx.NodeProto
# Operators that need only the shape of a tensor on the device, and write their result to host memory.
_SHAPES = frozenset({"Shape", "Size"})
# Operators that take nearly all of a network's time. Fused and quantised forms contain the names: FusedConv,
# QLinearMatMul.
_LAYERS = ("Conv", "Gemm", "MatMul")
# The precision of a layer by the element type (onnx.TensorProto.DataType) of its inputs; the first match decides.
_PRECISIONS = {2: "int8", 3: "int8", 10: "fp16", 16: "bf16", 1: "fp32", 11: "fp64"}


def read(path: Path) -> EngineGraph:
    """Read the graph of a model. Raises EngineUnusable or Unsuitable if it cannot be read."""
    return EngineGraph(Model.read(path))


def write_named(source: Path, out: Path) -> EngineGraph:
    """Write the model as `out` with a unique name for every node and no initializer among the inputs. Weights of a
    large model, or of a model with external weights, are written into one file next to `out`.

    Unique names are needed because ONNX Runtime reports the device of a node by the node's name. Exporters may leave
    nodes without a name, or repeat names. Raises EngineUnusable or Unsuitable if the model cannot be read.
    """
    model = Model.read(source)
    keep_inputs(model.proto, {value.name for value in model.graph.input} - model.constants.keys())
    model.name_nodes(_nodes(model.graph))
    model.write(out)
    return EngineGraph(model)


def with_inputs(source: Path, inputs: Set[str]) -> bytes:
    """Return the serialised model with only these inputs. External weights stay in their files. Raises EngineUnusable
    if the model cannot be read.

    The IR version becomes at least 4, the first in which initializers need not be inputs of the graph. In older
    versions, each initializer is also an input. When ONNX Runtime merges equal initializers, it keeps the inputs of the
    initializers that it removes. The saved graph would then need values for these inputs.
    """
    proto = read_proto(source)
    keep_inputs(proto, inputs)
    data: bytes = proto.SerializeToString()
    return data


class EngineGraph:
    """Implements `edged.backends.contract.Graph`."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def nodes(self) -> Sequence[tuple[str, str]]:
        # ONNX Runtime does not run constants: its session has them as weights.
        return [(node.name, node.op_type) for node in _nodes(self._model.graph) if node.op_type != "Constant"]

    def layers(self, precision: str) -> tuple[dict[str, int], tuple[str, ...]]:
        """Return the number of layers for each precision, and notes (see the contract). The type of a layer's inputs in
        this graph decides. In an optimised graph, a quantised layer without an int8 kernel has float inputs."""
        counts: Counter[str] = Counter()
        for node in _nodes(self._model.graph):
            if any(kind in node.op_type for kind in _LAYERS):
                types = {self._model.types.get(name, 0) for name in node.input}
                counts.update([found] if (found := next((p for t, p in _PRECISIONS.items() if t in types), "")) else [])
        if not counts or precision in counts or precision == "tf32":
            return dict(sorted(counts.items())), ()
        mostly = max(counts, key=lambda name: counts[name])
        return dict(counts), (f"{precision} was requested, but ONNX Runtime computes most layers in {mostly}",)

    def shape_work(self) -> frozenset[str]:
        """Return the names of the Shape and Size nodes, and of the nodes that compute with the sizes of tensors.

        A node of the second kind reads at least one value that was computed from sizes, and otherwise only such values
        and constants.

        ONNX Runtime intentionally runs these nodes on the CPU even if the device has a kernel. Shape and Size write
        their result to host memory, and the nodes that follow (Gather, Concat, Mul, Cast, ... of a few numbers) cost
        less there than copies to the device and back. A node that reads values of a picture is not shape work: if it
        runs on the CPU, the device waits for it. A node that reads only constants is not shape work either.
        """
        return frozenset(_shape_nodes(self._model.graph, set(), set(self._model.constants)))


def _shape_nodes(graph: _Graph, sizes: set[str], constants: set[str]) -> Iterator[str]:
    """Yield the names of the nodes that `shape_work` describes. `sizes`: the values of the enclosing graphs that are
    computed from sizes. `constants`: the constants of the enclosing graphs."""
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
            # The iteration number and the condition of a Loop are on the host anyway.
            turn = {value.name for value in body.input[:2]} if node.op_type == "Loop" else set()
            yield from _shape_nodes(body, sizes | turn, constants)


def _nodes(graph: _Graph) -> Iterator[_Node]:
    for node in graph.node:
        yield node
        for body in bodies(node):
            yield from _nodes(body)
