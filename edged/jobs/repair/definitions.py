"""What ONNX says of an operator in one version and in the one before: can a node stay as it is written? Runs in the
child.

Source of the definitions: the schemas that the onnx package carries.
"""

from __future__ import annotations

import enum

import onnx.defs
from onnx import NodeProto, helper

from edged.jobs.repair.alone import Scope


class Likeness(enum.Enum):
    """How a node's definition in the older version compares, for the node as it is written."""

    SAME = enum.auto()  # but for types that the node does not have: it means the same by definition
    ALIKE = enum.auto()  # in form; whether it means the same is for its answers to tell
    OTHER = enum.auto()  # it cannot stay as it is


def schema(operator: str, opset: int) -> onnx.defs.OpSchema | None:
    """An operator of ONNX's own domain in a version; None where there is none."""
    try:
        return onnx.defs.get_schema(operator, opset, "")
    except onnx.defs.SchemaError:
        return None


def likeness(node: NodeProto, scope: Scope, new: onnx.defs.OpSchema, old: onnx.defs.OpSchema) -> tuple[Likeness, str]:
    """Whether a node that is written for `new` can stay for `old`; where it cannot, why."""
    if len(node.input) > old.max_input or len(node.output) > old.max_output:
        return Likeness.OTHER, "it has inputs or outputs that are not there"
    if len(node.input) < old.min_input:
        return Likeness.OTHER, "it lacks an input that has to be there"
    empty = [
        formal.name for name, formal in zip(node.input, old.inputs, strict=False) if not name and _is_needed(formal)
    ]
    if empty:
        return Likeness.OTHER, f"input {empty[0]} has to be there"
    unknown = [attribute.name for attribute in node.attribute if attribute.name not in old.attributes]
    if unknown:
        return Likeness.OTHER, f"attribute {unknown[0]} is not there"
    given = {attribute.name for attribute in node.attribute}
    needed = [name for name, attribute in old.attributes.items() if attribute.required and name not in given]
    if needed:
        return Likeness.OTHER, f"attribute {needed[0]} has to be there"
    typed = _types_fit(node, scope, old)
    if typed is False:
        return Likeness.OTHER, "it does not take these types"
    same_text = new.doc == old.doc and _form(new) == _form(old)
    return (Likeness.SAME if same_text and typed else Likeness.ALIKE), ""


def _is_needed(formal: onnx.defs.OpSchema.FormalParameter) -> bool:
    return bool(formal.option == onnx.defs.OpSchema.FormalParameterOption.Single)


def _form(definition: onnx.defs.OpSchema) -> tuple[object, ...]:
    """All of a definition but the types that it allows and the words about its parts."""
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
    """Whether the node's values have types that a definition allows; None where one of them is not known."""
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
    """An element type as schemas write it."""
    return f"tensor({helper.tensor_dtype_to_string(element).removeprefix('TensorProto.').lower()})"
