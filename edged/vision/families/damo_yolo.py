"""DAMO-YOLO, as its repository exports it.

Input `images` [N, 3, H, W] FP32. Two outputs, of which the first is named `output`: scores [N, A, C] after the sigmoid,
and boxes [N, A, 4] xyxy in input pixels. Both have a row for each grid cell at the strides 8, 16, 32. No NMS. With
`--end2end` the tensors have the names and shapes of YOLOv7's end-to-end exports. So edged takes such a model for a
YOLOv7, and prepares pictures for a YOLOv7. Set family=damo-yolo to prepare pictures as in DAMO-YOLO's training.

Pictures are stretched; pixels are RGB in 0..255, neither scaled nor normalised.

Source: repository tinyvision/DAMO-YOLO (commit 319572e): `tools/converter.py`, `tools/demo.py`,
`ZeroHead.forward_eval`, `damo/config/augmentations.py`.
"""

from __future__ import annotations

from typing import ClassVar

from edged.vision.detections import Detections
from edged.vision.families.contract import Claim, Evidence, Family, Feed, Reading, count_classes, suppressed_list
from edged.vision.families.decoding import (
    ANY,
    AT_LEAST_ONE,
    Outputs,
    Thresholds,
    best_hits,
    counted_rows,
    picture_tensor,
    to_detections,
)
from edged.vision.families.yolo import END_TO_END, YoloV7
from edged.vision.placement import Placement
from edged.vision.signatures import patterns

_END2END, _TABLES = "end2end", "tables"


class DamoYolo(Family, frozen=True):
    """DAMO-YOLO."""

    name = "damo-yolo"
    signatures = (*patterns("output? [N, cells, classes], [N, cells, 4]"), END_TO_END)
    feed: ClassVar[Feed] = {"scale": 1.0}
    thresholds = Thresholds(score=0.6, iou=0.7)

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        """See `Family.decode`. A row gives a detection for each class above the threshold."""
        if self.reading.form == _END2END:
            boxes, scores, class_ids = counted_rows(outputs, self.reading.outputs, index)
            return to_detections(boxes, scores, class_ids, placement, thresholds, needs_nms=False)
        scores_of, boxes_of = self.reading.outputs
        scores = picture_tensor(outputs, scores_of, index, ANY, self.reading.classes or AT_LEAST_ONE)
        boxes = picture_tensor(outputs, boxes_of, index, len(scores), 4)
        rows, class_ids = best_hits(scores, thresholds.score)
        return to_detections(boxes[rows], scores[rows, class_ids], class_ids, placement, thresholds, needs_nms=True)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        if set(evidence.output_names) >= set(YoloV7.counted):
            return Claim(cls.name, reason, suppressed_list(YoloV7.counted, _END2END))
        if len(evidence.outputs) != 2 or any(len(spec.shape) != 3 for spec in evidence.outputs):
            return None
        scores, boxes = evidence.outputs
        rows = scores.shape[1], boxes.shape[1]
        if boxes.shape[2] != 4 or (all(isinstance(count, int) for count in rows) and rows[0] != rows[1]):
            return None
        return Claim(cls.name, reason, Reading((scores.name, boxes.name), _TABLES), count_classes(scores.shape[2]))

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        """Claim a model if its tensors have the names that the exporter gives, and a row for each grid cell."""
        if evidence.picture.name != "images" or evidence.output_names[:1] != ("output",):
            return None
        claim = cls.claim(evidence, "tensors images and output of a DAMO-YOLO export, a row for each grid cell")
        is_grid = len(evidence.outputs[0].shape) == 3 and evidence.outputs[0].shape[1] == evidence.cells()
        return claim if claim is not None and is_grid else None
