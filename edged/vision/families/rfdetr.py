"""RF-DETR exports.

`dets` [N, Q, 4], cx, cy, w, h in 0..1 of the input, and `labels` [N, Q, C], one logit per class: each has its own
sigmoid (never a softmax), and the best of all Q x C are kept, so that a query can return two classes. No NMS is needed.
In models of custom classes the last slot is the background; those of COCO use all 91. Source: `PostProcess` and
`export` of its repository.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec
import numpy as np

from edged.tensors import Array
from edged.vision import settings as keys
from edged.vision.detections import Detections
from edged.vision.families.candidates import corners, logit, sigmoid, to_detections
from edged.vision.families.contract import Claim, Decoder, Evidence, FamilySpec, Reading, Thresholds, require
from edged.vision.families.outputs import ANY, picture_tensor
from edged.vision.placement import Fit, Placement
from edged.vision.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess

NAME = "rfdetr"
_BOXES, _LOGITS = "dets", "labels"
_LAST, _NONE = "last", "none"  # the background slot
_COCO = 91


class RfDetr(Decoder, frozen=True):
    name: ClassVar[str] = NAME

    def decode(
        self, outputs: Mapping[str, Array], index: int, placement: Placement, thresholds: Thresholds
    ) -> Detections:
        """See `Family.decode`."""
        is_last = self.reading.form == _LAST
        logits = picture_tensor(outputs, _LOGITS, index, ANY, self.reading.width(int(is_last)))
        boxes = picture_tensor(outputs, _BOXES, index, len(logits), 4)
        if is_last:
            logits = logits[:, :-1]
        queries, class_ids = np.nonzero(np.greater(logits, logit(thresholds.score)))
        chosen = logits[queries, class_ids].astype(np.float32)
        # The sigmoid of infinity would be a valid score.
        scores = np.where(np.isfinite(chosen), sigmoid(chosen), np.float32(np.nan))
        size = np.array((self.preprocess.width, self.preprocess.height) * 2, np.float32)
        found = corners(boxes[queries].astype(np.float32) * size)
        return to_detections(found, scores, class_ids, placement, thresholds, needs_nms=False)


def feed(plain: Preprocess) -> Preprocess:
    """Stretched, RGB, normalised as ImageNet."""
    return msgspec.structs.replace(plain, fit=Fit.STRETCH, mean=IMAGENET_MEAN, std=IMAGENET_STD)


def by_setting(evidence: Evidence) -> Claim:
    require(evidence, NAME, f"outputs {_BOXES} [N, Q, 4] and {_LOGITS} [N, Q, C]", _fits(evidence))
    return _claim(evidence, f"the setting family={NAME}")


def by_names(evidence: Evidence) -> Claim | None:
    if evidence.picture is None or set(evidence.output_names) != {_BOXES, _LOGITS} or not _fits(evidence):
        return None
    return _claim(evidence, f"names of an RF-DETR export ({_BOXES}, {_LOGITS})")


def _fits(evidence: Evidence) -> bool:
    boxes, logits = evidence.output(_BOXES), evidence.output(_LOGITS)
    if boxes is None or logits is None or len(boxes.shape) != 3 or len(logits.shape) != 3:
        return False
    return boxes.shape[2] == 4 and (isinstance(logits.shape[2], str) or logits.shape[2] >= 2)


def _claim(evidence: Evidence, reason: str) -> Claim:
    logits = evidence.output(_LOGITS)
    slots = logits.shape[2] if logits is not None else "?"
    background = keys.choice(evidence.settings, "decode.background", (_LAST, _NONE)) or _background(evidence, slots)
    classes = slots - (background == _LAST) if isinstance(slots, int) else None
    slot_use = "the last slot is the background" if background == _LAST else "all slots are classes"
    return Claim(NAME, f"{reason}; {slot_use}", "", classes, Reading((_BOXES, _LOGITS), background, is_list=True))


def _background(evidence: Evidence, slots: int | str) -> str:
    """Decided by the number of names, if there are any; else COCO's models are known by their number of slots."""
    names = keys.words(evidence.settings, "names") or evidence.metadata.names
    if names and slots in (len(names), len(names) + 1):
        return _NONE if slots == len(names) else _LAST
    return _NONE if slots == _COCO else _LAST


SPEC = FamilySpec(by_setting, feed, RfDetr)
