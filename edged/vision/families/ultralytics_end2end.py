"""Ultralytics detectors that suppress in the graph: NMS-free heads (v10, 26) and exports with `nms=True`.

One output, [N, K, 6]: xyxy in input pixels, score, class; best first, padded with zeros. Two other formats have the
same shape, so the metadata has to say which it is: `end2end` (always written from 8.4.8 on) or `nms` among `args`.
Before, no other detector of the package had six columns but RT-DETR with two classes. With `dynamic=True` the number
of columns is left open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from edged.tensors import Array
from edged.vision.detections import Detections
from edged.vision.families import ultralytics
from edged.vision.families.candidates import settle
from edged.vision.families.contract import Claim, Decoder, Evidence, Maker, Reading, Thresholds, demand
from edged.vision.families.outputs import ANY, picture_tensor
from edged.vision.placement import Placement

NAME = "ultralytics-end2end"
_SAYS_END2END = (8, 4, 8)


class UltralyticsEnd2End(Decoder, frozen=True):
    """The decoder."""

    name: ClassVar[str] = NAME

    def decode(
        self, outputs: Mapping[str, Array], index: int, placement: Placement, thresholds: Thresholds
    ) -> Detections:
        """See `Family.decode`."""
        rows = picture_tensor(outputs, self.reading.outputs[0], index, ANY, 6)
        return settle(rows[:, :4], rows[:, 4], rows[:, 5], placement, thresholds, has_doubles=False)


def by_setting(evidence: Evidence) -> Claim:
    demand(evidence, NAME, "one output [N, rows, 6]", _is_six(evidence))
    return _claim(evidence, f"the setting family={NAME}")


def by_metadata(evidence: Evidence) -> Claim | None:
    said = evidence.metadata
    if said.task != "detect" or said.head == "RTDETRDecoder" or evidence.picture is None:
        return None
    if said.end2end and _is_six(evidence, is_said=True):
        return _claim(evidence, "metadata task=detect and end2end=True: an NMS-free export")
    if said.nms and _is_six(evidence, is_said=True):
        return _claim(evidence, "metadata task=detect and args.nms=True: an export with NMS in the graph")
    if said.end2end or said.nms or not _is_six(evidence):
        return None
    is_silent = said.end2end is None and "args" not in said.unreadable
    if is_silent and said.version and said.version < _SAYS_END2END and said.names and len(said.names) != 2:
        version = ".".join(map(str, said.version))
        return _claim(evidence, f"metadata task=detect and version={version}: its only exports with six columns")
    return None


def _is_six(evidence: Evidence, *, is_said: bool = False) -> bool:
    """Whether there is one table of six columns; where metadata says so (`is_said`) their number may be left open."""
    output = evidence.only_output
    if output is None or len(output.shape) != 3:
        return False
    columns = output.shape[2]
    return columns == 6 or (is_said and isinstance(columns, str))


def _claim(evidence: Evidence, reason: str) -> Claim:
    classes = len(evidence.metadata.names) or None
    # An NMS-free head ranks its predictions and leaves none out.
    is_suppressed = not evidence.metadata.end2end
    return Claim(NAME, reason, "", classes, Reading(evidence.output_names, is_list=True, is_suppressed=is_suppressed))


MAKER = Maker(by_setting, ultralytics.feed, UltralyticsEnd2End)
