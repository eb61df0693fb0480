"""Compares the contents (`Content`: classes, a depth map and others, for a whole picture) that an engine and the
reference return. Pure: outputs in, a figure (a measured difference or similarity) out.

`edged.verification.standard.Tolerance` describes each figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import SequenceMatcher

import msgspec
import numpy as np
import numpy.typing as npt

from edged.errors import EngineUnusable
from edged.tensors import Array
from edged.vision.content import Anomaly, Classes, ClassMap, Content, Depth, Embedding, Text
from edged.vision.detections import MOST_DETECTIONS
from edged.vision.families.contract import Classifier
from edged.vision.family import ContentFamily, Recognition, SoundFamily, Thresholds
from edged.vision.placement import Fit, Placement, place

# A class with a smaller share of both maps does not count, because a few cells decide its IoU.
_LEAST_SHARE, _LEAST_CELLS = 0.005, 32
_LEGIBLE = 0.8  # texts are not compared if both sides read them with a lower score
_TINY = 1e-6
_FIGURES: Mapping[type[Content], str] = {
    Classes: "class_score",
    ClassMap: "class_map",
    Depth: "depth",
    Embedding: "embedding",
    Text: "text",
    Anomaly: "anomaly",
}


def every_class(thresholds: Thresholds) -> Thresholds:
    """Return thresholds that keep all classes, or the best `MOST_DETECTIONS` if the model has more."""
    return msgspec.structs.replace(thresholds, score=0.0, max_detections=MOST_DETECTIONS)


class ContentMatcher:
    """Compares the contents that an engine and the reference return, for a model with a `ContentFamily`."""

    def __init__(self, recognition: Recognition, family: ContentFamily) -> None:
        self._family, self._read = family, frozenset(recognition.reading.outputs)
        self._thresholds = recognition.thresholds
        if isinstance(family, Classifier):  # every class counts, also those that clients do not get
            self._thresholds = every_class(self._thresholds)
        width, height = family.preprocess.width, family.preprocess.height
        self._whole = place(width, height, width, height, Fit.STRETCH)

    def figure(
        self, expected: Mapping[str, Array], found: Mapping[str, Array], placement: Placement | None
    ) -> tuple[str, float] | None:
        """Return the name and the value of the figure for one picture. None if an output is left out because it differs
        between runs. None, too, if the model reads texts and neither side's text is legible. Without a placement, the
        whole input is the picture."""
        if not self._read <= expected.keys():
            return None
        where = placement or self._whole
        ours, theirs = (self._family.content(outputs, 0, where, self._thresholds) for outputs in (expected, found))
        if isinstance(ours, Text) and isinstance(theirs, Text) and not is_legible(ours, theirs):
            return None
        return compare(ours, theirs)


class SoundMatcher:
    """Compares the classes of a model with a sound input. Every class counts, including classes that clients do not
    get."""

    def __init__(self, recognition: Recognition, family: SoundFamily) -> None:
        self._family, self._read = family, frozenset(recognition.reading.outputs)
        self._every = every_class(recognition.thresholds)

    def figure(
        self, expected: Mapping[str, Array], found: Mapping[str, Array], placement: Placement | None
    ) -> tuple[str, float] | None:
        """Return the name and the value of the figure for one window of sound. None if an output is left out because it
        differs between runs."""
        if not self._read <= expected.keys():
            return None
        ours, theirs = (self._family.classes(self._family.scores(each), self._every) for each in (expected, found))
        return compare(ours, theirs)


def compare_served(
    family: ContentFamily, outputs: Mapping[str, Array], placement: Placement, thresholds: Thresholds, served: Content
) -> tuple[str, float] | None:
    """Return the name and the value of the figure that compares a served content with the reference's `outputs`. These
    outputs are decoded with the same thresholds. None if there is nothing to compare.

    A client gets only the best classes. So only these classes and the reference's best class are compared.
    """
    if not isinstance(served, Classes):
        expected = family.content(outputs, 0, placement, thresholds)
        is_illegible = isinstance(expected, Text) and isinstance(served, Text) and not is_legible(expected, served)
        return None if is_illegible else compare(expected, served)
    own = family.content(outputs, 0, placement, thresholds)
    expected = family.content(outputs, 0, placement, every_class(thresholds))
    if not isinstance(own, Classes) or not isinstance(expected, Classes):
        return compare(expected, served)
    shown = {*served.class_ids, *own.class_ids[:1]}
    if not shown:
        return None
    pairs = [(n, s) for n, s in zip(expected.class_ids, expected.scores, strict=True) if n in shown]
    return compare(Classes.of([n for n, _ in pairs], [s for _, s in pairs]), served)


def compare(expected: Content, found: Content) -> tuple[str, float]:
    """Compare two contents of the same kind; return the name of the figure for this kind, and its value. Raises
    EngineUnusable if the kinds differ."""
    if isinstance(expected, Classes) and isinstance(found, Classes):
        return "class_score", _class_score(expected, found)
    if isinstance(expected, ClassMap) and isinstance(found, ClassMap):
        return "class_map", _mean_iou(expected.cells(), found.cells())
    if isinstance(expected, Depth) and isinstance(found, Depth):
        return "depth", _depth_error(expected.map.values(), found.map.values(), has_scale=bool(expected.unit))
    if isinstance(expected, Embedding) and isinstance(found, Embedding):
        return "embedding", expected.cosine(found)
    if isinstance(expected, Text) and isinstance(found, Text):
        return "text", SequenceMatcher(None, expected.text, found.text, autojunk=False).ratio()
    if not (isinstance(expected, Anomaly) and isinstance(found, Anomaly)):  # a family of another package
        kinds = " and ".join(type(each).__name__ for each in (expected, found))
        raise EngineUnusable(
            f"the family decoded the answers to one picture to two different types, {kinds}, so they cannot be"
            " compared; change the family's code so that it always returns the same type"
        )
    return "anomaly", abs(expected.score - found.score) / max(abs(expected.score), abs(found.score), _TINY)


def kind_of(content: Content) -> str:
    """Return the name of the figure that compares contents of this kind."""
    return _FIGURES[type(content)]


def is_legible(expected: Text, found: Text | None) -> bool:
    """Whether at least one side reads the text clearly. If neither side does, rounding determines the characters."""
    return max(expected.score, found.score if found is not None else 0.0) >= _LEGIBLE


def _class_score(expected: Classes, found: Classes) -> float:
    """Compare the probability of each class in `expected` and `found`; return the largest difference. A class that one
    side lacks has probability 0 there. If that side has `MOST_DETECTIONS` classes, the class may have been cut off, and
    the side's lowest probability is used instead."""
    ours, theirs = (dict(zip(each.class_ids, each.scores, strict=True)) for each in (expected, found))
    low, lowest = (each.scores[-1] if len(each.scores) == MOST_DETECTIONS else 0.0 for each in (expected, found))
    return max((abs(ours.get(n, low) - theirs.get(n, lowest)) for n in ours.keys() | theirs.keys()), default=0.0)


def _mean_iou(expected: npt.NDArray[np.int32], found: npt.NDArray[np.int32]) -> float:
    """Return the mean IoU over the classes of two maps; 0 if the sizes of the maps do not fit."""
    if _fitted(expected, found) is None:
        return 0.0
    shares = [*class_ious(expected, found).values()]
    return float(np.mean(shares)) if shares else 1.0


def class_ious(expected: npt.NDArray[np.int32], found: npt.NDArray[np.int32]) -> dict[int, float]:
    """Return the IoU of each class in two class maps; empty if the sizes of the maps do not fit. Classes with only a
    few cells are left out. `ClassMap.of` may give one map fewer rows and columns than the other. In that case, only the
    cells that both maps have are compared."""
    if (fitted := _fitted(expected, found)) is None:
        return {}
    expected, found = fitted
    shares = {}
    for each in np.union1d(expected, found).tolist():
        ours, theirs = expected == each, found == each
        union = np.count_nonzero(ours | theirs)
        if union >= max(_LEAST_SHARE * expected.size, _LEAST_CELLS):
            shares[each] = float(np.count_nonzero(ours & theirs) / union)
    return shares


def _fitted(
    expected: npt.NDArray[np.int32], found: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]] | None:
    expected, found = _thinned(expected, found.shape), _thinned(found, expected.shape)
    return (expected, found) if expected.shape == found.shape else None


def _thinned(cells: npt.NDArray[np.int32], shape: tuple[int, ...]) -> npt.NDArray[np.int32]:
    """Keep every second row and column of a map, again and again, while the result is not smaller than `shape`."""
    while (coarser := cells[::2, ::2]).size < cells.size and np.all(np.array(coarser.shape) >= shape):
        cells = coarser
    return cells


def _depth_error(expected: npt.NDArray[np.float32], found: npt.NDArray[np.float32], *, has_scale: bool) -> float:
    """Return the RMS difference divided by the reference's standard deviation. A depth without a scale has an unknown
    positive factor and offset. For such a depth, the factor and offset that fit best are applied first."""
    if expected.shape != found.shape:
        return 1.0
    ours, theirs = expected.astype(np.float64).ravel(), found.astype(np.float64).ravel()
    difference, ours = ours - theirs, ours - ours.mean()
    spread = float(np.sqrt(np.mean(ours**2)))
    if not has_scale:
        theirs = theirs - theirs.mean()
        power = float(theirs @ theirs)
        difference = ours - (max(float(ours @ theirs), 0.0) / power if power else 0.0) * theirs
        if spread < _TINY:
            return 0.0 if power < _TINY else 1.0
    error = float(np.sqrt(np.mean(difference**2)))
    return error / spread if spread >= _TINY else float(error >= _TINY)
