"""A tilted rectangle of a picture, which a model gets upright, and the mapping of points in both directions.

Coordinates are continuous, in pixels of the picture as sent: 0 is the left edge of the first pixel.
"""

from __future__ import annotations

import math
from typing import TypeAlias, cast

import msgspec
import numpy as np
import numpy.typing as npt

Corner: TypeAlias = tuple[float, float]
# Top left, top right, bottom right and bottom left of the upright rectangle.
Corners: TypeAlias = tuple[Corner, Corner, Corner, Corner]

_Points: TypeAlias = npt.NDArray[np.float32]


class TiltedWindow(msgspec.Struct, frozen=True):
    """A tilted rectangle of a picture. The model gets the rectangle upright.

    The upright window has `width` x `height` pixels. The upper left corner of the window is at `left`, `top` in the
    picture. One pixel to the right in the window is a step of `right` (x, y) in the picture; one pixel down is a step
    of `down`. `picture` is the width and height of the picture, to which answers are clipped.
    """

    left: float
    top: float
    right: Corner
    down: Corner
    width: int
    height: int
    picture: tuple[int, int]

    @classmethod
    def of(cls, corners: Corners, width: int, height: int) -> TiltedWindow:
        """Return the window of a rectangle in a picture of width x height; a side has at least one pixel. The bottom
        right corner is ignored, because the other three determine the rectangle."""
        (x, y), top_right, _, bottom_left = corners
        across, along = math.dist((x, y), top_right), math.dist((x, y), bottom_left)
        shown_w, shown_h = max(1, round(across)), max(1, round(along))
        right = ((top_right[0] - x) / shown_w, (top_right[1] - y) / shown_w)
        down = ((bottom_left[0] - x) / shown_h, (bottom_left[1] - y) / shown_h)
        return cls(x, y, right, down, shown_w, shown_h, (width, height))

    @property
    def turned(self) -> tuple[int, int]:
        """(width, height) of the upright window."""
        return self.width, self.height

    @property
    def fitted(self) -> tuple[int, int]:
        """(width, height) of the part that is fitted into the input: all of the window."""
        return self.width, self.height

    @property
    def region(self) -> tuple[int, int, int, int]:
        """x1, y1, x2, y2 of the smallest axis-aligned part of the picture that contains the window."""
        corners = np.array(((0, 0), (self.width, 0), (0, self.height), (self.width, self.height)), np.float32)
        low, high = self.to_picture(corners).min(axis=0), self.to_picture(corners).max(axis=0)
        (x1, y1), (x2, y2) = np.floor(low).astype(int).tolist(), np.ceil(high).astype(int).tolist()
        width, height = self.picture
        return max(0, x1), max(0, y1), min(width, x2), min(height, y2)

    def middle(self, shape: tuple[int, int], zoom: float) -> TiltedWindow:
        """Return the centre of the window with the aspect ratio of `shape` (width, height); a `zoom` above 1 shows
        less, as in `placement.center_region`."""
        side = min(self.width / shape[0], self.height / shape[1]) / max(zoom, 1.0)  # picture pixels per input pixel
        width, height = max(1, round(shape[0] * side)), max(1, round(shape[1] * side))
        across, along = (self.width - width) // 2, (self.height - height) // 2
        left = self.left + across * self.right[0] + along * self.down[0]
        top = self.top + across * self.right[1] + along * self.down[1]
        return msgspec.structs.replace(self, left=left, top=top, width=width, height=height)

    def to_picture(self, points: _Points) -> _Points:
        """Convert points x, y, float32 [..., 2], from the upright window to the picture. Return a new array, not
        clipped."""
        axes = np.array((self.right, self.down), np.float32)
        found: _Points = points @ axes + np.array((self.left, self.top), np.float32)
        return found

    def from_picture(self) -> npt.NDArray[np.float64]:
        """Return the inverse of `to_picture` as an affine matrix [2, 3]: x, y of the window = matrix @ (x, y, 1)."""
        inverse = np.linalg.inv(np.array((self.right, self.down), np.float64).T)
        shift = inverse @ np.array((self.left, self.top), np.float64)
        return np.concatenate((inverse, -shift[:, None]), axis=1)

    def boxes_to_picture(self, boxes: _Points) -> _Points:
        """Convert boxes xyxy, float32 [n, 4], in the upright window to the smallest axis-aligned boxes in the picture
        that contain these boxes. Return a new array, clipped to the picture. An inverted or empty box stays empty."""
        x1, y1, x2, y2 = boxes.T
        corners = self.to_picture(np.stack((x1, y1, x2, y1, x2, y2, x1, y2), axis=1).reshape(-1, 4, 2))
        width, height = self.picture
        limit = np.array((width, height), np.float32)
        low, high = np.clip(corners.min(axis=1), 0, limit), np.clip(corners.max(axis=1), 0, limit)
        is_empty = ((x2 <= x1) | (y2 <= y1))[:, None]
        return np.concatenate((low, np.where(is_empty, low, high)), axis=1, dtype=np.float32)

    def sampling(self, step: int = 1) -> npt.NDArray[np.float64]:
        """Return the affine matrix [2, 3] from indices of the window's pixels to those of a picture that was decoded at
        1/step of its size. The centre of pixel i is at i + 0.5."""
        axes = np.array((self.right, self.down), np.float64).T
        shift = np.array((self.left, self.top)) + axes @ (0.5, 0.5)
        return np.concatenate((axes / step, (shift / step - 0.5)[:, None]), axis=1)


def upright(corners: npt.NDArray[np.float32], rotation: int = 0) -> Corners:
    """Return the corners of a tilted rectangle clockwise from its top left. `corners` [4, 2] are in order around the
    rectangle, in either direction.

    "Top left" refers to the picture after a clockwise turn by `rotation`, which is 0, 90, 180 or 270 degrees; the
    returned coordinates are those before this turn. The top of the rectangle is the side that is the most nearly
    horizontal and has the inside of the rectangle below it. So the rectangle is turned by at most 45 degrees more, and
    text in the rectangle stays as readable as in the turned picture. The result does not depend on which corner comes
    first in `corners`.
    """
    turn = {0: (1, 0), 90: (0, 1), 180: (-1, 0), 270: (0, -1)}[rotation]
    cos, sin = turn
    shown = corners.astype(np.float64) @ np.array(((cos, sin), (-sin, cos)), np.float64)
    area = np.sum(shown[:, 0] * np.roll(shown[:, 1], -1) - np.roll(shown[:, 0], -1) * shown[:, 1])
    order = [0, 1, 2, 3] if area >= 0 else [0, 3, 2, 1]  # y points down: a positive area is clockwise
    sides = np.roll(shown[order], -1, axis=0) - shown[order]
    start = int(np.argmax(sides[:, 0] / np.maximum(np.linalg.norm(sides, axis=1), 1e-9)))
    chosen = corners[np.roll(order, -start)].tolist()
    return cast(Corners, tuple((float(x), float(y)) for x, y in chosen))
