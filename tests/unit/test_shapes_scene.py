"""Drawn scenes: equal for equal seeds, moving, and with boxes that match the pixels."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import cv2
import numpy as np
import pytest

from edged.shapes import CLASSES, Counts, Prediction, Scene, Truth, match
from edged.shapes.matching import iou
from edged.shapes.scene import PERIOD, Disc, advance, fold

SIZES = [(320, 240), (640, 480), (1280, 720), (240, 400)]


def test_frame_is_the_same_in_any_order() -> None:
    forwards, backwards = Scene(7), Scene(7)
    ahead = {index: forwards.frame(index) for index in (0, 3, 40)}
    for index in (40, 3, 0, 40):
        picture, truths = backwards.frame(index)
        assert np.array_equal(picture, ahead[index][0])
        assert truths == ahead[index][1]


def test_frame_is_a_new_array() -> None:
    scene = Scene(3)
    before = scene.frame(5)[0].copy()
    scene.frame(5)[0][:] = 0
    assert np.array_equal(scene.frame(5)[0], before)
    assert not np.array_equal(Scene(2).frame(5)[0], before)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_frame_size_and_truths_inside(width: int, height: int) -> None:
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
def test_truths_are_tight_around_the_figures(width: int, height: int) -> None:
    """The picture itself is the reference: only the figures differ from the same scene without figures."""
    for seed in range(5):
        for count in range(1, 6):
            with_it, truths = Scene(seed, width, height, count).frame(30 * seed)
            # Background and noise do not depend on the figures, so only the figures differ.
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


def test_frame_figures_hardly_overlap() -> None:
    for seed in range(6):
        scene = Scene(seed, shapes=10)
        for index in range(0, 300, 20):
            truths = scene.frame(index)[1]
            for i, a in enumerate(truths):
                assert all(iou(a, b) < 0.25 for b in truths[i + 1 :])


def test_frame_figures_and_background_move() -> None:
    scene = Scene(11)
    (first, then), (later, now) = scene.frame(0), scene.frame(10)
    for a, b in zip(then, now, strict=True):
        assert a.class_id == b.class_id
        assert iou(a, b) < 0.999
    empty = Scene(11, shapes=0)
    assert empty.frame(0)[1] == []
    assert np.abs(empty.frame(0)[0].astype(int) - empty.frame(60)[0]).mean() > 2
    assert not np.array_equal(first, later)


def test_frame_motion_has_no_jumps() -> None:
    scene = Scene(4, 320, 240)
    for index in (0, 100, PERIOD - 1, PERIOD, 2 * PERIOD - 1, -1):
        for a, b in zip(scene.frame(index)[1], scene.frame(index + 1)[1], strict=True):
            assert abs((a.x1 + a.x2) - (b.x1 + b.x2)) / 2 < 12
            assert abs((a.y1 + a.y2) - (b.y1 + b.y2)) / 2 < 12


def test_frame_five_figures_show_five_classes() -> None:
    for seed in range(10):
        assert sorted(t.class_id for t in Scene(seed).frame(0)[1]) == list(range(len(CLASSES)))


@pytest.mark.parametrize("bad", [{"width": 10}, {"height": 10}, {"shapes": -1}, {"shapes": 13}])
def test_scene_out_of_range_raises(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="scene"):
        Scene(0, **bad)


def test_advance_discs_that_meet_exchange_speeds() -> None:
    left, right = advance((Disc(40, 50, 2, 0, 10), Disc(61, 50, -1, 0, 10)), 200, 100)
    assert (left.vx, right.vx) == pytest.approx((-1, 2))
    assert right.x - left.x == pytest.approx(20)


def test_advance_disc_turns_back_at_the_wall() -> None:
    (disc,) = advance((Disc(11, 50, -3, 0, 10),), 200, 100)
    assert (disc.x, disc.vx) == (10, 3)


def test_fold_runs_to_the_period_and_back() -> None:
    assert [fold(i) for i in (0, 1, PERIOD, PERIOD + 1, 2 * PERIOD, -1)] == [0, 1, PERIOD, PERIOD - 1, 0, 1]


A = Truth(0, 0, 0, 10, 10)
B = Truth(1, 20, 20, 30, 30)


HIT, TWICE = Prediction(0, 0.9, 0, 0, 10, 9), Prediction(0, 0.5, 0, 0, 10, 10)
NEAR = Truth(0, 4, 0, 14, 10)


@pytest.mark.parametrize(
    ("predictions", "truths", "counts"),
    [
        ([], [], Counts(0, 0, 0)),
        ([], [A, B], Counts(0, 0, 2)),
        ([HIT], [], Counts(0, 1, 0)),
        ([HIT], [A, B], Counts(1, 0, 1)),
        ([HIT, Prediction(2, 0.9, 20, 20, 30, 30)], [A, B], Counts(1, 1, 1)),  # another class
        ([TWICE, HIT], [A], Counts(1, 1, 0)),
        ([Prediction(0, 0.9, 0, 0, 10, 5)], [A], Counts(1, 0, 0)),  # overlaps by exactly half
        ([Prediction(0, 0.9, 0, 0, 10, 4.9)], [A], Counts(0, 1, 1)),
        ([Prediction(0, 0.9, 10, 0, 20, 10)], [A], Counts(0, 1, 1)),
        # The prediction with the higher score is matched first, with its best truth.
        ([Prediction(0, 0.3, 0, 0, 10, 10), Prediction(0, 0.9, 3.5, 0, 13.5, 10)], [A, NEAR], Counts(2, 0, 0)),
    ],
)
def test_match_counts_hits_misses_and_wrong_answers(
    predictions: list[Prediction], truths: list[Truth], counts: Counts
) -> None:
    assert match(predictions, truths) == counts


def test_counts_add_up() -> None:
    total = Counts(3, 1, 0) + Counts(0, 0, 2)
    assert total == Counts(3, 1, 2)
    assert (total.precision, total.recall) == (0.75, 0.6)
    assert (Counts().precision, Counts().recall) == (1.0, 1.0)


def test_import_shapes_loads_no_runtime() -> None:
    check = "import sys, edged.shapes; print(sorted({'torch', 'onnx', 'onnxruntime'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
