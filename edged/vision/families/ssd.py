"""Single-shot detectors (SSD), in three forms:

- `scores` [N, P, C] after the softmax and `boxes` [N, P, 4], xyxy in 0..1: a row per prior box. Class 0 is the
  background, each other class above the threshold counts; without NMS.
- OpenVINO's DetectionOutput, [1, 1, M, 7], a row per detection: picture, class, score, xyxy in 0..1. A negative picture
  ends the list.
- TFLite's four tensors: boxes [N, K, 4] *yxyx* in 0..1, classes and scores [N, K], count [N].

The last two include the NMS in the graph, and class ids are the model's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec
import numpy as np

from edged.tensors import Array, TensorSpec
from edged.vision.detections import Detections
from edged.vision.families.candidates import Floats, to_detections
from edged.vision.families.contract import (
    Claim,
    Decoder,
    Evidence,
    FamilySpec,
    Reading,
    Thresholds,
    not_decoded,
    require,
    rows_of_picture,
)
from edged.vision.families.outputs import ANY, at_least, checked_tensor, counted, picture_tensor
from edged.vision.placement import Fit, Placement
from edged.vision.preprocess import Preprocess

NAME = "ssd"

_PRIORS, _ROWS, _COUNTED = "priors", "rows", "counted"
# Operators that produce the scores of an SSD with prior boxes, or join those of its scales; empty if unknown.
_MADE_BY = ("Softmax", "Concat", "")
# In the order of `counted`: count, boxes, scores, class ids.
_KNOWN = (
    ("num_detections", "detection_boxes", "detection_scores", "detection_classes"),
    tuple(f"TFLite_Detection_PostProcess{end}" for end in (":3", "", ":2", ":1")),
)


class Ssd(Decoder, frozen=True):
    name: ClassVar[str] = NAME

    def decode(
        self, outputs: Mapping[str, Array], index: int, placement: Placement, thresholds: Thresholds
    ) -> Detections:
        """See `Family.decode`."""
        if self.reading.form == _ROWS:
            rows = rows_of_picture(
                _until_end(checked_tensor(outputs, self.reading.outputs[0], ANY, 1, ANY, 7).reshape(-1, 7)), index
            )
            found = self._in_pixels(rows[:, 3:7])
            return to_detections(found, rows[:, 2], rows[:, 1], placement, thresholds, needs_nms=False)
        if self.reading.form == _COUNTED:
            boxes, scores, class_ids = counted(outputs, self.reading.outputs, index)
            found = self._in_pixels(boxes[:, [1, 0, 3, 2]])
            return to_detections(found, scores, class_ids, placement, thresholds, needs_nms=False)
        scores = picture_tensor(outputs, self.reading.outputs[0], index, ANY, self.reading.classes or at_least(2))
        boxes = picture_tensor(outputs, self.reading.outputs[1], index, len(scores), 4)
        # A flat search takes a third of the time of one by rows and columns.
        found_at = np.flatnonzero(np.greater(scores[:, 1:], thresholds.score))
        priors, classes = np.divmod(found_at, scores.shape[1] - 1)
        found = self._in_pixels(boxes[priors])
        return to_detections(found, scores[priors, classes + 1], classes + 1, placement, thresholds, needs_nms=True)

    def _in_pixels(self, boxes: Array) -> Floats:
        return boxes.astype(np.float32) * np.array((self.preprocess.width, self.preprocess.height) * 2, np.float32)


def _until_end(rows: Array) -> Array:
    """The rows before the first negative picture; behind it may be remains of an earlier answer."""
    ends = np.flatnonzero(np.less(rows[:, 0], 0))
    before: Array = rows[: ends[0]] if len(ends) else rows
    return before


def feed(plain: Preprocess) -> Preprocess:
    """Stretched, RGB in -1..1."""
    return msgspec.structs.replace(plain, fit=Fit.STRETCH, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def by_setting(evidence: Evidence) -> Claim:
    reason = f"the setting family={NAME}"
    claim = (
        _rows(evidence, reason) or _named(evidence, reason) or _priors(evidence, reason) or _in_order(evidence, reason)
    )
    needs = "scores [N, P, C] and boxes [N, P, 4], one output [1, 1, N, 7], or boxes, classes, scores and a count"
    require(evidence, NAME, needs, claim is not None)
    assert claim is not None
    return claim


def by_names(evidence: Evidence) -> Claim | None:
    if evidence.picture is None:
        return None
    if set(evidence.output_names) == {"scores", "boxes"}:
        return _priors(evidence, "names of an SSD export (scores, boxes)")
    return _named(evidence, "names of an SSD export with its NMS in the graph")


def by_shape(evidence: Evidence) -> Claim | None:
    if evidence.picture is None:
        return None
    claim = _rows(evidence, "shape of OpenVINO's DetectionOutput ([1, 1, N, 7])")
    if claim is not None:
        return claim
    if _in_order(evidence, "") is not None:
        return Claim(
            None,
            f"four outputs as SSD exports have, but their order is unknown: set family={NAME} if it is boxes, classes,"
            " scores, count, or family=raw",
        )
    priors = _priors(evidence, "")
    if priors is None:
        return None
    made_by = (evidence.heads or {}).get(priors.read.outputs[0], "")
    if made_by not in _MADE_BY:
        return not_decoded(f"a table of boxes and one of scores that come from {made_by}, unlike those of an SSD")
    return Claim(None, f"a table of boxes and one of classes: set family={NAME} or family=raw")


def _rows(evidence: Evidence, reason: str) -> Claim | None:
    output = evidence.only_output
    if output is None or len(output.shape) != 4 or output.shape[3] != 7 or output.shape[1] != 1:
        return None
    return Claim(NAME, reason, reading=Reading((output.name,), _ROWS, is_list=True, is_suppressed=True))


def _named(evidence: Evidence, reason: str) -> Claim | None:
    for names in _KNOWN:
        if set(names) <= set(evidence.output_names):
            return Claim(NAME, reason, reading=Reading(names, _COUNTED, is_list=True, is_suppressed=True))
    return None


def _in_order(evidence: Evidence, reason: str) -> Claim | None:
    """TFLite's order: boxes, classes, scores, count."""
    if [len(spec.shape) for spec in evidence.outputs] not in ([3, 2, 2, 1], [3, 2, 2, 2]):
        return None
    boxes, classes, scores, count = evidence.outputs
    if boxes.shape[2] != 4 or (len(count.shape) == 2 and count.shape[1] != 1):
        return None
    return Claim(
        NAME,
        reason,
        reading=Reading(
            (count.name, boxes.name, scores.name, classes.name), _COUNTED, is_list=True, is_suppressed=True
        ),
    )


def _priors(evidence: Evidence, reason: str) -> Claim | None:
    """One table of boxes and one of scores, in either order."""
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
    classes = slots if isinstance(slots, int) else None
    return Claim(NAME, reason, "", classes, Reading((scores.name, boxes[0].name), _PRIORS), background=1)


def _differ(one: TensorSpec, other: TensorSpec) -> bool:
    """Whether their numbers of rows are known and different."""
    rows = one.shape[1], other.shape[1]
    return all(isinstance(count, int) for count in rows) and rows[0] != rows[1]


SPEC = FamilySpec(by_setting, feed, Ssd)
