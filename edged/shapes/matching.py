"""Precision and recall of detections. Detections are matched greedily to the ground truth, the best score first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edged.shapes.scene import Truth


@dataclass(frozen=True)
class Prediction:
    """One detection: class, score in 0..1, and box edges in the pixels of the picture."""

    class_id: int
    score: float
    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True)
class Counts:
    """True positives, false positives and false negatives; `+` adds the counts of two pictures."""

    tp: int = 0
    fp: int = 0
    fn: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.tp + other.tp, self.fp + other.fp, self.fn + other.fn)

    @property
    def precision(self) -> float:
        """The share of predictions that are right; 1 without predictions."""
        predicted = self.tp + self.fp
        return self.tp / predicted if predicted else 1.0

    @property
    def recall(self) -> float:
        """The share of truths that were found; 1 without truths."""
        actual = self.tp + self.fn
        return self.tp / actual if actual else 1.0


def iou(a: Prediction | Truth, b: Prediction | Truth) -> float:
    """Return the intersection over union of two boxes, 0..1."""
    wide = min(a.x2, b.x2) - max(a.x1, b.x1)
    high = min(a.y2, b.y2) - max(a.y1, b.y1)
    if wide <= 0 or high <= 0:
        return 0.0
    both = wide * high
    return both / ((a.x2 - a.x1) * (a.y2 - a.y1) + (b.x2 - b.x1) * (b.y2 - b.y1) - both)


def match(predictions: Sequence[Prediction], truths: Sequence[Truth], threshold: float = 0.5) -> Counts:
    """Pair predictions with truths, the prediction with the best score first; return the counts. Each prediction gets
    the unmatched truth of its class that overlaps it most.

    A pair needs an IoU of at least `threshold`. A truth is matched once, so a second box on it is a false positive.
    """
    free = list(truths)
    tp = 0
    for prediction in sorted(predictions, key=lambda p: p.score, reverse=True):
        same = [truth for truth in free if truth.class_id == prediction.class_id]
        best = max(same, key=lambda truth: iou(prediction, truth), default=None)
        if best is not None and iou(prediction, best) >= threshold:
            free.remove(best)
            tp += 1
    return Counts(tp, len(predictions) - tp, len(free))
