"""Detectors of OpenMMLab, as mmdeploy and MMYOLO export them; RTMDet in particular.

- mmdeploy, end to end: input `input`, outputs `dets` [N, K, 5], xyxy in input pixels and score, and `labels` [N, K];
  the graph does the NMS, unused rows have the score 0. Exports of all detectors of MMDetection have this form.
- MMYOLO (easydeploy): input `images`, outputs `num_dets` [N, 1], `boxes` [N, K, 4], `scores` and `labels` [N, K].
- RTMDet's raw heads at the strides 8, 16, 32: first three of classes [N, C, rows, columns], then three of distances
  [N, 4, rows, columns] (left, top, right, bottom) in input pixels, counted from the upper left corner of the cell.
  With the setting `decode.boxes=grid`, distances are read in units of cells, as in MMYOLO's own module.
- MMYOLO with `--model-only`: three raw heads [N, C + 4, rows, columns], classes first, distances in units of cells.

The tensors do not say which detector the model is, and detectors need different pixels, so `family` must be set.
`rtmdet` feeds pictures as in RTMDet's configurations (BGR, normalised, at the top left, padded with 114). `mmdet` feeds
pictures as in the configurations of Faster R-CNN and many others (RGB, normalised as for ImageNet, padded with the
mean). Other configurations, such as those of "caffe" backbones, differ: see their `data_preprocessor`. MMDetection
rounds the size of the resized picture, edged truncates it.

Source: `rtmdet_head.py`, `nms.py` and `configs/mmdet` of mmdeploy (commit 3f8604b); `rtmdet_head.py`,
`rtmdet_l_8xb32-300e_coco.py` and `faster-rcnn_r50_fpn.py` of MMDetection (3.x); `projects/easydeploy` of MMYOLO (commit
8c4d9dc). The first form is also that of models/rtmdet_nano.onnx in zli20/RtmDet-RtmPose-OnnxRuntime, whose dimensions
are all open. The other forms are not verified on an exported file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from edged.tensors import Array, TensorSpec
from edged.vision import settings as keys
from edged.vision.detections import Detections
from edged.vision.families.contract import (
    Claim,
    Evidence,
    Family,
    Feed,
    Reading,
    count_classes,
    suppressed_list,
    undecided,
)
from edged.vision.families.decoding import (
    ANY,
    AT_LEAST_ONE,
    Outputs,
    Thresholds,
    best_hits,
    counted_rows,
    logit,
    picture_tensor,
    picture_vector,
    sigmoid,
    to_detections,
)
from edged.vision.families.grids import around, cells_at
from edged.vision.placement import Fit, Placement
from edged.vision.preprocess import IMAGENET_MEAN, IMAGENET_STD
from edged.vision.signatures import patterns

_STRIDES = (8, 16, 32)
_DETS = ("dets", "labels")
_NUMBERED = ("num_dets", "boxes", "scores", "labels")
_PADDED, _COUNTED, _IN_PIXELS, _IN_CELLS, _JOINED = "dets", "counted", "pixels", "grid", "joined"


class RtmDet(Family, frozen=True):
    """RTMDet."""

    name = "rtmdet"
    signatures = patterns(
        "dets [N, K, 5], labels [N, K]",
        "num_dets [N, 1], boxes [N, K, 4], scores [N, K], labels [N, K]",
        ", ".join(f"[N, {channels}, H/{s}, W/{s}]" for channels in ("classes", 4) for s in _STRIDES),
        ", ".join(f"[N, 4+classes, H/{s}, W/{s}]" for s in _STRIDES),
    )
    feed: ClassVar[Feed] = {
        "color": "bgr",
        "fit": Fit.TOP_LEFT,
        "scale": 1.0,
        "mean": (103.53, 116.28, 123.675),
        "std": (57.375, 57.12, 58.395),
    }
    thresholds = Thresholds(score=0.3, iou=0.65)

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        names, form = self.reading.outputs, self.reading.form
        if form == _COUNTED:
            boxes, scores, class_ids = counted_rows(outputs, names, index)
            return to_detections(boxes, scores, class_ids, placement, thresholds, needs_nms=False)
        if form == _PADDED:
            rows = picture_tensor(outputs, names[0], index, ANY, 5)
            class_ids = picture_vector(outputs, names[1], index, len(rows))
            return to_detections(rows[:, :4], rows[:, 4], class_ids, placement, thresholds, needs_nms=False)
        parts = [self._head(*each, thresholds.score) for each in self._heads(outputs, index)]
        boxes, scores, class_ids = (np.concatenate(part) for part in zip(*parts, strict=True))
        return to_detections(boxes, scores, class_ids, placement, thresholds, needs_nms=True)

    def _heads(self, outputs: Outputs, index: int) -> Iterator[tuple[int, Array, Array]]:
        """Yield stride, logits [C, cells] and distances [4, cells] of each grid."""
        names, classes = self.reading.outputs, self.reading.classes or AT_LEAST_ONE
        for number, stride in enumerate(_STRIDES):
            across, down = self.grid(stride)
            if self.reading.form == _JOINED:
                joined = picture_tensor(outputs, names[number], index, self.reading.width(4), down, across)
                logits, distances = joined[:-4], joined[-4:]
            else:
                logits = picture_tensor(outputs, names[number], index, classes, down, across)
                distances = picture_tensor(outputs, names[number + len(_STRIDES)], index, 4, down, across)
            yield stride, logits.reshape(len(logits), -1), distances.reshape(4, -1)

    def _head(self, stride: int, logits: Array, distances: Array, score: float) -> tuple[Array, Array, Array]:
        """Return boxes, scores and class ids of one grid's candidates."""
        class_ids, places = best_hits(logits, logit(score))
        cells = cells_at(places, self.grid(stride)[0])
        sides = distances[:, places].T.astype(np.float32)
        if self.reading.form != _IN_PIXELS:
            sides *= np.float32(stride)
        return around(cells * stride, sides), sigmoid(logits[class_ids, places].astype(np.float32)), class_ids

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        shapes = {spec.name: spec.shape for spec in evidence.outputs}
        if set(_NUMBERED) <= set(shapes):
            return Claim(cls.name, reason, suppressed_list(_NUMBERED, _COUNTED))
        if set(_DETS) <= set(shapes):
            dets, labels = (shapes[name] for name in _DETS)
            if len(dets) == 3 and (dets[2] == 5 or isinstance(dets[2], str)) and len(labels) == 2:
                return Claim(cls.name, reason, suppressed_list(_DETS, _PADDED))
            return None
        return cls._claim_heads(evidence, reason)

    @classmethod
    def _claim_heads(cls, evidence: Evidence, reason: str) -> Claim | None:
        heads = evidence.outputs
        if len(heads) not in (3, 6) or not all(_fits(spec, place % 3, evidence) for place, spec in enumerate(heads)):
            return None
        channels = heads[0].shape[1]
        if any(spec.shape[1] != channels for spec in heads[:3]) or any(spec.shape[1] != 4 for spec in heads[3:]):
            return None
        is_joined = len(heads) == 3
        if is_joined and isinstance(channels, int) and channels < 5:
            return None
        boxes = keys.choice(evidence.settings, "decode.boxes", (_IN_CELLS, _IN_PIXELS)) or _IN_PIXELS
        reading = Reading(evidence.output_names, _JOINED if is_joined else boxes)
        return Claim(cls.name, reason, reading, count_classes(channels, 4 if is_joined else 0))

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        """Return an undecided claim with both families for an end-to-end export."""
        names = set(evidence.output_names)
        if names not in (set(_DETS), set(_NUMBERED)) or cls.claim(evidence, "") is None:
            return None
        exporter = "an mmdeploy" if names == set(_DETS) else "an MMYOLO"
        return undecided(f"outputs of {exporter} export, but the kind of detector is unknown", cls.name, MmDet.name)

    @classmethod
    def by_shape(cls, evidence: Evidence) -> Claim | None:
        """Return an undecided claim with both families for six raw heads."""
        if len(evidence.outputs) != 6 or cls.claim(evidence, "") is None:
            return None
        return undecided("raw heads of classes and distances, as RTMDet has", cls.name, MmDet.name)


def _fits(spec: TensorSpec, level: int, evidence: Evidence) -> bool:
    """Whether a tensor is [N, channels, rows, columns] and, as far as its size is known, on the grid of this level."""
    if len(spec.shape) != 4:
        return False
    if evidence.size is None:
        return True
    sides = [-(-side // _STRIDES[level]) for side in reversed(evidence.size)]
    return all(isinstance(dim, str) or dim == side for dim, side in zip(spec.shape[2:], sides, strict=True))


class MmDet(RtmDet, frozen=True):
    """Other detectors of MMDetection."""

    name = "mmdet"
    feed: ClassVar[Feed] = {"fit": Fit.TOP_LEFT, "pad": 116, "mean": IMAGENET_MEAN, "std": IMAGENET_STD}
