"""The background of a drawn scene: a painted sheet larger than the picture, across which a window moves."""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

_MARGIN = 0.25  # how far the window moves, as a fraction of the picture's size
_GRAINS = 96  # the noise sheet is this much larger than the picture: enough to hide the repetition


@dataclass(frozen=True)
class Background:
    """A painted sheet, its noise, and the window's path."""

    sheet: Pixels
    grain: Pixels
    colour: tuple[float, float, float]
    periods: tuple[float, float]
    phases: tuple[float, float]

    def window(self, frame: int, width: int, height: int) -> Pixels:
        """A new uint8 [height, width, 3] BGR picture of the background at a frame."""
        room = (self.sheet.shape[1] - width, self.sheet.shape[0] - height)
        x, y = (
            round(free * (0.5 + 0.5 * math.sin(2 * math.pi * frame / period + phase)))
            for free, period, phase in zip(room, self.periods, self.phases, strict=True)
        )
        picture: Pixels = self.sheet[y : y + height, x : x + width].copy()
        return picture

    def add_grain(self, picture: Pixels, frame: int) -> None:
        """Adds this frame's noise in place; it is never below zero, because a saturating add is cheapest."""
        height, width = picture.shape[:2]
        # Two co-prime strides visit every offset before repeating.
        x, y = frame * 37 % _GRAINS, frame * 53 % _GRAINS
        cv2.add(picture, self.grain[y : y + height, x : x + width], dst=picture)


def paint_background(rng: np.random.Generator, width: int, height: int) -> Background:
    """Paints a background for a picture of this size (pixels)."""
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
    """Smooth noise at several scales, float32 [height, width, 3] around zero."""
    total = np.zeros((height, width, 3), np.float32)
    for cells, strength in ((3, 22.0), (9, 14.0), (40, 9.0)):
        rows = max(2, cells * height // max(width, height))
        columns = max(2, cells * width // max(width, height))
        tint = rng.uniform(0.5, 1.0, 3)  # different strength in each channel: not just grey clouds
        coarse = (rng.normal(0, strength, (rows, columns, 1)) * tint).astype(np.float32)
        cv2.add(total, cv2.resize(coarse, (width, height), interpolation=cv2.INTER_LINEAR), dst=total)
    return total


def _draw_clutter(rng: np.random.Generator, sheet: Pixels, colour: NDArray[np.float64]) -> None:
    """Lines, bars and arcs: edges and corners everywhere, none of them a figure."""
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
