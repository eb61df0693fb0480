"""The prepared tensor, compared with a slow and simple computation."""

from __future__ import annotations

import itertools

import cv2
import numpy as np
import pytest

from edged.tensors import numpy_dtype
from edged.vision.placement import Fit, place
from edged.vision.prepare import Preparer
from edged.vision.preprocess import Preprocess

RNG = np.random.default_rng(3)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def slowly(wanted: Preprocess, image: np.ndarray) -> np.ndarray:
    p = place(image.shape[1], image.shape[0], wanted.width, wanted.height, wanted.fit, wanted.zoom)
    width, height = p.inner
    x1, y1, x2, y2 = p.edges
    image = image[y1:y2, x1:x2]
    canvas = np.full((wanted.height, wanted.width, 3), wanted.pad, np.uint8)
    scaled = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
    canvas[p.pad_y : p.pad_y + height, p.pad_x : p.pad_x + width] = scaled
    if wanted.color == "rgb":
        canvas = canvas[:, :, ::-1]
    if wanted.color == "gray":
        canvas = cv2.cvtColor(canvas, cv2.COLOR_BGR2GRAY)[:, :, None]
    values = canvas.astype(np.float64)
    if wanted.datatype != "UINT8":
        channels = wanted.channels
        values = (values * wanted.scale - wanted.mean[:channels]) / wanted.std[:channels]
    if wanted.layout == "NCHW":
        values = values.transpose(2, 0, 1)
    return values.astype(numpy_dtype(wanted.datatype))


CASES = list(
    itertools.product(
        ["NCHW", "NHWC"],
        ["FP32", "FP16", "UINT8"],
        ["rgb", "bgr", "gray"],
        Fit,
        [False, True],
        [(53, 31), (31, 54)],
    )
)


@pytest.mark.parametrize(("layout", "datatype", "color", "fit", "normalised", "size"), CASES)
def test_prepare_equals_a_slow_computation(layout, datatype, color, fit, normalised, size):
    wanted = Preprocess(
        width=64,
        height=48,
        channels=1 if color == "gray" else 3,
        layout=layout,
        datatype=datatype,
        color=color,
        fit=fit,
        mean=MEAN if normalised else (0, 0, 0),
        std=STD if normalised else (1, 1, 1),
    )
    image = RNG.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    batch = np.full((3, *wanted.shape), 99, numpy_dtype(datatype))
    placement = Preparer(wanted).prepare(image, batch[1])
    assert placement == place(*size, 64, 48, fit)
    tolerance = {"FP32": 1e-5, "FP16": 2e-3, "UINT8": 0}[datatype]
    np.testing.assert_allclose(batch[1], slowly(wanted, image), rtol=0, atol=tolerance)
    assert (batch[0] == 99).all()
    assert (batch[2] == 99).all()


def test_prepare_pictures_of_changing_sizes_equals_a_slow_computation():
    wanted = Preprocess(width=96, height=64, fit=Fit.LETTERBOX)
    preparer = Preparer(wanted)
    out = np.empty(wanted.shape, np.float32)
    for size in [(96, 64), (10, 200), (300, 20), (96, 64), (1, 1), (48, 32), (7000, 1)]:
        image = RNG.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        before = image.copy()
        preparer.prepare(image, out)
        np.testing.assert_allclose(out, slowly(wanted, image), rtol=0, atol=1e-6)
        assert np.array_equal(image, before)


def test_prepare_views_and_read_only_pictures_are_accepted():
    wanted = Preprocess(width=32, height=32, fit=Fit.LETTERBOX)
    whole = RNG.integers(0, 256, (80, 90, 3), dtype=np.uint8)
    out = np.empty(wanted.shape, np.float32)
    for view in (whole[10:42, 20:52], whole[5:70, 11:60]):
        view.flags.writeable = False
        Preparer(wanted).prepare(view, out)
        np.testing.assert_allclose(out, slowly(wanted, view.copy()), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "out",
    [
        np.empty((3, 32, 31), np.float32),
        np.empty((32, 32, 3), np.float32),
        np.empty((3, 32, 32), np.float16),
        np.empty((1, 3, 32, 32), np.float32),
        np.empty((3, 32, 64), np.float32)[:, :, ::2],
    ],
)
def test_prepare_wrong_target_is_refused(out):
    with pytest.raises(ValueError, match=r"contiguous float32\[3, 32, 32\]"):
        Preparer(Preprocess(width=32, height=32)).prepare(np.zeros((4, 4, 3), np.uint8), out)
