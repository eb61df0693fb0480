"""Reads an ONNX model without its external weights, sorts its nodes and infers types, and writes the changed model.

Runs in a child of the daemon, like all code that parses a model. Format: onnx/docs/IR.md (ModelProto, GraphProto).
"""

from __future__ import annotations

import contextlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
import onnx.inliner
import onnx.shape_inference
from onnx import NodeProto, TensorProto, numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor

from edged.backends.contract import one_line
from edged.errors import EngineUnusable, Unsuitable
from edged.jobs.onnx_walk import ONNX_DOMAINS, bodies, graphs

FLOAT, FLOAT16 = int(TensorProto.FLOAT), int(TensorProto.FLOAT16)
_OLDEST_OPSET = 6  # in older opsets, the attribute of Cast is a text
_CONSTANTS_APART = 4  # the first IR version whose initializers need not be inputs
_ALIGN = 4096  # alignment of tensors in a weights file, because runtimes map them into memory
_SMALL = 1024  # smaller tensors stay in the graph: shape inference needs shapes and axes there
# Weights of a larger model are written next to the graph, because a protobuf message must be smaller than 2 GiB.
_LARGE = 1 << 30
LAYERS = frozenset(
    ("Attention", "Conv", "ConvTranspose", "DeformConv", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN")
)
_INTEGER = frozenset(("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"))
QUANTISED = frozenset(("DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear")) | _INTEGER
# A convolution with fewer weights is not a layer: a detector may decode boxes with one of 16 weights.
_LEAST_WEIGHTS = 64
# Inputs that are positions, by operator. They are not learnt, and may be as large as the number of pixels of a picture.
_POSITIONS = {"RoiAlign": (1, 2), "GridSample": (1,), "Resize": (1, 2, 3), "Upsample": (1,)}


class Model:
    """A model's main graph and the properties of its values.

    constants: maps names to initializers and outputs of Constant nodes. types: maps the names of values that are known
    to be tensors to their element types (onnx.TensorProto.DataType). used: the names of the values that nodes read or
    that are outputs.
    """

    def __init__(self, proto: onnx.ModelProto, folder: Path) -> None:
        self.proto, self.graph, self.folder = proto, proto.graph, folder
        self.opset = next((entry.version for entry in proto.opset_import if entry.domain in ONNX_DOMAINS), 0)
        sort_nodes(self.graph)
        self.constants = {tensor.name: tensor for tensor in self.graph.initializer} | dict(_constant_nodes(self.graph))
        self.types = _types(proto)
        self.used = {name for node in self.graph.node for name in (*node.input, *captured(node))}
        self.used |= {value.name for value in self.graph.output}
        self.new_name = Names(self.graph).new

    @classmethod
    def read(cls, path: Path) -> Model:
        """Read a model. Raises EngineUnusable if it cannot be parsed, Unsuitable if its opset is too old."""
        model = cls(read_proto(path), path.parent)
        if 0 < model.opset < _OLDEST_OPSET:
            raise Unsuitable(
                f"{path.name} has opset {model.opset}, which is too old; export it with opset {_OLDEST_OPSET} or later"
            )
        return model

    def array(self, tensor: TensorProto) -> np.ndarray:
        """Return the values of a constant, which may be external. Raises EngineUnusable if they cannot be read."""
        with _reading(tensor):
            return numpy_helper.to_array(self._loaded(tensor) if _is_outside(tensor) else tensor)

    def element_count(self, name: str) -> int | None:
        """Return the number of elements of a constant, or None if no constant has this name."""
        tensor = self.constants.get(name)
        return None if tensor is None else int(np.prod(tensor.dims, dtype=np.int64))

    def name_nodes(self, nodes: Iterable[NodeProto]) -> None:
        """Give each node a unique name. Exporters may omit or repeat names."""
        taken: set[str] = set()
        for node in nodes:
            if not node.name or node.name in taken:
                node.name = self.new_name(node.op_type)
            taken.add(node.name)

    def write(self, path: Path, change: Callable[[TensorProto], None] | None = None) -> None:
        """Write a new file, with weights in another file next to it if the model had external data or is large.

        Each initializer is loaded, changed by `change`, and written before the next one is loaded. So only one external
        tensor is in memory at a time. Do not use the model afterwards.
        """
        initializers, tensors = len(self.graph.initializer), list(_tensors(self.graph))
        outside = any(_is_outside(tensor) for tensor in tensors) or sum(map(_byte_size, tensors)) > _LARGE
        with contextlib.ExitStack() as stack:
            data = path.with_name(f"{path.name}.data")
            file = stack.enter_context(data.open("xb")) if outside else None
            for number, tensor in enumerate(tensors):
                ready = self._loaded(tensor)
                if change is not None and number < initializers:
                    change(ready)
                if file is not None and len(ready.raw_data) >= _SMALL:
                    _put_outside(ready, file, data.name)
                tensor.CopyFrom(ready)
        with path.open("xb") as graph:
            graph.write(self.proto.SerializeToString())

    def _loaded(self, tensor: TensorProto) -> TensorProto:
        """Return a copy of a tensor, with external values loaded. Values in the model itself would stay in memory."""
        copy = TensorProto()
        copy.CopyFrom(tensor)
        if _is_outside(copy):
            with _reading(copy):
                load_external_data_for_tensor(copy, str(self.folder))
            copy.ClearField("external_data")
            copy.data_location = TensorProto.DEFAULT
        return copy


def read_proto(path: Path) -> onnx.ModelProto:
    """Read a model without external weights, and inline its functions. Raises EngineUnusable if parsing fails."""
    try:
        proto = onnx.load(str(path), load_external_data=False)
        return onnx.inliner.inline_local_functions(proto) if proto.functions else proto
    except Exception as error:  # the parser's errors have no common class
        raise EngineUnusable(f"{path.name} cannot be read: {one_line(error)}") from error


def keep_inputs(proto: onnx.ModelProto, names: Set[str]) -> None:
    """Remove all inputs of the main graph except `names`, so that a runtime treats initializers as constants and folds
    them. Increase the IR version if it is so old that initializers must be inputs."""
    kept = [value for value in proto.graph.input if value.name in names]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    proto.ir_version = max(proto.ir_version, _CONSTANTS_APART)


def captured(node: onnx.NodeProto) -> set[str]:
    """Return the values of the enclosing graph that the bodies of a node use."""
    found: set[str] = set()
    for body in bodies(node):
        own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
        own |= {name for inner in body.node for name in inner.output}
        used = {name for inner in body.node for name in (*inner.input, *captured(inner))}
        found |= (used | {value.name for value in body.output}) - own
    return found - {""}


def replace_nodes(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
    """Replace the nodes of a graph. `nodes` may contain its current nodes."""
    copies = onnx.GraphProto()
    copies.node.extend(nodes)
    del graph.node[:]
    graph.node.extend(copies.node)


@contextlib.contextmanager
def _reading(tensor: TensorProto) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the file system, onnx and numpy raise errors without a common class
        raise EngineUnusable(f"the values of tensor {tensor.name!r} cannot be read: {one_line(error)}") from error


def sort_nodes(graph: onnx.GraphProto) -> None:
    """Sort nodes so that producers come before consumers, as ONNX requires. Apart from that, keep the order of the
    file. Raises Unsuitable if the graph has a cycle."""
    producers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    needs = [{producers[name] for name in (*node.input, *captured(node)) if name in producers} for node in graph.node]
    if all(need < index for index, needed in enumerate(needs) for need in needed):
        return
    users: dict[int, list[int]] = {}
    for index, needed in enumerate(needs):
        for need in needed:
            users.setdefault(need, []).append(index)
    missing, order = [len(needed) for needed in needs], list[int]()
    ready = [index for index, count in enumerate(missing) if not count]
    while ready:
        order.append(heapq.heappop(ready))
        for user in users.get(order[-1], ()):
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, user)
    if len(order) < len(needs):
        raise Unsuitable("the graph has a cycle; export the model again")
    replace_nodes(graph, [graph.node[index] for index in order])


def _constant_nodes(graph: onnx.GraphProto) -> Iterator[tuple[str, TensorProto]]:
    """Yield the name and tensor of each Constant node. Values in `value_float` and `value_floats` become tensors."""
    for node in graph.node:
        if node.op_type != "Constant" or node.domain not in ONNX_DOMAINS:
            continue
        for attribute in node.attribute:
            if attribute.name in ("value_float", "value_floats"):
                value = attribute.f if attribute.name == "value_float" else list(attribute.floats)
                tensor = numpy_helper.from_array(np.array(value, np.float32), node.output[0])
                attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))
            if attribute.name == "value":
                yield node.output[0], attribute.t


def _types(proto: onnx.ModelProto) -> dict[str, int]:
    graph: onnx.GraphProto = proto.graph
    with contextlib.suppress(Exception):  # after a failure, more types are unknown; such values are not changed
        graph = onnx.shape_inference.infer_shapes(proto).graph
    values = (*graph.value_info, *graph.input, *graph.output)
    types = {v.name: v.type.tensor_type.elem_type for v in values if v.type.HasField("tensor_type")}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    types |= {sparse.values.name: sparse.values.data_type for sparse in graph.sparse_initializer}
    types |= {name: tensor.data_type for name, tensor in _constant_nodes(graph)}
    return {name: kind for name, kind in types.items() if kind}


class Names:
    """The names of values and nodes in a graph and its nested graphs. ONNX requires unique names."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._taken: set[str] = set()
        for part in graphs(graph):
            self._taken.update(value.name for value in (*part.input, *part.output))
            self._taken.update(tensor.name for tensor in part.initializer)
            for node in part.node:
                self._taken.update((node.name, *node.input, *node.output))

    def new(self, wanted: str) -> str:
        """Return an unused name that begins with `wanted`, and mark it as used."""
        name, number = wanted, 1
        while name in self._taken:
            name, number = f"{wanted}.{number}", number + 1
        self._taken.add(name)
        return name


def _tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for body in bodies(node):
            yield from _tensors(body)


def _is_outside(tensor: TensorProto) -> bool:
    return tensor.data_location == TensorProto.EXTERNAL


def _byte_size(tensor: TensorProto) -> int:
    return 0 if _is_outside(tensor) else tensor.ByteSize()


def _put_outside(tensor: TensorProto, file: BinaryIO, location: str) -> None:
    offset = -(-file.tell() // _ALIGN) * _ALIGN
    file.write(b"\0" * (offset - file.tell()))
    file.write(tensor.raw_data)
    entries = {"location": location, "offset": offset, "length": len(tensor.raw_data)}
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))


class Layers:
    """The nodes of a sorted graph that are worth computing in a lower precision, as sets of node indices.

    layers: nodes with weights, which take nearly all of the time. between: nodes that pass float32 values from one
    layer to another; computing these in the precision of the layers saves conversions. last: layers on which no other
    layer depends. The nodes after the last layers decode boxes and compute scores, which takes little time but needs
    precision.
    """

    def __init__(self, model: Model) -> None:
        self._model, self._nodes = model, list(model.graph.node)
        self.layers = frozenset(index for index, node in enumerate(self._nodes) if self._is_layer(node))
        needed, made = self._inputs_of_layers(), self._results_of_layers()
        self.between = frozenset(
            index
            for index, node in enumerate(self._nodes)
            if index not in self.layers and not made.isdisjoint(_uses(node)) and not needed.isdisjoint(node.output)
        )
        self.last = frozenset(index for index in self.layers if needed.isdisjoint(self._nodes[index].output))
        self._before = frozenset(
            index
            for index, node in enumerate(self._nodes)
            if made.isdisjoint(_uses(node)) and not needed.isdisjoint(node.output)
        )

    def place(self, index: int) -> str:
        """Describe the place of a node that is neither a layer nor between two layers."""
        return "before the first layer" if index in self._before else "after the last layer"

    def _is_layer(self, node: onnx.NodeProto) -> bool:
        if node.op_type not in LAYERS or node.domain not in ONNX_DOMAINS:
            return False
        counts = [self._model.element_count(name) for name in node.input[:2]]
        return max((count for count in counts if count is not None), default=_LEAST_WEIGHTS) >= _LEAST_WEIGHTS

    def _inputs_of_layers(self) -> set[str]:
        """Return every float32 value from which a layer is computed."""
        needed: set[str] = set()
        for index in reversed(range(len(self._nodes))):
            node = self._nodes[index]
            if index in self.layers or not needed.isdisjoint(node.output):
                needed |= set(self._floats(self._values(node)))
        return needed

    def _results_of_layers(self) -> set[str]:
        """Return every float32 value that is computed from a layer's outputs."""
        made: set[str] = set()
        for index, node in enumerate(self._nodes):
            if index in self.layers or not made.isdisjoint(_uses(node)):
                made |= set(self._floats(node.output))
        return made

    def _values(self, node: onnx.NodeProto) -> Iterator[str]:
        positions = _POSITIONS.get(node.op_type, ())
        yield from (name for slot, name in enumerate(node.input) if slot not in positions)
        yield from captured(node)

    def _floats(self, names: Iterable[str]) -> Iterator[str]:
        return (name for name in names if self._model.types.get(name) == FLOAT)


def _uses(node: onnx.NodeProto) -> set[str]:
    return {*node.input, *captured(node)}


def describe_kept(kept: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Describe the nodes that stay unchanged. `kept` has the operator and the reason of each node. Nodes with the same
    operator and reason share a line, which has their number."""
    counts = Counter(kept).items()
    return tuple(f"{op}{f' x{count}' if count > 1 else ''}: {reason}" for (op, reason), count in counts)
