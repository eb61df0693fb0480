"""A simulated camera. It draws coloured figures that move and bounce over a moving, noisy background, and returns their
ground truth.

The seed determines the pictures and their ground truth. So no picture files are needed, and the demo and the tests know
the right answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import cv2
import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]


_MARGIN = 0.25  # how far the window moves, as a fraction of the picture's size
_GRAINS = 96  # pixels by which the noise sheet is larger than the picture: enough to hide the repetition


@dataclass(frozen=True)
class Background:
    """A painted sheet that is larger than the picture, a sheet of noise, and the path of the window that moves across
    the painted sheet."""

    sheet: Pixels
    grain: Pixels
    colour: tuple[float, float, float]
    periods: tuple[float, float]
    phases: tuple[float, float]

    def window(self, frame: int, width: int, height: int) -> Pixels:
        """Return a new picture of the background at a frame, BGR uint8 [height, width, 3]."""
        room = (self.sheet.shape[1] - width, self.sheet.shape[0] - height)
        x, y = (
            round(free * (0.5 + 0.5 * math.sin(2 * math.pi * frame / period + phase)))
            for free, period, phase in zip(room, self.periods, self.phases, strict=True)
        )
        picture: Pixels = self.sheet[y : y + height, x : x + width].copy()
        return picture

    def add_grain(self, picture: Pixels, frame: int) -> None:
        """Add this frame's noise in place. The noise only brightens, because a saturating add is cheapest."""
        height, width = picture.shape[:2]
        # With co-prime strides, every offset is used before one repeats.
        x, y = frame * 37 % _GRAINS, frame * 53 % _GRAINS
        cv2.add(picture, self.grain[y : y + height, x : x + width], dst=picture)


def paint_background(rng: np.random.Generator, width: int, height: int) -> Background:
    """Paint a background for a picture of this size (pixels)."""
    wide, high = round(width * (1 + _MARGIN)), round(height * (1 + _MARGIN))
    colour = rng.uniform(50, 190, 3) * 0.5 + rng.uniform(50, 190) * 0.5
    sheet = np.clip(_texture(rng, wide, high) + colour.astype(np.float32), 0, 255).astype(np.uint8)
    _draw_clutter(rng, sheet, colour)
    strength = rng.uniform(2, 9)
    noise = rng.normal(2 * strength, strength, (height + _GRAINS, width + _GRAINS))
    grain = np.clip(noise, 0, 255).astype(np.uint8)
    blue, green, red = (float(c) for c in colour)
    return Background(
        sheet=sheet,
        grain=cv2.merge([grain, grain, grain]).astype(np.uint8, copy=False),
        colour=(blue, green, red),
        periods=(float(rng.uniform(150, 500)), float(rng.uniform(150, 500))),
        phases=(float(rng.uniform(0, 6.28)), float(rng.uniform(0, 6.28))),
    )


def _texture(rng: np.random.Generator, width: int, height: int) -> NDArray[np.float32]:
    """Return smooth noise at several scales, with values around zero: float32 [height, width, 3]."""
    total = np.zeros((height, width, 3), np.float32)
    for cells, strength in ((3, 22.0), (9, 14.0), (40, 9.0)):
        rows = max(2, cells * height // max(width, height))
        columns = max(2, cells * width // max(width, height))
        tint = rng.uniform(0.5, 1.0, 3)  # a different strength in each channel, so that clouds are not only grey
        coarse = (rng.normal(0, strength, (rows, columns, 1)) * tint).astype(np.float32)
        cv2.add(total, cv2.resize(coarse, (width, height), interpolation=cv2.INTER_LINEAR), dst=total)
    return total


def _draw_clutter(rng: np.random.Generator, sheet: Pixels, colour: NDArray[np.float64]) -> None:
    """Draw lines, bars and arcs: edges and corners that are not figures."""
    height, width = sheet.shape[:2]
    unit = min(width, height)
    for _ in range(int(rng.integers(0, 30))):
        x, y = float(rng.uniform(0, width)), float(rng.uniform(0, height))
        length, turn = unit * float(rng.uniform(0.05, 0.6)), float(rng.uniform(0, 2 * math.pi))
        ink = tuple(float(c) for c in np.clip(colour + rng.normal(0, 35, 3), 0, 255))
        thick = max(1, round(unit * float(rng.uniform(0.002, 0.014))))
        if rng.random() < 0.75:
            end = (round(x + length * math.cos(turn)), round(y + length * math.sin(turn)))
            cv2.line(sheet, (round(x), round(y)), end, ink, thick, cv2.LINE_AA)
        else:
            axes = (max(2, round(length)), max(2, round(length * float(rng.uniform(0.2, 0.9)))))
            first = math.degrees(turn)
            sweep = float(rng.uniform(40, 160))
            cv2.ellipse(sheet, (round(x), round(y)), axes, first, 0, sweep, ink, thick, cv2.LINE_AA)


PERIOD = 1024
"""A track runs backwards after this number of frames, which limits the memory and the time to compute any frame."""


@dataclass(frozen=True)
class Disc:
    """A disc: position and radius in pixels, velocity in pixels per frame."""

    x: float
    y: float
    vx: float
    vy: float
    radius: float


@dataclass(frozen=True)
class Track:
    """The discs of a scene at each frame. They move and bounce off the walls and each other. Frames are computed on
    demand and cached; they are deterministic."""

    start: tuple[Disc, ...]
    width: float
    height: float
    _known: list[tuple[Disc, ...]] = field(default_factory=list, repr=False, compare=False)

    def at(self, frame: int) -> tuple[Disc, ...]:
        """Return the discs at a frame, which may be any integer."""
        step = fold(frame)
        if not self._known:
            self._known.append(self.start)
        while len(self._known) <= step:
            self._known.append(advance(self._known[-1], self.width, self.height))
        return self._known[step]


def fold(frame: int) -> int:
    """Map any frame number to 0..PERIOD, alternately forwards and backwards, so that motion has no jump."""
    place = frame % (2 * PERIOD)
    return min(place, 2 * PERIOD - place)


def advance(discs: tuple[Disc, ...], width: float, height: float) -> tuple[Disc, ...]:
    """Return the discs one frame later: all are inside the walls, and discs that met have bounced."""
    moved = [Disc(d.x + d.vx, d.y + d.vy, d.vx, d.vy, d.radius) for d in discs]
    for i in range(len(moved)):
        for j in range(i + 1, len(moved)):
            moved[i], moved[j] = _bounce(moved[i], moved[j])
    return tuple(_inside(d, width, height) for d in moved)


def _bounce(a: Disc, b: Disc) -> tuple[Disc, Disc]:
    dx, dy = b.x - a.x, b.y - a.y
    reach = a.radius + b.radius
    distance = math.hypot(dx, dy)
    if distance >= reach:
        return a, b
    nx, ny = (dx / distance, dy / distance) if distance else (1.0, 0.0)
    push = (reach - distance) / 2
    # Equal masses exchange the velocity along the line between them, unless they already move apart.
    closing = max((a.vx - b.vx) * nx + (a.vy - b.vy) * ny, 0.0)
    return (
        Disc(a.x - nx * push, a.y - ny * push, a.vx - closing * nx, a.vy - closing * ny, a.radius),
        Disc(b.x + nx * push, b.y + ny * push, b.vx + closing * nx, b.vy + closing * ny, b.radius),
    )


def _inside(d: Disc, width: float, height: float) -> Disc:
    x, vx = _wall(d.x, d.vx, d.radius, width - d.radius)
    y, vy = _wall(d.y, d.vy, d.radius, height - d.radius)
    return Disc(x, y, vx, vy, d.radius)


def _wall(at: float, speed: float, low: float, high: float) -> tuple[float, float]:
    if at < low:
        return low, abs(speed)
    if at > high:
        return high, -abs(speed)
    return at, speed


CLASSES: tuple[str, ...] = ("circle", "square", "triangle", "star", "cross")
"""Class names; the index is the class id, in the pictures and in the detector's output."""

_CROSS_ARM = 0.36  # half the width of an arm: still visible after a letterbox from 720p to 320
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


_OUTLINES = {
    "circle": _regular(48),
    "square": _regular(4),
    "triangle": _regular(3),
    "star": _star(),
    "cross": _cross(),
}


def outline(class_id: int, x: float, y: float, radius: float, angle: float) -> NDArray[np.float64]:
    """Return the corners of a figure, float64 [corners, 2], in pixels; the middle of the first pixel is (0, 0).

    `radius` (pixels) is the radius of the circle around the figure, `angle` is in radians.
    """
    sine, cosine = math.sin(angle), math.cos(angle)
    turned: NDArray[np.float64] = _OUTLINES[CLASSES[class_id]] @ np.array([[cosine, sine], [-sine, cosine]])
    return turned * radius + (x, y)


MIN_SIDE = 64
MAX_SHAPES = 12

_Colour = tuple[float, float, float]

_SUBPIXEL = 4  # fractional bits of corners for OpenCV, so that figures move smoothly
_RADIUS = (0.075, 0.18)  # of the smaller side: 27 to 65 pixels across when 1280x720 becomes 320x180
_COVERED = 0.28  # the discs' largest share of the picture, so that they can be placed and can move
_RIM = 0.84  # size of the fill relative to the rim
_CONTRAST = 95.0  # least distance in BGR between a figure's fill and the background's mean
_RIM_CONTRAST = 70.0  # the same for the rim, whose tips would vanish otherwise
_BLEED = 0.5  # pixels by which OpenCV's smooth edges extend beyond the given corners


@dataclass(frozen=True)
class Truth:
    """One figure in a picture: its class and its tight box.

    Edges are in (fractional) pixels: a figure that covers the whole picture has 0, 0, width, height.
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
    """One simulated camera. Its pictures have width x height pixels and show `shapes` moving figures. Raises ValueError
    if a value is out of range.

    A scene caches its background and the motion of its figures, so use it from one thread at a time.
    """

    seed: int
    width: int = 640
    height: int = 480
    shapes: int = 5

    def __post_init__(self) -> None:
        if min(self.width, self.height) < MIN_SIDE:
            raise ValueError(f"scene of {self.width}x{self.height} is too small: the least side is {MIN_SIDE} pixels")
        if not 0 <= self.shapes <= MAX_SHAPES:
            raise ValueError(f"scene of {self.shapes} shapes cannot be drawn: give 0 to {MAX_SHAPES}")

    def frame(self, index: int) -> tuple[NDArray[np.uint8], list[Truth]]:
        """Return picture `index`, a new array BGR uint8 [height, width, 3], and its ground truth."""
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
        # Shuffled rounds of all classes, so that five figures show five classes.
        order = [int(c) for _ in range(0, MAX_SHAPES, len(CLASSES)) for c in rng.permutation(len(CLASSES))]
        return tuple(_dress(rng, class_id, self._background.colour) for class_id in order[: self.shapes])


def _place(rng: np.random.Generator, width: int, height: int, count: int) -> tuple[Disc, ...]:
    """Return random discs. They touch only if 200 tries find no free place. If together they would cover more than
    `_COVERED` of the picture, all are made smaller."""
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
        rim = other  # dark and light differ strongly, so the other is visible
    return _Figure(
        class_id=class_id,
        fill=(float(fill[0]), float(fill[1]), float(fill[2])),
        rim=(float(rim[0]), float(rim[1]), float(rim[2])),
        angle=float(rng.uniform(0, 2 * math.pi)),
        spin=float(rng.uniform(-0.04, 0.04)),
    )


def _draw(picture: NDArray[np.uint8], figure: _Figure, disc: Disc, angle: float) -> Truth:
    # A disc's coordinates count from the picture's edge, OpenCV's from the middle of the first pixel.
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
