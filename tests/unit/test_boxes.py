"""Matched boxes: what an engine sees is compared with what the reference sees, in both directions."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from edged.backends import registry
from edged.backends.contract import UNOPTIMISED, Recipe
from edged.jobs.inspect import inspect
from edged.models.entries import plain_entry
from edged.models.model import Model
from edged.shapes import MODEL_PATH, Scene
from edged.store.record import Verdict
from edged.tensors import Array
from edged.verification import golden
from edged.verification.boxes import Agreement, ClassMatcher, matcher_for
from edged.verification.golden import Sample
from edged.verification.standard import TOLERANCES, Tolerance, tolerance
from edged.verification.verify import Pair, judge
from edged.vision.family import Recognition, Thresholds, recognise
from edged.vision.placement import Fit, place
from tests import models
from tests.drift import as_bf16, as_fp16

Floats = npt.NDArray[np.float32]
Row = tuple[float, ...]  # centre x, centre y, width, height, then a score for each class

CELLS = 21  # of a 32 x 32 input at strides 8, 16, 32
SCORE = 0.25  # the threshold


def known_as(**thresholds: float) -> Recognition:
    """A detector of two classes with a tiny input, as Ultralytics exports them."""
    sign = models.signature(
        models.model([], [models.value("x", "FP32", [1, 3, 32, 32])], [models.value("y", "FP32", [1, 6, CELLS])])
    )
    known = recognise(sign.inputs, sign.outputs, {}, {"family": "ultralytics"})
    return msgspec.structs.replace(known, thresholds=Thresholds(**thresholds))  # type: ignore[arg-type]


def table(*rows: Row) -> dict[str, Array]:
    output = np.zeros((1, 6, CELLS), np.float32)
    for cell, row in enumerate(rows):
        output[0, :, cell] = row
    return {"y": output}


def compare(expected: dict[str, Array], found: dict[str, Array], slack: float = 0.05, **thresholds: float) -> Agreement:
    matcher = matcher_for(known_as(**thresholds), slack)
    assert matcher is not None
    return matcher.compare(expected, found, place(32, 32, 32, 32, Fit.LETTERBOX))


ONE: Row = (8, 8, 10, 10, 0.9, 0.0)
TWO: Row = (22, 22, 8, 8, 0.0, 0.6)


def test_the_same_detections_agree_wholly() -> None:
    found = compare(table(ONE, TWO), table(TWO, ONE))
    assert found == Agreement(2, 2, 2, 2, 0.0)
    assert found.share == 1.0


def test_nothing_seen_by_either_says_nothing() -> None:
    assert compare(table(), table()).share is None


WORSE: dict[str, tuple[dict[str, Array], dict[str, Array], float]] = {
    "one lost": (table(ONE, TWO), table(ONE), 0.5),
    "one too many": (table(ONE), table(ONE, TWO), 0.5),
    "all lost": (table(ONE, TWO), table(), 0.0),
    "all invented": (table(), table(ONE), 0.0),
    "another class": (table(ONE), table((8, 8, 10, 10, 0.0, 0.9)), 0.0),
    "elsewhere": (table(ONE), table((14, 8, 10, 10, 0.9, 0.0)), 0.0),
    "twice as wide": (table(ONE), table((8, 8, 16, 14, 0.9, 0.0)), 0.0),
}


@pytest.mark.parametrize("what", WORSE)
def test_a_difference_counts_in_the_direction_that_shows_it(what: str) -> None:
    expected, found, share = WORSE[what]
    assert compare(expected, found).share == share


def test_a_box_that_moved_a_little_is_the_same() -> None:
    assert compare(table(ONE), table((8.5, 7.6, 10.4, 9.8, 0.9, 0.0))).share == 1.0


def test_scores_that_differ_are_told_by_the_largest_difference() -> None:
    found = compare(table(ONE, TWO), table((*ONE[:4], 0.88, 0.0), (*TWO[:4], 0.0, 0.67)))
    assert found.share == 1.0
    assert found.score == pytest.approx(0.07, abs=1e-6)


@pytest.mark.parametrize("one", [SCORE + 0.001, SCORE + 0.02, SCORE + 0.049])
def test_a_score_on_either_side_of_the_threshold_is_no_mismatch(one: float) -> None:
    above, below = table(ONE, (*TWO[:4], 0.0, one)), table(ONE, (*TWO[:4], 0.0, SCORE - 0.0005))
    assert compare(above, below).share == 1.0
    assert compare(below, above).share == 1.0


def test_a_score_far_below_the_threshold_is_one() -> None:
    assert compare(table(ONE, TWO), table(ONE, (*TWO[:4], 0.0, SCORE - 0.06))).share == 0.5
    # However large the slack: with a low threshold it would forgive everything.
    assert compare(table(ONE, TWO), table(ONE, (*TWO[:4], 0.0, SCORE / 2 - 0.01)), slack=0.5).share == 0.5


def test_which_of_two_overlapping_boxes_stays_does_not_matter() -> None:
    left, right = (10.0, 10.0, 12.0, 12.0), (11.0, 10.0, 12.0, 12.0)  # IoU 0.85: one suppresses the other
    ours = table((*left, 0.801, 0.0), (*right, 0.800, 0.0))
    theirs = table((*left, 0.800, 0.0), (*right, 0.801, 0.0))
    found = compare(ours, theirs)
    assert (found.expected, found.found) == (1, 1)
    assert found.share == 1.0
    assert found.score < 0.002


def test_whether_a_box_is_suppressed_by_a_hair_does_not_matter() -> None:
    first, second = (10.0, 10.0, 12.0, 12.0, 0.9, 0.0), (12.0, 10.0, 12.0, 12.0, 0.5, 0.0)  # IoU 0.714
    nearer = (12.2, 10.0, 12.0, 12.0, 0.5, 0.0)  # IoU 0.690
    found = compare(table(first, second), table(first, nearer), iou=0.7)
    assert (found.expected, found.found) == (1, 2)
    assert found.share == 1.0
    assert found.score == 0.0


def test_more_detections_than_are_told_are_compared() -> None:
    """Where only one is told, which one of two equals it is may differ."""
    ours, theirs = (
        table((*ONE[:4], 0.7, 0.0), (*TWO[:4], 0.0, 0.701)),
        table((*ONE[:4], 0.701, 0.0), (*TWO[:4], 0.0, 0.7)),
    )
    found = compare(ours, theirs, max_detections=1)
    assert found.share == 1.0
    assert found.score < 0.002


def test_an_output_that_could_not_be_compared_says_nothing() -> None:
    assert compare({}, table(ONE)) == Agreement()


def test_what_is_no_number_is_seen_by_nobody() -> None:
    assert compare(table(ONE), {"y": np.full((1, 6, CELLS), np.nan, np.float32)}).share == 0.0


def test_a_wall_of_detections_is_compared_in_bounded_memory() -> None:
    random = np.random.default_rng(1)
    rows = np.concatenate(
        [random.uniform(0, 32, (2, 8400)), random.uniform(1, 4, (2, 8400)), random.uniform(0.3, 1, (2, 8400))]
    )
    wall = {"y": rows[None].astype(np.float32)}
    found = compare(wall, {"y": wall["y"] + np.float32(1e-4)}, iou=0.45)
    assert found.expected == found.found == 512
    assert found.share == 1.0


def test_a_model_of_no_family_has_no_boxes() -> None:
    assert matcher_for(Recognition(None, "", None, "", (), Thresholds()), 0.1) is None


def test_a_classifier_is_judged_by_who_wins() -> None:
    sign = models.signature(
        models.model([], [models.value("x", "FP32", [1, 3, 32, 32])], [models.value("y", "FP32", [1, 4])])
    )
    known = recognise(sign.inputs, sign.outputs, {}, {"family": "classification"})
    assert isinstance(matcher_for(known, 0.1), ClassMatcher)
    expected, other = np.array([[0.1, 3, 0.2, 0.3]], np.float32), np.array([[3, 0.1, 0.2, 0.3]], np.float32)
    where = place(32, 32, 32, 32, Fit.CENTER_CROP)
    for answer, kept in ((expected, 1.0), (other, 0.0)):
        found = judge([Pair({"y": expected}, {"y": answer}, "picture", where)], TOLERANCES["int8"])
        assert found.figures["top1"] == kept
        assert found.accepted is (kept == 1)


# -- the embedded detector ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def detector() -> Model:
    return Model.of(plain_entry("shapes", MODEL_PATH, {}), inspect(MODEL_PATH))


@pytest.fixture(scope="module")
def asked(detector: Model, tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    """Scenes that it knows, as the user's samples, with its answers."""
    import cv2

    folder, paths = tmp_path_factory.mktemp("samples"), []
    for seed in range(4):
        paths.append(str(folder / f"scene{seed}.png"))
        cv2.imwrite(paths[-1], Scene(seed, 640, 480, shapes=6).frame(0)[0])
    session = registry.load("onnxruntime").open(detector.order(Recipe("onnxruntime", optimization=UNOPTIMISED)))
    made = golden.make(session, detector.inspection.signature, detector.recognition, paths)
    session.close()
    assert made.skipped == ()
    return made.samples


def judged(detector: Model, asked: list[Sample], alter: object, tolerance: Tolerance) -> Verdict:
    assert callable(alter)
    pairs = (Pair(s.outputs, {"output0": alter(s.outputs["output0"].copy())}, s.name, s.placement) for s in asked)
    return judge(pairs, tolerance, matcher_for(detector.recognition, tolerance.box_score))


def scores(change: object) -> object:
    """Alters nothing but the scores."""
    assert callable(change)

    def alter(output: Floats) -> Floats:
        output[:, 4:] = change(output[:, 4:])
        return output

    return alter


def test_its_own_answers_agree_on_every_figure(detector: Model, asked: list[Sample]) -> None:
    found = judged(detector, asked, lambda output: output, TOLERANCES["fp32"])
    assert found.accepted, found.reason
    assert found.figures["boxes"] == 1.0
    assert found.figures["box_score"] == 0.0


@pytest.mark.parametrize("precision", TOLERANCES)
def test_scores_that_are_slightly_off_are_accepted(detector: Model, asked: list[Sample], precision: str) -> None:
    tolerance = TOLERANCES[precision]
    part = 1 - tolerance.element / 4
    found = judged(detector, asked, scores(lambda s: s * np.float32(part)), tolerance)
    assert found.accepted, found.reason
    assert 0 < found.figures["box_score"] < tolerance.box_score
    assert found.figures["boxes"] == 1.0


def only_boxes(precision: str) -> Tolerance:
    """Bounds that leave the decision to the boxes."""
    free = {"cosine": 0.0, "relative_l2": 9.0, "outliers": 1.0}
    return msgspec.structs.replace(TOLERANCES[precision], **free)  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", TOLERANCES)
def test_scores_that_are_clearly_off_are_rejected_by_the_boxes(
    detector: Model, asked: list[Sample], precision: str
) -> None:
    found = judged(detector, asked, scores(lambda s: s * np.float32(0.05)), only_boxes(precision))
    assert not found.accepted
    assert found.reason.startswith("boxes ")
    assert found.figures["boxes"] < TOLERANCES[precision].boxes
    assert "(worst on scene" in found.reason


def test_scores_that_are_somewhat_off_are_rejected_by_their_difference(detector: Model, asked: list[Sample]) -> None:
    found = judged(detector, asked, scores(lambda s: s * np.float32(0.9)), only_boxes("fp16"))
    assert not found.accepted
    assert found.reason.startswith("box_score ")


def test_detections_lost_in_one_corner_are_seen_though_every_sum_is_good(detector: Model, asked: list[Sample]) -> None:
    def blind(output: Floats) -> Floats:
        x, y = output[:, 0], output[:, 1]
        output[:, 4:] = np.where((x < 160) & (y < 160), np.minimum(output[:, 4:], 0.01), output[:, 4:])[:, :]
        return output

    found = judged(detector, asked, blind, TOLERANCES["int8"])
    assert found.figures["cosine"] > TOLERANCES["fp32"].cosine
    assert not found.accepted
    assert found.reason.startswith("boxes ")


def test_an_engine_that_invents_boxes_is_rejected(detector: Model, asked: list[Sample]) -> None:
    def seeing(output: Floats) -> Floats:
        output[:, 4, ::200] = 0.8
        return output

    found = judged(detector, asked, seeing, TOLERANCES["int8"])
    assert not found.accepted
    assert found.reason.startswith("boxes ")


def test_the_drift_of_halves_passes_as_halves_and_is_measured_by_fp32(detector: Model, asked: list[Sample]) -> None:
    assert judged(detector, asked, as_fp16, TOLERANCES["fp16"]).accepted
    assert judged(detector, asked, as_bf16, TOLERANCES["bf16"]).accepted
    strict = judged(detector, asked, as_bf16, TOLERANCES["fp32"])
    assert strict.figures["relative_l2"] > 1e-3
    assert 0 < strict.figures["box_score"] < 0.01


def test_a_stricter_setting_of_the_model_changes_the_verdict(detector: Model, asked: list[Sample]) -> None:
    strict = msgspec.structs.replace(TOLERANCES["bf16"], box_score=1e-4)
    found = judged(detector, asked, as_bf16, strict)
    assert found.reason.startswith("box_score ")


def test_judge_classifier_whose_probabilities_move_is_rejected_though_the_same_class_wins() -> None:
    sign = models.signature(
        models.model([], [models.value("x", "FP32", [1, 3, 32, 32])], [models.value("y", "FP32", [1, 4])])
    )
    known = recognise(sign.inputs, sign.outputs, {}, {"family": "classification"})
    expected, moved = (np.array([row], np.float32) for row in ((0.7, 0.1, 0.1, 0.1), (0.65, 0.15, 0.1, 0.1)))
    pair = Pair({"y": expected}, {"y": moved}, "picture")
    bf16 = tolerance({"precisions": "bf16"}, "bf16")
    assert judge([pair], bf16, matcher_for(known, 0.1)).accepted
    found = judge([pair], tolerance({}, "bf16"), matcher_for(known, 0.1))
    assert found.figures["class_score"] == pytest.approx(0.05, abs=1e-4)
    assert found.reason.startswith("class_score")
