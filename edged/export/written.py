"""Checks whether an exported file is as requested. If it is not, exporters only log this. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from edged.export.targets import Limits
from edged.models.inspection import Inspection
from edged.tensors import TensorSpec, numpy_dtype

Inputs = Mapping[str, tuple[str, tuple[int, ...], dict[int, str]]]  # see `child.Answer.inputs`


def versions_beyond(found: Inspection, wanted: int, limits: Limits) -> str:
    """Return how the opset or the IR version is newer than requested or than the boxes take; empty if neither is.
    `wanted` is the requested opset, 0 without a request. An older opset is accepted: some exporters write one if the
    operators are the same there."""
    opset = found.opsets.get("ai.onnx", 0)
    if wanted and opset > wanted:
        return f"opset {opset} instead of {wanted}"
    if limits.opset and opset > limits.opset:
        return f"opset {opset}, but {limits.why} takes {limits.opset}"
    if limits.ir_version and found.ir_version > limits.ir_version:
        return f"IR version {found.ir_version} instead of {limits.ir_version}"
    return ""


def unlike(found: Inspection, asked: Inputs) -> str:
    """Return how the inputs differ from the requested ones; empty if they do not."""
    inputs = {spec.name: spec for spec in found.signature.inputs}
    if len(inputs) != len(asked):
        return f"it has the inputs {', '.join(inputs)} instead of {', '.join(asked)}"
    for (name, (dtype, shape, opened)), other in zip(asked.items(), found.signature.inputs, strict=True):
        if problem := _unlike(inputs.get(name, other), dtype, shape, opened):
            return problem
    return ""


def _unlike(spec: TensorSpec, dtype: str, shape: tuple[int, ...], opened: Mapping[int, str]) -> str:
    if str(numpy_dtype(spec.datatype)) != dtype:
        return f"input {spec.name!r} is {spec.datatype} instead of {dtype}"
    if len(spec.shape) != len(shape):
        return f"input {spec.name!r} has {len(spec.shape)} dimensions instead of {len(shape)}"
    for axis, (size, asked) in enumerate(zip(spec.shape, shape, strict=True)):
        is_open = not isinstance(size, int)
        if axis in opened and not is_open:
            return f"dimension {axis} ({opened[axis]}) of input {spec.name!r} is {size}, not open"
        if axis not in opened and size != asked and not (is_open and axis == 0):
            return f"dimension {axis} of input {spec.name!r} is {size} instead of {asked}"
    return ""
