"""Outlines of the figures that a drawn camera shows, as polygons on the unit circle."""

from __future__ import annotations

import math
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

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
