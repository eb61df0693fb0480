"""Whether what a family reads from a model's answer can be detections at all. Pure.

A family that is set by hand may fit the tensors and not their values: queries of a DETR have the shapes of an SSD's
prior boxes. Scores beyond one, and boxes that lie outside of every picture, give that away.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edged.tensors import Array
from edged.vision.families.contract import HasCheapBoxes
from edged.vision.family import Classifier, Recognition, Thresholds, open_family
from edged.vision.placement import Placement

_BEST = Thresholds(score=0.0, iou=1.0, max_detections=100)
_AROUND = 4  # how many widths and heights of the input are looked at on each side of it
_MARGIN = 0.25  # of the input: how far outside of it the middle of a box may lie
_MOST_SCORE = 1.001  # rounding
_LEAST_SHARE = 0.9  # of the boxes that must lie in the picture


def doubt(recognition: Recognition, outputs: Mapping[str, Array]) -> str:
    """Why the answer to a picture cannot be what the family takes it for; empty if it can, or if it tells no boxes."""
    family = open_family(recognition) if recognition.family else None
    if family is None or isinstance(family, Classifier):
        return ""
    size = np.array((family.preprocess.width, family.preprocess.height), np.float32)
    decode = family.boxes if isinstance(family, HasCheapBoxes) else family.decode
    found = decode(outputs, 0, _wide(*map(int, size)), _BEST)
    if not len(found):
        return "" if recognition.reading.is_list else "none of its boxes has an area near the picture"
    if (most := float(found.scores.max())) > _MOST_SCORE:
        return f"its scores go up to {most:.3g}, and are between 0 and 1 in this family"
    middle = (found.boxes[:, :2] + found.boxes[:, 2:]) / 2 / size - _AROUND
    extent = (found.boxes[:, 2:] - found.boxes[:, :2]) / size
    near = ((middle > -_MARGIN) & (middle < 1 + _MARGIN) & (extent < 1 + 2 * _MARGIN)).all(axis=1)
    share = float(near.mean())
    return "" if share >= _LEAST_SHARE else f"only {share:.0%} of its best boxes lie in the picture"


def _wide(width: int, height: int) -> Placement:
    """As if the picture went on around the input, so that what lies outside is not cut off."""
    across, down = (2 * _AROUND + 1) * width, (2 * _AROUND + 1) * height
    return Placement(1.0, 1.0, -_AROUND * width, -_AROUND * height, across, down)
