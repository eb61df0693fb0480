"""Compares an engine's answers with the reference's. Pure: arrays in; figures (measured differences) and a verdict
out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from edged.store.record import Verdict
from edged.tensors import Array
from edged.verification.boxes import Agreement, Matcher
from edged.verification.contents import ContentMatcher, SoundMatcher
from edged.verification.golden import Sample
from edged.verification.noise import Noise, without
from edged.verification.probes import WIDE
from edged.verification.standard import DECODED, Tolerance
from edged.vision.family import Family, Recognition, is_decoded_here, open_family, open_sound
from edged.vision.placement import Placement

_Floats = npt.NDArray[np.float64]
_TINY = 1e-12  # tolerated in a row or column of zeros

# Figures that must be at least their bound. All others must be at most their bound.
FLOORS = frozenset(("finite", "cosine", "top1", "top5", "boxes", "class_map", "embedding", "text"))
FLOORS |= {"precision", "recall", "precision_75", "recall_75", "masks", "keypoints"}  # see `edged.verification.frames`
# The figures that decide, in the order in which a verdict gives reasons. p99_abs does not decide; it informs people.
_DECIDING = ("finite", "cosine", "relative_l2", "outliers", "unequal", *DECODED)
# A figure that is set if all answers of the reference are empty or not finite.
NO_VALUES = "no_values"
_NO_VALUES = (
    "nothing to compare: the reference's answers to all probes are empty or NaN; add samples on which the model finds"
    " something: edged models add NAME FILE --replace --samples PICTURES"
)

AnyMatcher: TypeAlias = Matcher | ContentMatcher | SoundMatcher


class Pair(msgspec.Struct, frozen=True):
    """The answers of the reference and of an engine to one probe.

    `picture` is the name of a picture or sample, `placement` the place of the picture in the input. `extreme` marks
    inputs that a model is not made for: the class with the highest score is meaningless then. `noise` has, for each
    output, the part of a difference that is meaningless.
    """

    expected: Mapping[str, Array]
    answer: Mapping[str, Array]
    picture: str = ""
    placement: Placement | None = None
    extreme: bool = False
    noise: Mapping[str, Noise] = {}

    @classmethod
    def of(cls, sample: Sample, answer: Mapping[str, Array]) -> Pair:
        """Return the pair of a golden sample and an engine's answer to it."""
        extreme = sample.kind == WIDE
        return cls(sample.outputs, answer, sample.name, sample.placement, extreme, sample.noise)


def judge(
    pairs: Iterable[Pair], tolerance: Tolerance, matcher: AnyMatcher | None = None, *, needs_values: bool = False
) -> Verdict:
    """Return the verdict over the answers to all probes. `matcher` compares detections or contents of pictures.

    If all answers of the reference are empty or not finite, a wrong engine cannot be distinguished from a right engine.
    Then the verdict has the figure `NO_VALUES`, and with `needs_values` the engine is rejected.
    """
    tally = _Tally(tolerance, matcher, needs_values)
    for pair in pairs:
        reason = tally.add(pair)
        if reason:
            return Verdict(False, reason, {})
    return tally.verdict()


def matcher_for(recognition: Recognition, slack: float) -> AnyMatcher | None:
    """Return the matcher for a model; None for a model without a family. `slack` is passed to `Matcher`."""
    if recognition.family is None:
        return None
    if recognition.sound is not None:
        return SoundMatcher(recognition, open_sound(recognition))
    family = open_family(recognition) if is_decoded_here(recognition) else None
    if family is None or isinstance(family, Family):
        return Matcher(recognition, family, slack)
    return ContentMatcher(recognition, family)


class _Tally:
    """The figures over all probes so far."""

    def __init__(self, tolerance: Tolerance, matcher: AnyMatcher | None, needs_values: bool) -> None:
        self._tolerance = tolerance
        self._needs_values, self._lacks_values = needs_values, True  # until an answer of the reference has a value
        self._contents = matcher if isinstance(matcher, ContentMatcher | SoundMatcher) else None
        self._matcher = matcher if isinstance(matcher, Matcher) else None
        self._worst = dict.fromkeys(("cosine", "finite", "top1"), 1.0)
        self._worst |= dict.fromkeys(("relative_l2", "p99_abs", "outliers", "unequal"), 0.0)
        self._where: dict[str, str] = {}  # by figure: the picture with the worst value
        self._compared = 0
        self._winners: dict[str, tuple[int, int]] = {}  # by output: how many rows have a clear winner, how many keep it
        self._boxes, self._least_share = Agreement(), 1.0

    def add(self, pair: Pair) -> str:
        """Add the figures of an answer. Return why the answer cannot be compared; the text is empty if it can."""
        for name, reference in pair.expected.items():
            found = pair.answer.get(name)
            self._lacks_values = self._lacks_values and not _has_values(reference)
            is_list = self._matcher is not None and name in self._matcher.lists
            if is_list and found is not None and _is_alike(reference, found):
                self._compared += 1
                self._take("finite", _finite_share(reference, found), pair.picture)
                continue
            if found is None or found.shape != reference.shape or found.dtype != reference.dtype:
                got = "nothing" if found is None else f"{found.dtype}{list(found.shape)}"
                return f"the engine gave {got} for output {name!r} instead of {reference.dtype}{list(reference.shape)}"
            self._compared += 1
            for figure, value in _figures(reference, found, self._tolerance.element, pair.noise.get(name)).items():
                self._take(figure, value, pair.picture)
            if not pair.extreme and _is_classifier(reference):
                clear, kept = _winners(reference, found, self._tolerance.element)
                rows, same = self._winners.get(name, (0, 0))
                self._winners[name] = rows + clear, same + kept
        if self._contents is not None and pair.picture:
            compared = self._contents.figure(pair.expected, pair.answer, pair.placement)
            if compared is not None:
                self._worst.setdefault(compared[0], 1.0 if compared[0] in FLOORS else 0.0)
                self._take(*compared, pair.picture)
        if self._matcher is not None and self._matcher.lists:
            self._add_scores(self._matcher, pair)
        if self._matcher is not None and pair.placement is not None:
            self._add_boxes(self._matcher.compare(pair.expected, pair.answer, pair.placement), pair.picture)
        return ""

    def verdict(self) -> Verdict:
        if not self._compared:
            why = "the engine cannot be verified, because the reference's outputs differ from run to run"
            return Verdict(False, why, {})
        figures, deciding = dict(self._worst), set(self._worst)
        shares = [same / rows for rows, same in self._winners.values() if rows]
        if shares:
            figures["top1"] = min(shares)
            self._where.pop("top1", None)
        else:
            deciding.discard("top1")  # not a classifier, or no row has a clear winner
        if self._boxes.share is not None:
            figures |= {"boxes": self._boxes.share, "box_score": self._boxes.score}
            deciding |= {"boxes", "box_score"}
        reasons = [self._reason(figure, figures[figure]) for figure in _DECIDING if figure in deciding]
        reason = "; ".join(filter(None, reasons))
        if self._lacks_values:
            figures[NO_VALUES] = 1.0
        is_unknown = self._lacks_values and self._needs_values
        reason = f"{reason}, compared with the reference" if reason else _NO_VALUES if is_unknown else ""
        return Verdict(not reason, reason, {name: float(f"{value:.6g}") for name, value in figures.items()})

    def _take(self, figure: str, value: float, picture: str) -> None:
        before = self._worst[figure]
        if math.isnan(value) or (value < before if figure in FLOORS else value > before):
            self._worst[figure], self._where[figure] = value, picture

    def _add_scores(self, matcher: Matcher, pair: Pair) -> None:
        expected, found = matcher.scores(pair.expected), matcher.scores(pair.answer)
        if expected is None or found is None:
            return
        for figure, value in _figures(expected, found, self._tolerance.element).items():
            self._take(figure, value, pair.picture)

    def _add_boxes(self, agreement: Agreement, picture: str) -> None:
        if agreement.share is not None and agreement.share < self._least_share:
            self._least_share, self._where["boxes"] = agreement.share, picture
        if agreement.score > self._boxes.score:
            self._where["box_score"] = picture
        self._boxes += agreement

    def _reason(self, figure: str, value: float) -> str:
        reason, picture = beyond(figure, value, self._tolerance), self._where.get(figure)
        return f"{reason} (worst on {picture})" if reason and picture else reason


def beyond(figure: str, value: float, tolerance: Tolerance) -> str:
    """Return a text that says that a figure is beyond its bound; empty if the figure is within its bound."""
    bound: float = getattr(tolerance, figure)
    is_floor = figure in FLOORS
    if value >= bound if is_floor else value <= bound:  # false for NaN, which fails as well
        return ""
    return f"{figure} {value:.6g} is {'below' if is_floor else 'above'} the bound {bound:g}"


def _has_values(output: Array) -> bool:
    """Whether an output has an element that can be compared."""
    return bool(np.isfinite(output).any()) if output.dtype.kind == "f" else output.size > 0


def _is_alike(one: Array, other: Array) -> bool:
    """Whether two lists have the same datatype and rank. Their number of rows may differ."""
    return one.dtype == other.dtype and one.ndim == other.ndim


def _finite_share(reference: Array, answer: Array) -> float:
    """Return 1 minus the loss of finite elements. The loss is how far the answer's share of finite elements is below
    the reference's share."""
    if reference.dtype.kind != "f" or not reference.size or not answer.size:
        return 1.0
    return 1 - max(0.0, float(np.mean(np.isfinite(reference)) - np.mean(np.isfinite(answer))))


def _is_classifier(output: Array) -> bool:
    """Whether an output may be scores of classes, [N, classes]."""
    return output.dtype.kind == "f" and output.ndim == 2 and output.shape[0] > 0 and output.shape[1] > 1


def _winners(reference: Array, answer: Array, element: float) -> tuple[int, int]:
    """Return how many rows have a clear winner in the reference, and how many of these rows have the same winner in the
    answer.

    A winner is clear if no change within the limit for `outliers` can make another element the largest. So an engine
    with otherwise good figures is not rejected because of a tie or a row of noise.
    """
    expected = reference.astype(np.float64)
    sound = np.isfinite(expected).all(axis=1)
    expected, found = expected[sound], answer[sound]
    best = np.partition(expected, -2, axis=1)[:, -2:]
    clear = best[:, 1] - best[:, 0] > 2 * element * np.abs(expected).max(axis=1)
    same = np.argmax(expected, axis=1) == np.argmax(found, axis=1)
    return int(np.count_nonzero(clear)), int(np.count_nonzero(clear & same))


def _figures(reference: Array, answer: Array, element: float, noise: Noise | None = None) -> dict[str, float]:
    if reference.size == 0:
        return {}
    if reference.dtype.kind != "f":
        return {"unequal": float(np.count_nonzero(reference != answer)) / reference.size}
    expected, found = reference.astype(np.float64), answer.astype(np.float64)
    sound = np.isfinite(expected)
    alike = np.where(sound, np.isfinite(found), (expected == found) | (np.isnan(expected) & np.isnan(found)))
    finite = float(np.count_nonzero(alike)) / alike.size
    both = sound & np.isfinite(found)
    if not both.any():
        return {"finite": finite}
    p99 = float(np.quantile(np.abs(expected[both] - found[both]), 0.99))
    expected, found = np.where(both, expected, 0.0), np.where(both, found, 0.0)
    with np.errstate(over="ignore"):
        found = expected + without(found - expected, noise)
    figures = {"finite": finite, "top1": _top1(reference, answer), **_distances(expected[both], found[both])}
    return {**figures, "p99_abs": p99, "outliers": _outliers(expected, found, element)}


def _outliers(expected: _Floats, found: _Floats, element: float) -> float:
    """Return the share of elements whose difference is above a limit. The limit is the fraction `element` of the
    largest value in the element's row or in its column, whichever value is smaller.

    So a wrong score below 1 is found in a tensor that also has boxes in pixels. Axes of one element do not count as
    rows or columns. Otherwise the limit of each element would follow from that element alone, and small scores of a
    classifier would count as outliers.
    """
    expected, found = expected.squeeze(), found.squeeze()
    size = np.abs(expected)
    scale = size.max(axis=-1, keepdims=True) if size.ndim else size
    if size.ndim >= 2:
        scale = np.minimum(scale, size.max(axis=-2, keepdims=True))
    return float(np.mean(np.abs(expected - found) > element * scale + _TINY))


def _distances(expected: _Floats, found: _Floats) -> dict[str, float]:
    # Scaled to about one, so that squares of huge values do not overflow.
    scale = max(float(np.abs(expected).max()), float(np.abs(found).max())) or 1.0
    one, other = expected / scale, found / scale
    norm, length = float(np.linalg.norm(one)), float(np.linalg.norm(other))
    distance = float(np.linalg.norm(one - other))
    # An output of zeros has no direction: the cosine is 1 if both are zeros, else 0.
    cosine = float(one @ other) / (norm * length) if norm and length else float(norm == length)
    relative = distance / norm if norm else (0.0 if distance == 0 else 1.0)
    return {"cosine": cosine, "relative_l2": relative}


def _top1(reference: Array, answer: Array) -> float:
    """Return the share of rows (last axis) whose largest element has the same index in both arrays."""
    if reference.ndim < 2:
        return 1.0
    return float(np.mean(np.argmax(reference, axis=-1) == np.argmax(answer, axis=-1)))
