"""SCRFD, a detector of faces, with or without five landmarks.

Sources: detection/scrfd/tools/scrfd.py (commit 15dfa4a) and scrfd2onnx.py (commit 41bf106) of deepinsight/insightface,
and python-package/insightface/model_zoo/retinaface.py, which decodes the same tensors.

Input [N, 3, H, W] FP32, RGB, (pixel - 127.5) / 128. The outputs, FP32, are in the order of this list. Each entry of the
list stands for three tensors, one for each of the strides 8, 16 and 32:

- scores [N, rows, 1] after the sigmoid
- boxes [N, rows, 4]: the distances of the four sides from the upper left corner of the cell
- landmarks [N, rows, 10], if the model has landmarks: x and y from this corner for left eye, right eye, nose and
  corners of the mouth, as seen in the picture

Distances, x and y are in units of the stride. There are two rows for each cell. Models with five strides, 8 to 128,
have one row for each cell.

Newer exports name the outputs score_8, bbox_8, kps_8 and so on. In older exports, the names are numbers and the outputs
lack the first dimension, so the models take one picture at a time. On exports of both kinds (SCRFD_500M_KPS,
SCRFD_2.5G_KPS) faces and scores equal those of the source; boxes differ by a pixel, because the source divides x by the
scale of y. The form with five strides is known from the source only.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from edged.tensors import TensorSpec
from edged.vision.detections import Detections
from edged.vision.families.contract import Claim, Evidence, Family, Feed, Reading, may_be, undecided
from edged.vision.families.decoding import (
    Floats,
    Outputs,
    Thresholds,
    picture_tensor,
    to_keypoint_detections,
)
from edged.vision.families.grids import cells_at
from edged.vision.placement import Fit, Placement
from edged.vision.signatures import patterns

_SCALES = {6: 3, 9: 3, 10: 5, 15: 5}  # number of strides, by number of outputs
_STRIDES = (8, 16, 32, 64, 128)
_COLUMNS = {"score": 1, "bbox": 4, "kps": 10}
_EXAMPLE = (640, 640)  # the size of the example picture with which the script exports models of open size
_FLAT = "flat"  # without the first dimension


def _signature(outputs: int, batch: str) -> str:
    """Return the signature of a model with this number of outputs."""
    strides = _STRIDES[: _SCALES[outputs]]
    kinds = tuple(_COLUMNS.items())[: outputs // len(strides)]
    rows = "2*cells" if len(strides) == 3 else "cells"
    return ", ".join(f"{kind}_{s}? [{batch}{rows}/{s}, {columns}]" for kind, columns in kinds for s in strides)


class Scrfd(Family, frozen=True):
    """SCRFD; see the module. The model gives no scores of keypoints, so keypoints get score 1.

    Pictures lie in the upper left corner, padded with black. The authors' NMS adds one pixel to the width and height of
    a box; edged's NMS does not.
    """

    name = "scrfd"
    signatures = patterns(
        *(_signature(outputs, "N, ") for outputs in (9, 6, 15, 10)),
        *(_signature(outputs, "") for outputs in (9, 6)),
    )
    feed: ClassVar[Feed] = {
        "fit": Fit.TOP_LEFT,
        "pad": 0,
        "scale": 1.0,
        "mean": (127.5, 127.5, 127.5),
        "std": (128.0, 128.0, 128.0),
    }
    thresholds = Thresholds(score=0.5, iou=0.4)

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        """See `Family.decode`. The detections have keypoints if the model has landmarks."""
        names = self.reading.outputs
        if self.reading.form == _FLAT:
            outputs = {name: outputs[name][None] for name in names if name in outputs}
        count = _SCALES[len(names)]
        scales = [self._scale(outputs, index, names[i::count], _STRIDES[i], thresholds.score) for i in range(count)]
        boxes, scores, points = (np.concatenate(parts) for parts in zip(*scales, strict=True))
        return to_keypoint_detections(boxes, scores, points, placement, thresholds, needs_nms=True)

    def _scale(
        self, outputs: Outputs, index: int, names: tuple[str, ...], stride: int, score: float
    ) -> tuple[Floats, Floats, Floats]:
        """Decode one grid. Return boxes xyxy [n, 4], scores [n] and landmarks [n, k, 2], in input pixels."""
        across, down = self.grid(stride)
        per_cell = _per_cell(len(self.reading.outputs))
        rated, sides, *landmarks = (
            picture_tensor(outputs, name, index, across * down * per_cell, columns)
            for name, columns in zip(names, _COLUMNS.values(), strict=False)
        )
        rows = np.flatnonzero(np.greater(rated[:, 0], score))
        corner = cells_at(rows, across, per_cell) * stride
        points = np.empty((len(rows), 0, 2), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # values that are not finite are dropped later
            away = sides[rows].astype(np.float32) * stride
            boxes = np.concatenate((corner - away[:, :2], corner + away[:, 2:]), axis=1)
            for each in landmarks:
                points = each[rows].astype(np.float32).reshape(-1, 5, 2) * stride + corner[:, None]
        return boxes, rated[rows, 0].astype(np.float32), points

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        """See `Opened.claim`. Outputs with the exporter's names may be in any order."""
        outputs = _in_order(evidence)
        count = _SCALES.get(len(outputs))
        if count is None:
            return None
        is_flat = len(outputs[0].shape) == 2
        first: tuple[None, ...] = () if is_flat else (None,)
        columns = tuple(_COLUMNS.values())
        for i, spec in enumerate(outputs):
            wanted = _row_counts(evidence, _STRIDES[i % count], _per_cell(len(outputs)))
            if not any(may_be(spec.shape, *first, rows, columns[i // count]) for rows in wanted):
                return None
        reading = Reading(tuple(spec.name for spec in outputs), _FLAT if is_flat else "")
        return Claim(cls.name, reason, reading, 1, names=("face",))

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        names = set(evidence.output_names)
        if len(names) not in _SCALES or names != set(_names(len(names))):
            return None
        return cls.claim(evidence, "names of an SCRFD export (score_8, bbox_8, ...)")

    @classmethod
    def by_shape(cls, evidence: Evidence) -> Claim | None:
        """Claim a model by the columns of its outputs. Without landmarks, many models have such columns, so the file
        must also declare the right number of rows for the input; otherwise the claim is undecided."""
        claim = cls.claim(evidence, "tables of 1, 4 and 10 columns for each stride, as SCRFD has")
        if claim is None or len(evidence.outputs) in (9, 15):
            return claim
        what = "tables of 1 and 4 columns for each stride, as SCRFD without landmarks has"
        if any(isinstance(spec.shape[-2], str) for spec in evidence.outputs):
            return undecided(f"{what}, but of unknown length", cls.name)
        return cls.claim(evidence, what)


def _per_cell(outputs: int) -> int:
    return 2 if _SCALES[outputs] == 3 else 1


def _names(outputs: int) -> list[str]:
    count = _SCALES[outputs]
    return [f"{kind}_{stride}" for kind in _COLUMNS for stride in _STRIDES[:count]][:outputs]


def _in_order(evidence: Evidence) -> tuple[TensorSpec, ...]:
    """Return the outputs in the order of the exporter's names, or as in the file if they have other names."""
    specs = {spec.name: spec for spec in evidence.outputs}
    names = _names(len(specs)) if len(specs) in _SCALES else []
    return tuple(specs[name] for name in names) if set(names) == set(specs) else evidence.outputs


def _row_counts(evidence: Evidence, stride: int, per_cell: int) -> list[int]:
    """Return the numbers of rows that a file can declare: the number for the input size and, if the model leaves this
    size open, the number for `_EXAMPLE`."""
    is_open = evidence.picture.width is None or evidence.picture.height is None
    sizes = [size for size in (evidence.size, _EXAMPLE if is_open else None) if size is not None]
    return [per_cell * -(-width // stride) * -(-height // stride) for width, height in sizes]
