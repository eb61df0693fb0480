"""Compares the contents that an engine and the reference give for a picture. Pure: outputs in, a figure out.

What the figures mean is in `edged.verification.standard.Tolerance`.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import SequenceMatcher

import msgspec
import numpy as np
import numpy.typing as npt

from edged.tensors import Array
from edged.vision.content import Anomaly, Classes, ClassMap, Content, Depth, Embedding, Text
from edged.vision.family import ContentFamily, Recognition
from edged.vision.placement import Fit, Placement, place

_LEAST_SHARE = 0.005  # of a map: a class with less of it in both maps does not count, since a few cells decide its IoU
_TINY = 1e-6


class ContentMatcher:
    """Compares the contents of a model with a `ContentFamily`."""

    def __init__(self, recognition: Recognition, family: ContentFamily) -> None:
        self._family, self._read = family, frozenset(recognition.reading.outputs)
        # Every class counts, also those that clients do not get.
        self._thresholds = msgspec.structs.replace(recognition.thresholds, score=0.0, max_detections=1 << 20)
        width, height = family.preprocess.width, family.preprocess.height
        self._whole = place(width, height, width, height, Fit.STRETCH)

    def figure(
        self, expected: Mapping[str, Array], found: Mapping[str, Array], placement: Placement | None
    ) -> tuple[str, float] | None:
        """Return the name and the value of the figure for one picture; None if an output is left out because it differs
        between runs. Without a placement the whole input is the picture."""
        if not self._read <= expected.keys():
            return None
        where = placement or self._whole
        ours, theirs = (self._family.content(outputs, 0, where, self._thresholds) for outputs in (expected, found))
        return compare(ours, theirs)


def compare(expected: Content, found: Content) -> tuple[str, float]:
    """Return the name and the value of the figure that compares two contents of one kind."""
    if isinstance(expected, Classes) and isinstance(found, Classes):
        return "class_score", _class_score(expected, found)
    if isinstance(expected, ClassMap) and isinstance(found, ClassMap):
        return "class_map", _mean_iou(expected.cells(), found.cells())
    if isinstance(expected, Depth) and isinstance(found, Depth):
        return "depth", _depth_error(expected.map.values(), found.map.values())
    if isinstance(expected, Embedding) and isinstance(found, Embedding):
        return "embedding", expected.similarity(found)
    if isinstance(expected, Text) and isinstance(found, Text):
        return "text", SequenceMatcher(None, expected.text, found.text, autojunk=False).ratio()
    assert isinstance(expected, Anomaly)
    assert isinstance(found, Anomaly)
    return "anomaly", abs(expected.score - found.score) / max(abs(expected.score), abs(found.score), _TINY)


def _class_score(expected: Classes, found: Classes) -> float:
    """Return the largest difference between the probabilities of a class."""
    ours, theirs = (dict(zip(each.class_ids, each.scores, strict=True)) for each in (expected, found))
    return max((abs(ours.get(n, 0.0) - theirs.get(n, 0.0)) for n in ours.keys() | theirs.keys()), default=0.0)


def _mean_iou(expected: npt.NDArray[np.int32], found: npt.NDArray[np.int32]) -> float:
    """Return the mean IoU over the classes of two maps. Maps of different sizes, as noise has, share no cell."""
    if expected.shape != found.shape:
        return 0.0
    shares = []
    for each in np.union1d(expected, found).tolist():
        ours, theirs = expected == each, found == each
        union = np.count_nonzero(ours | theirs)
        if union >= _LEAST_SHARE * expected.size:
            shares.append(np.count_nonzero(ours & theirs) / union)
    return float(np.mean(shares)) if shares else 1.0


def _depth_error(expected: npt.NDArray[np.float32], found: npt.NDArray[np.float32]) -> float:
    """Return the RMS difference over the reference's standard deviation, after the scale and offset that fit best:
    a depth without a unit is only known up to these."""
    if expected.shape != found.shape:
        return 1.0
    ours, theirs = expected.astype(np.float64).ravel(), found.astype(np.float64).ravel()
    ours, theirs = ours - ours.mean(), theirs - theirs.mean()
    spread, power = float(np.sqrt(np.mean(ours**2))), float(theirs @ theirs)
    if spread < _TINY:
        return 0.0 if power < _TINY else 1.0
    scale = float(ours @ theirs) / power if power else 0.0
    return float(np.sqrt(np.mean((ours - scale * theirs) ** 2))) / spread
