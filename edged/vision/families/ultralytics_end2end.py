"""Ultralytics detectors that need no NMS: NMS-free heads (v10, 26) and exports with `nms=True`.

One output, [N, K, 6]: xyxy in input pixels, score, class; best first, padded with zeros. Two other formats have the
same shape, so metadata must decide: `end2end` (always present since 8.4.8) or `nms` in `args`. Before, the only other
detector of the package with six columns was RT-DETR with two classes. With `dynamic=True` the number of columns is
open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from edged.tensors import Array
from edged.vision.detections import Detections
from edged.vision.families import ultralytics
from edged.vision.families.candidates import to_detections
from edged.vision.families.contract import Claim, Decoder, Evidence, FamilySpec, Reading, Thresholds, require
from edged.vision.families.outputs import ANY, picture_tensor
from edged.vision.placement import Placement

NAME = "ultralytics-end2end"
_WRITES_END2END = (8, 4, 8)


class UltralyticsEnd2End(Decoder, frozen=True):
    name: ClassVar[str] = NAME

    def decode(
        self, outputs: Mapping[str, Array], index: int, placement: Placement, thresholds: Thresholds
    ) -> Detections:
        """See `Family.decode`."""
        rows = picture_tensor(outputs, self.reading.outputs[0], index, ANY, 6)
        return to_detections(rows[:, :4], rows[:, 4], rows[:, 5], placement, thresholds, needs_nms=False)


def by_setting(evidence: Evidence) -> Claim:
    require(evidence, NAME, "one output [N, rows, 6]", _is_six(evidence))
    return _claim(evidence, f"the setting family={NAME}")


def by_metadata(evidence: Evidence) -> Claim | None:
    meta = evidence.metadata
    if meta.task != "detect" or meta.head == "RTDETRDecoder" or evidence.picture is None:
        return None
    if meta.end2end and _is_six(evidence, is_declared=True):
        return _claim(evidence, "metadata task=detect and end2end=True: an NMS-free export")
    if meta.nms and _is_six(evidence, is_declared=True):
        return _claim(evidence, "metadata task=detect and args.nms=True: an export with NMS in the graph")
    if meta.end2end or meta.nms or not _is_six(evidence):
        return None
    is_silent = meta.end2end is None and "args" not in meta.unreadable
    if is_silent and meta.version and meta.version < _WRITES_END2END and meta.names and len(meta.names) != 2:
        version = ".".join(map(str, meta.version))
        return _claim(evidence, f"metadata task=detect and version={version}: its only exports with six columns")
    return None


def _is_six(evidence: Evidence, *, is_declared: bool = False) -> bool:
    """Whether the output is one table of six columns; their number may be open if `is_declared` by metadata."""
    output = evidence.only_output
    if output is None or len(output.shape) != 3:
        return False
    columns = output.shape[2]
    return columns == 6 or (is_declared and isinstance(columns, str))


def _claim(evidence: Evidence, reason: str) -> Claim:
    classes = len(evidence.metadata.names) or None
    # An NMS-free head sorts its predictions and drops none.
    is_suppressed = not evidence.metadata.end2end
    return Claim(NAME, reason, "", classes, Reading(evidence.output_names, is_list=True, is_suppressed=is_suppressed))


SPEC = FamilySpec(by_setting, ultralytics.feed, UltralyticsEnd2End)
