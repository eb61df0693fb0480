"""Converts single nodes to an older version of ONNX's operators: compares definitions, converts nodes, rewrites nodes.

A node is converted as a separate model without weights and without the rest of the graph. So a model may have any
size, its external data is not touched, and the name of a node that fails is known.

Sources: the schemas of the onnx package, and https://github.com/onnx/onnx/blob/main/docs/Changelog.md (the definitions
in all versions). The rewrites follow the second source. They are for operators that the package's converter cannot
convert, or whose meaning it changes without an error.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import numpy as np
import onnx
import onnx.defs
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from edged.errors import Unsuitable

Change: TypeAlias = Callable[[onnx.ModelProto], onnx.ModelProto]
NewName: TypeAlias = Callable[[str], str]

_IR_VERSION = 10
_SMALL = 4096  # the most bytes of a constant that the converter sees: axes, sizes, scales


class Scope:
    """The types and constants that the nodes of a graph can read, from this graph and its enclosing graphs."""

    def __init__(self, types: Mapping[str, ValueInfoProto], constants: Mapping[str, TensorProto]) -> None:
        self.types, self.constants = dict(types), dict(constants)

    def inner(self, types: Mapping[str, ValueInfoProto], constants: Mapping[str, TensorProto]) -> Scope:
        """Return the scope of a nested graph. The names of the nested graph hide equal names of this scope."""
        return Scope({**self.types, **types}, {**self.constants, **constants})

    def element(self, name: str) -> int:
        """Return the element type of a value (onnx.TensorProto.DataType); 0 if unknown."""
        if name in self.constants:
            return int(self.constants[name].data_type)
        found = self.types.get(name)
        return int(found.type.tensor_type.elem_type) if found is not None else 0

    def shape(self, name: str) -> tuple[int | None, ...] | None:
        """Return the shape of a value, with None for each unknown size; None if the rank is unknown."""
        if name in self.constants:
            return tuple(self.constants[name].dims)
        found = self.types.get(name)
        if found is None or not found.type.tensor_type.HasField("shape"):
            return None
        dims = found.type.tensor_type.shape.dim
        return tuple(d.dim_value if d.WhichOneof("value") == "dim_value" and d.dim_value >= 0 else None for d in dims)


def changed(node: NodeProto, scope: Scope, opset: int, change: Change, new_name: NewName) -> list[NodeProto]:
    """Apply `change` to a model that consists of one node, and return the nodes that replace this node.

    New values get a name from `new_name`. Raises the errors of `change`, and ValueError if an output is missing.
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
    _keep_name_and_notes(node, fresh[-1])
    return fresh


def _model(node: NodeProto, scope: Scope, opset: int) -> onnx.ModelProto:
    names = list(dict.fromkeys(name for name in node.input if name))
    small = {name: _named(scope.constants[name], name) for name in names if _is_small(scope.constants.get(name))}
    inputs = [_typed(name, scope) for name in names if name not in small]
    outputs = [_typed(name, scope) for name in node.output if name]
    graph = helper.make_graph([node], "alone", inputs, outputs, list(small.values()))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=_IR_VERSION)


def _is_small(tensor: TensorProto | None) -> bool:
    return tensor is not None and tensor.data_location != TensorProto.EXTERNAL and tensor.ByteSize() <= _SMALL


def _named(tensor: TensorProto, name: str) -> TensorProto:
    """Return a copy of a tensor with the name `name`, under which nodes read the tensor. The tensor of a Constant node
    may have another name or no name."""
    copy = TensorProto()
    copy.CopyFrom(tensor)
    copy.name = name
    return copy


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


def _keep_name_and_notes(old: NodeProto, new: NodeProto) -> None:
    """Copy the name and metadata of a node to the last of the nodes that replace it."""
    new.name, new.doc_string = old.name, old.doc_string
    del new.metadata_props[:]
    new.metadata_props.extend(old.metadata_props)


def small_constants(nodes: Iterable[NodeProto]) -> dict[str, TensorProto]:
    """Return a mapping from the output names of Constant nodes to the tensors of these nodes."""
    return {
        node.output[0]: attribute.t
        for node in nodes
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx") and node.output
        for attribute in node.attribute
        if attribute.name == "value"
    }


class Likeness(enum.Enum):
    """How the older definition of a node compares with the newer one, for the inputs and attributes of this node."""

    SAME = enum.auto()  # the same by definition, except for types that the node does not use
    ALIKE = enum.auto()  # the same form; only a comparison of answers shows whether the meaning is the same
    OTHER = enum.auto()  # the node cannot stay unchanged


def schema(operator: str, opset: int) -> onnx.defs.OpSchema | None:
    """Return the schema of an operator of the default domain in an opset; None if the opset lacks the operator."""
    try:
        return onnx.defs.get_schema(operator, opset, "")
    except onnx.defs.SchemaError:
        return None


def likeness(node: NodeProto, scope: Scope, new: onnx.defs.OpSchema, old: onnx.defs.OpSchema) -> tuple[Likeness, str]:
    """Return whether a node that is valid for `new` can stay unchanged for the definition `old`; if not, also why."""
    if len(node.input) > old.max_input or len(node.output) > old.max_output:
        return Likeness.OTHER, "it has inputs or outputs that the older version lacks"
    if len(node.input) < old.min_input:
        return Likeness.OTHER, "it lacks a required input"
    empty = [
        formal.name for name, formal in zip(node.input, old.inputs, strict=False) if not name and _is_needed(formal)
    ]
    if empty:
        return Likeness.OTHER, f"the older version requires input {empty[0]!r}"
    unknown = [attribute.name for attribute in node.attribute if attribute.name not in old.attributes]
    if unknown:
        return Likeness.OTHER, f"attribute {unknown[0]!r} does not exist in the older version"
    given = {attribute.name for attribute in node.attribute}
    needed = [name for name, attribute in old.attributes.items() if attribute.required and name not in given]
    if needed:
        return Likeness.OTHER, f"the older version requires attribute {needed[0]!r}"
    typed = _types_fit(node, scope, old)
    if typed is False:
        return Likeness.OTHER, "the older version does not take these types"
    same_text = new.doc == old.doc and _form(new) == _form(old)
    return (Likeness.SAME if same_text and typed else Likeness.ALIKE), ""


def _is_needed(formal: onnx.defs.OpSchema.FormalParameter) -> bool:
    return bool(formal.option == onnx.defs.OpSchema.FormalParameterOption.Single)


def _form(definition: onnx.defs.OpSchema) -> tuple[object, ...]:
    """Return a definition without its allowed types and its texts, for comparison."""
    values = [
        [(value.name, value.type_str, value.option, value.is_homogeneous) for value in side]
        for side in (definition.inputs, definition.outputs)
    ]
    attributes = sorted(
        (name, str(attribute.type), attribute.required, attribute.default_value.SerializeToString())
        for name, attribute in definition.attributes.items()
    )
    return values, attributes, definition.min_input, definition.max_input


def _types_fit(node: NodeProto, scope: Scope, old: onnx.defs.OpSchema) -> bool | None:
    """Whether a definition allows the types of the node's values; None if a type is unknown."""
    allowed = {each.type_param_str: set(each.allowed_type_strs) for each in old.type_constraints}
    is_known = True
    for names, formals in ((node.input, old.inputs), (node.output, old.outputs)):
        for place, name in enumerate(names):
            if not name or not formals:
                continue
            formal = formals[min(place, len(formals) - 1)]
            types = allowed.get(formal.type_str, {formal.type_str})
            element = scope.element(name)
            if not element:
                is_known = False
            elif _written(element) not in types:
                return False
    return True if is_known else None


def _written(element: int) -> str:
    """Return an element type as schemas write it."""
    return f"tensor({helper.tensor_dtype_to_string(element).removeprefix('TensorProto.').lower()})"


def _softmax(node: NodeProto, scope: Scope, new_name: NewName) -> list[NodeProto]:
    """Convert Softmax, LogSoftmax or Hardmax to opset 12, which flattens all dimensions from `axis` on. The result is
    the same only for the last axis, so another axis is transposed to the end."""
    shape = scope.shape(node.input[0]) or scope.shape(node.output[0])
    axis = _number(node, "axis", -1)
    if shape is None and axis != -1:
        raise Unsuitable(
            f"operator {node.op_type} along axis {axis} cannot be converted to opset 12: its input's rank is not known"
        )
    last = -1 if shape is None else len(shape) - 1
    if shape is None or axis in (-1, last):
        return [_like(node, node.input[0], node.output[0], last)]
    order = list(range(last + 1))
    order[axis], order[last] = order[last], order[axis]
    turned, answered = new_name(f"{node.output[0]}.turned"), new_name(f"{node.output[0]}.answered")
    return [
        helper.make_node("Transpose", [node.input[0]], [turned], perm=order),
        _like(node, turned, answered, last),
        helper.make_node("Transpose", [answered], [node.output[0]], perm=order),
    ]


def _like(node: NodeProto, source: str, target: str, axis: int) -> NodeProto:
    made = helper.make_node(node.op_type, [source], [target], name=node.name, axis=axis)
    made.doc_string = node.doc_string
    return made


def _split(node: NodeProto, scope: Scope, new_name: NewName) -> list[NodeProto]:
    """Convert Split to opset 17, which has no `num_outputs`: write the sizes as a constant unless all are equal."""
    kept = [attribute for attribute in node.attribute if attribute.name != "num_outputs"]
    made = NodeProto()
    made.CopyFrom(node)
    del made.attribute[:]
    made.attribute.extend(kept)
    if len(node.input) > 1 and node.input[1]:
        return [made]
    parts, shape = len(node.output), scope.shape(node.input[0])
    axis = _number(node, "axis", 0)
    size = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    if size is None or size % parts == 0:
        return [made]
    most = -(-size // parts)
    sizes = [min(most, max(size - most * place, 0)) for place in range(parts)]
    name = new_name(f"{node.output[0]}.sizes")
    constant = helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(sizes, np.int64), name))
    del made.input[1:]
    made.input.append(name)
    return [constant, made]


def _resize(node: NodeProto, scope: Scope, new_name: NewName) -> list[NodeProto]:
    """Convert Resize to opset 12, which requires the input `roi`: add an empty tensor."""
    made = NodeProto()
    made.CopyFrom(node)
    if len(node.input) < 2 or node.input[1]:
        return [made]
    name = new_name(f"{node.output[0]}.region")
    made.input[1] = name
    empty = numpy_helper.from_array(np.array([], np.float32), name)
    return [helper.make_node("Constant", [], [name], value=empty), made]


def _number(node: NodeProto, name: str, default: int) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == name), default)


# Functions that rewrite a node, by operator and by the opset that changed its definition.
REWRITES: Mapping[tuple[str, int], Callable[[NodeProto, Scope, NewName], list[NodeProto]]] = {
    ("Softmax", 13): _softmax,
    ("LogSoftmax", 13): _softmax,
    ("Hardmax", 13): _softmax,
    ("Resize", 13): _resize,
    ("Split", 18): _split,
}
