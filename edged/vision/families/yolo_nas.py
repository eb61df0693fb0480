"""YOLO-NAS as super-gradients exports it, with its NMS in the graph.

Flat: one output [M, 7], a row per detection: picture, xyxy in input pixels, *score, class*. Batch: `num_predictions`
[N, 1], `pred_boxes` [N, K, 4], `pred_scores` and `pred_classes` [N, K], padded with -1. Its input is UINT8, the
division by 255 is in the graph; a picture's long side is 636 of 640 pixels. Source: `ExportableObjectDetectionModel`
and the processing of its pretrained models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from edged.tensors import Array
from edged.vision.detections import Detections
from edged.vision.families.candidates import to_detections
from edged.vision.families.contract import (
    Claim,
    Decoder,
    Evidence,
    FamilySpec,
    Reading,
    Thresholds,
    require,
    rows_of_picture,
)
from edged.vision.families.outputs import ANY, checked_tensor, counted
from edged.vision.placement import Fit, Placement
from edged.vision.preprocess import Preprocess

NAME = "yolo-nas"
COUNTED = ("num_predictions", "pred_boxes", "pred_scores", "pred_classes")

_FLAT, _BATCH = "flat", "batch"
_FLAT_NAME = "flat_predictions"  # the end of what the exporter calls it


class YoloNas(Decoder, frozen=True):
    name: ClassVar[str] = NAME

    def decode(
        self, outputs: Mapping[str, Array], index: int, placement: Placement, thresholds: Thresholds
    ) -> Detections:
        """See `Family.decode`. The graph has thresholds of its own."""
        if self.reading.form == _BATCH:
            boxes, scores, class_ids = counted(outputs, self.reading.outputs, index)
        else:
            rows = rows_of_picture(checked_tensor(outputs, self.reading.outputs[0], ANY, 7), index)
            boxes, scores, class_ids = rows[:, 1:5], rows[:, 5], rows[:, 6]
        return to_detections(boxes, scores, class_ids, placement, thresholds, needs_nms=False)


def feed(plain: Preprocess) -> Preprocess:
    """Letterboxed with a margin of two pixels in 640."""
    return msgspec.structs.replace(plain, fit=Fit.LETTERBOX, pad=114, zoom=636 / 640)


def by_setting(evidence: Evidence) -> Claim:
    reason = f"the setting family={NAME}"
    if set(evidence.output_names) >= set(COUNTED):
        return _batch(reason)
    require(evidence, NAME, f"one output [N, 7] or {', '.join(COUNTED)}", evidence.flat_list is not None)
    return _flat(evidence, reason)


def by_names(evidence: Evidence) -> Claim | None:
    """Outputs named as by its exporter; a flat one also if the input is UINT8."""
    if evidence.picture is None:
        return None
    if set(evidence.output_names) == set(COUNTED):
        return _batch(f"names of a YOLO-NAS export ({', '.join(COUNTED)})")
    if evidence.flat_list is None:
        return None
    if evidence.outputs[0].name.endswith(_FLAT_NAME):
        return _flat(evidence, f"name of a flat YOLO-NAS export ({evidence.outputs[0].name})")
    if evidence.picture.datatype == "UINT8" and not evidence.may_be_classes:
        return _flat(evidence, f"{evidence.outputs[0].name} [N, 7] of a UINT8 input, as flat YOLO-NAS exports have")
    return None


def _flat(evidence: Evidence, reason: str) -> Claim:
    return Claim(NAME, reason, reading=Reading(evidence.output_names, _FLAT, is_list=True, is_suppressed=True))


def _batch(reason: str) -> Claim:
    return Claim(NAME, reason, reading=Reading(COUNTED, _BATCH, is_list=True, is_suppressed=True))


SPEC = FamilySpec(by_setting, feed, YoloNas)
