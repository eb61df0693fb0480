"""FastestDet, as its repository exports it.

Input [1, 3, H, W] FP32. One output [1, 5 + C, H / 16, W / 16]. The channels are objectness, four values t0..t3 of the
box, and the probability of each class. For the cell in column x and row y, the centre of the box is (x + tanh(t0), y +
tanh(t1)) in units of cells. Its size is (sigmoid(t2), sigmoid(t3)) in 0..1 of the input. The score is objectness^0.6 *
probability^0.4 of the best class. No NMS.

Pictures are stretched; pixels are BGR in 0..1.

Source: repository dog-qiuqiu/FastestDet (commit 50473cd): `test.py`, `handle_preds` in `utils/tool.py`,
`example/onnx-runtime/runtime.py` and its FastestDet.onnx.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from edged.vision.detections import Detections
from edged.vision.families.contract import Claim, Evidence, Family, Feed, Reading, count_classes, undecided
from edged.vision.families.decoding import (
    Outputs,
    Thresholds,
    best_class,
    corners,
    picture_tensor,
    sigmoid,
    to_detections,
)
from edged.vision.families.grids import cells_at
from edged.vision.placement import Placement
from edged.vision.signatures import patterns

_STRIDE = 16
_OBJECT, _CLASS = np.float32(0.6), np.float32(0.4)  # the exponents of the score


class FastestDet(Family, frozen=True):
    """FastestDet."""

    name = "fastestdet"
    signatures = patterns("[N, 5+classes, H/16, W/16]")
    feed: ClassVar[Feed] = {"color": "bgr"}
    thresholds = Thresholds(score=0.65, iou=0.45)

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        """See `Family.decode`. A cell gives at most one detection, with its best class."""
        width, height = self.size
        down, across = -(-height // _STRIDE), -(-width // _STRIDE)
        grid = picture_tensor(outputs, self.reading.outputs[0], index, self.reading.width(5), down, across)
        table = grid.reshape(len(grid), -1)
        # A probability is at most 1, so the objectness limits the score. This comparison leaves room for rounding
        # errors; the exact comparison comes last.
        places = np.flatnonzero(np.greater(table[0], thresholds.score ** (1 / 0.6) * (1 - 1e-3)))
        found = table[:, places].astype(np.float32)
        best, class_ids = best_class(found[5:].T)
        cells = cells_at(places, self.grid(_STRIDE)[0])
        with np.errstate(over="ignore", invalid="ignore"):  # scores that are not finite are dropped later
            scores = found[0] ** _OBJECT * best**_CLASS
            centres = (cells + np.tanh(found[1:3].T)) / np.array((across, down), np.float32)
        boxes = self.in_pixels(corners(np.concatenate((centres, sigmoid(found[3:5].T)), axis=1)))
        return to_detections(boxes, scores, class_ids, placement, thresholds, needs_nms=True)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        output = evidence.only_output
        if output is None or len(output.shape) != 4 or (isinstance(output.shape[1], int) and output.shape[1] < 6):
            return None
        if evidence.size is not None:
            sides = [-(-side // _STRIDE) for side in reversed(evidence.size)]
            if any(isinstance(dim, int) and dim != side for dim, side in zip(output.shape[2:], sides, strict=True)):
                return None
        return Claim(cls.name, reason, Reading((output.name,)), count_classes(output.shape[1], 5))

    @classmethod
    def by_shape(cls, evidence: Evidence) -> Claim | None:
        """Return an undecided claim with the family, if the output is one grid of concatenated channels and the graph
        has a Softmax. Other networks may look the same."""
        claim, heads = cls.claim(evidence, ""), evidence.heads or {}
        if claim is None or claim.classes is None or "Softmax" not in (evidence.operators or ()):
            return None
        if heads.get(claim.reading.outputs[0]) != "Concat":
            return None
        return undecided("one grid of joined channels, as FastestDet has", cls.name)
