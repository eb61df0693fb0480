"""Statistics of a picture: light, colour, contrast and layout. The statistics show when a camera's pictures change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from edged.vision.image import Image

STEPS = 16  # number of steps in the histogram of brightness
_COLUMNS, _ROWS = 12, 8  # of the layout
_SCALE = 16  # pixels along the side of a cell in the reduced picture; the reduction removes noise


class PictureStatistics(msgspec.Struct, frozen=True):
    """Statistics of one picture.

    `light` has the share of pixels in each of `STEPS` equal steps of brightness, from dark to bright. `contrast` is the
    standard deviation of the brightness, in levels of 0 to 255. `colour` has two numbers: how many levels blue is above
    green on average, and how many levels red is above green. `layout` has the mean brightness, 0 to 255, of each cell
    of a grid of 12 columns and 8 rows, row by row.
    """

    light: tuple[float, ...]
    contrast: float
    layout: tuple[float, ...]
    colour: tuple[float, float] = (0.0, 0.0)

    @property
    def brightness(self) -> float:
        """The mean brightness, 0 to 255."""
        return sum(self.layout) / len(self.layout)


def measure(picture: Image) -> PictureStatistics:
    """Return the statistics of a picture, BGR uint8 [height, width, 3]."""
    import cv2  # imported here, because the daemon does not need OpenCV

    small = cv2.resize(picture, (_COLUMNS * _SCALE, _ROWS * _SCALE), interpolation=cv2.INTER_AREA)
    grey = cv2.cvtColor(small, cv2.COLOR_BGR2GRAY)
    counts = np.bincount(grey.ravel() // (256 // STEPS), minlength=STEPS)
    cells = cv2.resize(grey.astype(np.float32), (_COLUMNS, _ROWS), interpolation=cv2.INTER_AREA)
    blue, green, red, _ = cv2.mean(small)
    return PictureStatistics(
        light=tuple(round(each, 4) for each in (counts / grey.size).tolist()),
        contrast=round(float(grey.std()), 2),
        layout=tuple(round(each, 1) for each in cells.ravel().tolist()),
        colour=(round(blue - green, 1), round(red - green, 1)),
    )
