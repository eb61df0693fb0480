"""The part of a picture that is fitted into an input when it is not all of it, upright and at full scale.

Three frames of coordinates, all in pixels of the picture as sent: the picture; the *window*, which is what is cut out
of it; and the window *turned*, which is what the model is shown. All are continuous, as boxes are: 0 is the left edge
of the first pixel.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from edged.errors import InvalidInput
from edged.vision.view import Region, View

Points = npt.NDArray[np.float32]

# x, y of the picture = x, y of the turned window (y, x after a quarter turn) times these signs, counted from the edge
# of the window where they begin.
_SIGNS = {0: (1, 1), 90: (1, -1), 180: (-1, -1), 270: (-1, 1)}


class Window(msgspec.Struct, frozen=True):
    """What was cut out and how it was turned.

    `left`, `top`, `width` and `height` are what the model is shown; `region` (x1, y1, x2, y2) is what was asked for,
    which can be some pixels less: where a JPEG was decoded at a reduced scale only whole pixels of that can be cut out.
    Answers are clipped to `region`. `rotation` is 0, 90, 180 or 270 degrees clockwise.
    """

    left: int
    top: int
    width: int
    height: int
    region: tuple[int, int, int, int]
    rotation: int = 0

    @property
    def is_sideways(self) -> bool:
        return self.rotation in (90, 270)

    @property
    def turned(self) -> tuple[int, int]:
        """(width, height) after turning."""
        return (self.height, self.width) if self.is_sideways else (self.width, self.height)

    def to_picture(self, points: Points) -> Points:
        """x, y [..., 2] of the turned window, float32, to the picture; a new array, not clipped."""
        sign_x, sign_y = _SIGNS[self.rotation]
        ordered = points[..., ::-1] if self.is_sideways else points
        found: Points = ordered * np.array((sign_x, sign_y), np.float32) + np.array(self._far, np.float32)
        return found

    def from_picture(self) -> npt.NDArray[np.float64]:
        """The other way round as an affine matrix [2, 3]: x, y of the turned window = matrix @ (x, y, 1)."""
        sign_x, sign_y = _SIGNS[self.rotation]
        far_x, far_y = self._far
        rows = np.array(((sign_x, 0, -sign_x * far_x), (0, sign_y, -sign_y * far_y)), np.float64)
        return rows[::-1] if self.is_sideways else rows

    @property
    def _far(self) -> tuple[int, int]:
        """The edges of the window that x and y of the turned window count from."""
        sign_x, sign_y = _SIGNS[self.rotation]
        return self.left + (self.width if sign_x < 0 else 0), self.top + (self.height if sign_y < 0 else 0)

    def boxes_to_picture(self, boxes: Points) -> Points:
        """xyxy [n, 4] of the turned window, float32, to the picture, clipped to the region; a new array."""
        corners = self.to_picture(boxes.reshape(-1, 2, 2))
        x1, y1, x2, y2 = self.region
        low, high = np.array((x1, y1), np.float32), np.array((x2, y2), np.float32)
        first, second = corners[:, 0], corners[:, 1]
        # A turn swaps which corner comes first on an axis. It is undone by the turn, not by sorting, so that a box
        # that is inside out stays so and is seen to have no area.
        swapped = np.array(_SIGNS[self.rotation]) < 0
        upper, lower = np.where(swapped, second, first), np.where(swapped, first, second)
        found: Points = np.concatenate((np.clip(upper, low, high), np.clip(lower, low, high)), axis=1, dtype=np.float32)
        return found


def window_of(view: View | None, width: int, height: int, step: int = 1) -> Window | None:
    """The window that shows what `view` wants of a picture of width x height, of which one pixel in `step` is there.

    None where that is all of it as it is. InvalidInput for a region outside of the picture or an impossible rotation.
    """
    view = view or View()
    if view.rotation not in _SIGNS:
        raise InvalidInput(f"a rotation of {view.rotation} degrees is not possible; give 0, 90, 180 or 270")
    x1, y1, x2, y2 = region = _cut(view.region, width, height)
    left, top = x1 // step * step, y1 // step * step
    shown_w, shown_h = -(-x2 // step) * step - left, -(-y2 // step) * step - top
    if (left, top, shown_w, shown_h, view.rotation) == (0, 0, width, height, 0):
        return None
    return Window(left, top, shown_w, shown_h, region, view.rotation)


def _cut(region: Region | None, width: int, height: int) -> tuple[int, int, int, int]:
    """x1, y1, x2, y2 of what lies inside the picture."""
    if region is None:
        return 0, 0, width, height
    x1, y1 = max(0, region.x), max(0, region.y)
    x2 = min(width, region.x + region.width) if region.width else width
    y2 = min(height, region.y + region.height) if region.height else height
    if x1 >= x2 or y1 >= y2 or region.width < 0 or region.height < 0:
        what = f"x {region.x}, y {region.y}, width {region.width}, height {region.height}"
        raise InvalidInput(f"the region ({what}) holds nothing of a picture of {width}x{height} pixels; move it inside")
    return x1, y1, x2, y2
