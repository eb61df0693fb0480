"""Selects the part of a picture that a model gets, places this part in the input, and maps boxes to the picture.

The rounding is that of the exporters' own tools, so that answers agree with theirs to the pixel:

- `letterbox` follows Ultralytics' `LetterBox`: centred, Python's half-to-even `round`, the odd pixel of padding to the
  right and bottom.
- `top_left` follows YOLOX's `preproc`: the picture is in the corner, its size is truncated.
- `center_crop` follows torchvision's resize of the shorter side and center crop. edged crops first and then resizes,
  with the same result to within a pixel.
- `line` follows PaddleOCR's `resize_norm_img`: the picture is as high as the input and at the left, its width is
  rounded up. A picture that is too wide is squeezed.

There are three coordinate systems, all in pixels of the picture as sent: of the picture, of the *window* that is cut
out of the picture, and of the *turned* window, which the model gets. All are continuous: 0 is the left edge of the
first pixel.
"""

from __future__ import annotations

import enum
import math

import msgspec
import numpy as np
import numpy.typing as npt

from edged.errors import InvalidInput
from edged.vision.tilted import Corners, TiltedWindow

Boxes = npt.NDArray[np.float32]
Points = npt.NDArray[np.float32]


class Region(msgspec.Struct, frozen=True, array_like=True):
    """Part of a picture, in pixels of the picture as sent; a width or height of 0 extends to the edge."""

    x: int = 0
    y: int = 0
    width: int = 0
    height: int = 0


class Roi(msgspec.Struct, frozen=True, array_like=True):
    """Region of interest. `region` is None for the whole picture. `rotation` is 0, 90, 180 or 270 degrees clockwise.
    `corners` are those of a tilted rectangle, which replaces `region` and is turned upright (see `TiltedWindow`)."""

    region: Region | None = None
    rotation: int = 0
    corners: Corners | None = None


# The signs for each rotation in "picture (x, y) = signs * turned window (x, y) + `_far`". For rotations of 90 and 270
# degrees, the turned window's (y, x) replaces (x, y).
_SIGNS = {0: (1, 1), 90: (1, -1), 180: (-1, -1), 270: (-1, 1)}


class CropWindow(msgspec.Struct, frozen=True):
    """The part of a picture that is cut out, and its rotation.

    `left`, `top`, `width` and `height` are the part that the model gets. `region` (x1, y1, x2, y2) is the requested
    part, which can be a few pixels smaller: only whole pixels can be cut out of a JPEG that was decoded at a reduced
    scale. Answers are clipped to `region`. `rotation` is 0, 90, 180 or 270 degrees clockwise.
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
        """(width, height) of the window after turning."""
        return (self.height, self.width) if self.is_sideways else (self.width, self.height)

    @property
    def fitted(self) -> tuple[int, int]:
        """(width, height) of the region after turning: the size of the picture that is fitted into the input."""
        x1, y1, x2, y2 = self.region
        return (y2 - y1, x2 - x1) if self.is_sideways else (x2 - x1, y2 - y1)

    def to_picture(self, points: Points) -> Points:
        """Convert points x, y, float32 [..., 2], from the turned window to the picture. Return a new array, not
        clipped."""
        sign_x, sign_y = _SIGNS[self.rotation]
        ordered = points[..., ::-1] if self.is_sideways else points
        return ordered * np.array((sign_x, sign_y), np.float32) + np.array(self._far, np.float32)

    def from_picture(self) -> npt.NDArray[np.float64]:
        """Return the inverse of `to_picture` as an affine matrix [2, 3]: x, y of the turned window = matrix @ (x, y,
        1)."""
        sign_x, sign_y = _SIGNS[self.rotation]
        far_x, far_y = self._far
        rows = np.array(((sign_x, 0, -sign_x * far_x), (0, sign_y, -sign_y * far_y)), np.float64)
        return rows[::-1] if self.is_sideways else rows

    @property
    def _far(self) -> tuple[int, int]:
        """The upper left corner of the turned window, as (x, y) in the picture."""
        sign_x, sign_y = _SIGNS[self.rotation]
        return self.left + (self.width if sign_x < 0 else 0), self.top + (self.height if sign_y < 0 else 0)

    def boxes_to_picture(self, boxes: Points) -> Points:
        """Convert boxes xyxy, float32 [n, 4], from the turned window to the picture. Return a new array, clipped to the
        region."""
        corners = self.to_picture(boxes.reshape(-1, 2, 2))
        x1, y1, x2, y2 = self.region
        low, high = np.array((x1, y1), np.float32), np.array((x2, y2), np.float32)
        first, second = corners[:, 0], corners[:, 1]
        # A rotation can swap the order of the corners on an axis. The order is restored from the rotation, not by
        # sorting, so that an inverted box stays inverted and counts as empty.
        swapped = np.array(_SIGNS[self.rotation]) < 0
        upper, lower = np.where(swapped, second, first), np.where(swapped, first, second)
        return np.concatenate((np.clip(upper, low, high), np.clip(lower, low, high)), axis=1, dtype=np.float32)


def crop_window(roi: Roi | None, width: int, height: int, step: int = 1) -> CropWindow | None:
    """Return the window for `roi` in a picture of width x height that is decoded at 1/step of its size; None for the
    whole picture without rotation. Raises InvalidInput if the region is outside the picture or the rotation is
    invalid."""
    roi = roi or Roi()
    if roi.rotation not in _SIGNS:
        raise InvalidInput(f"a rotation of {roi.rotation} degrees is invalid; give 0, 90, 180 or 270")
    x1, y1, x2, y2 = region = _cut(roi.region, width, height)
    left, top = x1 // step * step, y1 // step * step
    shown_w, shown_h = -(-x2 // step) * step - left, -(-y2 // step) * step - top
    if (left, top, shown_w, shown_h, roi.rotation) == (0, 0, width, height, 0):
        return None
    return CropWindow(left, top, shown_w, shown_h, region, roi.rotation)


def _cut(region: Region | None, width: int, height: int) -> tuple[int, int, int, int]:
    """Return x1, y1, x2, y2 of the part of a region that is inside the picture."""
    if region is None:
        return 0, 0, width, height
    x1, y1 = max(0, region.x), max(0, region.y)
    x2 = min(width, region.x + region.width) if region.width else width
    y2 = min(height, region.y + region.height) if region.height else height
    if x1 >= x2 or y1 >= y2 or region.width < 0 or region.height < 0:
        what = f"x {region.x}, y {region.y}, width {region.width}, height {region.height}"
        raise InvalidInput(f"the region ({what}) is outside the picture of {width}x{height} pixels; move it inside")
    return x1, y1, x2, y2


class Fit(enum.Enum):
    """How a picture is fitted into an input of another aspect ratio."""

    LETTERBOX = "letterbox"
    STRETCH = "stretch"
    TOP_LEFT = "top_left"
    CENTER_CROP = "center_crop"
    LINE = "line"


class Placement(msgspec.Struct, frozen=True):
    """Where a picture of width x height pixels is placed in an input.

    Scales are input pixels per picture pixel, exactly those of the resize. Pads are the input pixels left of and above
    the picture. So input = picture * scale + pad. If the model gets only a part of the picture, or the picture rotated,
    `window` is this part, and "picture" in the formula means the turned window.
    """

    scale_x: float
    scale_y: float
    pad_x: int
    pad_y: int
    width: int
    height: int
    window: CropWindow | None = None
    # Set instead of `window` for a tilted part. A separate field, because stored placements have no type tags.
    tilted: TiltedWindow | None = None

    @property
    def shown(self) -> CropWindow | TiltedWindow | None:
        """The part of the picture that the model gets; None for the whole picture."""
        return self.window if self.tilted is None else self.tilted

    @property
    def inner(self) -> tuple[int, int]:
        """(width, height) of the picture inside the input, in input pixels."""
        width, height = (self.width, self.height) if self.shown is None else self.shown.turned
        return round(width * self.scale_x), round(height * self.scale_y)

    @property
    def edges(self) -> tuple[int, int, int, int]:
        """x1, y1, x2, y2 of the part of the picture that the model gets, in picture pixels."""
        return (0, 0, self.width, self.height) if self.shown is None else self.shown.region

    def to_original(self, boxes: Boxes) -> Boxes:
        """Convert boxes xyxy, float32 [n, 4], from input to picture pixels. Return a new array, clipped to `edges`."""
        pad = np.array((self.pad_x, self.pad_y, self.pad_x, self.pad_y), np.float32)
        scale = np.array((self.scale_x, self.scale_y, self.scale_x, self.scale_y), np.float32)
        edge = np.array((self.width, self.height, self.width, self.height), np.float32)
        original: Boxes = np.subtract(boxes, pad, dtype=np.float32)
        original /= scale
        if self.shown is not None:
            return self.shown.boxes_to_picture(original)
        np.clip(original, np.float32(0), edge, out=original)
        return original

    def points_to_original(self, points: Points) -> Points:
        """Convert points x, y, float32 [..., 2], from input to picture pixels. Return a new array, not clipped."""
        pad = np.array((self.pad_x, self.pad_y), np.float32)
        scale = np.array((self.scale_x, self.scale_y), np.float32)
        original: Points = np.subtract(points, pad, dtype=np.float32)
        original /= scale
        return original if self.shown is None else self.shown.to_picture(original)

    def to_input(self) -> npt.NDArray[np.float64]:
        """Return the affine matrix from picture to input, float64 [2, 3]: input x, y = matrix @ (x, y, 1)."""
        upright = np.eye(2, 3) if self.shown is None else self.shown.from_picture()
        matrix: npt.NDArray[np.float64] = upright * np.array(((self.scale_x,), (self.scale_y,)))
        matrix[:, 2] += self.pad_x, self.pad_y
        return matrix

    def reduction(self) -> float:
        """Return the number of picture pixels per input pixel, on the axis with the smaller number. A picture that is
        decoded at 1/number of its size is still at least as large as the input needs."""
        return min(1 / self.scale_x, 1 / self.scale_y)


def place(width: int, height: int, input_width: int, input_height: int, fit: Fit, zoom: float = 1.0) -> Placement:
    """Return the placement of a picture of width x height in an input of input_width x input_height.

    A `zoom` below 1 leaves a margin around the picture; with a `zoom` above 1, a center crop shows less of the picture.
    A stretch and a line ignore `zoom`.
    """
    ratio = min(input_height / height, input_width / width) * min(zoom, 1.0)
    pad_x = pad_y = 0
    if fit is Fit.CENTER_CROP:
        shown = crop_window(center_region(None, width, height, (input_width, input_height), zoom), width, height)
        if shown is not None:
            return place_window(shown, width, height, input_width, input_height, fit)
    if fit in (Fit.STRETCH, Fit.CENTER_CROP):
        inner_w, inner_h = input_width, input_height
    elif fit is Fit.LINE:
        inner_w, inner_h = min(math.ceil(input_height * (width / height)), input_width), input_height
    else:
        rounded = int if fit is Fit.TOP_LEFT else round
        # A picture thousands of times wider than high still gets a row of pixels.
        inner_w, inner_h = max(1, rounded(width * ratio)), max(1, rounded(height * ratio))
    if fit is Fit.LETTERBOX:
        # The -0.1 puts an odd pixel on the right and bottom, as Ultralytics does.
        pad_x = round((input_width - inner_w) / 2 - 0.1)
        pad_y = round((input_height - inner_h) / 2 - 0.1)
    return Placement(inner_w / width, inner_h / height, pad_x, pad_y, width, height)


def place_window(
    window: CropWindow | TiltedWindow,
    width: int,
    height: int,
    input_width: int,
    input_height: int,
    fit: Fit,
    zoom: float = 1.0,
) -> Placement:
    """Return the placement of a window of a picture of width x height. The window is fitted like a picture that has the
    size of the window's region. For a center crop, the window must already be cut to the centre (`center_region`)."""
    if fit is Fit.CENTER_CROP:
        fit = Fit.STRETCH
    region_w, region_h = window.fitted
    fitted = place(region_w, region_h, input_width, input_height, fit, zoom)
    inner_w, inner_h = fitted.inner
    turned_w, turned_h = window.turned
    shown = {"tilted": window} if isinstance(window, TiltedWindow) else {"window": window}
    return msgspec.structs.replace(
        fitted, scale_x=inner_w / turned_w, scale_y=inner_h / turned_h, width=width, height=height, **shown
    )


def center_region(roi: Roi | None, width: int, height: int, shape: tuple[int, int], zoom: float = 1.0) -> Roi:
    """Return the centre of `roi` in a picture of width x height, with the aspect ratio of `shape` (width, height).

    With a `zoom` of 1, the centre extends to both edges of one axis. A larger zoom gives a smaller part: 256/224 is the
    same as a resize to 256 and a crop of 224. Raises InvalidInput if the roi is outside the picture.
    """
    window = crop_window(roi, width, height)
    x1, y1, x2, y2 = (0, 0, width, height) if window is None else window.region
    across, down = shape[::-1] if window is not None and window.is_sideways else shape
    side = min((x2 - x1) / across, (y2 - y1) / down) / max(zoom, 1.0)  # picture pixels per input pixel
    shown_w, shown_h = max(1, round(across * side)), max(1, round(down * side))
    left, top = x1 + (x2 - x1 - shown_w) // 2, y1 + (y2 - y1 - shown_h) // 2
    return Roi(Region(left, top, shown_w, shown_h), roi.rotation if roi else 0)
