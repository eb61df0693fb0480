"""Compares an answer that was served for a frame with the reference's answer. Pure: outputs in, figures out.

Only the decoded answer of the engine is known, not the boxes that suppression or the threshold removed. So a detection
of the reference is required in the served answer only if its score is clearly above the threshold. In the other
direction, each served detection must match one of the reference's boxes before suppression. The score of that box may
be slightly below the threshold, as in a verification (`boxes.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from edged.tensors import Array
from edged.verification.boxes import agree, common_scores
from edged.verification.contents import compare_served
from edged.vision.content import Content
from edged.vision.detections import Detections
from edged.vision.family import ContentFamily, Family, Thresholds
from edged.vision.placement import Placement

_MOST_OFFERED = 4096


class Comparison(msgspec.Struct, frozen=True):
    """How well a served answer agrees with the reference's answer. `figures` has measured values under the names in
    `standard.Tolerance`; it is empty if there is nothing to compare. `common` counts the detections that both answers
    have; it is 1 for contents. `shift` is the mean of the served score minus the reference's score over these
    detections."""

    figures: dict[str, float] = {}
    common: int = 0
    shift: float = 0.0


def compare_boxes(
    family: Family,
    outputs: Mapping[str, Array],
    placement: Placement,
    thresholds: Thresholds,
    served: Detections,
    slack: float,
) -> tuple[Comparison, Detections]:
    """Compare served detections with the reference's `outputs` for the same picture; return the reference's detections
    too. `slack` is how far two scores of the same detection may differ."""
    own = family.boxes(outputs, 0, placement, thresholds)
    least = max(thresholds.score - slack, thresholds.score / 2)
    wide = msgspec.structs.replace(thresholds, score=least, iou=1.0, max_detections=_MOST_OFFERED, class_agnostic=False)
    offered = family.boxes(outputs, 0, placement, wide)
    certain = own.select(own.scores >= thresholds.score + slack)
    agreed = agree(certain, served, served, offered)
    if agreed.share is None:
        return Comparison(), own
    ours, theirs = common_scores(own, served)
    differences = theirs - ours
    figures = {"boxes": _rounded(agreed.share), "box_score": _rounded(float(np.abs(differences).max(initial=0.0)))}
    shift = float(differences.mean()) if len(differences) else 0.0
    return Comparison(figures, len(differences), _rounded(shift)), own


def compare_content(
    family: ContentFamily, outputs: Mapping[str, Array], placement: Placement, thresholds: Thresholds, served: Content
) -> tuple[Comparison, Content]:
    """Compare a served content with the reference's `outputs` for the same picture; return the reference's content
    too."""
    own = family.content(outputs, 0, placement, thresholds)
    found = compare_served(family, outputs, placement, thresholds, served)
    return (Comparison() if found is None else Comparison({found[0]: _rounded(found[1])}, 1)), own


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
