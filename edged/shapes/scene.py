"""A drawn camera: coloured figures that move and bounce over a moving, noisy background, with ground truth.

Everything follows from the seed: pictures need no files, and the demo and tests know the right answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import cv2
import numpy as np
from numpy.typing import NDArray

from edged.shapes.background import Background, paint_background
from edged.shapes.motion import Disc, Track, fold

CLASSES: tuple[str, ...] = ("circle", "square", "triangle", "star", "cross")
"""Class names; the index is the class id, in the pictures and in the detector's output."""

_CROSS_ARM = 0.36  # half the width of an arm: wide enough to survive a letterbox from 720p to 320
_STAR_INNER = 0.45


def _regular(corners: int) -> NDArray[np.float64]:
    turn = np.arange(corners) * (2 * math.pi / corners)
    return np.stack([np.cos(turn), np.sin(turn)], axis=1)


def _star() -> NDArray[np.float64]:
    points = _regular(10)
    points[1::2] *= _STAR_INNER
    return points


def _cross() -> NDArray[np.float64]:
    a, b = _CROSS_ARM, math.sqrt(1 - _CROSS_ARM**2)
    corner = [(b, -a), (b, a), (a, a), (a, b), (-a, b), (-a, a)]
    corner += [(-b, a), (-b, -a), (-a, -a), (-a, -b), (a, -b), (a, -a)]
    return np.array(corner)


_OUTLINES = MappingProxyType(
    {
        "circle": _regular(48),
        "square": _regular(4),
        "triangle": _regular(3),
        "star": _star(),
        "cross": _cross(),
    }
)


def outline(class_id: int, x: float, y: float, radius: float, angle: float) -> NDArray[np.float64]:
    """Corners of one figure, float64 [corners, 2], in pixels where the first pixel's middle is (0, 0).

    `radius` (pixels) is that of the circle around the figure, `angle` is in radians.
    """
    sine, cosine = math.sin(angle), math.cos(angle)
    turned: NDArray[np.float64] = _OUTLINES[CLASSES[class_id]] @ np.array([[cosine, sine], [-sine, cosine]])
    return turned * radius + (x, y)


MIN_SIDE = 64
MAX_SHAPES = 12

_Colour = tuple[float, float, float]

_SUBPIXEL = 4  # fractional bits of a corner given to OpenCV: figures glide instead of stepping
_RADIUS = (0.075, 0.18)  # of the smaller side: 27 to 65 pixels across when 1280x720 becomes 320x180
_COVERED = 0.28  # the discs' share of the picture at most: there is room to place and to move them
_RIM = 0.84  # size of the fill inside its rim
_CONTRAST = 95.0  # least distance in BGR between a figure's fill and the background's mean
_RIM_CONTRAST = 70.0  # the same for its rim, whose tips would vanish otherwise
_BLEED = 0.5  # pixels by which OpenCV's smooth edges reach beyond the corners they are given


@dataclass(frozen=True)
class Truth:
    """One figure in a picture: its class and its tight box.

    Edges in (fractional) pixels: a figure that covers the whole picture has 0, 0, width, height.
    """

    class_id: int
    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True)
class _Figure:
    class_id: int
    fill: _Colour
    rim: _Colour
    angle: float
    spin: float  # radians per frame


@dataclass(frozen=True)
class Scene:
    """What one drawn camera sees: `shapes` figures in pictures of width x height pixels. ValueError outside the limits.

    A scene caches its background and the motion of its figures: use it from one thread at a time.
    """

    seed: int
    width: int = 640
    height: int = 480
    shapes: int = 5

    def __post_init__(self) -> None:
        if min(self.width, self.height) < MIN_SIDE:
            raise ValueError(f"scene of {self.width}x{self.height} is too small: each side needs {MIN_SIDE} pixels")
        if not 0 <= self.shapes <= MAX_SHAPES:
            raise ValueError(f"scene of {self.shapes} shapes cannot be drawn: 0 to {MAX_SHAPES} fit")

    def frame(self, index: int) -> tuple[NDArray[np.uint8], list[Truth]]:
        """Picture `index`, a new array uint8 [height, width, 3] BGR, and its ground truth."""
        picture = self._background.window(index, self.width, self.height)
        truths = [
            _draw(picture, figure, disc, figure.angle + figure.spin * fold(index))
            for figure, disc in zip(self._figures, self._track.at(index), strict=True)
        ]
        self._background.add_grain(picture, index)
        return picture, truths

    @cached_property
    def _background(self) -> Background:
        return paint_background(np.random.default_rng((self.seed, 0)), self.width, self.height)

    @cached_property
    def _track(self) -> Track:
        rng = np.random.default_rng((self.seed, 1))
        return Track(_place(rng, self.width, self.height, self.shapes), self.width, self.height)

    @cached_property
    def _figures(self) -> tuple[_Figure, ...]:
        rng = np.random.default_rng((self.seed, 2))
        # A shuffled round of the classes, so that five figures show five classes.
        order = [int(c) for _ in range(0, MAX_SHAPES, len(CLASSES)) for c in rng.permutation(len(CLASSES))]
        return tuple(_dress(rng, class_id, self._background.colour) for class_id in order[: self.shapes])


def _place(rng: np.random.Generator, width: int, height: int, count: int) -> tuple[Disc, ...]:
    """Random discs that do not touch; all shrink together if they would cover too much."""
    unit = min(width, height)
    radii = rng.uniform(*_RADIUS, count) * unit
    covered = float(np.sum(math.pi * radii**2)) / (width * height)
    radii *= min(1.0, math.sqrt(_COVERED / max(covered, 1e-9)))
    placed: list[Disc] = []
    for radius in sorted((float(r) for r in radii), reverse=True):
        for _ in range(200):
            x, y = float(rng.uniform(radius, width - radius)), float(rng.uniform(radius, height - radius))
            if all(math.hypot(x - d.x, y - d.y) > radius + d.radius for d in placed):
                break
        heading, speed = float(rng.uniform(0, 2 * math.pi)), unit * float(rng.uniform(0.003, 0.012))
        placed.append(Disc(x, y, speed * math.cos(heading), speed * math.sin(heading), radius))
    return tuple(placed)


def _dress(rng: np.random.Generator, class_id: int, behind: _Colour) -> _Figure:
    """Choose colours that stand out from the background, and a rotation."""
    fill = rng.uniform(0, 255, 3)
    while float(np.linalg.norm(fill - np.array(behind))) < _CONTRAST:
        fill = rng.uniform(0, 255, 3)
    dark, light = fill * 0.45, fill * 0.4 + 153
    rim, other = (dark, light) if rng.random() < 0.6 else (light, dark)
    if float(np.linalg.norm(rim - np.array(behind))) < _RIM_CONTRAST:
        rim = other  # the two are far apart, so this one is seen
    return _Figure(
        class_id=class_id,
        fill=(float(fill[0]), float(fill[1]), float(fill[2])),
        rim=(float(rim[0]), float(rim[1]), float(rim[2])),
        angle=float(rng.uniform(0, 2 * math.pi)),
        spin=float(rng.uniform(-0.04, 0.04)),
    )


def _draw(picture: NDArray[np.uint8], figure: _Figure, disc: Disc, angle: float) -> Truth:
    # A disc's edges run from 0 to the picture's size; OpenCV counts from the middle of the first pixel.
    x, y = disc.x - 0.5, disc.y - 0.5
    for part, colour in ((1.0, figure.rim), (_RIM, figure.fill)):
        _fill(picture, outline(figure.class_id, x, y, disc.radius * part - _BLEED, angle), colour)
    height, width = picture.shape[:2]
    corners = outline(figure.class_id, x, y, disc.radius, angle) + 0.5
    (left, top), (right, bottom) = corners.min(axis=0), corners.max(axis=0)
    return Truth(
        figure.class_id,
        max(0.0, float(left)),
        max(0.0, float(top)),
        min(float(width), float(right)),
        min(float(height), float(bottom)),
    )


def _fill(picture: NDArray[np.uint8], corners: NDArray[np.float64], colour: _Colour) -> None:
    fixed = np.rint(corners * (1 << _SUBPIXEL)).astype(np.int32)
    cv2.fillPoly(picture, [fixed], colour, cv2.LINE_AA, _SUBPIXEL)
