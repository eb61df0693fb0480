"""Finds errors in operators, types and shapes with the onnx package, and infers shapes.

A finding is only a suspicion. The package and the runtime may have different versions of an operator, and models with
wrong declared shapes are still served. If the runtime refuses the model too, edged reports this finding, because it is
more precise than the runtime's error. Otherwise the finding is a warning. The package's C++ code may crash or never
end, so the check runs in a child.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx
import onnx.checker
import onnx.defs
import onnx.shape_inference

from edged.jobs import onnx_walk
from edged.jobs.onnx_walk import Walk, called, label, text
from edged.models.finding import Category, Finding, Stage

_MOST = 1024  # the highest plausible version
_KEPT = 4096  # the most bytes of a tensor from which shapes may be inferred; larger tensors are weights
# Messages to ignore: about values that are external or that `take_weights_out` removed, about operators for which the
# package has no rule, and about properties that the runtimes check.
_NOT_SAID = re.compile(
    r"external|Data size mismatch|Cannot parse data|sparse_tensor|No Op registered|TensorProto \(tensor name",
    re.IGNORECASE,
)
_AT = re.compile(r"\(op_type: ?(?P<operator>[^,)]+)(?:, node name: ?(?P<node>[^)]*))?\):? ?(?P<why>.*)")
_TYPE = re.compile(r"elem(ent)? ?type|typestr|\btype\b|tensor\(", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"\battribute\b", re.IGNORECASE)
_SHAPE = re.compile(r"shape|dim|rank|size|axis|broadcast", re.IGNORECASE)


def take_weights_out(walk: Walk) -> None:
    """Remove the values of large tensors from the model, so that it fits into a protobuf message."""
    for tensor in walk.tensors:
        if len(tensor.raw_data) > _KEPT or max(len(tensor.float_data), len(tensor.int32_data)) * 4 > _KEPT:
            for field in ("raw_data", "float_data", "int32_data"):
                tensor.ClearField(field)


def infer(walk: Walk) -> tuple[onnx.ModelProto, Finding | None]:
    """Return the model with inferred shapes, and the package's first finding. The model is unchanged if inference
    fails. The second value is None if the package finds nothing, or cannot check the model."""
    versions = [walk.proto.ir_version, *(entry.version for entry in walk.proto.opset_import)]
    finding = None
    if all(0 <= version <= _MOST for version in versions):  # the package uses 32 bits; the runtimes check versions, too
        finding = next(_nodes(walk), None)
        if finding is None:
            try:  # without an error, the call below would return the same
                return _inferred(walk.proto, is_strict=True), None
            except Exception as error:  # the errors have no common class
                finding = _parsed(" ".join(str(error).split()), walk)
    try:
        return _inferred(walk.proto, is_strict=False), finding
    except Exception:  # inferred shapes are not required, and a failure says nothing about the model
        return walk.proto, finding


def _inferred(proto: onnx.ModelProto, *, is_strict: bool) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(proto, check_type=is_strict, strict_mode=is_strict, data_prop=True)


def _nodes(walk: Walk) -> Iterator[Finding]:
    """Check the attributes of each node, and how many inputs and outputs it has. Each node is checked separately, so
    that a finding can name it.

    Nodes of functions are not checked, because the caller of a function may supply their attributes."""
    context, proto = type(onnx.checker.DEFAULT_CONTEXT)(), walk.proto
    context.ir_version = proto.ir_version
    local = {(function.domain, function.name) for function in proto.functions}
    opsets = {entry.domain: entry.version for entry in proto.opset_import}
    opset = opsets.get("", opsets.get("ai.onnx", 0))
    # Both names of the default domain are set, because the file and a node may use different names.
    context.opset_imports = {**opsets, **dict.fromkeys(onnx_walk.ONNX_DOMAINS, opset)}
    is_looked_at: dict[tuple[str, str], bool] = {}
    for graph in walk.graphs:
        for node in graph.node:
            kind = (node.domain, node.op_type)
            if kind not in is_looked_at:
                is_plain = node.domain in onnx_walk.ONNX_DOMAINS and kind not in local
                is_looked_at[kind] = is_plain and _is_known(node.op_type, opset)
            if not is_looked_at[kind]:
                continue
            try:
                onnx.checker.check_node(_alone(node), context)
            except Exception as error:  # the package's errors have no common class
                why = " ".join(str(error).split()).partition("==> Context:")[0].strip()
                if _NOT_SAID.search(why):
                    continue
                yield _finding(Category.INVALID_NODE, f"{called(node)}: {why[:300]}", label(node))


def _is_known(operator: str, opset: int) -> bool:
    """Whether ONNX defines an operator in an opset. Runtimes may have further operators."""
    try:
        return bool(onnx.defs.has(operator, opset, ""))
    except Exception:  # the name is not valid text
        return False


def _alone(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return a node with empty bodies. The bodies are checked separately, because they read values from outside."""
    if not node.attribute or not any(True for _ in onnx_walk.bodies(node)):
        return node
    alone = onnx.NodeProto()
    alone.CopyFrom(node)
    for body in onnx_walk.bodies(alone):
        name = body.name or "body"
        body.Clear()
        body.name = name
    return alone


def _parsed(message: str, walk: Walk) -> Finding | None:
    if _NOT_SAID.search(message):
        return None
    at = _AT.search(message)
    if at is None:
        return None  # the message names no node, so it says nothing about the model
    operator, why = at["operator"], re.sub(r"\[(Type|Shape)InferenceError\] ?", "", at["why"]).strip()
    node = _found(operator, at["node"] or "", walk)
    what = called(node) if node is not None else f"a node ({operator})"
    return _finding(_category(why), f"{what}: {why[:300]}", label(node) if node is not None else "")


def _category(why: str) -> Category:
    if not _ATTRIBUTE.search(why):
        if _TYPE.search(why):
            return Category.TYPE_MISMATCH
        if _SHAPE.search(why):
            return Category.SHAPE_MISMATCH
    return Category.INVALID_NODE


def _found(operator: str, name: str, walk: Walk) -> onnx.NodeProto | None:
    """Return the node that an error is about. If the error names only the operator, the node has no name. Then return
    the node of this operator that has no name. Return None if there is no such node, or more than one."""
    kin = [node for node in walk.nodes if text(node.op_type) == operator]
    if name:
        return next((node for node in kin if text(node.name) == name), None)
    nameless = [node for node in kin if not node.name]
    return nameless[0] if len(nameless) == 1 else None


def _finding(category: Category, message: str, node: str) -> Finding:
    return Finding(Stage.GRAPH, category, message, "export the model again", node)
