"""Judging an engine on frames: every figure by a hand-computed case, classes, cameras, and too few objects."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import pytest

from edged.backends.contract import Recipe
from edged.engines.judging import chosen, job_of, without_frames
from edged.ipc import job_messages as jobs
from edged.models.collected import Collected
from edged.store.judgement import Judgement
from edged.tensors import Array
from edged.verification.frames import FrameJudge
from edged.verification.standard import TOLERANCES, Standard, Tolerance, tolerance
from edged.vision.family import Recognition, recognise
from edged.vision.placement import Fit, place
from tests import models
from tests.unit.control_room import key_of, model, record_of

CELLS = 21  # 16 + 4 + 1 cells of a 32 x 32 input at strides 8, 16, 32
WHERE = place(32, 32, 32, 32, Fit.LETTERBOX)
Row = tuple[float, ...]  # centre x, centre y, width, height, and one score for each class
ONE: Row = (8, 8, 10, 10, 0.9, 0.0)
TWO: Row = (22, 22, 8, 8, 0.0, 0.6)
WEAK: Row = (22, 8, 8, 8, 0.0, 0.15)  # below the threshold of 0.25


def recognition(family: str, outputs: str) -> Recognition:
    sign = models.signature(models.parse(f"(float[1,3,32,32] x) => ({outputs}) {{}}"))
    known = recognise(sign.inputs, sign.outputs, {}, {"family": family})
    return msgspec.structs.replace(known, names=("cat", "dog"))


def detector() -> Recognition:
    return recognition("ultralytics", f"float[1,6,{CELLS}] y")


def table(*rows: Row) -> dict[str, Array]:
    output = np.zeros((1, 6, CELLS), np.float32)
    for cell, row in enumerate(rows):
        output[0, :, cell] = row
    return {"y": output}


def bounds(**changes: float) -> Tolerance:
    return msgspec.structs.replace(TOLERANCES["int8"], **{"objects": 1.0, **changes})


def judged(
    *frames: tuple[Mapping[str, Array], Mapping[str, Array]],
    known: Recognition | None = None,
    cameras: tuple[str, ...] = (),
    skipped: int = 0,
    **changes: float,
) -> Judgement:
    judging = FrameJudge(known or detector(), bounds(**changes), "doors", "int8")
    for number, (expected, found) in enumerate(frames):
        camera = cameras[number] if cameras else "hall"
        judging.add(f"{number}.jpg", camera, expected, found, WHERE, (32, 32))
    return judging.judgement("c1", skipped)


@pytest.mark.parametrize(
    ("expected", "found", "figures"),
    [
        pytest.param(table(ONE, TWO), table(TWO, ONE), {"recall": 1, "precision": 1, "score_drift": 0}, id="same"),
        pytest.param(table(ONE, TWO), table(ONE), {"recall": 0.5, "precision": 1}, id="one missed"),
        pytest.param(table(ONE), table(ONE, TWO), {"recall": 1, "precision": 0.5}, id="one invented"),
        pytest.param(table(ONE), table(), {"recall": 0, "precision": 1}, id="all missed"),
        pytest.param(table(ONE), table((8, 8, 10, 10, 0.0, 0.9)), {"recall": 0, "precision": 0}, id="class swapped"),
        pytest.param(
            table(ONE), table((8, 8, 10, 6, 0.9, 0.0)), {"recall": 1, "recall_75": 0, "precision_75": 0}, id="IoU 0.6"
        ),
        pytest.param(
            table(ONE, TWO),
            table((*ONE[:4], 0.8, 0.0), (*TWO[:4], 0.0, 0.9)),
            {"recall": 1, "score_drift": 0.2, "largest_drift": 0.3},
            id="scores differ by 0.1 and 0.3",
        ),
        pytest.param(table(ONE), table((*ONE[:4], 0.2, 0.0)), {"recall": 0}, id="score below the threshold"),
        pytest.param(table(ONE), {"y": np.full((1, 6, CELLS), np.nan, np.float32)}, {"recall": 0}, id="NaN"),
    ],
)
def test_figures_of_detections(expected: dict[str, Array], found: dict[str, Array], figures: dict[str, float]) -> None:
    result = judged((expected, found))
    assert {name: result.figures[name] for name in figures} == pytest.approx(figures, abs=1e-6)


def test_figures_are_over_all_frames_and_empty_frames_add_none() -> None:
    found = judged((table(ONE, TWO), table(ONE)), (table(), table()), (table(ONE, TWO), table(ONE, TWO)))
    assert (found.frames, found.objects) == (3, 4)
    assert found.figures["recall"] == 0.75
    assert [frame.name for frame in found.worst] == ["0.jpg"]


def test_classes_and_cameras_have_their_own_figures() -> None:
    frames = [(table(ONE, TWO), table(ONE)), (table(ONE), table(ONE, TWO))]
    found = judged(*frames, cameras=("hall", "door"))
    rows = {
        row.name: (row.objects, row.found, row.figures["recall"], row.figures["precision"]) for row in found.classes
    }
    assert rows == {"cat": (2, 2, 1.0, 1.0), "dog": (1, 1, 0.0, 0.0)}
    cameras = {row.name: (row.objects, row.found, row.figures["recall"]) for row in found.cameras}
    assert cameras == {"hall": (2, 1, 0.5), "door": (1, 2, 1.0)}


def test_curve_counts_detections_of_the_engine_from_each_score() -> None:
    found = judged((table(ONE, TWO), table(ONE, TWO, WEAK)))
    by_score = {point.score: (point.precision, point.recall) for point in found.curve}
    assert by_score[0.1] == (round(2 / 3, 4), 1.0)
    assert by_score[0.5] == (1.0, 1.0)
    assert by_score[0.7] == (1.0, 0.5)
    assert by_score[0.95] == (1.0, 0.0)


def test_judgement_with_too_few_objects_refuses_and_says_what_to_do() -> None:
    found = judged((table(ONE, TWO), table(ONE, TWO)), objects=3.0)
    assert (found.outcome, found.objects, found.accepts) == ("too_few", 2, False)
    assert "edged samples collect doors" in found.reason
    assert judged((table(ONE, TWO), table(ONE, TWO)), objects=2.0).outcome == "alike"


def test_judgement_of_frames_that_nobody_could_read_is_too_few() -> None:
    assert judged(skipped=3).outcome == "too_few"
    assert judged(skipped=3).skipped == 3


def test_judgement_without_frames_is_an_outcome_of_its_own_and_accepts() -> None:
    found = judged()
    assert (found.outcome, found.accepts) == ("no_frames", True)


def test_judgement_beyond_a_bound_refuses_with_the_figure() -> None:
    found = judged((table(ONE, TWO), table(ONE)))
    assert found.outcome == "different"
    assert found.reason.startswith("recall 0.5 is below the bound 0.9")
    assert judged((table(ONE, TWO), table(ONE)), recall=0.5, recall_75=0.5).outcome == "alike"


def test_judgement_refuses_if_one_class_is_lost_among_many_objects() -> None:
    frames = [(table(ONE), table(ONE))] * 96 + [(table(TWO), table())] * 4
    assert judged(*frames, objects=5.0).outcome == "alike"  # four dogs are too few to judge their class
    found = judged(*frames, objects=4.0)
    assert found.figures["recall"] == 0.96
    assert (found.outcome, "class 'dog': recall 0 is below the bound 0.8" in found.reason) == ("different", True)


def test_judgement_refuses_if_one_camera_is_much_worse() -> None:
    frames = [(table(ONE), table(ONE))] * 96 + [(table(ONE), table())] * 4
    found = judged(*frames, objects=4.0, cameras=("day",) * 96 + ("night",) * 4)
    assert "camera 'night': recall 0 is below the bound 0.8" in found.reason


def test_worst_frames_are_few_and_the_most_wrong_come_first() -> None:
    frames = [(table(ONE), table(ONE))] * 20 + [(table(ONE), table())] * 20 + [(table(ONE, TWO), table())]
    found = judged(*frames)
    assert len(found.worst) == 12
    assert found.worst[0].name == "40.jpg"
    assert [box.label for box in found.worst[0].expected] == ["cat", "dog"]
    assert found.worst[0].found == ()
    assert "0.jpg" not in {frame.name for frame in found.worst}


def test_judgement_of_a_noisy_model_is_small() -> None:
    names = tuple(f"class {number} {'x' * 300}" for number in range(300))
    sign = models.signature(models.parse("(float[1,3,320,320] x) => (float[1,304,2100] y) {}"))
    known = recognise(sign.inputs, sign.outputs, {}, {"family": "ultralytics"})
    known = msgspec.structs.replace(known, names=names)
    judging, random = FrameJudge(known, bounds(), "doors", "int8"), np.random.default_rng(1)
    for number in range(15):
        sides = []
        for _ in range(2):
            output = np.zeros((1, 304, 2100), np.float32)
            output[0, :4] = random.uniform(10, 300, (4, 2100))
            output[0, 4 + np.arange(2100) % 300, np.arange(2100)] = random.uniform(0.3, 1, 2100)
            sides.append({"y": output})
        judging.add(f"{number}.jpg", "hall", sides[0], sides[1], place(320, 320, 320, 320, Fit.LETTERBOX), (320, 320))
    found = judging.judgement("c1")
    assert len(found.classes) == 100
    assert len(msgspec.json.encode(found)) < 200_000


# -- contents -------------------------------------------------------------------------------------------------------


def scores(*values: float) -> dict[str, Array]:
    return {"y": np.array([values], np.float32)}


def test_figures_of_classes() -> None:
    known = recognition("classification", "float[1,7] y")
    same, second = scores(0.7, 0.2, 0.1, 0, 0, 0, 0), scores(0.4, 0.5, 0.1, 0, 0, 0, 0)
    lost = scores(0.0, 0.3, 0.2, 0.2, 0.1, 0.1, 0.1)
    found = judged((same, same), (same, second), (same, lost), known=known)
    assert found.objects == 3
    assert found.figures["top1"] == pytest.approx(1 / 3, abs=1e-5)
    assert found.figures["top5"] == pytest.approx(2 / 3, abs=1e-5)
    assert found.figures["score_drift"] == pytest.approx((0.0 + 0.3 + 0.7) / 3, abs=1e-5)
    assert found.figures["largest_drift"] == pytest.approx(0.7, abs=1e-5)
    assert (found.classes[0].name, found.classes[0].objects, found.classes[0].found) == ("cat", 3, 1)
    assert found.worst[0].name == "2.jpg"
    assert found.worst[0].expected_lines[0] == "cat 70%"


def test_figures_of_classes_that_are_not_finite_count_as_wrong() -> None:
    known = recognition("classification", "float[1,7] y")
    found = judged((scores(1, 0, 0, 0, 0, 0, 0), scores(*[np.nan] * 7)), known=known)
    assert found.figures["top1"] == 0.0


def test_figures_of_more_classes_than_an_answer_can_have() -> None:
    known = recognition("classification", "float[1,5000] y")
    found = judged((scores(0.7, 0.2, *[0.0] * 4998), scores(0.4, 0.5, *[0.0] * 4998)), known=known)
    assert found.figures["top1"] == 0
    assert found.figures["top5"] == 1
    assert found.figures["score_drift"] == pytest.approx(0.3)


def vector(place: int, value: float = 1.0) -> dict[str, Array]:
    return scores(*(value if number == place else 0.0 for number in range(64)))


def test_figures_of_embeddings() -> None:
    known = recognition("embedding", "float[1,64] y")
    found = judged((vector(0), vector(0)), (vector(0), vector(1)), known=known)
    assert (found.objects, found.figures) == (2, {"embedding": 0.5})
    assert found.classes == ()
    assert judged((vector(0), vector(0, np.nan)), known=known).figures == {"embedding": 0.0}


def class_map(first: int) -> dict[str, Array]:
    """Return a map of 16 x 16 cells whose first rows have class 1."""
    output = np.zeros((1, 2, 16, 16), np.float32)
    output[0, 0], output[0, 1, :first] = 0.5, 1.0
    return {"y": output}


def test_figures_of_class_maps() -> None:
    known = recognition("segmentation", "float[1,2,16,16] y")
    found = judged((class_map(8), class_map(4)), known=known)
    assert found.figures["class_map"] == pytest.approx((4 / 8 + 8 / 12) / 2, abs=0.02)
    rows = {row.name: row.figures["class_map"] for row in found.classes}
    assert rows == pytest.approx({"cat": 8 / 12, "dog": 0.5}, abs=0.03)
    assert judged((class_map(8), class_map(8)), known=known).figures["class_map"] == 1.0


# -- the standard, and the choice of frames ---------------------------------------------------------------------------


def test_tolerance_of_frames_is_exact_unless_the_precision_is_named() -> None:
    assert tolerance({}, "bf16").recall == TOLERANCES["fp32"].recall
    assert tolerance({"precisions": "bf16"}, "bf16").recall == TOLERANCES["bf16"].recall
    changed = tolerance({"precisions": "int8", "verify.int8.recall": "0.97", "verify.objects": "10"}, "int8")
    assert (changed.recall, changed.objects, changed.precision) == (0.97, 10.0, TOLERANCES["int8"].precision)


def test_standard_depends_on_the_collection_only_for_precisions_that_are_judged() -> None:
    plain = model()
    of = msgspec.structs.replace(plain, recognition=detector())
    for precision, depends in (("int8", True), ("bf16", True), ("fp32", False)):
        ids = {
            Standard.of(msgspec.structs.replace(of, collected=collected), precision, {}).digest
            for collected in (None, Collected("a"), Collected("b"))
        }
        assert len(ids) == (3 if depends else 1)
    with_frames = msgspec.structs.replace(plain, collected=Collected("a"))
    assert Standard.of(with_frames, "int8", {}) == Standard.of(plain, "int8", {})  # raw tensors are not decoded


def test_chosen_frames_are_spread_over_cameras_and_time() -> None:
    cameras = {f"{number}": "a" if number < 100 else "b" for number in range(120)}
    found = chosen(cameras, 16)
    assert len(found) == len(set(found)) == 16
    assert sum(cameras[frame] == "b" for frame in found) == 8
    early = [int(frame) for frame in found if cameras[frame] == "a"]
    assert max(early) > 80
    assert min(early) < 20
    assert sorted(chosen(cameras, 1000)) == sorted(cameras)
    assert chosen({}) == []


def test_job_of_is_none_for_exact_engines_and_without_a_collection() -> None:
    of = msgspec.structs.replace(model(), recognition=detector())

    def job(precision: str, collected: Collected | None, limit_s: float = 3600.0) -> jobs.Judge | None:
        asked = msgspec.structs.replace(of, collected=collected)
        recipe = Recipe("openvino", precision=precision)
        verify = jobs.Verify(asked.order(recipe), "g", asked.order(recipe), bounds(), detector())
        return job_of(verify, asked, limit_s)

    collected = Collected("c1", {}, {"/f/1.jpg": "d1", "/f/2.jpg": "d2"}, {"/f/1.jpg": "hall", "/f/2.jpg": "hall"})
    assert job("int8", None) is None
    assert job("fp32", collected) is None
    found = job("int8", collected)
    assert found is not None
    assert (found.frames, found.collection, found.seconds) == (collected.judge, "c1", 300.0)
    hurried = job("int8", collected, 120.0)  # it ends before the child is killed
    assert hurried is not None
    assert hurried.seconds == 60.0
    gone = job("int8", Collected("c1"))
    assert gone is not None
    assert gone.frames == {}


def test_without_frames_keeps_the_last_judgement_of_the_same_collection() -> None:
    of = model()
    recipe = Recipe("openvino")
    last = Judgement("c1", "alike", frames=10)
    record = record_of(key_of(of, recipe), recipe, judgement=last)
    assert without_frames(record, "c1") == last
    assert without_frames(record, "c2") == Judgement("c2", "no_frames")
