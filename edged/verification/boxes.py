"""Compares detections: does an engine see what the reference sees? Pure: outputs of two engines in, an agreement out.

A detection of one counts as found by the other when that has a box of the same class at the same place (IoU of at least
0.5) whose score may be a little *below* the threshold: a score of 0.251 here and 0.249 there is no difference, though
only one of them is told. The other's boxes are taken before suppression, since which of two overlapping boxes stays can
hang on the last bit; suppression is the same code for both, and with the same candidates comes to the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from edged.tensors import Array
from edged.vision.detections import Detections
from edged.vision.family import Classifier, Family, Recognition, Thresholds, open_family
from edged.vision.placement import Fit, Placement, place

_SAME_PLACE = 0.5  # IoU from which on two boxes are about the same thing
_MOST_SEEN = 512  # detections of a picture that are looked up, the best; a wall of noise has thousands
_MOST_OFFERED = 4096
_EVERY_CLASS = Thresholds(score=0.0, max_detections=1 << 20)
_BEST = Thresholds(score=0.0, iou=1.0, max_detections=100)
_AROUND = 4  # how many widths and heights of the input are looked at on each side of it
_MARGIN = 0.25  # of the input: how far outside of it the middle of a box may lie
_MOST_SCORE = 1.001  # rounding
_LEAST_SHARE = 0.9  # of the boxes that must lie in the picture


class Agreement(msgspec.Struct, frozen=True):
    """How many detections the reference made and the engine found, the other way round, and how far scores differ."""

    expected: int = 0
    kept: int = 0  # of the expected, by the engine
    found: int = 0
    known: int = 0  # of the found, to the reference
    score: float = 0.0  # largest difference between the scores of a detection that both have

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(
            self.expected + other.expected,
            self.kept + other.kept,
            self.found + other.found,
            self.known + other.known,
            max(self.score, other.score),
        )

    @property
    def share(self) -> float | None:
        """Of the detections that the other has as well, in the worse of both directions; None without detections."""
        if not self.expected and not self.found:
            return None
        kept = self.kept / self.expected if self.expected else 1.0
        known = self.known / self.found if self.found else 1.0
        return min(kept, known)


class Matcher:
    """Compares the answers of a detector.

    Where these are lists (`Reading.is_list`), two engines may put the same detections in other rows: nothing can be
    compared element by element but the scores in order (`scores`). Where the graph suppressed as well, one more or less
    hangs on the last bit, and even those differ.
    """

    def __init__(self, recognition: Recognition, family: Family, slack: float) -> None:
        """`slack` is how far below the threshold a score may be and still count as found; never below its half."""
        self._decode = family.boxes
        self._read = recognition.reading.outputs
        self.lists = frozenset(self._read) - frozenset(recognition.reading.dense)
        if not recognition.reading.is_list:
            self.lists = frozenset()
        size = family.preprocess.width, family.preprocess.height
        self.ranks = recognition.reading.is_list and not recognition.reading.is_suppressed
        self._whole = place(*size, *size, Fit.STRETCH)
        thresholds = recognition.thresholds
        self._seen = msgspec.structs.replace(thresholds, max_detections=_MOST_SEEN)
        least = max(thresholds.score - slack, thresholds.score / 2)
        self._offered = msgspec.structs.replace(
            thresholds, score=least, iou=1.0, max_detections=_MOST_OFFERED, class_agnostic=False
        )
        self._all = msgspec.structs.replace(self._offered, score=0.0, max_detections=_MOST_SEEN)

    def compare(self, expected: Mapping[str, Array], found: Mapping[str, Array], placement: Placement) -> Agreement:
        """For one picture, from the outputs of the reference and of the engine, which have the same shapes."""
        if not set(self._read) <= set(expected):  # one differs from run to run and cannot be compared
            return Agreement()
        ours, theirs = (self._decode(outputs, 0, placement, self._seen) for outputs in (expected, found))
        kept = _differences(ours, self._decode(found, 0, placement, self._offered))
        known = _differences(theirs, self._decode(expected, 0, placement, self._offered))
        worst = max(_largest(kept), _largest(known))
        return Agreement(len(ours), _count(kept), len(theirs), _count(known), worst)

    def scores(self, outputs: Mapping[str, Array]) -> npt.NDArray[np.float32] | None:
        """Of every detection in the lists of the first picture, best first and filled up with zeros; None if a list
        is missing, or if they are no measure. In which row a detection is makes no difference to it."""
        if not self.ranks or not set(self._read) <= set(outputs):
            return None
        found = self._decode(outputs, 0, self._whole, self._all).scores
        padded = np.zeros(_MOST_SEEN, np.float32)
        padded[: len(found)] = found
        return padded


class ClassMatcher:
    """Compares what a classifier tells of a picture."""

    def __init__(self, recognition: Recognition, family: Classifier) -> None:
        self._family, self._read = family, frozenset(recognition.reading.outputs)

    def difference(self, expected: Mapping[str, Array], found: Mapping[str, Array]) -> float:
        """The largest between the probabilities of a class; 0 if an output differs from run to run."""
        if not self._read <= expected.keys():
            return 0.0
        ours, theirs = (self._probabilities(outputs) for outputs in (expected, found))
        return max((abs(ours.get(n, 0.0) - theirs.get(n, 0.0)) for n in ours.keys() | theirs.keys()), default=0.0)

    def _probabilities(self, outputs: Mapping[str, Array]) -> dict[int, float]:
        notify = self._family.classify(outputs, 0, _EVERY_CLASS)
        return dict(zip(notify.class_ids.tolist(), notify.scores.tolist(), strict=True))


def matcher_for(recognition: Recognition, slack: float) -> Matcher | ClassMatcher | None:
    """None for a model of no family."""
    family = open_family(recognition) if recognition.family else None
    if family is None:
        return None
    return ClassMatcher(recognition, family) if isinstance(family, Classifier) else Matcher(recognition, family, slack)


def _differences(seen: Detections, offered: Detections) -> npt.NDArray[np.float32]:
    """For each of the seen, the difference to the score nearest to its own at its place; infinite if there is none.

    The nearest, because around a thing there are many candidates. The best score of them cannot hide a difference: in
    one of the two directions all the others lie on the far side of it.
    """
    scores: npt.NDArray[np.float32] = np.abs(seen.scores[:, None] - offered.scores)
    same = _overlap(seen.boxes, offered.boxes) & (seen.class_ids[:, None] == offered.class_ids)
    nearest: npt.NDArray[np.float32] = np.where(same, scores, np.float32(np.inf)).min(axis=1, initial=np.inf)
    return nearest


def _overlap(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Which of the boxes [n, 4] and [m, 4] overlap by at least `_SAME_PLACE`: [n, m]. Boxes are xyxy and not empty."""
    low = np.maximum(one[:, None, :2], other[:, :2])
    high = np.minimum(one[:, None, 2:], other[:, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=2)
    union = _areas(one)[:, None] + _areas(other) - shared
    enough: npt.NDArray[np.bool_] = shared >= _SAME_PLACE * union
    return enough


def _areas(boxes: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    areas: npt.NDArray[np.float32] = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return areas


def _count(differences: npt.NDArray[np.float32]) -> int:
    return int(np.count_nonzero(np.isfinite(differences)))


def _largest(differences: npt.NDArray[np.float32]) -> float:
    return float(differences[np.isfinite(differences)].max(initial=0.0))


def doubt(recognition: Recognition, outputs: Mapping[str, Array]) -> str:
    """Why the answer to a picture cannot be what the family takes it for; empty if it can, or if it tells no boxes."""
    family = open_family(recognition) if recognition.family else None
    if family is None or isinstance(family, Classifier):
        return ""
    size = np.array((family.preprocess.width, family.preprocess.height), np.float32)
    found = family.boxes(outputs, 0, _wide(*map(int, size)), _BEST)
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
