"""Compares the detections of an engine with those of the reference. Pure: two sets of outputs in, an agreement out.

A detection counts as found if the other side has a box of the same class with an IoU of at least 0.5. The score of that
box may be slightly below the threshold. For example, with a threshold of 0.25, scores of 0.251 and 0.249 hardly differ,
though only one of them is a detection.

The other side's boxes are those before non-maximum suppression, because the last bit of a score can decide which of two
overlapping boxes stays. Suppression itself needs no comparison: both sides use the same code.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from edged.tensors import Array
from edged.vision.detections import Detections
from edged.vision.family import Family, Recognition, Thresholds, open_family
from edged.vision.placement import Fit, Placement, place

_SAME_PLACE = 0.5  # IoU from which two boxes count as the same object
_MOST_SEEN = 512  # best detections of a picture that are compared; a picture of noise has thousands
_MOST_OFFERED = 4096
_BEST = Thresholds(score=0.0, iou=1.0, max_detections=100)
_AROUND = 4  # boxes count up to this many widths and heights of the input beyond each side
_MARGIN = 0.25  # share of the input: how far outside of it the centre of a box may be
_MOST_SCORE = 1.001  # 1 and rounding
_LEAST_SHARE = 0.9  # share of the boxes that must be in the picture


class Agreement(msgspec.Struct, frozen=True):
    """How many detections the reference and an engine have in common, and how far their scores differ."""

    expected: int = 0  # detections of the reference
    kept: int = 0  # how many of `expected` the engine has too
    found: int = 0  # detections of the engine
    known: int = 0  # how many of `found` the reference has too
    score: float = 0.0  # the largest difference between the scores of a common detection

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
        """The lower of two shares. The first is the share of the reference's detections that the engine also has. The
        second is the share of the engine's detections that the reference also has. None if there are no detections."""
        if not self.expected and not self.found:
            return None
        kept = self.kept / self.expected if self.expected else 1.0
        known = self.known / self.found if self.found else 1.0
        return min(kept, known)


class Matcher:
    """Compares the answers of a detector.

    If the outputs are lists (`Reading.is_list`), two engines may put the same detections in different rows. So only the
    sorted scores (`scores`) can be compared element by element. If the graph also suppresses boxes, the last bit of a
    score can add or remove a detection. Then not even the sorted scores can be compared.

    If the code of the model's family, which decodes outputs, does not run in this process, only outputs that are not
    lists are compared.
    """

    def __init__(self, recognition: Recognition, family: Family | None, slack: float) -> None:
        """`slack` is how far below the threshold the score of a matching box may be. Whatever `slack` is, the score
        must be at least half the threshold."""
        self._decode = family.boxes if family is not None else None
        self._read = recognition.reading.outputs
        self.lists = frozenset(self._read) - frozenset(recognition.reading.dense)
        if not recognition.reading.is_list:
            self.lists = frozenset()
        preprocess = recognition.preprocess
        size = (preprocess.width, preprocess.height) if preprocess is not None else (1, 1)
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
        """Compare the detections in the first picture of the batch. Return an empty agreement if an output is missing,
        or if the family's code does not run in this process."""
        decode = self._decode
        if decode is None or not set(self._read) <= set(expected):  # outputs that differ between runs are missing
            return Agreement()
        ours, theirs = (decode(outputs, 0, placement, self._seen) for outputs in (expected, found))
        return agree(
            ours,
            decode(found, 0, placement, self._offered),
            theirs,
            decode(expected, 0, placement, self._offered),
        )

    def scores(self, outputs: Mapping[str, Array]) -> npt.NDArray[np.float32] | None:
        """Return the scores of all detections in the first picture of the batch: float32 [512], best first, padded with
        zeros.

        None if an output is missing, if the family's code does not run in this process, or if scores cannot be compared
        (`ranks` is false).
        """
        if self._decode is None or not self.ranks or not set(self._read) <= set(outputs):
            return None
        found = self._decode(outputs, 0, self._whole, self._all).scores
        padded = np.zeros(_MOST_SEEN, np.float32)
        padded[: len(found)] = found
        return padded


def agree(ours: Detections, their_offers: Detections, theirs: Detections, our_offers: Detections) -> Agreement:
    """Return the agreement of two sides. Each detection of one side is searched for among the offers of the other side.
    Offers are the boxes that may match, usually all boxes before suppression."""
    kept, known = _differences(ours, their_offers), _differences(theirs, our_offers)
    worst = max(_largest(kept), _largest(known))
    return Agreement(len(ours), _count(kept), len(theirs), _count(known), worst)


def common_scores(ours: Detections, theirs: Detections) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return each side's scores, float32 [n], for the detections that both sides have after suppression.

    Each detection is paired with the best detection of the other side at the same place. So the differences show a
    shift of all scores. (`agree` pairs a detection with the box whose score is nearest instead.)
    """
    same = (overlaps(ours.boxes, theirs.boxes) >= _SAME_PLACE) & (ours.class_ids[:, None] == theirs.class_ids)
    rows = np.flatnonzero(same.any(axis=1)) if same.size else np.empty(0, np.intp)
    best = same[rows].argmax(axis=1) if len(rows) else rows  # detections are sorted, the best first
    return ours.scores[rows], theirs.scores[best]


def _differences(seen: Detections, offered: Detections) -> npt.NDArray[np.float32]:
    """Return, for each seen detection, how far its score is from the nearest score of an offered box at the same place.
    The value is infinite if no offered box is there.

    The nearest score counts, because an object has many candidate boxes with different scores. If one side scores an
    object higher, the best detection of that side finds only lower scores on the other side. So this difference is not
    hidden.
    """
    scores: npt.NDArray[np.float32] = np.abs(seen.scores[:, None] - offered.scores)
    same = (overlaps(seen.boxes, offered.boxes) >= _SAME_PLACE) & (seen.class_ids[:, None] == offered.class_ids)
    nearest: npt.NDArray[np.float32] = np.where(same, scores, np.float32(np.inf)).min(axis=1, initial=np.inf)
    return nearest


def overlaps(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the IoU of each box of `one`, [n, 4], with each box of `other`, [m, 4], as an array [n, m]. Boxes are
    xyxy; boxes without an area overlap nothing."""
    low = np.maximum(one[:, None, :2], other[:, :2])
    high = np.minimum(one[:, None, 2:], other[:, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=2)
    union = _areas(one)[:, None] + _areas(other) - shared
    found: npt.NDArray[np.float32] = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return found


def _areas(boxes: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    areas: npt.NDArray[np.float32] = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return areas


def _count(differences: npt.NDArray[np.float32]) -> int:
    return int(np.count_nonzero(np.isfinite(differences)))


def _largest(differences: npt.NDArray[np.float32]) -> float:
    return float(differences[np.isfinite(differences)].max(initial=0.0))


def doubt(recognition: Recognition, outputs: Mapping[str, Array]) -> str:
    """Return why the outputs for a picture cannot be boxes of the model's family.

    The text is empty if they can be, or if the model's family has no boxes.
    """
    family = open_family(recognition) if recognition.reads_pictures else None
    if not isinstance(family, Family):
        return ""
    size = np.array((family.preprocess.width, family.preprocess.height), np.float32)
    found = family.boxes(outputs, 0, _wide(*map(int, size)), _BEST)
    if not len(found):
        is_normal = recognition.reading.is_list or family.may_find_nothing
        return "" if is_normal else "no box has an area and is near the picture"
    if (most := float(found.scores.max())) > _MOST_SCORE:
        return f"the largest score of a box is {most:.3g}, but scores of this family are between 0 and 1"
    middle = (found.boxes[:, :2] + found.boxes[:, 2:]) / 2 / size - _AROUND
    extent = (found.boxes[:, 2:] - found.boxes[:, :2]) / size
    near = ((middle > -_MARGIN) & (middle < 1 + _MARGIN) & (extent < 1 + 2 * _MARGIN)).all(axis=1)
    share = float(near.mean())
    return "" if share >= _LEAST_SHARE else f"only {share:.0%} of the best boxes are in the picture"


def _wide(width: int, height: int) -> Placement:
    """Return a placement in a larger picture around the input, so that boxes outside the input are not clipped."""
    across, down = (2 * _AROUND + 1) * width, (2 * _AROUND + 1) * height
    return Placement(1.0, 1.0, -_AROUND * width, -_AROUND * height, across, down)
