"""The newest ONNX versions that the boxes for an exported model take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from edged.api_types import RuntimeSupport
from edged.errors import Unsupported

_ANY = 64  # see RuntimeSupport
_REFERENCE = "onnxruntime"


class Limits(NamedTuple):
    """The newest ONNX versions that all boxes take; 0 if they are not limited. `why` names the runtime and the box that
    limit the opset."""

    opset: int = 0
    ir_version: int = 0
    why: str = ""


def intersection(boxes: Mapping[str, Sequence[RuntimeSupport]]) -> Limits:
    """Return the newest versions that every working runtime of every box takes. Raises Unsupported if a box has no
    working ONNX Runtime, with which every answer is compared."""
    limits = Limits()
    for box, runtimes in boxes.items():
        working = [each for each in runtimes if not each.problem]
        if _REFERENCE not in {each.backend for each in working}:
            raise Unsupported(f"ONNX Runtime does not work on {box}; see there: edged doctor")
        for each in working:
            opset, ir_version, why = limits
            if each.opset < _ANY and (not opset or each.opset < opset):
                opset, why = each.opset, f"{each.backend} {each.version} on {box}"
            if each.ir_version < _ANY and (not ir_version or each.ir_version < ir_version):
                ir_version = each.ir_version
            limits = Limits(opset, ir_version, why)
    return limits
