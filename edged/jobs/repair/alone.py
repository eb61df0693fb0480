"""One node as a model of its own: what converts or writes it out sees neither weights nor the rest of the graph.

So a model may be of any size, its external data stays where it is, and whatever fails is known by the node's name.
Runs in the child.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

Change: TypeAlias = Callable[[onnx.ModelProto], onnx.ModelProto]

_IR_VERSION = 10
_SMALL = 4096  # bytes of a constant that goes along: axes, sizes, scales; what is larger decides nothing


class Scope:
    """What nodes of one graph see: the types of values and the constants, here and in the graphs around it."""

    def __init__(self, types: Mapping[str, ValueInfoProto], constants: Mapping[str, TensorProto]) -> None:
        self.types, self.constants = dict(types), dict(constants)

    def inner(self, types: Mapping[str, ValueInfoProto], constants: Mapping[str, TensorProto]) -> Scope:
        """The scope of a graph inside: its own names come first."""
        return Scope({**self.types, **types}, {**self.constants, **constants})

    def element(self, name: str) -> int:
        """The element type of a value (onnx.TensorProto.DataType), 0 where it is not known."""
        if name in self.constants:
            return int(self.constants[name].data_type)
        found = self.types.get(name)
        return int(found.type.tensor_type.elem_type) if found is not None else 0

    def shape(self, name: str) -> tuple[int | None, ...] | None:
        """The shape of a value, None for sizes that are not known, and None where not even their number is."""
        if name in self.constants:
            return tuple(self.constants[name].dims)
        found = self.types.get(name)
        if found is None or not found.type.tensor_type.HasField("shape"):
            return None
        dims = found.type.tensor_type.shape.dim
        return tuple(d.dim_value if d.WhichOneof("value") == "dim_value" and d.dim_value >= 0 else None for d in dims)


def changed(
    node: NodeProto, scope: Scope, opset: int, change: Change, new_name: Callable[[str], str]
) -> list[NodeProto]:
    """The nodes that a node becomes when `change` is applied to the model of it alone.

    Whatever is new among their values has a name from `new_name`. The errors of `change`, and ValueError where it lost
    an output.
    """
    result = change(_model(node, scope, opset))
    kept = {name for name in (*node.input, *node.output) if name}
    names = {"": ""} | {name: name for name in kept}
    tensors = {tensor.name: tensor for tensor in result.graph.initializer if tensor.name not in kept}
    fresh: list[NodeProto] = []
    for name, tensor in tensors.items():
        names[name] = new_name(f"{node.output[0]}.{name}")
        fresh.append(helper.make_node("Constant", [], [names[name]], value=tensor))
    for made in result.graph.node:
        for name in made.output:
            if name not in names:
                names[name] = new_name(f"{node.output[0]}.{name}")
        copy = NodeProto()
        copy.CopyFrom(made)
        _rename(copy, names)
        fresh.append(copy)
    missing = {name for name in node.output if name} - {name for made in fresh for name in made.output}
    if missing or not fresh:
        raise ValueError(f"the converter lost {', '.join(sorted(missing)) or 'the node'}")
    _hand_down(node, fresh[-1])
    return fresh


def _model(node: NodeProto, scope: Scope, opset: int) -> onnx.ModelProto:
    names = list(dict.fromkeys(name for name in node.input if name))
    small = {name: scope.constants[name] for name in names if _is_small(scope.constants.get(name))}
    inputs = [_typed(name, scope) for name in names if name not in small]
    outputs = [_typed(name, scope) for name in node.output if name]
    graph = helper.make_graph([node], "alone", inputs, outputs, list(small.values()))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=_IR_VERSION)


def _is_small(tensor: TensorProto | None) -> bool:
    return tensor is not None and tensor.data_location != TensorProto.EXTERNAL and tensor.ByteSize() <= _SMALL


def _typed(name: str, scope: Scope) -> ValueInfoProto:
    known = scope.types.get(name)
    if known is not None and known.type.WhichOneof("value"):
        copy = ValueInfoProto()
        copy.CopyFrom(known)
        return copy
    return helper.make_tensor_value_info(name, scope.element(name) or TensorProto.FLOAT, scope.shape(name))


def _rename(node: NodeProto, names: Mapping[str, str]) -> None:
    for values in (node.input, node.output):
        for place, name in enumerate(values):
            values[place] = names.get(name, name)


def _hand_down(old: NodeProto, new: NodeProto) -> None:
    """The name and notes of a node go to the last of those that it becomes."""
    new.name, new.doc_string = old.name, old.doc_string
    del new.metadata_props[:]
    new.metadata_props.extend(old.metadata_props)


def small_constants(nodes: Iterable[NodeProto]) -> dict[str, TensorProto]:
    """The tensors that Constant nodes hold, by the name of their output."""
    return {
        node.output[0]: attribute.t
        for node in nodes
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx") and node.output
        for attribute in node.attribute
        if attribute.name == "value"
    }
