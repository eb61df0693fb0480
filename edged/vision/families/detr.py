"""Query-based detectors, which need no NMS: RF-DETR, and RT-DETR and relatives as exported by their own repositories
and by the ultralytics package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from edged.tensors import Array, TensorSpec
from edged.vision import settings as keys
from edged.vision.detections import Detections
from edged.vision.families.contract import Claim, Evidence, Family, Feed, Reading, count_classes
from edged.vision.families.decoding import (
    ANY,
    AT_LEAST_ONE,
    Outputs,
    Thresholds,
    best_class,
    corners,
    logit,
    picture_tensor,
    picture_vector,
    sigmoid,
    to_detections,
)
from edged.vision.placement import Placement
from edged.vision.preprocess import IMAGENET_MEAN, IMAGENET_STD
from edged.vision.signatures import patterns

_SIZES = "orig_target_sizes"
_TENSORS = ("labels", "boxes", "scores")


class RtDetr(Family, frozen=True):
    """RT-DETR, RT-DETRv2, D-FINE and relatives, as exported by their own repositories.

    Inputs `images` and `orig_target_sizes` INT64 [N, 2]; outputs `labels` [N, Q], `boxes` [N, Q, 4] and `scores`
    [N, Q], best first and without duplicates. The graph multiplies the boxes, xyxy in 0..1, by the sizes (width,
    height). edged passes the size of the input, so that boxes are in input pixels, as in all other families. Source:
    `RTDETRPostProcessor` and `tools/export_onnx.py` of these repositories.
    """

    name = "rtdetr"
    signatures = patterns(
        "[N, 3, H, W], orig_target_sizes [N, 2] -> labels [N, Q], boxes [N, Q, 4], scores [N, Q]",
    )
    feed: ClassVar[Feed] = {}
    own_inputs = (_SIZES,)

    def extra_inputs(self, placements: Sequence[Placement]) -> Mapping[str, Array]:
        """Return `orig_target_sizes`, int64 [n, 2], width before height."""
        size = np.array((self.preprocess.width, self.preprocess.height), np.int64)
        return {_SIZES: np.tile(size, (len(placements), 1))}

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        labels, boxes, scores = self.reading.outputs
        found = picture_tensor(outputs, boxes, index, ANY, 4)
        found_scores, ids = (picture_vector(outputs, name, index, len(found)) for name in (scores, labels))
        return to_detections(found, found_scores, ids, placement, thresholds, needs_nms=False)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        sizes = next((spec for spec in evidence.inputs if spec.name == _SIZES), None)
        if sizes is None or sizes.datatype != "INT64" or len(sizes.shape) != 2 or sizes.shape[1] != 2:
            return None
        if not set(evidence.output_names) >= set(_TENSORS):
            return None
        return Claim(cls.name, reason, Reading(_TENSORS, is_list=True))

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        """Claim a model by the name of its second input, which is unique to this family."""
        export = "of an RT-DETR or D-FINE export"
        if any(spec.name == _SIZES for spec in evidence.inputs):
            reason = f"input {_SIZES} {export}"
            unlike = f"{reason}, but the other tensors differ; raw tensors are served"
            return cls.claim(evidence, reason) or Claim(None, unlike)
        if set(evidence.output_names) == set(_TENSORS):
            what = f"the outputs are those {export}, but the model has no input {_SIZES}"
            return Claim(None, f"{what}; raw tensors are served")
        return None


_BEST, _EACH = "best", "each"  # the best score and its class, or a score for each class
_SIX_COLUMNS = (8, 4, 47)  # the first version that writes only the best class


class UltralyticsRtDetr(Family, frozen=True):
    """RT-DETR as exported by the ultralytics package.

    One output of Q queries, boxes as cx, cy, w, h in 0..1 of the input. Since 8.4.47 the output is [N, Q, 6]: box,
    score, class. Before 8.4.47, the output is [N, Q, 4 + classes]: box, and a score for each class, after the sigmoid.
    For two classes, both formats have six columns; only the version (or the setting `decode.scores`) distinguishes
    them. Since 8.4.85 the metadata names the head. In older exports, an output of six columns is an RT-DETR's if the
    metadata has `end2end` and `nms` and both are false.
    """

    name = "rtdetr-ultralytics"
    signatures = patterns("[N, Q, 6]", "[N, Q, 4+classes]")
    feed: ClassVar[Feed] = {}

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        """See `Family.decode`. A query gives at most one detection, with its best class."""
        best_only = self.reading.form == _BEST
        width = 6 if best_only else self.reading.width(4)
        rows = picture_tensor(outputs, self.reading.outputs[0], index, AT_LEAST_ONE, width).astype(np.float32)
        scores, class_ids = (rows[:, 4], rows[:, 5]) if best_only else best_class(rows[:, 4:])
        boxes = corners(self.in_pixels(rows[:, :4]))
        return to_detections(boxes, scores, class_ids, placement, thresholds, needs_nms=False)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        output = evidence.table(5)
        if output is None:
            return None
        form = keys.choice(evidence.settings, "decode.scores", (_BEST, _EACH)) or _form(evidence, output)
        if form is None:
            two = "decode.scores=best (box, score, class), decode.scores=each (box, a score for each of two classes)"
            return Claim(None, f"{reason}, but two formats have six columns; set {two} or family=raw")
        each = count_classes(output.shape[2], 4) if form == _EACH else None
        reading = Reading((output.name,), form, is_list=True)
        return Claim(cls.name, reason, reading, each or len(evidence.metadata.names) or None)

    @classmethod
    def by_metadata(cls, evidence: Evidence) -> Claim | None:
        meta, output = evidence.metadata, evidence.table(5)
        if meta.task != "detect" or output is None or meta.end2end or meta.nms:
            return None
        if meta.head not in (None, "RTDETRDecoder"):
            return None
        why = _why_rtdetr(evidence, output)
        return None if why is None else cls.claim(evidence, why)


def _why_rtdetr(evidence: Evidence, output: TensorSpec) -> str | None:
    """Return the reason why an export is recognised as RT-DETR; None if the export is not recognised."""
    meta, (_, rows, columns) = evidence.metadata, output.shape
    if meta.head is not None:
        return f"metadata head={meta.head}"
    if isinstance(columns, str):  # exported with dynamic=True; other heads have 4+classes rows
        is_other = not meta.names or not isinstance(rows, int) or rows == 4 + len(meta.names)
        return None if is_other or meta.version is None else f"metadata task=detect: {output.name} has {rows} queries"
    if columns == 6 and meta.end2end is False and meta.nms is False and meta.version is not None:
        return "metadata task=detect with neither end2end nor nms: only an RT-DETR export then has six columns"
    if columns != 6 and columns == 4 + len(meta.names) and isinstance(rows, int) and rows != evidence.cells():
        return f"metadata task=detect: {output.name} has {rows} queries of 4+{len(meta.names)} columns, as RT-DETR has"
    return None


def _form(evidence: Evidence, output: TensorSpec) -> str | None:
    """Return the layout of the scores. Return None if the output has six columns, or an open number of columns, and
    neither metadata nor names show the layout."""
    meta, columns = evidence.metadata, output.shape[2]
    if isinstance(columns, int) and columns != 6:
        return _EACH
    names = keys.words(evidence.settings, "names") or meta.names
    if meta.head is not None or (columns == 6 and names and len(names) != 2):
        return _BEST
    if meta.version is not None:
        return _BEST if meta.version >= _SIX_COLUMNS else _EACH
    return None


_BOXES, _LOGITS = "dets", "labels"
_LAST, _NONE = "last", "none"  # the background slot
_COCO = 91


class RfDetr(Family, frozen=True):
    """RF-DETR exports.

    `dets` [N, Q, 4], cx, cy, w, h in 0..1 of the input, and `labels` [N, Q, C], one logit per class. A score is the
    sigmoid of a logit (not a softmax), and the best of all Q x C scores are kept, so a query can return two classes. In
    models with custom classes the last slot is the background; models of COCO use all 91 slots. Source: `PostProcess`
    and `export` of its repository.
    """

    name = "rfdetr"
    signatures = patterns("dets [N, Q, 4], labels [N, Q, slots]")
    feed: ClassVar[Feed] = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        is_last = self.reading.form == _LAST
        logits = picture_tensor(outputs, _LOGITS, index, ANY, self.reading.width(int(is_last)))
        boxes = picture_tensor(outputs, _BOXES, index, len(logits), 4)
        if is_last:
            logits = logits[:, :-1]
        queries, class_ids = np.nonzero(np.greater(logits, logit(thresholds.score)))
        scores = sigmoid(logits[queries, class_ids].astype(np.float32))
        found = corners(self.in_pixels(boxes[queries]))
        return to_detections(found, scores, class_ids, placement, thresholds, needs_nms=False)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        shapes = {spec.name: spec.shape for spec in evidence.outputs}
        boxes, logits = shapes.get(_BOXES, ()), shapes.get(_LOGITS, ())
        if len(boxes) != 3 or len(logits) != 3 or boxes[2] != 4:
            return None
        slots = logits[2]
        if isinstance(slots, int) and slots < 2:
            return None
        background = keys.choice(evidence.settings, "decode.background", (_LAST, _NONE)) or _background(evidence, slots)
        slot_use = "the last slot is the background" if background == _LAST else "all slots are classes"
        reading = Reading((_BOXES, _LOGITS), background, is_list=True)
        return Claim(cls.name, f"{reason}; {slot_use}", reading, count_classes(slots, int(background == _LAST)))

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        if set(evidence.output_names) != {_BOXES, _LOGITS}:
            return None
        return cls.claim(evidence, f"names of an RF-DETR export ({_BOXES}, {_LOGITS})")


def _background(evidence: Evidence, slots: int | str) -> str:
    """Return `_LAST` if the last slot is the background, or `_NONE` if the model has no background slot. The number of
    names decides this if it is the number of slots, or one less. Otherwise, a model with 91 slots is a model of COCO,
    which has no background slot; other models have one."""
    names = keys.words(evidence.settings, "names") or evidence.metadata.names
    if names and slots in (len(names), len(names) + 1):
        return _NONE if slots == len(names) else _LAST
    return _NONE if slots == _COCO else _LAST
