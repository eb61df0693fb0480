"""YOLO models exported by the scripts of DeepStream-Yolo: `input` -> `output` [N, rows, 6].

Rows are xyxy in input pixels, score and label, one per prediction, unordered and without NMS, unlike end-to-end exports
with the same six columns. The preprocessing is in a separate file; by default pictures are letterboxed RGB in 0..1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from edged.tensors import Array, Dim
from edged.vision.detections import Detections
from edged.vision.families import ultralytics
from edged.vision.families.candidates import to_detections
from edged.vision.families.contract import Claim, Decoder, Evidence, FamilySpec, Reading, Thresholds, require
from edged.vision.families.outputs import AT_LEAST_ONE, picture_tensor
from edged.vision.placement import Placement

NAME = "deepstream-yolo"
_QUERIES = 1000  # with at most so many rows it could be an end-to-end export


class DeepStreamYolo(Decoder, frozen=True):
    name: ClassVar[str] = NAME

    def decode(
        self, outputs: Mapping[str, Array], index: int, placement: Placement, thresholds: Thresholds
    ) -> Detections:
        """See `Family.decode`."""
        rows = picture_tensor(outputs, self.reading.outputs[0], index, AT_LEAST_ONE, 6)
        return to_detections(rows[:, :4], rows[:, 4], rows[:, 5], placement, thresholds, needs_nms=True)


def by_setting(evidence: Evidence) -> Claim:
    require(evidence, NAME, "one output [N, rows, 6]", _is_six(evidence))
    return _claim(evidence, f"the setting family={NAME}")


def by_names(evidence: Evidence) -> Claim | None:
    """The names that its scripts use, and as many rows as grid cells, or three times as many."""
    if evidence.picture is None or evidence.picture.name != "input" or not _is_six(evidence):
        return None
    if evidence.output_names != ("output",) or not _is_all(evidence, evidence.outputs[0].shape[1]):
        return None
    return _claim(evidence, "input and output [N, rows, 6] of a DeepStream-Yolo export, a row a prediction")


def _is_six(evidence: Evidence) -> bool:
    output = evidence.only_output
    return output is not None and len(output.shape) == 3 and output.shape[2] == 6


def _is_all(evidence: Evidence, rows: Dim) -> bool:
    cells = evidence.cells()
    return isinstance(rows, int) and (rows > _QUERIES or (cells is not None and rows in (cells, 3 * cells)))


def _claim(evidence: Evidence, reason: str) -> Claim:
    # The label of a cell without an object depends on the last bit.
    return Claim(NAME, reason, reading=Reading(evidence.output_names, is_list=True))


SPEC = FamilySpec(by_setting, ultralytics.feed, DeepStreamYolo)
