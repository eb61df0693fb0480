"""Whether an exporter wrote what it was asked for. Exporters only log it if they did not. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from edged.export.targets import Limits
from edged.models.inspection import Inspection
from edged.tensors import TensorSpec, numpy_dtype

Inputs = Mapping[str, tuple[str, tuple[int, ...], dict[int, str]]]  # see `child.Answer.inputs`


def versions_beyond(found: Inspection, wanted: int, limits: Limits) -> str:
    """Return how opset and IR version are beyond what was asked for, 0 for no wish, or what the boxes take; empty if
    they are not. Some exporters write an older opset than asked for, if the operators are the same there."""
    opset = found.opsets.get("ai.onnx", 0)
    if wanted and opset > wanted:
        return f"opset {opset} instead of {wanted}"
    if limits.opset and opset > limits.opset:
        return f"opset {opset}, but {limits.why} takes {limits.opset}"
    if limits.ir_version and found.ir_version > limits.ir_version:
        return f"IR version {found.ir_version} instead of {limits.ir_version}"
    return ""


def unlike(found: Inspection, asked: Inputs) -> str:
    """Return how the inputs differ from those asked for; empty if they do not."""
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
