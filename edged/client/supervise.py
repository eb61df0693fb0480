"""Results as the objects of the `supervision` library, which counts in zones, tracks and paints."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from edged import packages
from edged.errors import Unsupported
from edged.vision import masks

if TYPE_CHECKING:
    from edged.client.result import Result

# Names that supervision gives to entries of `data`; its `config` module has them.
_CLASS_NAMES, _ORIENTED = "class_name", "xyxyxyxy"


def to_supervision(result: Result) -> Any:
    """`supervision.Detections` of a result, made directly: its own reader of Roboflow's JSON draws masks anew from
    outlines, without their holes, and knows no oriented boxes. Unsupported where the library is not installed."""
    try:
        supervision: Any = importlib.import_module("supervision")
    except ImportError:
        raise Unsupported(f"supervision is not installed; install it: {packages.install('supervision')}") from None
    found = result.boxes()
    data: dict[str, Any] = {_CLASS_NAMES: np.array([d.label for d in result.detections], dtype=str)}
    if found.corners is not None:
        data[_ORIENTED] = found.corners
    return supervision.Detections(
        xyxy=found.boxes,
        confidence=found.scores,
        class_id=found.class_ids.astype(np.int64),
        mask=None
        if found.masks is None
        else np.stack([masks.decode(each, result.width, result.height) for each in found.masks]),
        tracker_id=found.tracker_ids,
        data=data,
    )
