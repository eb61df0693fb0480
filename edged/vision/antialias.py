"""Resizing as Pillow and torchvision do it: each pixel of the result is the mean of all those that it covers.

OpenCV's linear interpolation looks at four pixels, however many there are to a pixel of the result; its area
interpolation weighs all alike, where Pillow weighs them by a triangle. Classifiers are trained on the latter. Source:
`precompute_coeffs` in Pillow's Resample.c, Resize and CenterCrop in torchvision.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edged.vision.image import Image

_Floats = npt.NDArray[np.float32]
_ROWS = 16  # of the result that are computed at once: their weights are a dense matrix, mostly of what is not zero


class _Band(NamedTuple):
    """Rows `first` to `last` of the result are `weights` times the rows of the source from `start` on."""

    first: int
    last: int
    start: int
    weights: _Floats  # [last - first, rows of the source]


def middle(picture: Image, width: int, height: int, zoom: float = 1.0) -> Image:
    """The middle of a picture, uint8 [h, w, 3], in width x height: its shorter side is resized to that side times
    `zoom`, and the rest is cut off."""
    down, across = picture.shape[:2]
    ratio = max(round(width * zoom) / across, round(height * zoom) / down)
    full_w, full_h = max(width, int(across * ratio + 1e-9)), max(height, int(down * ratio + 1e-9))
    left, top = round((full_w - width) / 2), round((full_h - height) / 2)
    # Columns first and rounded between, as Pillow does it. Only the rows that the second pass needs are computed.
    bands = _bands(down, full_h, top, height)
    rows = slice(bands[0].start, bands[-1].start + bands[-1].weights.shape[1])
    turned = np.ascontiguousarray(picture[rows].transpose(1, 0, 2))
    narrow = _rounded(_applied(_bands(across, full_w, left, width), turned))
    return _rounded(_applied(bands, np.ascontiguousarray(narrow.transpose(1, 0, 2)), rows.start))


def _applied(bands: tuple[_Band, ...], source: Image, skipped: int = 0) -> _Floats:
    """The first axis, resized. `skipped` rows before those of `source` are not needed."""
    flat = source.reshape(len(source), -1)
    found = np.empty((bands[-1].last, flat.shape[1]), np.float32)
    for first, last, start, weights in bands:
        begin = start - skipped
        np.matmul(weights, flat[begin : begin + weights.shape[1]].astype(np.float32), out=found[first:last])
    return found.reshape(-1, *source.shape[1:])


def _rounded(values: _Floats) -> Image:
    pixels: Image = np.clip(np.floor(values + np.float32(0.5)), 0, 255).astype(np.uint8)
    return pixels


@lru_cache(64)  # sizes of some cameras
def _bands(size: int, resized: int, skipped: int, kept: int) -> tuple[_Band, ...]:
    """The weights of `kept` pixels after the first `skipped` of `size` pixels resized to `resized`."""
    scale = size / resized
    support = max(scale, 1.0)
    centres = (np.arange(skipped, skipped + kept) + 0.5) * scale
    starts = np.maximum((centres - support + 0.5).astype(int), 0)
    ends = np.minimum((centres + support + 0.5).astype(int), size)
    bands = []
    for first in range(0, kept, _ROWS):
        last = min(first + _ROWS, kept)
        start, end = int(starts[first]), int(ends[last - 1])
        at = np.arange(start, end)
        weights = np.maximum(1 - np.abs((at - centres[first:last, None] + 0.5) / support), 0)
        weights[(at < starts[first:last, None]) | (at >= ends[first:last, None])] = 0
        weights /= weights.sum(axis=1, keepdims=True)
        bands.append(_Band(first, last, start, weights.astype(np.float32)))
    return tuple(bands)
