"""RT-DETR, RT-DETRv2, D-FINE and relatives, as exported by their own repositories.

Inputs `images` and `orig_target_sizes` INT64 [N, 2]; outputs `labels` [N, Q], `boxes` [N, Q, 4] and `scores` [N, Q],
best first and without duplicates. The graph multiplies the boxes, xyxy in 0..1, by the sizes, which are width, height.
Given the input's own size it returns input pixels, as all other families do, and the placement of the picture is undone
in one place. Source: `RTDETRPostProcessor` and `tools/export_onnx.py` of these repositories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from edged.tensors import Array
from edged.vision.detections import Detections
from edged.vision.families.candidates import to_detections
from edged.vision.families.contract import Claim, Decoder, Evidence, FamilySpec, Reading, Thresholds, require
from edged.vision.families.outputs import ANY, picture_tensor, picture_vector
from edged.vision.placement import Placement
from edged.vision.preprocess import Preprocess

NAME = "rtdetr"
SIZES = "orig_target_sizes"

_OUTPUTS = ("labels", "boxes", "scores")


class RtDetr(Decoder, frozen=True):
    name: ClassVar[str] = NAME

    def extra_inputs(self, placements: Sequence[Placement]) -> Mapping[str, Array]:
        """See `Opened.extra_inputs`: `orig_target_sizes`, int64 [n, 2], width before height."""
        size = np.array((self.preprocess.width, self.preprocess.height), np.int64)
        return {SIZES: np.tile(size, (len(placements), 1))}

    def decode(
        self, outputs: Mapping[str, Array], index: int, placement: Placement, thresholds: Thresholds
    ) -> Detections:
        """See `Family.decode`."""
        labels, boxes, scores = self.reading.outputs
        found = picture_tensor(outputs, boxes, index, ANY, 4)
        found_scores, ids = (picture_vector(outputs, name, index, len(found)) for name in (scores, labels))
        return to_detections(found, found_scores, ids, placement, thresholds, needs_nms=False)


def feed(plain: Preprocess) -> Preprocess:
    """Stretched, RGB in 0..1: the default."""
    return plain


def by_setting(evidence: Evidence) -> Claim:
    needs = f"outputs {', '.join(_OUTPUTS)} and a second input {SIZES} INT64 [N, 2]"
    require(evidence, NAME, needs, _has_sizes(evidence) and set(evidence.output_names) >= set(_OUTPUTS))
    return _claim(f"the setting family={NAME}")


def by_names(evidence: Evidence) -> Claim | None:
    """The name of the second input, which is unique to this family."""
    inputs = {spec.name for spec in evidence.inputs}
    if SIZES not in inputs:
        if set(evidence.output_names) == set(_OUTPUTS):
            return Claim(None, f"outputs of an RT-DETR or D-FINE export, but no input {SIZES}; raw tensors are served")
        return None
    if not _has_sizes(evidence) or not set(evidence.output_names) >= set(_OUTPUTS):
        return Claim(None, f"input {SIZES} of an RT-DETR or D-FINE export, but not its tensors; raw tensors are served")
    return _claim(f"input {SIZES} of an RT-DETR or D-FINE export")


def _has_sizes(evidence: Evidence) -> bool:
    sizes = next((spec for spec in evidence.inputs if spec.name == SIZES), None)
    return sizes is not None and sizes.datatype == "INT64" and len(sizes.shape) == 2 and sizes.shape[1] == 2


def _claim(reason: str) -> Claim:
    return Claim(NAME, reason, reading=Reading(_OUTPUTS, is_list=True))


SPEC = FamilySpec(by_setting, feed, RtDetr, extra_inputs=(SIZES,))
