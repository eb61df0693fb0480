"""The drawn pictures: they are the same on every box, and have statistics of photographs."""

from __future__ import annotations

import functools
import hashlib

import numpy as np
import pytest

from edged.verification import pictures
from edged.vision.image import Image


@functools.cache
def drawn(seed: int = pictures.TO_JUDGE) -> list[Image]:
    return list(pictures.draw(seed))


@pytest.mark.parametrize(
    ("seed", "wanted"), [(pictures.TO_JUDGE, "d679f887191d2fe6"), (pictures.TO_CALIBRATE, "82e1e9008db72024")]
)
def test_drawn_pictures_have_the_same_pixels_on_every_box(seed: int, wanted: str) -> None:
    # Drawing uses only IEEE arithmetic and a generator that never changes. If you change the drawing, update the
    # digests, and raise `_QUESTIONS` in standard.py and `_METHOD` in user_samples.py. If this test fails on one box
    # only, the drawing depends on the box.
    digest = hashlib.sha256(b"".join(picture.tobytes() for picture in drawn(seed))).hexdigest()
    assert digest[:16] == wanted
    assert len(drawn(seed)) == pictures.COUNT


def test_drawn_pictures_of_both_sets_differ() -> None:
    assert not {picture.tobytes() for picture in drawn()} & {
        picture.tobytes() for picture in drawn(pictures.TO_CALIBRATE)
    }


def test_drawn_pictures_have_several_shapes_and_exposures() -> None:
    assert all(picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3 for picture in drawn())
    assert {np.sign(picture.shape[1] - picture.shape[0]) for picture in drawn()} == {-1, 0, 1}
    brightness = sorted(picture.mean() for picture in drawn())
    assert brightness[0] < 50
    assert brightness[-1] > 110


@pytest.mark.parametrize("number", range(pictures.COUNT))
def test_drawn_pictures_have_correlated_neighbours_and_colours(number: int) -> None:
    picture = drawn()[number]
    pixels = picture.astype(np.float64)
    gray = pixels.mean(axis=2)
    assert np.corrcoef(gray[:, 1:].ravel(), gray[:, :-1].ravel())[0, 1] > 0.9
    colours = np.corrcoef(pixels.reshape(-1, 3).T)
    assert colours.min() > 0.8
    assert colours[~np.eye(3, dtype=bool)].max() < 0.999  # not gray
    assert len(np.unique(picture)) > 80


@pytest.mark.parametrize("number", range(pictures.COUNT))
def test_drawn_pictures_power_falls_with_the_square_of_the_frequency(number: int) -> None:
    picture = drawn()[number]
    side = min(picture.shape[:2])
    gray = picture[:side, :side].mean(axis=2)
    window = np.hanning(side)
    power = np.abs(np.fft.fft2((gray - gray.mean()) * window[:, None] * window)) ** 2
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side))) * side
    octaves = [2**n for n in range(1, 7) if 2 ** (n + 1) <= side / 2]
    mean = [power[(frequency >= low) & (frequency < 2 * low)].mean() for low in octaves]
    slope = np.polyfit(np.log(octaves), np.log(mean), 1)[0]
    assert -3.2 < slope < -1.5  # photographs: about -2; noise: 0; a gradient: much steeper
