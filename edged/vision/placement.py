"""How a picture is fitted into a model's input, and how boxes and points come back to the picture.

The rounding is that of the exporters' own tools, so that answers agree with theirs to the pixel: `letterbox`
follows Ultralytics' `LetterBox` (centred, Python's half-to-even `round`, the odd pixel of padding to the
right and bottom), `top_left` follows YOLOX's `preproc` (picture in the corner, size truncated). `center_crop`
stretches the middle of the picture (see `crop`).
"""

from __future__ import annotations

import enum

import msgspec
import numpy as np
import numpy.typing as npt

from edged.vision.crop import middle
from edged.vision.window import Window, window_of

Boxes = npt.NDArray[np.float32]
Points = npt.NDArray[np.float32]


class Fit(enum.Enum):
    """What happens to a picture whose shape is not the input's."""

    LETTERBOX = "letterbox"
    STRETCH = "stretch"
    TOP_LEFT = "top_left"
    CENTER_CROP = "center_crop"


class Placement(msgspec.Struct, frozen=True):
    """Where a picture of width x height pixels lies in an input.

    Scales are input pixels per picture pixel, exactly those of the resize; the pads are the input pixels
    left of and above the picture, so that input = picture * scale + pad. Where only a part is shown, or it is turned,
    `window` says which, and "picture" in that sum is the turned window; None is the rule and costs nothing.
    """

    scale_x: float
    scale_y: float
    pad_x: int
    pad_y: int
    width: int
    height: int
    window: Window | None = None

    @property
    def inner(self) -> tuple[int, int]:
        """(width, height) of the picture inside the input, in input pixels."""
        width, height = (self.width, self.height) if self.window is None else self.window.turned
        return round(width * self.scale_x), round(height * self.scale_y)

    @property
    def edges(self) -> tuple[int, int, int, int]:
        """x1, y1, x2, y2 of the part of the picture that answers are about, in picture pixels."""
        return (0, 0, self.width, self.height) if self.window is None else self.window.region

    def to_original(self, boxes: Boxes) -> Boxes:
        """xyxy boxes, float32 [n, 4], from input pixels to picture pixels, clipped to `edges`; a new array."""
        pad = np.array((self.pad_x, self.pad_y, self.pad_x, self.pad_y), np.float32)
        scale = np.array((self.scale_x, self.scale_y, self.scale_x, self.scale_y), np.float32)
        edge = np.array((self.width, self.height, self.width, self.height), np.float32)
        original: Boxes = np.subtract(boxes, pad, dtype=np.float32)
        original /= scale
        if self.window is not None:
            return self.window.boxes_to_picture(original)
        np.clip(original, np.float32(0), edge, out=original)
        return original

    def points_to_original(self, points: Points) -> Points:
        """x, y as float32 [..., 2] from input pixels to picture pixels, not clipped; a new array."""
        pad = np.array((self.pad_x, self.pad_y), np.float32)
        scale = np.array((self.scale_x, self.scale_y), np.float32)
        original: Points = np.subtract(points, pad, dtype=np.float32)
        original /= scale
        return original if self.window is None else self.window.to_picture(original)

    def to_input(self) -> npt.NDArray[np.float64]:
        """The way from picture to input as an affine matrix, float64 [2, 3]: input x, y = matrix @ (x, y, 1)."""
        upright = np.eye(2, 3) if self.window is None else self.window.from_picture()
        matrix: npt.NDArray[np.float64] = upright * np.array(((self.scale_x,), (self.scale_y,)))
        matrix[:, 2] += self.pad_x, self.pad_y
        return matrix

    def reduction(self) -> float:
        """Picture pixels per input pixel, on the axis where they are fewest: a picture may be decoded at a scale that
        is smaller by so much, and is still not enlarged."""
        return min(1 / self.scale_x, 1 / self.scale_y)


def place(width: int, height: int, input_width: int, input_height: int, fit: Fit, zoom: float = 1.0) -> Placement:
    """The placement of a picture of width x height in an input of input_width x input_height.

    `zoom` is how large the picture is drawn: below 1, which fills the input, there is a margin round it; above
    1 less of the picture is left by a crop. A stretched picture has one size only.
    """
    ratio = min(input_height / height, input_width / width) * min(zoom, 1.0)
    pad_x = pad_y = 0
    if fit is Fit.CENTER_CROP:
        shown = window_of(middle(None, width, height, (input_width, input_height), zoom), width, height)
        if shown is not None:
            return place_window(shown, width, height, input_width, input_height, fit)
    match fit:
        case Fit.STRETCH | Fit.CENTER_CROP:
            inner_w, inner_h = input_width, input_height
        case Fit.TOP_LEFT:
            inner_w, inner_h = _at_least_one(int(width * ratio)), _at_least_one(int(height * ratio))
        case Fit.LETTERBOX:
            inner_w, inner_h = _at_least_one(round(width * ratio)), _at_least_one(round(height * ratio))
            # The -0.1 makes an odd rest fall on the right and bottom, as Ultralytics does.
            pad_x = round((input_width - inner_w) / 2 - 0.1)
            pad_y = round((input_height - inner_h) / 2 - 0.1)
    return Placement(inner_w / width, inner_h / height, pad_x, pad_y, width, height)


def place_window(
    window: Window, width: int, height: int, input_width: int, input_height: int, fit: Fit, zoom: float = 1.0
) -> Placement:
    """The placement of a window of a picture of width x height. It is fitted as a picture of the region's size is; the
    window of a crop was cut to its middle before."""
    if fit is Fit.CENTER_CROP:
        fit = Fit.STRETCH
    x1, y1, x2, y2 = window.region
    region_w, region_h = (y2 - y1, x2 - x1) if window.is_sideways else (x2 - x1, y2 - y1)
    fitted = place(region_w, region_h, input_width, input_height, fit, zoom)
    inner_w, inner_h = fitted.inner
    turned_w, turned_h = window.turned
    return msgspec.structs.replace(
        fitted, scale_x=inner_w / turned_w, scale_y=inner_h / turned_h, width=width, height=height, window=window
    )


def _at_least_one(size: int) -> int:
    return max(1, size)  # a picture thousands of times wider than high still has a row of pixels
