"""Drawing by `annotate`: each part at its place, and nothing elsewhere."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from edged.vision.content import Classes
from edged.vision.detections import Detections
from edged.vision.draw import annotate, class_color, encode_jpeg
from edged.vision.image import decode
from edged.vision.masks import encode

WIDTH, HEIGHT = 640, 480
BLACK = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
BOX = ([[200, 150, 400, 350]], [0.9], [3])


def changed(painted: np.ndarray) -> np.ndarray:
    return painted.any(axis=2)


def test_annotate_tints_a_mask_and_not_its_box():
    disc = cv2.circle(np.zeros((200, 200), np.uint8), (100, 100), 60, 1, cv2.FILLED).astype(bool)
    detections = Detections.of(*BOX, masks=[encode(disc, 200, 150, WIDTH, HEIGHT)])
    painted = changed(annotate(BLACK, detections, ()))
    assert painted[150:350, 200:400][disc].all()
    assert not painted[160:185, 210:390].any(), "inside the frame, outside of the mask"
    with pytest.raises(ValueError, match="640x480"):
        annotate(BLACK, Detections.of(*BOX, masks=[encode(disc, 0, 0, 300, 300)]), ())


def test_annotate_empty_mask_draws_nothing():
    detections = Detections.of(*BOX, masks=[encode(np.zeros((0, 0), np.bool_), 0, 0, WIDTH, HEIGHT)])
    assert not changed(annotate(BLACK, detections, ()))[160:340, 210:390].any()


def test_annotate_draws_visible_keypoints():
    keypoints = np.array([[[250, 200, 0.9], [350, 200, 0.1], [300, 300, 0.25]]])
    painted = changed(annotate(BLACK, Detections.of(*BOX, keypoints=keypoints), ()))
    assert painted[200, 250]
    assert painted[300, 300]
    assert not painted[200, 350]
    assert not painted[250, 275], "three points are no skeleton"


def test_annotate_joins_seventeen_keypoints():
    keypoints = np.zeros((1, 17, 3))
    for index, point in {5: (250, 200), 6: (350, 200), 11: (250, 300), 15: (390, 340)}.items():
        keypoints[0, index] = (*point, 0.9)
    painted = changed(annotate(BLACK, Detections.of(*BOX, keypoints=keypoints), ()))
    assert painted[200, 300], "the line of the shoulders"
    assert painted[250, 250], "shoulder to hip"
    assert not painted[320, 320], "hip and ankle are joined by the knee, which is not visible"


def test_annotate_draws_an_oriented_box_instead_of_its_hull():
    diamond = [[[300, 150], [400, 250], [300, 350], [200, 250]]]
    painted = changed(annotate(BLACK, Detections.of(*BOX, corners=diamond), ()))
    assert painted[200, 250]
    assert painted[300, 350]
    assert not painted[340:351, 200:210].any()
    assert not painted[250, 300]


def test_annotate_accepts_points_far_outside():
    far = Detections.of(
        *BOX, corners=[[[-1e9, 5], [1e9, 5], [1e9, 9], [-1e9, 9]]], keypoints=np.full((1, 17, 3), 5e8), tracker_ids=[1]
    )
    assert annotate(BLACK, far, ()).shape == BLACK.shape


def test_annotate_writes_tracker_numbers_into_labels():
    plain, tracked, other = (
        annotate(BLACK, Detections.of(*BOX, tracker_ids=ids), ("cat",)) for ids in (None, [7], [8])
    )
    assert changed(tracked).sum() > changed(plain).sum(), "the label is longer"
    assert not np.array_equal(tracked, other)
    assert np.array_equal(annotate(BLACK, Detections.of(*BOX, tracker_ids=[-1]), ("cat",)), plain), "not tracked"


def test_annotate_lists_the_best_five_classes():
    names = tuple("abcdefgh")
    classes = Classes.of(range(8), np.linspace(0.9, 0.1, 8))
    painted = annotate(BLACK, Detections.empty(), names, content=classes)
    colors = {tuple(pixel) for pixel in painted.reshape(-1, 3).tolist()}
    assert [class_color(i) in colors for i in range(8)] == [True] * 5 + [False] * 3
    assert not changed(painted)[150:].any()
    assert not changed(painted)[:, 300:].any()
    assert np.array_equal(annotate(BLACK, Detections.empty(), names, content=Classes()), BLACK)


@pytest.mark.parametrize("size", [(1, 1), (9, 16), (40, 3)])
def test_annotate_accepts_the_smallest_pictures(size):
    height, width = size
    detections = Detections.of(
        [[0, 0, width, height]],
        [0.5],
        [0],
        masks=[encode(np.ones((height, width), np.bool_), 0, 0, width, height)],
        keypoints=np.ones((1, 17, 3)),
        corners=np.ones((1, 4, 2)),
        tracker_ids=[3],
    )
    classes = Classes((1,), (0.5,))
    image = np.zeros((height, width, 3), np.uint8)
    assert annotate(image, detections, (), "caption", classes).shape == image.shape


@pytest.mark.parametrize("width", [1, 32, 320, 1920])
def test_annotate_returns_a_copy_of_any_size(width):
    height = max(1, width * 9 // 16)
    image = np.full((height, width, 3), 90, np.uint8)
    detections = Detections.of([[width * 0.1, height * 0.2, width * 0.6, height * 0.9]], [0.9], [400])
    painted = annotate(image, detections, ("naïve · name " * 9,), caption="front door · 12 ms")
    assert (painted.shape, painted.dtype) == (image.shape, np.uint8)
    assert (image == 90).all()
    assert not np.array_equal(painted, image)


def test_annotate_draws_a_box_at_its_place():
    painted = changed(annotate(BLACK, Detections.of(*BOX), ()))
    assert painted[150, 300]
    assert painted[350, 300]
    assert painted[250, 200]
    assert not painted[360:, :].any()
    assert not painted[:, 420:].any()
    assert not painted[:100].any()
    assert np.array_equal(annotate(BLACK, Detections.empty(), ()), BLACK)


def test_class_color_differs_between_classes():
    assert len({class_color(i) for i in range(80)}) == 80


def test_encode_jpeg_follows_the_quality():
    image = cv2.resize(np.random.default_rng(5).integers(0, 255, (6, 8, 3), dtype=np.uint8), (320, 240))
    good, small = encode_jpeg(image, 95), encode_jpeg(image, 30)
    assert len(small) < len(good)
    assert np.abs(decode(good).astype(int) - image).mean() < 4


def test_annotate_notes_are_drawn_below_their_boxes() -> None:
    picture = np.zeros((480, 640, 3), np.uint8)
    found = Detections.of([(50, 50, 250, 150), (350, 300, 600, 470)], [0.5, 0.9], [0, 1])
    plain = annotate(picture, found, ("a", "b"))
    noted = annotate(picture, found, ("a", "b"), notes=("", "ABC 123"))
    changed = np.argwhere((plain != noted).any(axis=2))
    (top, left), (bottom, right) = changed.min(axis=0), changed.max(axis=0)
    assert (left >= 350 - 5, right < 640, bottom < 480) == (True, True, True)
    assert top > 300
