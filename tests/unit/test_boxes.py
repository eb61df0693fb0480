"""Box matching: an engine's detections compared with the reference's, in both directions."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from edged.backends import registry
from edged.backends.contract import UNOPTIMISED, Recipe
from edged.family_packages import Package
from edged.jobs.inspect import inspect
from edged.models.entries import plain_entry
from edged.models.model import Model
from edged.shapes import MODEL_PATH, Scene
from edged.store.record import Verdict
from edged.tensors import Array
from edged.verification import golden
from edged.verification.boxes import Agreement, Matcher
from edged.verification.contents import ContentMatcher, SoundMatcher
from edged.verification.golden import Sample
from edged.verification.standard import TOLERANCES, Tolerance, tolerance
from edged.verification.verify import Pair, judge, matcher_for
from edged.vision.family import Reading, Recognition, Thresholds, recognise
from edged.vision.placement import Fit, place
from tests import models
from tests.drift import as_bf16, as_fp16

Floats = npt.NDArray[np.float32]
Row = tuple[float, ...]  # centre x, centre y, width, height, and one score for each class

CELLS = 21  # 16 + 4 + 1 cells of a 32 x 32 input at strides 8, 16, 32
SCORE = 0.25  # the threshold


def known_as(**thresholds: float) -> Recognition:
    """Return the recognition of a detector with two classes and a 32 x 32 input, in the format of Ultralytics."""
    sign = models.signature(models.parse(f"(float[1,3,32,32] x) => (float[1,6,{CELLS}] y) {{}}"))
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


# (answer of the reference, answer of the engine, share of matched boxes, largest difference of scores)
LEFT, RIGHT = (10.0, 10.0, 12.0, 12.0), (11.0, 10.0, 12.0, 12.0)  # IoU 0.85, so that NMS keeps only one
COMPARED: dict[str, tuple[dict[str, Array], dict[str, Array], float | None, float]] = {
    "same in another order": (table(ONE, TWO), table(TWO, ONE), 1.0, 0.0),
    "nothing in either": (table(), table(), None, 0.0),
    "one lost": (table(ONE, TWO), table(ONE), 0.5, 0.0),
    "one too many": (table(ONE), table(ONE, TWO), 0.5, 0.0),
    "all lost": (table(ONE, TWO), table(), 0.0, 0.0),
    "all invented": (table(), table(ONE), 0.0, 0.0),
    "another class": (table(ONE), table((8, 8, 10, 10, 0.0, 0.9)), 0.0, 0.0),
    "elsewhere": (table(ONE), table((14, 8, 10, 10, 0.9, 0.0)), 0.0, 0.0),
    "twice as wide": (table(ONE), table((8, 8, 16, 14, 0.9, 0.0)), 0.0, 0.0),
    "moved a little": (table(ONE), table((8.5, 7.6, 10.4, 9.8, 0.9, 0.0)), 1.0, 0.0),
    "scores differ": (table(ONE, TWO), table((*ONE[:4], 0.88, 0.0), (*TWO[:4], 0.0, 0.67)), 1.0, 0.07),
    "score far below the threshold": (table(ONE, TWO), table(ONE, (*TWO[:4], 0.0, SCORE - 0.06)), 0.5, 0.0),
    "another one of two overlapping boxes": (
        table((*LEFT, 0.801, 0.0), (*RIGHT, 0.800, 0.0)),
        table((*LEFT, 0.800, 0.0), (*RIGHT, 0.801, 0.0)),
        1.0,
        0.0,
    ),
    "no output": ({}, table(ONE), None, 0.0),
    "NaN": (table(ONE), {"y": np.full((1, 6, CELLS), np.nan, np.float32)}, 0.0, 0.0),
}


@pytest.mark.parametrize(("expected", "found", "share", "score"), COMPARED.values(), ids=COMPARED)
def test_compare_share_and_score(
    expected: dict[str, Array], found: dict[str, Array], share: float | None, score: float
) -> None:
    agreement = compare(expected, found)
    assert agreement.share == share
    assert agreement.score == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("one", [SCORE + 0.001, SCORE + 0.02, SCORE + 0.049])
def test_compare_score_on_either_side_of_the_threshold_is_no_mismatch(one: float) -> None:
    above, below = table(ONE, (*TWO[:4], 0.0, one)), table(ONE, (*TWO[:4], 0.0, SCORE - 0.0005))
    assert compare(above, below).share == 1.0
    assert compare(below, above).share == 1.0


def test_compare_large_slack_does_not_forgive_scores_below_half_the_threshold() -> None:
    found = table(ONE, (*TWO[:4], 0.0, SCORE / 2 - 0.01))
    assert compare(table(ONE, TWO), found, slack=0.5).share == 0.5


def test_compare_box_that_only_one_side_suppresses_is_no_mismatch() -> None:
    first, second = (10.0, 10.0, 12.0, 12.0, 0.9, 0.0), (12.0, 10.0, 12.0, 12.0, 0.5, 0.0)  # IoU 0.714
    nearer = (12.2, 10.0, 12.0, 12.0, 0.5, 0.0)  # IoU 0.690
    found = compare(table(first, second), table(first, nearer), iou=0.7)
    assert (found.expected, found.found, found.share, found.score) == (1, 2, 1.0, 0.0)


def test_compare_with_a_limit_of_detections_also_matches_those_beyond_it() -> None:
    """With a limit of one detection, either of two almost equal boxes may be reported."""
    ours = table((*ONE[:4], 0.7, 0.0), (*TWO[:4], 0.0, 0.701))
    theirs = table((*ONE[:4], 0.701, 0.0), (*TWO[:4], 0.0, 0.7))
    found = compare(ours, theirs, max_detections=1)
    assert found.share == 1.0
    assert found.score < 0.002


def test_compare_very_many_detections_is_bounded() -> None:
    random = np.random.default_rng(1)
    rows = np.concatenate(
        [random.uniform(0, 32, (2, 8400)), random.uniform(1, 4, (2, 8400)), random.uniform(0.3, 1, (2, 8400))]
    )
    wall = {"y": rows[None].astype(np.float32)}
    found = compare(wall, {"y": wall["y"] + np.float32(1e-4)}, iou=0.45)
    assert found.expected == found.found == 512
    assert found.share == 1.0


def test_matcher_for_model_without_family_returns_none() -> None:
    assert matcher_for(Recognition(None, "", None, "", (), Thresholds()), 0.1) is None


def test_matcher_for_family_of_another_package_compares_no_boxes_in_the_daemon() -> None:
    sorted_rows = Reading(("y",), is_list=True)
    known = msgspec.structs.replace(known_as(), package=Package("p", "1", "digest"), reading=sorted_rows)
    matcher = matcher_for(known, 0.1)
    assert isinstance(matcher, Matcher)
    rows, turned = np.array([[[1, 2, 3], [4, 5, 6]]], np.float32), np.array([[[4, 5, 6], [1, 2, 3]]], np.float32)
    whole = place(32, 32, 32, 32, Fit.STRETCH)
    assert judge([Pair({"y": rows}, {"y": turned}, "picture", whole)], TOLERANCES["fp32"], matcher).accepted
    assert not judge([Pair({"y": rows}, {"y": turned * np.nan}, "", whole)], TOLERANCES["fp32"], matcher).accepted
    found_nothing = [Pair({"y": rows[:, :0]}, {"y": rows[:, :0]}, "picture", whole)]
    assert judge(found_nothing, TOLERANCES["fp32"], matcher).accepted
    assert not judge(found_nothing, TOLERANCES["fp32"], matcher, needs_values=True).accepted


def classifier(classes: int = 4) -> Recognition:
    sign = models.signature(models.parse(f"(float[1,3,32,32] x) => (float[1,{classes}] y) {{}}"))
    return recognise(sign.inputs, sign.outputs, {}, {"family": "classification"})


def test_judge_classifier_by_its_winners() -> None:
    assert isinstance(matcher_for(classifier(), 0.1), ContentMatcher)
    expected, other = np.array([[0.1, 3, 0.2, 0.3]], np.float32), np.array([[3, 0.1, 0.2, 0.3]], np.float32)
    where = place(32, 32, 32, 32, Fit.CENTER_CROP)
    for answer, top1 in ((expected, 1.0), (other, 0.0)):
        found = judge([Pair({"y": expected}, {"y": answer}, "picture", where)], TOLERANCES["int8"])
        assert found.figures["top1"] == top1
        assert found.accepted is (top1 == 1)


def test_judge_classifier_with_changed_probabilities_is_rejected_despite_the_same_top_class() -> None:
    expected, moved = (np.array([row], np.float32) for row in ((0.7, 0.1, 0.1, 0.1), (0.65, 0.15, 0.1, 0.1)))
    pair, matcher = Pair({"y": expected}, {"y": moved}, "picture"), matcher_for(classifier(), 0.1)
    assert judge([pair], tolerance({"precisions": "bf16"}, "bf16"), matcher).accepted
    found = judge([pair], tolerance({}, "bf16"), matcher)
    assert found.figures["class_score"] == pytest.approx(0.05, abs=1e-4)
    assert found.reason.startswith("class_score")


@pytest.mark.parametrize("kind", ["picture", "sound"])
def test_figure_of_classes_of_a_model_with_more_than_an_answer_can_have(kind: str) -> None:
    known = classifier(10_000)
    if kind == "sound":
        sign = models.signature(models.parse("(float[1,16000] x) => (float[1,10000] y) {}"))
        known = recognise(sign.inputs, sign.outputs, {}, {"family": "audio-tags", "sound.rate": "16000"})
    scores = np.linspace(0.9, 0.4, 10_000, dtype=np.float32)[None]
    moved = scores + np.float32(0.05) * (np.arange(10_000) % 2)  # other classes are among the best
    matcher = matcher_for(known, 0.1)
    assert isinstance(matcher, ContentMatcher | SoundMatcher)
    for answer, value in ((scores, 0.0), (moved, 0.05)):
        found = matcher.figure({"y": scores}, {"y": answer}, None)
        assert found is not None
        assert found[1] == pytest.approx(value, abs=1e-4)


# -- the embedded detector ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def detector() -> Model:
    return Model.of(plain_entry("shapes", MODEL_PATH, {}), inspect(MODEL_PATH))


@pytest.fixture(scope="module")
def asked(detector: Model, tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    """Golden answers to scenes with known shapes, which are given as user samples."""
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


def judged(detector: Model, asked: list[Sample], alter: Callable[[Floats], Floats], tolerance: Tolerance) -> Verdict:
    pairs = (Pair(s.outputs, {"output0": alter(s.outputs["output0"].copy())}, s.name, s.placement) for s in asked)
    return judge(pairs, tolerance, matcher_for(detector.recognition, tolerance.box_score))


def by_scores(factor: float) -> Callable[[Floats], Floats]:
    """Return a function that multiplies the scores by `factor`."""

    def alter(output: Floats) -> Floats:
        output[:, 4:] *= np.float32(factor)
        return output

    return alter


def blind(output: Floats) -> Floats:
    """Remove all detections in one corner."""
    x, y = output[:, 0], output[:, 1]
    output[:, 4:] = np.where((x < 160) & (y < 160), np.minimum(output[:, 4:], 0.01), output[:, 4:])
    return output


def seeing(output: Floats) -> Floats:
    """Add false boxes."""
    output[:, 4, ::200] = 0.8
    return output


def same(output: Floats) -> Floats:
    return output


def only_boxes(precision: str) -> Tolerance:
    """Return a tolerance that only the boxes can violate."""
    return msgspec.structs.replace(TOLERANCES[precision], cosine=0.0, relative_l2=9.0, outliers=1.0)


STRICT = msgspec.structs.replace(TOLERANCES["bf16"], box_score=1e-4)


@pytest.mark.parametrize(
    ("alter", "tolerance", "reason"),
    [
        pytest.param(same, TOLERANCES["fp32"], "", id="same"),
        *(
            pytest.param(by_scores(1 - t.element / 4), t, "", id=f"scores slightly lower in {precision}")
            for precision, t in TOLERANCES.items()
        ),
        *(
            pytest.param(by_scores(0.05), only_boxes(precision), "boxes ", id=f"scores far lower in {precision}")
            for precision in TOLERANCES
        ),
        pytest.param(by_scores(0.9), only_boxes("fp16"), "box_score ", id="scores somewhat lower"),
        pytest.param(blind, TOLERANCES["int8"], "boxes ", id="detections lost in a corner"),
        pytest.param(seeing, TOLERANCES["int8"], "boxes ", id="invented boxes"),
        pytest.param(as_fp16, TOLERANCES["fp16"], "", id="rounded to fp16"),
        pytest.param(as_bf16, TOLERANCES["bf16"], "", id="rounded to bf16"),
        pytest.param(as_bf16, STRICT, "box_score ", id="stricter bound of the model"),
    ],
)
def test_judge_detector_by_its_boxes(
    detector: Model, asked: list[Sample], alter: Callable[[Floats], Floats], tolerance: Tolerance, reason: str
) -> None:
    found = judged(detector, asked, alter, tolerance)
    assert found.accepted is (reason == ""), found.reason
    assert found.reason.startswith(reason)
    assert (found.figures["boxes"] < tolerance.boxes) is (reason == "boxes ")
    if alter is same:
        assert (found.figures["boxes"], found.figures["box_score"]) == (1.0, 0.0)


def test_judge_detector_names_the_worst_picture_and_measures_drift(detector: Model, asked: list[Sample]) -> None:
    assert "(worst on scene" in judged(detector, asked, by_scores(0.05), only_boxes("int8")).reason
    strict = judged(detector, asked, as_bf16, TOLERANCES["fp32"])
    assert strict.figures["relative_l2"] > 1e-3
    assert 0 < strict.figures["box_score"] < 0.01
