"""The oldest version of the file format that a model can be stamped with. Runs in the child.

Source: https://github.com/onnx/onnx/blob/main/onnx/onnx.in.proto (enum Version, and the notes on each field).
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import GraphProto, ModelProto, NodeProto

from edged import packages
from edged.errors import Unsuitable
from edged.jobs.onnx_walk import bodies

_OLDEST = 4  # since which constants need not be inputs as well
# What a version brought that older readers do not know. Element types by their names in onnx.TensorProto.
_TYPES = {
    9: ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"),
    10: ("UINT4", "INT4"),
    11: ("FLOAT4E2M1",),
    12: ("FLOAT8E8M0",),
    13: ("UINT2", "INT2"),
}
_FUNCTIONS, _OVERLOADS, _DEVICES = 8, 10, 11


def newest_known() -> int:
    """The newest version that this box's onnx package has."""
    return int(onnx.IR_VERSION)


def stamp(model: ModelProto, target: int) -> None:
    """Stamps a model with an older version; Unsuitable where it holds what that version does not know."""
    if model.ir_version > newest_known():
        raise Unsuitable(
            f"IR version {model.ir_version} is newer than the onnx package here knows ({newest_known()}): nobody can "
            f"tell what changed; update it: {packages.install('onnx', option='-U')}"
        )
    needed, what = max(_needs(model))
    if needed > target:
        raise Unsuitable(f"it has {what}, which IR version {target} does not know; update the runtime")
    model.ir_version = target


def _needs(model: ModelProto) -> Iterator[tuple[int, str]]:
    """The versions that what it holds came with, and what that is."""
    yield _OLDEST, "nothing"
    if model.functions:
        yield _FUNCTIONS, "functions of its own"
    if any(getattr(function, "overload", "") for function in model.functions):
        yield _OVERLOADS, "functions of one name"
    if len(getattr(model, "configuration", ())):
        yield _DEVICES, "a distribution over devices"
    versions = {
        int(getattr(onnx.TensorProto, name)): (version, f"elements of type {name}")
        for version, names in _TYPES.items()
        for name in names
        if hasattr(onnx.TensorProto, name)
    }
    nodes = [node for function in model.functions for node in function.node]
    yield from (versions[element] for element in _elements(model.graph, nodes) if element in versions)


def _elements(graph: GraphProto, more: list[NodeProto]) -> Iterator[int]:
    """The types of everything that says its type, here and in the graphs inside."""
    waiting, nodes = [graph], list(more)
    while waiting or nodes:
        if waiting:
            current = waiting.pop()
            yield from (tensor.data_type for tensor in current.initializer)
            values = (*current.input, *current.output, *current.value_info)
            yield from (value.type.tensor_type.elem_type for value in values)
            nodes.extend(current.node)
            continue
        node = nodes.pop()
        yield from (attribute.t.data_type for attribute in node.attribute if attribute.HasField("t"))
        yield from (attribute.i for attribute in node.attribute if attribute.name in ("to", "dtype", "output_dtype"))
        waiting.extend(bodies(node))
