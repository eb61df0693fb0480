"""Anomaly detection of anomalib: PatchCore, PaDiM, STFPM, EfficientAD and its other models.

Version 2 puts preprocessing and postprocessing into the graph. Input `input` [N, 3, H, W] FP32, RGB in 0..1; height and
width can be open, because the graph resizes. Outputs: `pred_score` [N] or [N, 1], `pred_label` BOOL, `anomaly_map`
[N, 1, h, w], `pred_mask` BOOL; a model can lack some of them. The graph rescales the score and the map to 0..1, so that
the threshold found in training becomes 0.5. If a model has no `pred_score`, the score is the highest value of the map.
`pred_label` is the result of comparing the score with the threshold that was chosen in the export.

Version 1 has the same input, which the graph resizes. `output` is either the map in the model's own scale,
[N, 1, h, w], or the score, [N]. If `output` is the map, the score is the highest value of the map. Thresholds are in
metadata.json next to the file (see `edged.models.anomalib`). If a model of version 1 has several outputs, the exporter
names only the first output, so edged reads only `output`. Version 0 exported the same tensors but normalised pixels
outside the graph.

If the graph crops the centre of the picture, the map covers only this centre; the file does not say so.

Source: open-edge-platform/anomalib: components/base/export_mixin, post_processing/post_processor.py, pre_processing,
data/dataclasses/torch/base.py (commit b723368); deploy/export.py, deploy/inferencers/openvino_inferencer.py and
components/base/export_mixin.py (tag v1.2.0). No trained model was at hand to verify these families.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from edged.tensors import Array, TensorSpec
from edged.vision import settings as keys
from edged.vision.content import LARGEST, Anomaly, ValueMap
from edged.vision.families.contract import Claim, ContentFamily, Evidence, Feed, Reading
from edged.vision.families.decoding import AT_LEAST_ONE, Floats, Outputs, Thresholds, picture_scalar, picture_tensor
from edged.vision.families.maps import part, shown
from edged.vision.placement import Fit, Placement
from edged.vision.signatures import patterns

_SCORE, _LABEL, _MAP, _MASK = "pred_score", "pred_label", "anomaly_map", "pred_mask"
_BOTH = "score and map"  # the form with two outputs; the forms with one output are `_SCORE` and `_MAP`
_OUTPUT = "output"


class Anomalib(ContentFamily, frozen=True):
    """Models of anomalib 2.

    With the default threshold of 0.5, a picture is anomalous if the label that the graph computes is true. If another
    threshold is set, or if the model has no label, the score is compared with the threshold.
    """

    name = "anomalib"
    signatures = patterns(
        "pred_score [N], anomaly_map [N, 1, h, w], ...", "pred_score [N], ...", "anomaly_map [N, 1, h, w], ..."
    )
    feed: ClassVar[Feed] = {"fit": Fit.STRETCH}
    thresholds = Thresholds(score=0.5)
    score_range = (-math.inf, math.inf)

    def content(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Anomaly:
        """See `ContentFamily.content`. A score that is not finite as float32 counts as 0. Map values that are not
        finite count as the lowest finite value of the map."""
        first, last = self.reading.outputs[0], self.reading.outputs[-1]
        heat = None if self.reading.form == _SCORE else _heat(outputs, last, index)
        if heat is not None and self.reading.form == _MAP:
            score = float(heat.max(initial=-np.inf, where=np.isfinite(heat)))
        else:
            score = picture_scalar(outputs, first, index)
        score = score if abs(score) <= LARGEST else 0.0
        label = _label(outputs, index) if thresholds.score == self.thresholds.score else None
        is_anomalous = score >= thresholds.score if label is None else label
        values = None if heat is None else ValueMap.of(shown(heat, placement, self.preprocess), part(placement))
        return Anomaly(score, is_anomalous, values)

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        specs = {spec.name: spec for spec in evidence.outputs}
        score, heat = specs.get(_SCORE), specs.get(_MAP)
        if (score is None and heat is None) or not (score is None or _is_scalar(score)):
            return None
        if heat is not None and not _is_map(heat):
            return None
        found = tuple(spec.name for spec in (score, heat) if spec is not None)
        return Claim(cls.name, reason, Reading(found, found[0] if len(found) == 1 else _BOTH))

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        names = {spec.name for spec in evidence.outputs}
        if not names & {_SCORE, _MAP} or not names <= {_SCORE, _LABEL, _MAP, _MASK}:
            return None
        return cls.claim(evidence, f"outputs named {', '.join(sorted(names & {_SCORE, _MAP}))}")


class AnomalibV1(Anomalib, frozen=True):
    """Models of anomalib 1, with scores in the model's own scale."""

    name = "anomalib-v1"
    signatures = patterns("output [N, 1, h, w]", "output [N]")

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        output = next((spec for spec in evidence.outputs if spec.name == _OUTPUT), evidence.only_output)
        if output is None or not (_is_map(output) or _is_scalar(output)):
            return None
        if keys.THRESHOLD not in evidence.settings:
            where = "the image_threshold in metadata.json of the export"
            return Claim(None, f"family={cls.name} has no default threshold: set {keys.THRESHOLD} to {where}")
        return Claim(cls.name, reason, Reading((output.name,), _MAP if _is_map(output) else _SCORE))


def _label(outputs: Outputs, index: int) -> bool | None:
    """Return the label that the graph computes for a picture; None if the model has no output of labels, BOOL [N] or
    [N, 1]."""
    labels = outputs.get(_LABEL)
    if labels is None or labels.dtype != np.bool_ or not labels.ndim or not index < len(labels) == labels.size:
        return None
    return bool(labels.reshape(-1)[index])


def _heat(outputs: Outputs, name: str, index: int) -> Floats:
    """Return the map of one picture, float32 [h, w], from [N, 1, h, w] or [N, h, w]."""
    found: Array | None = outputs.get(name)
    channel = (1,) if found is not None and found.ndim == 4 else ()
    heat = picture_tensor(outputs, name, index, *channel, AT_LEAST_ONE, AT_LEAST_ONE)
    return heat.reshape(heat.shape[-2:]).astype(np.float32)


def _is_scalar(spec: TensorSpec) -> bool:
    return len(spec.shape) in (1, 2) and spec.shape[1:] in ((), (1,))


def _is_map(spec: TensorSpec) -> bool:
    """Whether an output can be [N, 1, h, w] or [N, h, w]."""
    if len(spec.shape) == 4:
        return spec.shape[1] == 1 or isinstance(spec.shape[1], str)
    return len(spec.shape) == 3
