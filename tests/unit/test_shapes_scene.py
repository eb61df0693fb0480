"""Drawn scenes: the same for the same seed, moving, and with boxes that the pixels agree with."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import cv2
import numpy as np
import pytest

from edged.shapes import CLASSES, Counts, Prediction, Scene, Truth, match
from edged.shapes.matching import iou
from edged.shapes.scene import PERIOD, Disc, advance, fold, outline

SIZES = [(320, 240), (640, 480), (1280, 720), (240, 400)]


def test_same_seed_and_index_give_the_same_picture_in_any_order() -> None:
    forwards, backwards = Scene(7), Scene(7)
    ahead = {index: forwards.frame(index) for index in (0, 3, 40)}
    for index in (40, 3, 0, 40):
        picture, truths = backwards.frame(index)
        assert np.array_equal(picture, ahead[index][0])
        assert truths == ahead[index][1]


def test_another_seed_gives_another_picture() -> None:
    assert not np.array_equal(Scene(1).frame(0)[0], Scene(2).frame(0)[0])


def test_a_picture_is_the_callers_own() -> None:
    scene = Scene(3)
    before = scene.frame(5)[0].copy()
    scene.frame(5)[0][:] = 0
    assert np.array_equal(scene.frame(5)[0], before)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_pictures_have_the_size_asked_for_and_truths_lie_inside(width: int, height: int) -> None:
    for seed in range(4):
        scene = Scene(seed, width, height, shapes=10)
        for index in (0, 50, 500):
            picture, truths = scene.frame(index)
            assert picture.shape == (height, width, 3)
            assert picture.dtype == np.uint8
            assert picture.flags.c_contiguous
            assert len(truths) == 10
            for t in truths:
                assert 0 <= t.x1 < t.x2 <= width
                assert 0 <= t.y1 < t.y2 <= height
                assert min(t.x2 - t.x1, t.y2 - t.y1) > 0.05 * min(width, height)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_boxes_are_tight_around_what_is_drawn(width: int, height: int) -> None:
    """The oracle is the picture itself: what differs from the same scene without figures is the figures."""
    for seed in range(5):
        for count in range(1, 6):
            with_it, truths = Scene(seed, width, height, count).frame(30 * seed)
            # Frames hold the same background and noise whatever the figures are, so only figures differ.
            without, _ = Scene(seed, width, height, 0).frame(30 * seed)
            changed = cv2.absdiff(with_it, without).max(axis=2) > 24
            covered = np.zeros_like(changed)
            for t in truths:
                left, top = max(0, round(t.x1) - 2), max(0, round(t.y1) - 2)
                covered[top : round(t.y2) + 2, left : round(t.x2) + 2] = True
            assert not (changed & ~covered).any()
            if count == 1:
                rows, columns = np.where(changed)
                found = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
                assert found == pytest.approx(dataclasses.astuple(truths[0])[1:], abs=1.8)


def test_figures_do_not_overlap_heavily() -> None:
    for seed in range(6):
        scene = Scene(seed, shapes=10)
        for index in range(0, 300, 20):
            truths = scene.frame(index)[1]
            for i, a in enumerate(truths):
                assert all(iou(a, b) < 0.25 for b in truths[i + 1 :])


def test_figures_and_background_move() -> None:
    scene = Scene(11)
    (first, then), (later, now) = scene.frame(0), scene.frame(10)
    for a, b in zip(then, now, strict=True):
        assert a.class_id == b.class_id
        assert iou(a, b) < 0.999
    empty = Scene(11, shapes=0)
    assert empty.frame(0)[1] == []
    assert np.abs(empty.frame(0)[0].astype(int) - empty.frame(60)[0]).mean() > 2
    assert not np.array_equal(first, later)


def test_motion_has_no_jumps_even_where_it_turns_back() -> None:
    scene = Scene(4, 320, 240)
    for index in (0, 100, PERIOD - 1, PERIOD, 2 * PERIOD - 1, -1):
        for a, b in zip(scene.frame(index)[1], scene.frame(index + 1)[1], strict=True):
            assert abs((a.x1 + a.x2) - (b.x1 + b.x2)) / 2 < 12
            assert abs((a.y1 + a.y2) - (b.y1 + b.y2)) / 2 < 12


def test_five_figures_show_five_classes() -> None:
    for seed in range(10):
        assert sorted(t.class_id for t in Scene(seed).frame(0)[1]) == list(range(len(CLASSES)))


def test_every_outline_stays_on_its_circle() -> None:
    for class_id in range(len(CLASSES)):
        distance = np.linalg.norm(outline(class_id, 5, 6, 10, 0.3) - (5, 6), axis=1)
        assert distance.max() == pytest.approx(10)


@pytest.mark.parametrize("bad", [{"width": 10}, {"height": 10}, {"shapes": -1}, {"shapes": 13}])
def test_impossible_scenes_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="scene"):
        Scene(0, **bad)


def test_scenes_are_frozen_and_comparable() -> None:
    assert Scene(1) == Scene(1, 640, 480, 5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Scene(1).seed = 2  # type: ignore[misc]


def test_discs_that_meet_exchange_their_speeds() -> None:
    left, right = advance((Disc(40, 50, 2, 0, 10), Disc(61, 50, -1, 0, 10)), 200, 100)
    assert (left.vx, right.vx) == pytest.approx((-1, 2))
    assert right.x - left.x == pytest.approx(20)


def test_a_disc_turns_back_at_the_wall() -> None:
    (disc,) = advance((Disc(11, 50, -3, 0, 10),), 200, 100)
    assert (disc.x, disc.vx) == (10, 3)


def test_folding_runs_to_the_period_and_back() -> None:
    assert [fold(i) for i in (0, 1, PERIOD, PERIOD + 1, 2 * PERIOD, -1)] == [0, 1, PERIOD, PERIOD - 1, 0, 1]


A = Truth(0, 0, 0, 10, 10)
B = Truth(1, 20, 20, 30, 30)


def test_matching_counts_hits_misses_and_wrong_answers() -> None:
    hit = Prediction(0, 0.9, 0, 0, 10, 9)
    wrong_class = Prediction(2, 0.9, 20, 20, 30, 30)
    twice = Prediction(0, 0.5, 0, 0, 10, 10)
    assert match([], []) == Counts(0, 0, 0)
    assert match([], [A, B]) == Counts(0, 0, 2)
    assert match([hit], []) == Counts(0, 1, 0)
    assert match([hit], [A, B]) == Counts(1, 0, 1)
    assert match([hit, wrong_class], [A, B]) == Counts(1, 1, 1)
    assert match([twice, hit], [A]) == Counts(1, 1, 0)


def test_matching_needs_half_an_overlap() -> None:
    assert match([Prediction(0, 0.9, 0, 0, 10, 5)], [A]) == Counts(1, 0, 0)
    assert match([Prediction(0, 0.9, 0, 0, 10, 4.9)], [A]) == Counts(0, 1, 1)
    assert match([Prediction(0, 0.9, 10, 0, 20, 10)], [A]) == Counts(0, 1, 1)


def test_the_better_score_chooses_first_and_takes_its_best_truth() -> None:
    near = Truth(0, 4, 0, 14, 10)
    sure, unsure = Prediction(0, 0.9, 3.5, 0, 13.5, 10), Prediction(0, 0.3, 0, 0, 10, 10)
    assert match([unsure, sure], [A, near]) == Counts(2, 0, 0)


def test_counts_add_up() -> None:
    total = Counts(3, 1, 0) + Counts(0, 0, 2)
    assert total == Counts(3, 1, 2)
    assert (total.precision, total.recall) == (0.75, 0.6)
    assert (Counts().precision, Counts().recall) == (1.0, 1.0)


def test_importing_the_package_loads_no_runtime_and_no_training_library() -> None:
    check = "import sys, edged.shapes; print(sorted({'torch', 'onnx', 'onnxruntime'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
