"""Query-based detectors of Hugging Face's transformers, as Optimum exports them: outputs `logits` and `pred_boxes`.
DETR's own repository names the first output `pred_logits` (facebookresearch/detr, commit 038ec78, `test_all.py`).

Input `pixel_values` [N, 3, H, W] FP32, whose dimensions can all be open; outputs `logits` [N, Q, slots] and
`pred_boxes` [N, Q, 4], cx, cy, w, h in 0..1 of the input; no NMS. Older exports of DETR have a second input,
`pixel_mask` INT64 [N, rows, columns] (usually 64 x 64, which the graph resizes): 1 for pixels of the picture. edged
stretches the picture over the whole input, so all values are 1.

All kinds of models have the same tensors, but the tensors have different meanings:

- `model_type` detr, yolos and table-transformer: a softmax over classes and "no object", which is the last slot;
  pixels normalised as for ImageNet.
- conditional_detr, deformable_detr, dab-detr, rf_detr: a sigmoid for each slot; normalised as for ImageNet.
- rt_detr, rt_detr_v2, d_fine: a sigmoid for each slot; pixels in 0..1.

The ONNX file does not say which kind the model is. The setting `family` says this, or config.json next to the file (see
`edged.models.huggingface`). A graph with GridSample is not of the first kind, because only models with deformable
attention have this operator.

Source: `post_process_object_detection` and the image processors of transformers 5.24.0, the ONNX configurations of
optimum-onnx (commit 1939f27). The input `pixel_mask` is known from transformers.js (commit 5ed4c5c) only. DETR,
conditional_detr, deformable_detr and dab-detr were trained on pictures that kept their aspect ratio, with 800 pixels on
the shorter side. For these models, choose an input of the cameras' aspect ratio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from edged.tensors import Array, TensorSpec
from edged.vision.detections import Detections
from edged.vision.families.contract import Claim, Evidence, Family, Feed, Reading, count_classes, undecided
from edged.vision.families.decoding import (
    ANY,
    Outputs,
    Thresholds,
    best_class,
    best_hits,
    corners,
    logit,
    picture_tensor,
    sigmoid,
    softmax,
    to_detections,
)
from edged.vision.placement import Placement
from edged.vision.preprocess import IMAGENET_MEAN, IMAGENET_STD
from edged.vision.signatures import patterns

_LOGITS, _BOXES, _MASK = "logits", "pred_boxes", "pixel_mask"
_OLDER_LOGITS = "pred_logits"  # the name in exports of DETR's own repository, which are otherwise the same


class Detr(Family, frozen=True):
    """DETR, YOLOS and Table Transformer: a softmax over the classes and "no object", the last slot."""

    name = "detr"
    signatures = patterns("logits|pred_logits [N, Q, slots], pred_boxes [N, Q, 4]")
    feed: ClassVar[Feed] = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
    thresholds = Thresholds(score=0.5)
    own_inputs = (_MASK,)
    nothing: ClassVar[int] = 1  # slots for "no object", at the end

    def extra_inputs(self, placements: Sequence[Placement]) -> Mapping[str, Array]:
        """Return `pixel_mask`, if the model has it: ones, because the picture fills the input."""
        return {name: np.ones((len(placements), *shape), np.int64) for name, shape in self.reading.extras}

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        """See `Family.decode`. A query gives at most one detection, with its best class."""
        logits, boxes = self._queries(outputs, index)
        scores, class_ids = best_class(softmax(logits.astype(np.float32))[:, :-1])
        found = corners(self.in_pixels(boxes))
        return to_detections(found, scores, class_ids, placement, thresholds, needs_nms=False)

    def _queries(self, outputs: Outputs, index: int) -> tuple[Array, Array]:
        logits_of, boxes_of = self.reading.outputs
        logits = picture_tensor(outputs, logits_of, index, ANY, self.reading.width(self.nothing))
        return logits, picture_tensor(outputs, boxes_of, index, len(logits), 4)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        shapes = {spec.name: spec.shape for spec in evidence.outputs}
        logits_of = _LOGITS if _LOGITS in shapes else _OLDER_LOGITS
        logits, boxes = shapes.get(logits_of, ()), shapes.get(_BOXES, ())
        if len(logits) != 3 or len(boxes) != 3 or not (boxes[2] == 4 or isinstance(boxes[2], str)):
            return None
        slots, masks = logits[2], [spec for spec in evidence.inputs if spec.name == _MASK]
        if (isinstance(slots, int) and slots <= cls.nothing) or any(len(spec.shape) != 3 for spec in masks):
            return None
        extras = tuple((_MASK, mask_size(spec, evidence)) for spec in masks)
        reading = Reading((logits_of, _BOXES), is_list=True, extras=extras)
        return Claim(cls.name, reason, reading, count_classes(slots, cls.nothing))

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        """If the outputs have the names of a DETR export, return an undecided claim with the families that use these
        names. Only the setting `family` can select one of these families."""
        names = set(evidence.output_names)
        if names not in ({_LOGITS, _BOXES}, {_OLDER_LOGITS, _BOXES}) or cls.claim(evidence, "") is None:
            return None
        is_deformable = "GridSample" in (evidence.operators or ())
        families = () if is_deformable else (cls.name,)
        what = f"outputs {_LOGITS} and {_BOXES} of a Hugging Face export; model_type in config.json shows the family"
        if _OLDER_LOGITS in names:
            what = f"outputs {_OLDER_LOGITS} and {_BOXES} of DETR or a relative"
        return undecided(what, *families, DeformableDetr.name, RtDetrTransformers.name)


def mask_size(mask: TensorSpec, evidence: Evidence) -> tuple[int, ...]:
    """Return rows and columns of `pixel_mask`. An open dimension gets the size of the picture input."""
    width, height = evidence.size or (0, 0)
    pairs = zip(mask.shape[1:], (height, width), strict=True)
    return tuple(known if isinstance(known, int) else side for known, side in pairs)


class DeformableDetr(Detr, frozen=True):
    """Conditional DETR, Deformable DETR, DAB-DETR and transformers' RF-DETR: a sigmoid for each class.

    Each pair of query and class above the threshold is a detection, so a query can return two classes.
    """

    name = "deformable-detr"
    nothing = 0

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        logits, boxes = self._queries(outputs, index)
        queries, class_ids = best_hits(logits, logit(thresholds.score))
        scores = sigmoid(logits[queries, class_ids].astype(np.float32))
        found = corners(self.in_pixels(boxes[queries]))
        return to_detections(found, scores, class_ids, placement, thresholds, needs_nms=False)


class RtDetrTransformers(DeformableDetr, frozen=True):
    """RT-DETR, RT-DETRv2 and D-FINE of transformers: as `DeformableDetr`, but with pixels in 0..1."""

    name = "rtdetr-transformers"
    feed: ClassVar[Feed] = {}
