"""Detection of dark and frozen pictures."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from edged.capture.scene import SceneMonitor, reduced
from edged.vision.draw import encode_jpeg

RANDOM = np.random.default_rng(1)


def noisy(mean: float) -> np.ndarray:
    return np.clip(RANDOM.normal(mean, 3.0, (480, 640, 3)), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("as_jpeg", [False, True])
def test_look_black_pictures_count_seconds_since_the_first(as_jpeg: bool) -> None:
    monitor = SceneMonitor()
    for now, mean in ((0.0, 120), (1.0, 3), (5.0, 4), (9.0, 3)):
        picture = noisy(mean)
        monitor.look(encode_jpeg(picture) if as_jpeg else picture, now)
    assert (monitor.dark_s, monitor.frozen_s) == (8.0, 0.0)
    monitor.look(noisy(120), 10.0)
    assert monitor.dark_s == 0.0


def test_look_night_with_a_lamp_is_not_dark() -> None:
    monitor, picture = SceneMonitor(), noisy(3)
    picture[100:200, 100:200] = 200
    monitor.look(picture, 0.0)
    monitor.look(picture, 60.0)
    assert monitor.dark_s == 0.0


def test_look_unchanged_picture_is_frozen() -> None:
    monitor, picture = SceneMonitor(), noisy(120)
    for now in (0.0, 1.0, 2.5, 7.0):
        monitor.look(picture, now)
    assert monitor.frozen_s == 7.0
    monitor.look(noisy(120), 8.0)
    assert monitor.frozen_s == 0.0


def test_look_more_than_once_a_second_or_at_a_damaged_picture_is_ignored() -> None:
    monitor = SceneMonitor()
    monitor.look(noisy(3), 0.0)
    monitor.look(noisy(120), 0.5)
    monitor.look(noisy(3), 1.0)
    assert monitor.dark_s == 1.0
    monitor.look(b"no picture", 2.0)
    monitor.look(b"", 3.0)
    assert monitor.dark_s == 1.0


def test_reduced_pictures_have_an_eighth_of_the_size() -> None:
    picture = noisy(120)
    small = reduced(picture)
    assert small is not None
    assert small.shape == (60, 80)
    encoded = reduced(encode_jpeg(picture))
    assert encoded is not None
    assert encoded.shape == (60, 80)
    grey = reduced(cv2.cvtColor(picture, cv2.COLOR_BGR2GRAY).astype(np.uint8))
    assert grey is not None
    assert grey.shape == (60, 80)
