"""Operators that the onnx package's converter changes in silence, or knows no way down for, written for the version
before. Runs in the child.

Source: https://github.com/onnx/onnx/blob/main/docs/Changelog.md (the operators' texts in both versions).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from edged.errors import Unsuitable
from edged.jobs.repair.alone import Scope

NewName: TypeAlias = Callable[[str], str]
Rewrite: TypeAlias = Callable[[NodeProto, Scope, NewName], list[NodeProto]]


def _softmax(node: NodeProto, scope: Scope, new_name: NewName) -> list[NodeProto]:
    """Before 13 all dimensions from `axis` on were taken together: the same only for the last one. So another is
    brought there first."""
    shape = scope.shape(node.input[0]) or scope.shape(node.output[0])
    axis = _number(node, "axis", -1)
    if shape is None and axis != -1:
        raise Unsuitable(
            f"operator {node.op_type} along axis {axis} has no way down to opset 12: its rank is not known"
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
    """Before 18 there is no `num_outputs`: the sizes are written out, unless all are equal, which needs no word."""
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
    """Before 13 the region of interest has to be there, be it empty."""
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


# By operator and the version that it is written in.
REWRITES: Mapping[tuple[str, int], Rewrite] = {
    ("Softmax", 13): _softmax,
    ("LogSoftmax", 13): _softmax,
    ("Hardmax", 13): _softmax,
    ("Resize", 13): _resize,
    ("Split", 18): _split,
}
