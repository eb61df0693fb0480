"""Plausibility of a `family` setting, checked against the model's answers."""

from __future__ import annotations

import numpy as np
import pytest

from edged.tensors import Array, TensorSpec
from edged.verification.boxes import doubt
from edged.vision.family import Recognition, recognise

RANDOM = np.random.default_rng(2)
INPUT = (TensorSpec("x", "FP32", (1, 3, 320, 320)),)
QUERIES, CLASSES = 100, 92


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    scores: Array = powers / powers.sum(axis=-1, keepdims=True)
    return scores


def tables(boxes: Array, scores: Array, **settings: str) -> tuple[Recognition, dict[str, Array]]:
    outputs = {"boxes": boxes[None].astype(np.float32), "logits": scores[None].astype(np.float32)}
    specs = tuple(TensorSpec(name, "FP32", array.shape) for name, array in outputs.items())
    return recognise(INPUT, specs, {}, settings, heads={"logits": "Gemm"}), outputs


CORNER = RANDOM.random((QUERIES, 2)) * 0.8
NORMALISED = np.concatenate((CORNER, CORNER + 0.02 + RANDOM.random((QUERIES, 2)) * 0.15), axis=1)
LOGITS = RANDOM.standard_normal((QUERIES, CLASSES)) * 3


def test_doubt_ssd_with_softmax_scores_and_boxes_in_the_picture_is_empty() -> None:
    assert doubt(*tables(NORMALISED, softmax(LOGITS), family="ssd")) == ""


@pytest.mark.parametrize(
    ("boxes", "scores", "word"),
    [
        (NORMALISED, LOGITS, "the largest score of a box is"),  # DETR
        (NORMALISED * 320, softmax(LOGITS), "near the picture"),  # DAMO-YOLO
        (NORMALISED * 5, softmax(LOGITS), "are in the picture"),
    ],
)
def test_doubt_tables_that_only_look_like_an_ssd_returns_the_reason(boxes: Array, scores: Array, word: str) -> None:
    assert word in doubt(*tables(boxes, scores, family="ssd"))


def test_recognise_table_without_softmax_scores_does_not_suggest_ssd() -> None:
    found, _ = tables(NORMALISED, LOGITS)
    assert found.family is None
    assert "family=ssd" not in found.reason
    assert not found.is_set
    assert tables(NORMALISED, LOGITS, family="ssd")[0].is_set
