"""Draws pictures for the probes of engines: always the same pictures, with the statistics of photographs.

There are three sets. The first judges engines, and the second calibrates int8. The third compares an int8 model with
its float32 model while the int8 model is made.

Each picture is a "dead leaves" drawing: discs and slabs of all sizes cover each other like objects in front of a
camera. Each has a shade, a texture and light from one side. The sizes follow a power law, so the drawing looks similar
at every scale, as a photograph does. Power falls with the square of the frequency, edges are everywhere, and colours
are correlated. (Lee, Mumford, Huang: Occlusion models for natural images, 2001.)

Only numpy's frozen generator (RandomState) and single IEEE operations on doubles are used, so that every box draws the
same pictures.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from edged.vision.image import Image

_Plane: TypeAlias = npt.NDArray[np.float64]

_LEAVES = 700
_RADII = (0.02, 0.45)  # of the smaller side: the smallest and the largest leaf
_CHROMA = 0.18  # how far the colours of a leaf may be from grey
_TEXTURE = 0.07
_GRAIN = 0.02  # of the sensor
_OCTAVES = (64, 32, 16, 8, 4, 2)  # pixels between two values of the texture


class _Shot(NamedTuple):
    """The size in pixels and the exposure of one picture."""

    width: int
    height: int
    exposure: float


# Wide, tall and square, because these are fitted into an input differently; one is bright, one is dark.
_SHOTS = (_Shot(640, 480, 1.0), _Shot(1280, 720, 1.2), _Shot(480, 640, 0.3), _Shot(416, 416, 1.0))
COUNT = len(_SHOTS)
# The seeds of the first picture of each set.
TO_JUDGE = 0
TO_CALIBRATE = 100
TO_COMPARE = 200


def draw(seed: int = TO_JUDGE) -> Iterator[Image]:
    """Yield `COUNT` pictures, BGR uint8 [height, width, 3], read-only. A seed always gives the same pictures."""
    for number, shot in enumerate(_SHOTS, seed):
        yield _draw(shot, number)


@lru_cache(maxsize=COUNT)  # a job that makes an int8 model asks for a set several times
def _draw(shot: _Shot, seed: int) -> Image:
    height, width, random = shot.height, shot.width, np.random.RandomState(seed)
    texture = _texture(random, height, width)
    canvas = np.repeat((0.5 + texture * _TEXTURE)[:, :, None], 3, axis=2)
    for _ in range(_LEAVES):
        _add_leaf(canvas, texture, random)
    canvas *= shot.exposure * _light(random, height, width)[:, :, None]
    canvas = _soften(canvas)
    canvas += (random.random_sample(canvas.shape) - 0.5) * _GRAIN
    pixels: Image = np.floor(np.clip(canvas, 0.0, 1.0) * 255 + 0.5).astype(np.uint8)
    pixels.flags.writeable = False
    return pixels


def _add_leaf(canvas: _Plane, texture: _Plane, random: np.random.RandomState) -> None:
    height, width = canvas.shape[:2]
    smallest, largest = (min(height, width) * part for part in _RADII)
    row, column, size, turn_x, turn_y, kind, long, shade, light, rough, *chroma = random.random_sample(13)
    # Inverse of the distribution whose density falls with the third power of the radius.
    radius = smallest / np.sqrt(1 - size * (1 - (smallest / largest) ** 2))
    y, x = row * height, column * width
    top, bottom = max(0, int(y - radius)), min(height, int(y + radius) + 1)
    left, right = max(0, int(x - radius)), min(width, int(x + radius) + 1)
    down, across = np.arange(top, bottom)[:, None] - y, np.arange(left, right)[None, :] - x
    length = np.sqrt((turn_x - 0.5) ** 2 + (turn_y - 0.5) ** 2) + 1e-9
    cosine, sine = (turn_x - 0.5) / length, (turn_y - 0.5) / length
    along, aside = (across * cosine + down * sine) / radius, (down * cosine - across * sine) / radius
    if kind < 0.5:
        inside = along * along + aside * aside <= 1
    else:  # a slab with its corners inside the circle
        inside = (np.abs(along) <= 0.9) & (np.abs(aside) <= 0.1 + 0.3 * long)
    value = 0.05 + 0.9 * shade * shade + along * (light - 0.5) * 0.3 * shade
    value = value + texture[top:bottom, left:right] * (rough * 2 * _TEXTURE)
    patch = canvas[top:bottom, left:right]
    for channel in range(3):
        colour = value * (1 + (chroma[channel] - 0.5) * 2 * _CHROMA)
        np.copyto(patch[:, :, channel], colour, where=inside)


def _light(random: np.random.RandomState, height: int, width: int) -> _Plane:
    """Return the light on each pixel, a factor that becomes smaller towards one side."""
    x, y = random.random_sample(2) - 0.5
    across, down = np.arange(width) / width - 0.5, np.arange(height) / height - 0.5
    light: _Plane = 1 + (across[None, :] * x + down[:, None] * y)
    return light


def _texture(random: np.random.RandomState, height: int, width: int) -> _Plane:
    """Return noise from about -1 to 1, with the same amplitude in every octave."""
    total = np.zeros((height, width))
    for step in _OCTAVES:
        grid = random.random_sample((height // step + 2, width // step + 2)) - 0.5
        total += _interpolate(_interpolate(grid, height, step).T, width, step).T
    return total


def _interpolate(grid: _Plane, length: int, step: int) -> _Plane:
    """Return `length` rows that are interpolated between the rows of a grid. The grid has every `step`-th row."""
    index = np.arange(length)
    below, part = index // step, ((index % step) / step)[:, None]
    rows: _Plane = grid[below] * (1 - part) + grid[below + 1] * part
    return rows


def _soften(canvas: _Plane) -> _Plane:
    """Soften edges like a lens: each pixel becomes the mean of itself and its neighbours below and to the right."""
    padded = np.pad(canvas, ((0, 1), (0, 1), (0, 0)), mode="edge")
    soft: _Plane = (padded[:-1, :-1] + padded[1:, :-1] + padded[:-1, 1:] + padded[1:, 1:]) / 4
    return soft
