"""How a picture is fitted into a model's input, and how boxes come back to the picture.

The rounding is that of the exporters' own tools, so that answers agree with theirs to the pixel: `letterbox`
follows Ultralytics' `LetterBox` (centred, Python's half-to-even `round`, the odd pixel of padding to the
right and bottom), `top_left` follows YOLOX's `preproc` (picture in the corner, size truncated).
"""

from __future__ import annotations

import enum

import msgspec
import numpy as np
import numpy.typing as npt

Boxes = npt.NDArray[np.float32]


class Fit(enum.Enum):
    """What happens to a picture whose shape is not the input's."""

    LETTERBOX = "letterbox"
    STRETCH = "stretch"
    TOP_LEFT = "top_left"


class Placement(msgspec.Struct, frozen=True):
    """Where a picture of width x height pixels lies in an input.

    Scales are input pixels per picture pixel, exactly those of the resize; the pads are the input pixels
    left of and above the picture, so that input = picture * scale + pad.
    """

    scale_x: float
    scale_y: float
    pad_x: int
    pad_y: int
    width: int
    height: int

    @property
    def inner(self) -> tuple[int, int]:
        """(width, height) of the picture inside the input, in input pixels."""
        return round(self.width * self.scale_x), round(self.height * self.scale_y)

    def to_original(self, boxes: Boxes) -> Boxes:
        """xyxy boxes, float32 [n, 4], from input pixels to picture pixels, clipped to it; a new array."""
        pad = np.array((self.pad_x, self.pad_y, self.pad_x, self.pad_y), np.float32)
        scale = np.array((self.scale_x, self.scale_y, self.scale_x, self.scale_y), np.float32)
        edge = np.array((self.width, self.height, self.width, self.height), np.float32)
        original: Boxes = np.subtract(boxes, pad, dtype=np.float32)
        original /= scale
        np.clip(original, np.float32(0), edge, out=original)
        return original


def place(width: int, height: int, input_width: int, input_height: int, fit: Fit) -> Placement:
    """The placement of a picture of width x height in an input of input_width x input_height."""
    ratio = min(input_height / height, input_width / width)
    pad_x = pad_y = 0
    match fit:
        case Fit.STRETCH:
            inner_w, inner_h = input_width, input_height
        case Fit.TOP_LEFT:
            inner_w, inner_h = _at_least_one(int(width * ratio)), _at_least_one(int(height * ratio))
        case Fit.LETTERBOX:
            inner_w, inner_h = _at_least_one(round(width * ratio)), _at_least_one(round(height * ratio))
            # The -0.1 makes an odd rest fall on the right and bottom, as Ultralytics does.
            pad_x = round((input_width - inner_w) / 2 - 0.1)
            pad_y = round((input_height - inner_h) / 2 - 0.1)
    return Placement(inner_w / width, inner_h / height, pad_x, pad_y, width, height)


def _at_least_one(size: int) -> int:
    return max(1, size)  # a picture thousands of times wider than high still has a row of pixels
