"""Training and evaluation of the detector, as far as they need no training library."""

from __future__ import annotations

import numpy as np
import pytest

from edged.shapes import CLASSES, Counts, Prediction, Scene, Truth
from tools.shapes.evaluate import decode, judge, suppress, unseen
from tools.shapes.pictures import SIZE, VALIDATION_SEED, Letterbox, letterbox, pictures, rows, spoil


@pytest.mark.parametrize(
    ("width", "height", "box"),
    [
        (640, 480, Letterbox(0.5, 0, 40)),
        (320, 240, Letterbox(1.0, 0, 40)),
        (1280, 720, Letterbox(0.25, 0, 70)),
        (480, 640, Letterbox(0.5, 40, 0)),
    ],
)
def test_letterbox_keeps_proportions_and_pads_grey(width: int, height: int, box: Letterbox) -> None:
    square, got = letterbox(np.full((height, width, 3), 7, np.uint8))
    assert got == box
    assert square.shape == (SIZE, SIZE, 3)
    assert (square[box.top : SIZE - box.top, box.left : SIZE - box.left] == 7).all()
    assert (square == 114).sum() == square.size - 3 * round(width * box.scale) * round(height * box.scale)


def test_rows_truths_are_moved_with_the_picture() -> None:
    table = rows([Truth(2, 0, 0, 640, 480)], Letterbox(0.5, 0, 40))
    assert table.tolist() == [[2, 0, 40, 320, 280]]
    assert rows([], Letterbox(1, 0, 0)).shape == (0, 5)


def test_decode_undoes_the_letterbox_and_keeps_the_better_of_two() -> None:
    output = np.zeros((4 + len(CLASSES), 4), np.float32)
    output[:4, 0] = output[:4, 1] = (160, 160, 320, 240)
    output[4 + 3, 0], output[4 + 1, 1], output[4, 2] = 0.9, 0.6, 0.2
    assert decode(output, Letterbox(0.5, 0, 40), threshold=0.4) == [Prediction(3, pytest.approx(0.9), 0, 0, 640, 480)]


def test_suppress_keeps_boxes_that_hardly_overlap() -> None:
    edges = np.array([[0, 0, 10, 10], [0, 0, 10, 8], [8, 0, 18, 10]], float)
    assert suppress(edges, np.array([0.5, 0.9, 0.7]), 0.5) == [1, 2]
    assert suppress(np.zeros((0, 4)), np.zeros(0), 0.5) == []


def test_unseen_scenes_have_validation_seeds() -> None:
    scenes = list(unseen(12, (320, 240)))
    assert min(scene.seed for scene in scenes) >= VALIDATION_SEED
    assert {scene.shapes for scene in scenes} == set(range(1, 11))


def test_judge_blind_detector_misses_everything() -> None:
    def blind(images: np.ndarray) -> np.ndarray:
        assert images.shape == (1, 3, SIZE, SIZE)
        assert images.dtype == np.float32
        assert 0 <= images.min() <= images.max() <= 1
        return np.zeros((1, 4 + len(CLASSES), 2100), np.float32)

    scenes = [Scene(1, 320, 240, shapes=2), Scene(2, 320, 240, shapes=3)]
    assert judge(blind, scenes, threshold=0.4, frames=2, quality=80) == Counts(0, 0, 10)


def test_pictures_repeat_for_a_seed_and_contain_their_truths() -> None:
    first, again = pictures(3), pictures(3)
    for _ in range(12):
        (picture, truth), (same, too) = next(first), next(again)
        assert np.array_equal(picture, same)
        assert np.array_equal(truth, too)
        assert picture.shape == (SIZE, SIZE, 3)
        assert truth.shape[1] == 5
        assert (truth[:, 1:] >= 0).all()
        assert (truth[:, 1:] <= SIZE).all()
        assert (truth[:, 1:3] < truth[:, 3:]).all()


def test_spoil_keeps_shape_and_type() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        spoiled = spoil(rng, np.full((64, 80, 3), 120, np.uint8))
        assert spoiled.shape == (64, 80, 3)
        assert spoiled.dtype == np.uint8
