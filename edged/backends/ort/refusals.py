"""What ONNX Runtime says of a model that it does not take, in words for people and one for programs; and what it has.

Its messages begin with a code and often with a C++ function; where it names a node it does so in one of a few ways.
"""

from __future__ import annotations

import re

from edged.backends.contract import Operators, one_line
from edged.errors import EngineUnusable, NotTaken

# `[ONNXRuntimeError] : 1 : FAIL : ` and `/onnxruntime_src/.../model.cc:256 onnxruntime::Model::Model(...) `.
_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
_SOURCE = re.compile(
    r"^(?:Exception during initialization: )?/onnxruntime_src/\S+:\d+ .*?\)(?: const)?(?: \[with [^]]*\])? (?=\S)"
)
_LOADING = re.compile(r"^Load model from .*? failed: ?")
_NODE = re.compile(
    r"[Nn]ode:? ?\(?(?:with name )?['\"]?(?P<node>[^'\"()]*?)['\"]?\)? (?:Op|of)\b|In Node, \(\"(?P<other>[^\"]*)\""
)
_UNREGISTERED = re.compile(r"No Op registered for (?P<name>\S+) with domain_version of")
_UNKNOWN = re.compile(r"Fatal error: (?P<domain>[^:\s]*):(?P<name>[^(\s]+)\(.*?is not a registered function/op")
_NO_KERNEL = re.compile(
    r"Could not find an implementation for (?P<name>[^(\s]+)\(\d+\) node with name '(?P<node>[^']*)'"
)
_SHAPE_OUTSIDE = re.compile(r"Cannot parse data from external tensors\..* for tensor: (?P<name>.+)")
_MEMORY = re.compile(
    r"bad_alloc|bad allocation|Failed to allocate memory|out of memory|Cannot allocate memory|Available memory of",
    re.IGNORECASE,
)


def operators() -> Operators | None:
    """Its own list; None in a version that has none."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    list_all = getattr(state, "get_all_operator_schema", None)
    if list_all is None:
        return None
    found: Operators = {}
    for schema in list_all():
        names = found.setdefault(schema.domain or "ai.onnx", {})
        names[schema.name] = min(schema.since_version, names.get(schema.name, schema.since_version))
    return found


def told(error: EngineUnusable) -> NotTaken:
    """As it is to be told."""
    said = " ".join(str(error.__cause__ or error).split())
    message = f"ONNX Runtime refuses the model: {_plain(said)}"
    if match := _NO_KERNEL.search(said):
        return NotTaken(message, "not_implemented", match["name"], match["node"])
    if match := _UNREGISTERED.search(said):
        return NotTaken(message, "unknown_operator", match["name"], _node(said))
    if match := _UNKNOWN.search(said):
        domain = match["domain"]
        operator = match["name"] if domain in ("", "ai.onnx") else f"{domain}.{match['name']}"
        return NotTaken(message, "unknown_operator", operator, _node(said))
    if match := _SHAPE_OUTSIDE.search(said):
        what = f"the shape or axes in {match['name'][:100]!r} are external data, which it does not read"
        return NotTaken(f"ONNX Runtime refuses the model: {what}", "shape_outside", "", _node(said))
    if is_memory(said):
        return NotTaken(message, "too_much_memory", "", _node(said))
    return NotTaken(message, "refused", "", _node(said))


def is_memory(said: str) -> bool:
    """Whether a message says that memory could not be had."""
    return _MEMORY.search(said) is not None


def _plain(said: str) -> str:
    """Without code, place of the file and C++."""
    text = _SOURCE.sub("", _LOADING.sub("", _CODE.sub("", said)))
    return one_line(Exception(_SOURCE.sub("", text)), 300)


def _node(said: str) -> str:
    match = _NODE.search(said)
    return (match["node"] or match["other"] or "") if match else ""
