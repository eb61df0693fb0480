"""What drawings on pictures are made of: frames, tints, labels, letters; in place, on BGR uint8 pictures.

Lines and letters grow with the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import cv2
import numpy as np
import numpy.typing as npt

from edged.vision.image import Image

Color: TypeAlias = tuple[int, int, int]
Box: TypeAlias = tuple[int, int, int, int]

DARK, LIGHT = (24, 24, 24), (255, 255, 255)
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_FAR = 1 << 15  # OpenCV counts in parts of a pixel, and overflows beyond
_PLAIN = str.maketrans({"\u00b7": "-", "\u2013": "-", "\u2014": "-", "\u00d7": "x", "\u00b5": "u", "\u2026": "..."})


class Style:
    """Sizes in pixels that follow from the picture's."""

    def __init__(self, width: int, height: int) -> None:
        side = (width * height) ** 0.5
        self.line = max(1, round(side / 420))
        self.font = min(2.0, max(0.36, side / 1500))
        self.weight = max(1, round(self.font * 1.4))
        self.gap = max(2, round(self.font * 7))

    def measure(self, text: str) -> tuple[int, int, int]:
        """Width, height above and depth below the baseline."""
        (width, height), depth = cv2.getTextSize(text, _FONT, self.font, self.weight)
        return width, height, depth


def whole(points: npt.NDArray[np.float32]) -> npt.NDArray[np.int32]:
    """Points as OpenCV draws them; what is far outside stays outside."""
    return np.clip(np.rint(points), -_FAR, _FAR).astype(np.int32)


def tint(canvas: Image, box: Box, color: Color, strength: float, inside: npt.NDArray[np.bool_] | None = None) -> None:
    """Colours a box, or of it only what is `inside`, bool of the box's size."""
    x1, y1, x2, y2 = (max(0, v) for v in box)
    under = canvas[y1:y2, x1:x2]
    if not under.size:
        return
    mixed = cv2.addWeighted(under, 1 - strength, np.full_like(under, color), strength, 0)
    if inside is None:
        canvas[y1:y2, x1:x2] = mixed
    else:
        np.copyto(under, mixed, where=inside[:, :, None])


def frame(canvas: Image, box: Box, color: Color, style: Style) -> None:
    """A thin line all round and heavier corners, so that crowded boxes stay apart."""
    x1, y1, x2, y2 = box
    cv2.rectangle(canvas, (x1, y1), (x2, y2), color, style.line, cv2.LINE_AA)
    reach = max(2, min(x2 - x1, y2 - y1) // 5)
    for x, step_x in ((x1, reach), (x2, -reach)):
        for y, step_y in ((y1, reach), (y2, -reach)):
            corner = np.array([(x + step_x, y), (x, y), (x, y + step_y)], np.int32)
            cv2.polylines(canvas, [corner], False, color, style.line * 2 + 1, cv2.LINE_AA)


def outline(canvas: Image, points: npt.NDArray[np.int32], color: Color, thickness: int) -> None:
    """A closed line through points [n, 2]."""
    cv2.polylines(canvas, [points], True, color, thickness, cv2.LINE_AA)


def label(canvas: Image, box: Box, text: str, color: Color, style: Style) -> None:
    """A filled chip on the box's upper edge, inside the box where there is no room above."""
    text = printable(text)
    width, height, depth = style.measure(text)
    chip_w, chip_h = width + 2 * style.gap, height + depth + style.gap
    left = max(0, min(box[0] - style.line // 2, canvas.shape[1] - chip_w))
    top = box[1] - chip_h if box[1] >= chip_h else max(0, box[1])
    cv2.rectangle(canvas, (left, top), (left + chip_w, top + chip_h), color, cv2.FILLED)
    ink = DARK if _luminance(color) > 110 else LIGHT
    _write(canvas, text, (left + style.gap, top + style.gap // 2 + height), ink, style)


def caption(canvas: Image, text: str, style: Style) -> None:
    """White letters on dark glass in the lower left corner."""
    text = printable(text)
    width, height, depth = style.measure(text)
    top = max(0, canvas.shape[0] - height - depth - 2 * style.gap)
    _darken(canvas[top:, : width + 2 * style.gap])
    _write(canvas, text, (style.gap, top + style.gap + height), LIGHT, style)


def listing(canvas: Image, lines: Sequence[tuple[str, Color]], style: Style) -> None:
    """Lines of text, each with a coloured mark, on dark glass in the upper left corner."""
    texts = [printable(text) for text, _ in lines]
    sizes = [style.measure(text) for text in texts]
    if not sizes:
        return
    step = max(height + depth for _, height, depth in sizes) + style.gap
    mark = max(height for _, height, _ in sizes)
    _darken(canvas[: step * len(texts) + style.gap, : max(width for width, _, _ in sizes) + mark + 3 * style.gap])
    for number, (text, (_, color)) in enumerate(zip(texts, lines, strict=True)):
        top = style.gap + number * step
        cv2.rectangle(canvas, (style.gap, top), (style.gap + mark // 2, top + mark), color, cv2.FILLED)
        _write(canvas, text, (2 * style.gap + mark // 2, top + mark), LIGHT, style)


def printable(text: str) -> str:
    """OpenCV 4 draws ASCII only; the signs a caption is likely to have get their nearest letter."""
    return text.translate(_PLAIN).encode("ascii", "replace").decode()


def _darken(part: Image) -> None:
    part[:] = part // 3  # the picture shows through, white letters stay readable


def _write(canvas: Image, text: str, origin: tuple[int, int], color: Color, style: Style) -> None:
    cv2.putText(canvas, text, origin, _FONT, style.font, color, style.weight, cv2.LINE_AA)


def _luminance(color: Color) -> float:
    blue, green, red = color
    return 0.114 * blue + 0.587 * green + 0.299 * red
