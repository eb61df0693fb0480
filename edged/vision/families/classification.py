"""Image classifiers: one output [N, classes], logits or already probabilities.

Scores that the graph makes by a Softmax or a Sigmoid are taken as they are, any others go through a softmax; the
setting `decode.activation` says otherwise. What one frame holds decides nothing, or the scores of the next would mean
something else. Two names, because they are fed differently: `classification` as ImageNet's are (shorter side to 256,
the middle 224, normalised), and `ultralytics-classify` as that package does (shorter side to the input, the middle,
0..1). An embedding has the same shape, so without a word from the file or the settings nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import msgspec
import numpy as np

from edged.tensors import Array, TensorSpec
from edged.vision import settings as keys
from edged.vision.detections import Classes
from edged.vision.families.candidates import Floats
from edged.vision.families.contract import Claim, Decoder, Evidence, FamilySpec, Reading, Thresholds, require, undecided
from edged.vision.families.outputs import at_least, picture_vector
from edged.vision.nms import best_first
from edged.vision.placement import Fit
from edged.vision.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess

NAME = "classification"
ULTRALYTICS = "ultralytics-classify"

_IMAGENET = (1000, 1001)
_WORDS = ("logits", "prob", "softmax", "class")  # in the output's name
_FINAL = frozenset(("HardSigmoid", "Sigmoid", "Softmax"))  # whose results are probabilities


class Classification(Decoder, frozen=True):
    name: ClassVar[str] = NAME

    def classify(self, outputs: Mapping[str, Array], index: int, thresholds: Thresholds) -> Classes:
        """See `Classifier.classify`. Values that are no numbers belong to no class."""
        row = picture_vector(outputs, self.reading.outputs[0], index, self.reading.classes or at_least(2)).astype(
            np.float32
        )
        row[~np.isfinite(row)] = -np.inf
        if row.max(initial=-np.inf) == -np.inf:
            return Classes.empty()
        scores = _ACTIVATIONS[self.reading.form or (_NONE if _are_probabilities(row) else _SOFTMAX)](row)
        best = best_first(scores, thresholds.max_detections)
        best = best[np.isfinite(row[best]) & (scores[best] >= thresholds.score)]
        return Classes(best.astype(np.int32), scores[best])


class UltralyticsClassification(Classification, frozen=True):
    """The same, under its own name."""

    name: ClassVar[str] = ULTRALYTICS


def _are_probabilities(row: Floats) -> bool:
    """Whether values are probabilities already; for models whose graph is unknown."""
    finite = row[np.isfinite(row)]
    return bool(finite.min() >= 0 and finite.max() <= 1)


def _softmax(row: Floats) -> Floats:
    with np.errstate(over="ignore"):  # underflow to zero, far below the best
        powers: Floats = np.exp(row - row.max())
    scores: Floats = powers / powers.sum()
    return scores


def _sigmoid(row: Floats) -> Floats:
    with np.errstate(over="ignore"):  # underflow to zero
        return np.asarray(1 / (1 + np.exp(-row)), np.float32)


def _as_is(row: Floats) -> Floats:
    return row


def feed(plain: Preprocess) -> Preprocess:
    """Center crop, RGB, normalised as ImageNet."""
    cropped = msgspec.structs.replace(plain, fit=Fit.CENTER_CROP, zoom=256 / 224, antialias=True)
    return msgspec.structs.replace(cropped, mean=IMAGENET_MEAN, std=IMAGENET_STD)


_NONE, _SOFTMAX, _SIGMOID = "none", "softmax", "sigmoid"
_ACTIVATIONS: Mapping[str, Callable[[Floats], Floats]] = {_NONE: _as_is, _SOFTMAX: _softmax, _SIGMOID: _sigmoid}


def feed_ultralytics(plain: Preprocess) -> Preprocess:
    """Center crop of the largest square, RGB in 0..1."""
    return msgspec.structs.replace(plain, fit=Fit.CENTER_CROP, antialias=True)


def by_setting(evidence: Evidence) -> Claim:
    return _set(evidence, NAME)


def by_setting_ultralytics(evidence: Evidence) -> Claim:
    return _set(evidence, ULTRALYTICS)


def by_metadata(evidence: Evidence) -> Claim | None:
    output = _row(evidence)
    if evidence.metadata.task != "classify" or output is None or evidence.picture is None:
        return None
    return _claim(evidence, ULTRALYTICS, "metadata task=classify", output)


def by_names(evidence: Evidence) -> Claim | None:
    output = _row(evidence)
    if output is None or evidence.picture is None or not any(word in output.name.lower() for word in _WORDS):
        return None
    return _claim(evidence, NAME, f"one 2-D output by the name of {output.name}", output)


def by_shape(evidence: Evidence) -> Claim | None:
    """One row of scores, if something shows that they are of classes."""
    output = _row(evidence)
    if output is None or evidence.picture is None:
        return None
    classes, names = _classes(output), keys.words(evidence.settings, "names")
    if names is not None and len(names) == classes:
        return _claim(evidence, NAME, f"one 2-D output, and as many names as columns ({classes})", output)
    if classes in _IMAGENET:
        return _claim(evidence, NAME, f"one 2-D output of ImageNet's {classes} classes", output)
    shape = ",".join(map(str, output.shape))
    return undecided(f"one 2-D output, {output.name} [{shape}]: classes or an embedding", NAME)


def _set(evidence: Evidence, family: str) -> Claim:
    output = _row(evidence)
    require(evidence, family, "one output [N, classes]", output is not None)
    assert output is not None
    return _claim(evidence, family, f"the setting family={family}", output)


def _claim(evidence: Evidence, family: str, reason: str, output: TensorSpec) -> Claim:
    form = keys.choice(evidence.settings, "decode.activation", tuple(_ACTIVATIONS))
    if form is None and evidence.heads is not None:
        form = _NONE if evidence.heads.get(output.name) in _FINAL else _SOFTMAX
    return Claim(family, reason, classes=_classes(output), reading=Reading((output.name,), form or ""))


def _row(evidence: Evidence) -> TensorSpec | None:
    """The output: [N, classes], or [N, classes, 1, 1] as networks without a last flattening have."""
    output = evidence.only_output
    if output is None or output.datatype not in ("FP32", "FP16", "FP64") or len(output.shape) not in (2, 4):
        return None
    columns = output.shape[1]
    if output.shape[2:] not in ((), (1, 1)) or (isinstance(columns, int) and columns < 2):
        return None
    return output


def _classes(output: TensorSpec) -> int | None:
    columns = output.shape[1]
    return columns if isinstance(columns, int) else None


# The best five are returned, without a threshold unless one is set.
_BEST = Thresholds(score=0.0, max_detections=5)
SPEC = FamilySpec(by_setting, feed, Classification, _BEST)
SPEC_ULTRALYTICS = FamilySpec(by_setting_ultralytics, feed_ultralytics, UltralyticsClassification, _BEST)
