"""Antialiased input of classifiers: equal to torchvision's Resize of the shorter side and CenterCrop with Pillow."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from PIL import Image as Pillow

from edged.verification.pictures import COUNT, draw
from edged.vision.image import Decoded, Image
from edged.vision.placement import Fit, Region, Roi
from edged.vision.prepare import Preparer, resize_center
from edged.vision.preprocess import Preprocess


@functools.cache
def pictures() -> list[Image]:
    return list(draw())


def torchvision(picture: Image, size: int, crop: int) -> Image:
    """Return the picture after transforms.Resize(size) and transforms.CenterCrop(crop), computed as in their code."""
    shown = Pillow.fromarray(picture)
    short, long = sorted(shown.size)
    resized = int(size * long / short)
    shown = shown.resize(
        (size, resized) if shown.width <= shown.height else (resized, size), Pillow.Resampling.BILINEAR
    )
    top, left = round((shown.height - crop) / 2.0), round((shown.width - crop) / 2.0)
    return np.asarray(shown.crop((left, top, left + crop, top + crop)))


@pytest.mark.parametrize("number", range(COUNT))
@pytest.mark.parametrize(("size", "crop"), [(256, 224), (224, 224), (232, 224), (64, 64), (700, 640)])
def test_resize_center_equals_torchvision(number: int, size: int, crop: int) -> None:
    found = resize_center(pictures()[number], crop, crop, size / crop)
    wanted = torchvision(pictures()[number], size, crop)
    off = np.abs(found.astype(int) - wanted)
    assert off.max() <= 1
    assert (off > 0).mean() < 0.05


@pytest.mark.parametrize("shape", [(1, 1), (3, 999), (999, 3), (225, 224), (224, 224)])
def test_resize_center_any_shape_fills_the_input(shape: tuple[int, int]) -> None:
    picture = np.random.default_rng(1).integers(0, 256, (*shape, 3), dtype=np.uint8)
    assert resize_center(picture, 32, 48, 1.2).shape == (48, 32, 3)
    if shape == (224, 224):
        np.testing.assert_array_equal(resize_center(picture, 224, 224), picture)


def test_resize_center_with_a_zoom_below_1_keeps_the_aspect_ratio() -> None:
    np.testing.assert_array_equal(resize_center(pictures()[1], 64, 64, 0.5), resize_center(pictures()[1], 64, 64))


WANTED = Preprocess(64, 64, fit=Fit.CENTER_CROP, zoom=256 / 224, antialias=True, color="bgr", scale=1.0)


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_prepare_antialiased_shows_the_middle_of_the_region(rotation: int) -> None:
    picture = pictures()[1]
    out = np.empty(WANTED.shape, np.float32)
    Preparer(WANTED).prepare(picture, out, Roi(Region(100, 50, 300, 400), rotation))
    cut = np.ascontiguousarray(np.rot90(picture[50:450, 100:400], -rotation // 90))
    np.testing.assert_array_equal(out.transpose(1, 2, 0), resize_center(cut, 64, 64, 256 / 224))


def test_prepare_antialiased_reduced_picture_shows_the_same_middle() -> None:
    full, half = np.empty(WANTED.shape, np.float32), np.empty(WANTED.shape, np.float32)
    picture = pictures()[0]
    quarter = picture.reshape(240, 2, 320, 2, 3).mean(axis=(1, 3)).astype(np.uint8)
    placed = Preparer(WANTED).prepare(picture, full)
    assert Preparer(WANTED).prepare(Decoded(quarter, 640, 480, 2), half) == placed
    assert np.abs(full - half).mean() < 3
