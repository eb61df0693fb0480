"""Single-shot detectors (SSD)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from edged.tensors import Array, TensorSpec
from edged.vision.detections import Detections
from edged.vision.families.contract import (
    Claim,
    Evidence,
    Family,
    Feed,
    Reading,
    count_classes,
    not_decoded,
    suppressed_list,
    undecided,
)
from edged.vision.families.decoding import (
    ANY,
    Floats,
    Outputs,
    Rows,
    Thresholds,
    at_least,
    checked_tensor,
    counted_rows,
    picture_tensor,
    rows_of_picture,
    to_detections,
)
from edged.vision.placement import Placement
from edged.vision.signatures import patterns

_PRIORS, _ROWS, _COUNTED = "priors", "rows", "counted"
# Operators that compute the scores of an SSD with prior boxes, or join the scores of its scales; "" if unknown.
_MADE_BY = ("Softmax", "Concat", "")
# In the order of `counted_rows`: count, boxes, scores, class ids.
_TENSORFLOW = ("num_detections", "detection_boxes", "detection_scores", "detection_classes")
_KNOWN = (
    _TENSORFLOW,
    tuple(f"{name}:0" for name in _TENSORFLOW),
    tuple(f"TFLite_Detection_PostProcess{end}" for end in (":3", "", ":2", ":1")),
)


class Ssd(Family, frozen=True):
    """Single-shot detectors, in three forms:

    - `scores` [N, P, C] after the softmax and `boxes` [N, P, 4], xyxy in 0..1: a row per prior box, without NMS. Class
      0 is the background. A row gives a detection for each other class above the threshold.
    - OpenVINO's DetectionOutput, [1, 1, M, 7], a row per detection: index of the picture, class, score, xyxy in 0..1. A
      row whose picture index is negative ends the list.
    - TFLite's four tensors: boxes [N, K, 4] *yxyx* in 0..1, classes and scores [N, K], count [N]. Other detectors of
      TensorFlow's Object Detection API, such as Faster R-CNN and EfficientDet, have the same tensors. tf2onnx keeps the
      names of the tensors, with or without `:0`. The inputs of these models are usually UINT8, and the graph resizes
      and normalises the picture.

    In the last two forms the graph includes the NMS, and class ids are those of the model. Class ids of the Object
    Detection API start at 1.
    """

    name = "ssd"
    signatures = patterns(
        "scores? [N, P, slots], boxes? [N, P, 4]",
        "[N, 1, M, 7]",
        "num_detections, detection_boxes [N, K, 4], detection_scores [N, K], detection_classes [N, K]",
        "[N, K, 4], [N, K], [N, K], [N]",
    )
    feed: ClassVar[Feed] = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        if self.reading.form == _ROWS:
            rows = checked_tensor(outputs, self.reading.outputs[0], ANY, 1, ANY, 7).reshape(-1, 7)
            ends = np.flatnonzero(np.less(rows[:, 0], 0))  # rows after the end can be left from an earlier answer
            rows = rows_of_picture(rows[: ends[0]] if len(ends) else rows, index)
            found = self.in_pixels(rows[:, 3:7])
            return to_detections(found, rows[:, 2], rows[:, 1], placement, thresholds, needs_nms=False)
        if self.reading.form == _COUNTED:
            boxes, scores, class_ids = counted_rows(outputs, self.reading.outputs, index)
            found = self.in_pixels(boxes[:, [1, 0, 3, 2]])
            return to_detections(found, scores, class_ids, placement, thresholds, needs_nms=False)
        scores = picture_tensor(outputs, self.reading.outputs[0], index, ANY, self.reading.classes or at_least(2))
        boxes = picture_tensor(outputs, self.reading.outputs[1], index, len(scores), 4)
        # A search in the flat matrix takes a third of the time of a search by rows and columns.
        found_at = np.flatnonzero(np.greater(scores[:, 1:], thresholds.score))
        priors, classes = np.divmod(found_at, scores.shape[1] - 1)
        found = self.prior_boxes(boxes[priors], priors)
        return to_detections(found, scores[priors, classes + 1], classes + 1, placement, thresholds, needs_nms=True)

    def prior_boxes(self, boxes: Array, priors: Rows) -> Floats:
        """Convert rows of the tensor of boxes, [n, 4], to xyxy in input pixels. `priors` [n] are the row numbers."""
        return self.in_pixels(boxes)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        forms = _rows(evidence), _named(evidence), priors_reading(evidence), _in_order(evidence)
        reading = next((each for each in forms if each is not None), None)
        if reading is None:
            return None
        if reading.form != _PRIORS:
            return Claim(cls.name, reason, reading)
        slots = next(spec.shape[2] for spec in evidence.outputs if spec.name == reading.outputs[0])
        return Claim(cls.name, reason, reading, count_classes(slots), background=1)

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        if set(evidence.output_names) == {"scores", "boxes"}:
            # An Exp computes sizes from offsets. Without an Exp, boxes may be offsets, as in FaceBoxes.
            if priors_reading(evidence) is None or "Exp" not in (evidence.operators or ("Exp",)):
                return None
            return cls.claim(evidence, "names of an SSD export (scores, boxes)")
        reason = "names of an SSD export with its NMS in the graph"
        return cls.claim(evidence, reason) if _named(evidence) else None

    @classmethod
    def by_shape(cls, evidence: Evidence) -> Claim | None:
        if _rows(evidence) is not None:
            return cls.claim(evidence, "shape of OpenVINO's DetectionOutput ([1, 1, N, 7])")
        if _in_order(evidence) is not None:
            order = "whose order may differ from boxes, classes, scores, count"
            return undecided(f"four outputs as SSD exports have, {order}", cls.name)
        priors = priors_reading(evidence)
        if priors is None:
            return None
        made_by = (evidence.heads or {}).get(priors.outputs[0], "")
        if made_by not in _MADE_BY:
            return not_decoded(f"a table of boxes, and a table of scores from the operator {made_by}, unlike in an SSD")
        return undecided("a table of boxes and one of classes", cls.name)


def _rows(evidence: Evidence) -> Reading | None:
    output = evidence.only_output
    if output is None or len(output.shape) != 4 or output.shape[3] != 7 or output.shape[1] != 1:
        return None
    return suppressed_list((output.name,), _ROWS)


def _named(evidence: Evidence) -> Reading | None:
    names = next((names for names in _KNOWN if set(names) <= set(evidence.output_names)), None)
    return None if names is None else suppressed_list(names, _COUNTED)


def _in_order(evidence: Evidence) -> Reading | None:
    """Return the reading of four outputs in TFLite's order: boxes, classes, scores, count. Return None for other
    shapes."""
    if [len(spec.shape) for spec in evidence.outputs] not in ([3, 2, 2, 1], [3, 2, 2, 2]):
        return None
    boxes, classes, scores, count = evidence.outputs
    if boxes.shape[2] != 4 or (len(count.shape) == 2 and count.shape[1] != 1):
        return None
    return suppressed_list((count.name, boxes.name, scores.name, classes.name), _COUNTED)


def priors_reading(evidence: Evidence) -> Reading | None:
    """Return the reading of a table of boxes and a table of scores, in either order; None for other outputs."""
    if len(evidence.outputs) != 2 or any(len(spec.shape) != 3 for spec in evidence.outputs):
        return None
    boxes = [spec for spec in evidence.outputs if spec.shape[2] == 4]
    if len(boxes) == 2:  # three classes and the background
        boxes = [spec for spec in boxes if spec.name == "boxes"]
    if len(boxes) != 1:
        return None
    scores = next(spec for spec in evidence.outputs if spec is not boxes[0])
    slots = scores.shape[2]
    if _differ(scores, boxes[0]) or (isinstance(slots, int) and slots < 2):
        return None
    return Reading((scores.name, boxes[0].name), _PRIORS)


def _differ(one: TensorSpec, other: TensorSpec) -> bool:
    """Whether the numbers of rows of two tensors are known and different."""
    rows = one.shape[1], other.shape[1]
    return all(isinstance(count, int) for count in rows) and rows[0] != rows[1]
