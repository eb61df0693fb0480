"""Image classifiers: one output [N, classes], with logits or probabilities.

Outputs of a Softmax or Sigmoid in the graph are used as they are; edged applies a softmax to all other outputs. The
setting `decode.activation` overrides this. The choice does not depend on the values of a frame, so that scores of
different frames can be compared. The exception is a model with an unknown graph: values from 0 to 1 then count as
probabilities. An embedding has the same shape, so a model is claimed only if its file or its settings show that the
output has classes.

With a sigmoid, in the graph or by the setting, classes are independent: a picture can have several labels, or no label.
By default, all labels with a score of at least 0.5 are returned, at most 300.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np

from edged.tensors import TensorSpec
from edged.vision import settings as keys
from edged.vision.content import Classes
from edged.vision.families.contract import Claim, Classifier, Evidence, Feed, Reading, count_classes, undecided
from edged.vision.families.decoding import Floats, Outputs, Thresholds, at_least, picture_vector
from edged.vision.families.embedding import suggested
from edged.vision.nms import best_first
from edged.vision.placement import Fit
from edged.vision.preprocess import IMAGENET_MEAN, IMAGENET_STD
from edged.vision.signatures import patterns

_IMAGENET = (1000, 1001)
_WORDS = ("logits", "prob", "softmax", "class")  # words in the name of an output of classes
_SIGMOIDS = frozenset(("HardSigmoid", "Sigmoid"))
FINAL = _SIGMOIDS | {"Softmax"}  # operators whose results are probabilities
_LABELS = Thresholds(score=0.5, max_detections=300)  # of pictures with several labels
_NONE, _SOFTMAX, _SIGMOID = "none", "softmax", "sigmoid"


class Classification(Classifier, frozen=True):
    """Classifiers with the preprocessing of ImageNet: shorter side to 256, center crop of 224, normalised."""

    name = "classification"
    signatures = patterns("[N, classes]", "[N, classes, 1, 1]")
    thresholds = Thresholds(score=0.0, max_detections=5)
    feed: ClassVar[Feed] = {
        "fit": Fit.CENTER_CROP,
        "zoom": 256 / 224,
        "antialias": True,
        "mean": IMAGENET_MEAN,
        "std": IMAGENET_STD,
    }

    def classify(self, outputs: Outputs, index: int, thresholds: Thresholds) -> Classes:
        """See `Classifier.classify`. A class whose value is not finite is never returned."""
        columns = self.reading.classes or at_least(2)
        row = picture_vector(outputs, self.reading.outputs[0], index, columns).astype(np.float32)
        row[~np.isfinite(row)] = -np.inf
        if row.max(initial=-np.inf) == -np.inf:
            return Classes()
        scores = ACTIVATIONS[self.reading.form or (_NONE if _are_probabilities(row) else _SOFTMAX)](row)
        best = best_first(scores, thresholds.max_detections)
        best = best[np.isfinite(row[best]) & (scores[best] >= thresholds.score)]
        return Classes.of(best, scores[best])

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        output = _row(evidence)
        if output is None:
            return None
        form = keys.choice(evidence.settings, "decode.activation", tuple(ACTIVATIONS))
        head = None if evidence.heads is None else evidence.heads.get(output.name)
        has_labels = form == _SIGMOID or (form in (None, _NONE) and head in _SIGMOIDS)
        if form is None and evidence.heads is not None:
            form = _NONE if head in FINAL else _SOFTMAX
        reading, classes = Reading((output.name,), form or ""), count_classes(output.shape[1])
        return Claim(cls.name, reason, reading, classes, thresholds=_LABELS if has_labels else None)

    @classmethod
    def by_names(cls, evidence: Evidence) -> Claim | None:
        output = _row(evidence)
        if output is None or not any(word in output.name.lower() for word in _WORDS):
            return None
        return cls.claim(evidence, f"one 2-D output, named {output.name}")

    @classmethod
    def by_shape(cls, evidence: Evidence) -> Claim | None:
        """Claim a row of scores if it has as many columns as the setting `names` has names, or 1000 or 1001 columns, as
        for ImageNet. Otherwise return an undecided claim. Return None if the output is not a row of scores."""
        output = _row(evidence)
        if output is None:
            return None
        classes, names = count_classes(output.shape[1]), keys.words(evidence.settings, "names")
        if names is not None and len(names) == classes:
            return cls.claim(evidence, f"one 2-D output, and as many names as columns ({classes})")
        if classes in _IMAGENET:
            return cls.claim(evidence, f"one 2-D output of ImageNet's {classes} classes")
        shape = ",".join(map(str, output.shape))
        what = f"one 2-D output, {output.name} [{shape}]: classes or an embedding"
        return undecided(what, cls.name, *suggested(evidence))


class UltralyticsClassification(Classification, frozen=True):
    """Classifiers with the preprocessing of the ultralytics package: the largest center square, RGB in 0..1."""

    name = "ultralytics-classify"
    feed: ClassVar[Feed] = {"fit": Fit.CENTER_CROP, "antialias": True}

    @classmethod
    def by_metadata(cls, evidence: Evidence) -> Claim | None:
        return cls.claim(evidence, "metadata task=classify") if evidence.metadata.task == "classify" else None


def _row(evidence: Evidence) -> TensorSpec | None:
    """Return the only output if it is [N, classes], or [N, classes, 1, 1] of a network without a last Flatten."""
    output = evidence.only_output
    if output is None or output.datatype not in ("FP32", "FP16", "FP64") or len(output.shape) not in (2, 4):
        return None
    columns = output.shape[1]
    if output.shape[2:] not in ((), (1, 1)) or (isinstance(columns, int) and columns < 2):
        return None
    return output


def _are_probabilities(row: Floats) -> bool:
    """Whether all finite values are in 0..1, so that they count as probabilities if the model's graph is unknown."""
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


ACTIVATIONS: Mapping[str, Callable[[Floats], Floats]] = {_NONE: _as_is, _SOFTMAX: _softmax, _SIGMOID: _sigmoid}
