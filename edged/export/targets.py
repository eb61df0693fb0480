"""Finds the newest ONNX versions that all boxes support, and checks exported files. An exporter that does not write the
requested opset or shapes only logs this. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from edged.api_types import RuntimeSupport
from edged.errors import Unsupported
from edged.models.inspection import Inspection
from edged.tensors import TensorSpec, numpy_dtype

_ANY = 64  # the version of a runtime that does not check versions: see RuntimeSupport
_REFERENCE = "onnxruntime"
Inputs = Mapping[str, tuple[str, tuple[int, ...], dict[int, str]]]  # see `child.Answer.inputs`


class Limits(NamedTuple):
    """The newest ONNX versions that all boxes support; 0 means no limit. `why` names the runtime and the box that limit
    the opset."""

    opset: int = 0
    ir_version: int = 0
    why: str = ""


def intersection(boxes: Mapping[str, Sequence[RuntimeSupport]]) -> Limits:
    """Return the newest versions that every working runtime of every box supports. Raises Unsupported if a box has no
    working ONNX Runtime, the reference for the answers of all engines."""
    limits = Limits()
    for box, runtimes in boxes.items():
        working = [each for each in runtimes if not each.problem]
        if _REFERENCE not in {each.backend for each in working}:
            raise Unsupported(f"ONNX Runtime does not work on {box}; to see why, run on that box: edged doctor")
        for each in working:
            opset, ir_version, why = limits
            if each.opset < _ANY and (not opset or each.opset < opset):
                opset, why = each.opset, f"{each.backend} {each.version} on {box}"
            if each.ir_version < _ANY and (not ir_version or each.ir_version < ir_version):
                ir_version = each.ir_version
            limits = Limits(opset, ir_version, why)
    return limits


def versions_beyond(found: Inspection, wanted: int, limits: Limits) -> str:
    """Return a message about the version that is too new; empty if no version is. The opset must be at most `wanted` (0
    for no request) and at most the opset of `limits`. The IR version must be at most that of `limits`. An opset below
    `wanted` is accepted, because some exporters write an older opset if the model's operators are the same in both
    opsets."""
    opset = found.opsets.get("ai.onnx", 0)
    if wanted and opset > wanted:
        return f"opset {opset} instead of {wanted}"
    if limits.opset and opset > limits.opset:
        return f"opset {opset}, but {limits.why} supports {limits.opset} at most"
    if limits.ir_version and found.ir_version > limits.ir_version:
        return f"IR version {found.ir_version} instead of {limits.ir_version}"
    return ""


def unlike(found: Inspection, asked: Inputs) -> str:
    """Return how a file's inputs differ from the requested inputs; empty if they do not differ."""
    inputs = {spec.name: spec for spec in found.signature.inputs}
    if len(inputs) != len(asked):
        return f"the file has the inputs {', '.join(inputs)} instead of {', '.join(asked)}"
    for (name, (dtype, shape, opened)), other in zip(asked.items(), found.signature.inputs, strict=True):
        if problem := _unlike(inputs.get(name, other), dtype, shape, opened):
            return problem
    return ""


def _unlike(spec: TensorSpec, dtype: str, shape: tuple[int, ...], opened: Mapping[int, str]) -> str:
    if str(numpy_dtype(spec.datatype)) != dtype:
        return f"input {spec.name!r} has datatype {spec.datatype} instead of {dtype}"
    if len(spec.shape) != len(shape):
        return f"input {spec.name!r} has {len(spec.shape)} dimensions instead of {len(shape)}"
    for axis, (size, asked) in enumerate(zip(spec.shape, shape, strict=True)):
        is_open = not isinstance(size, int)
        if axis in opened and not is_open:
            return f"dimension {axis} ({opened[axis]}) of input {spec.name!r} is fixed to {size}, not open"
        if axis not in opened and size != asked and not (is_open and axis == 0):
            return f"dimension {axis} of input {spec.name!r} has size {size} instead of {asked}"
    return ""
