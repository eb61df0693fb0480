"""EfficientDet, in two forms. The family `ssd` decodes a third form: outputs `detection_boxes` ... (Object Detection
API).

- google/automl: input `image_arrays` UINT8 [N, H, W, 3], output `detections` [N, K, 7], a row per detection: number of
  the picture, *yxyx* in input pixels, score, class. The graph normalises and does the NMS. tf2onnx adds `:0` to names.
- zylo117's PyTorch version: RGB normalised as for ImageNet, at the top left, padded with the mean. Three tables among
  the outputs, in this order: `regression` [N, A, 4] (dy, dx, log of the height, log of the width, relative to the
  anchor), `classification` [N, A, C] after the sigmoid, `anchors` [1, A, 4] yxyx in input pixels; without NMS. Other
  outputs (features) are ignored.

Class ids are the model's own; those of google/automl start at 1.

Source: google/automl (commit 6a54c87): `efficientdet/inference.py`, `tf2/postprocess.py`; zylo117's
Yet-Another-EfficientDet-Pytorch (commit 15403b5): `EfficientDetBackbone.forward`, `BBoxTransform`, `utils/utils.py`,
`efficientdet_test.py`. The PyTorch version has no export script. Neither form was verified with a converted file.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from edged.tensors import TensorSpec
from edged.vision.detections import Detections
from edged.vision.families.contract import (
    Claim,
    Evidence,
    Family,
    Feed,
    Reading,
    count_classes,
    suppressed_list,
    undecided,
)
from edged.vision.families.decoding import (
    ANY,
    AT_LEAST_ONE,
    Floats,
    Outputs,
    Thresholds,
    best_class,
    checked_tensor,
    picture_tensor,
    to_detections,
)
from edged.vision.placement import Fit, Placement
from edged.vision.preprocess import IMAGENET_MEAN, IMAGENET_STD
from edged.vision.signatures import patterns

_ROWS, _ANCHORS = "rows", "anchors"


class EfficientDet(Family, frozen=True):
    """EfficientDet."""

    name = "efficientdet"
    signatures = patterns(
        "detections? [N, K, 7]",
        "regression [N, A, 4], classification [N, A, classes], anchors [1, A, 4], ...",
        "[N, 9*cells128, 4], [N, 9*cells128, classes], [1, 9*cells128, 4], ...",
    )
    feed: ClassVar[Feed] = {"fit": Fit.TOP_LEFT, "pad": 116, "mean": IMAGENET_MEAN, "std": IMAGENET_STD}
    thresholds = Thresholds(score=0.2, iou=0.2)

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        if self.reading.form == _ROWS:
            rows = picture_tensor(outputs, self.reading.outputs[0], index, ANY, 7)
            boxes = rows[:, [2, 1, 4, 3]]
            return to_detections(boxes, rows[:, 5], rows[:, 6], placement, thresholds, needs_nms=False)
        return self._decode_anchors(outputs, index, placement, thresholds)

    def _decode_anchors(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        """Decode the three tables. Each anchor gives at most one detection, with its best class."""
        deltas_of, scores_of, anchors_of = self.reading.outputs
        scores = picture_tensor(outputs, scores_of, index, ANY, self.reading.classes or AT_LEAST_ONE)
        deltas = picture_tensor(outputs, deltas_of, index, len(scores), 4)
        anchors = checked_tensor(outputs, anchors_of, AT_LEAST_ONE, len(scores), 4)[0]
        rows = np.flatnonzero(np.greater(scores.max(axis=1), thresholds.score))
        best, class_ids = best_class(scores[rows].astype(np.float32))
        boxes = _on_anchors(deltas[rows].astype(np.float32), anchors[rows].astype(np.float32))
        return to_detections(boxes, best, class_ids, placement, thresholds, needs_nms=True)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        output, tables = evidence.only_output, _tables(evidence)
        if output is not None and len(output.shape) == 3 and output.shape[2] == 7:
            return Claim(cls.name, reason, suppressed_list((output.name,), _ROWS))
        if tables is None:
            return None
        reading = Reading(tuple(spec.name for spec in tables), _ANCHORS)
        return Claim(cls.name, reason, reading, count_classes(tables[1].shape[2]))

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        """Claim google/automl's form by the names of its input and output."""
        names = (evidence.picture.name.removesuffix(":0"), *(name.removesuffix(":0") for name in evidence.output_names))
        if names != ("image_arrays", "detections"):
            return None
        return cls.claim(evidence, "tensors image_arrays and detections of an EfficientDet export")

    @classmethod
    def by_shape(cls, evidence: Evidence) -> Claim | None:
        """Return an undecided claim with the family for three tables with nine anchors for each cell of five grids."""
        tables, cells = _tables(evidence), evidence.cells((8, 16, 32, 64, 128))
        if tables is None or cells is None or tables[0].shape[1] != 9 * cells:
            return None
        return undecided("three tables with nine anchors a cell, as EfficientDet has", cls.name)


def _tables(evidence: Evidence) -> list[TensorSpec] | None:
    """Return the tables of deltas, scores and anchors; None if the model has no such tables."""
    tables = [spec for spec in evidence.outputs if len(spec.shape) == 3]
    if len(tables) != 3 or any(tables[place].shape[2] != 4 for place in (0, 2)):
        return None
    known = {spec.shape[1] for spec in tables if isinstance(spec.shape[1], int)}
    return tables if len(known) < 2 else None


def _on_anchors(deltas: Floats, anchors: Floats) -> Floats:
    """Return boxes [n, 4] in xyxy. `deltas` [n, 4] are relative to `anchors` [n, 4], which are in yxyx."""
    with np.errstate(over="ignore", invalid="ignore"):  # values that are not finite are dropped later
        sizes = anchors[:, 2:] - anchors[:, :2]
        centres = (anchors[:, :2] + anchors[:, 2:]) / 2 + deltas[:, :2] * sizes
        half = np.exp(deltas[:, 2:]) * sizes / 2
        boxes: Floats = np.concatenate((centres - half, centres + half), axis=1)[:, [1, 0, 3, 2]]
    return boxes
