"""The YOLOv5 repository's exports, and those of the YOLOv7 repository with `--grid`, which are the same tensor.

One output, [N, 3A, 5 + classes]: three anchors for each of the A grid cells, with cx, cy, w, h in input pixels,
objectness and one score per class, all after the sigmoid; without NMS. Source: `Detect.forward` of
both repositories. Exports of the Meituan YOLOv6 repository are [N, A, 5 + classes] of the same columns and are
read by the setting family=yolov5. Old exports have their three raw heads as further outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from edged.tensors import Array, Dim, TensorSpec
from edged.vision.detections import Detections
from edged.vision.families import ultralytics
from edged.vision.families.candidates import Floats, best_class, corners, to_detections
from edged.vision.families.contract import (
    Claim,
    Decoder,
    Evidence,
    FamilySpec,
    Thresholds,
    require,
    undecided,
)
from edged.vision.families.outputs import AT_LEAST_ONE, picture_tensor
from edged.vision.placement import Placement

NAME = "yolov5"

_STRIDES = ((8, 16, 32), (8, 16, 32, 64))
_FEWEST = 6  # columns: a box, objectness, a class


class YoloV5(Decoder, frozen=True):
    name: ClassVar[str] = NAME

    def decode(
        self, outputs: Mapping[str, Array], index: int, placement: Placement, thresholds: Thresholds
    ) -> Detections:
        """See `Family.decode`. Each row counts once, with its best class."""
        rows = picture_tensor(outputs, self.reading.outputs[0], index, AT_LEAST_ONE, self.reading.width(5))
        table = certain(rows, thresholds)[1]
        scores, class_ids = rated(table)
        return to_detections(corners(table[:, :4]), scores, class_ids, placement, thresholds, needs_nms=True)


def certain(table: Array, thresholds: Thresholds) -> tuple[np.typing.NDArray[np.intp], Floats]:
    """The rows whose objectness alone is above the threshold, which their score cannot exceed: index and float32."""
    rows = np.flatnonzero(np.greater(table[:, 4], thresholds.score))
    return rows, table[rows].astype(np.float32)


def rated(table: Floats) -> tuple[Floats, np.typing.NDArray[np.intp]]:
    """The best score of each row, its objectness times its class's, and that class."""
    with np.errstate(over="ignore", invalid="ignore"):  # what is no number is left out later
        return best_class(table[:, 5:] * table[:, 4:5])


def by_setting(evidence: Evidence) -> Claim:
    table = _table(evidence)
    require(evidence, NAME, "one output [N, rows, 5+classes]", table is not None)
    assert table is not None
    return _claim(f"the setting family={NAME}", table)


def by_shape(evidence: Evidence) -> Claim | None:
    """Three rows for each of the input's grid cells."""
    table = _table(evidence)
    if table is None or evidence.picture is None:
        return None
    _, rows, columns = table.shape
    names = evidence.metadata.names
    if evidence.metadata.task is not None or not isinstance(columns, int):
        return None
    if _is_anchors(evidence, rows) and not (names and columns != 5 + len(names)):
        if columns == _FEWEST and not names and evidence.picture.name != "images":
            return undecided(f"{table.name} has three rows a grid cell and six columns", NAME, "deepstream-yolo")
        who = f"metadata names {len(names)} classes" if names else "row arithmetic"
        return _claim(f"{who}: {table.name} has three rows a grid cell, as YOLOv5 and YOLOv7 have", table)
    if names and evidence.metadata.stride and isinstance(rows, str) and columns == 5 + len(names):
        return _claim(f"metadata names {len(names)} classes: {table.name} has as many columns and 5 more", table)
    return None


def _claim(reason: str, table: TensorSpec) -> Claim:
    columns = table.shape[2]
    return Claim(NAME, reason, table.name, columns - 5 if isinstance(columns, int) else None)


def _table(evidence: Evidence) -> TensorSpec | None:
    """The output to decode, possibly among raw heads."""
    tables = [spec for spec in evidence.outputs if len(spec.shape) == 3]
    others = [spec for spec in evidence.outputs if len(spec.shape) != 3]
    if len(tables) != 1 or not all(len(spec.shape) == 5 for spec in others):
        return None
    columns = tables[0].shape[2]
    return tables[0] if isinstance(columns, str) or columns >= _FEWEST else None


def _is_anchors(evidence: Evidence, rows: Dim) -> bool:
    counts = [evidence.cells(strides) for strides in _STRIDES]
    return any(cells is not None and rows == 3 * cells for cells in counts)


SPEC = FamilySpec(by_setting, ultralytics.feed, YoloV5)
