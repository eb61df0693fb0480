"""Paints detections on a picture, for demos and for looking at what a model saw."""

from __future__ import annotations

import colorsys
import functools
from collections.abc import Sequence
from typing import TypeAlias

import cv2
import numpy as np
import numpy.typing as npt

from edged.vision.detections import Detections, class_name
from edged.vision.image import Image

Color: TypeAlias = tuple[int, int, int]

_FONT = cv2.FONT_HERSHEY_SIMPLEX
_GOLDEN = 0.618033988749895  # steps of the golden ratio keep any run of class ids far apart in hue
_DARK, _LIGHT = (24, 24, 24), (255, 255, 255)
_TINT = 0.12
_MAX_LABEL = 40
_PLAIN = str.maketrans({"\u00b7": "-", "\u2013": "-", "\u2014": "-", "\u00d7": "x", "\u00b5": "u", "\u2026": "..."})


def annotate(image: Image, detections: Detections, names: Sequence[str], caption: str | None = None) -> Image:
    """A new picture, BGR uint8 of the same size, with boxes, "name 87%" labels and a caption in the corner.

    Lines and letters grow with the picture. The better of two overlapping detections is painted on top.
    """
    canvas: Image = image.copy()
    style = _Style(image.shape[1], image.shape[0])
    order = np.argsort(detections.scores, kind="stable")
    rows = detections.select(order)
    boxes = [(_corners(box), class_color(c)) for box, c in zip(rows.boxes, rows.class_ids.tolist(), strict=True)]
    for box, color in boxes:
        _tint(canvas, box, color)
    for box, color in boxes:
        _frame(canvas, box, color, style)
    for (box, color), score, c in zip(boxes, rows.scores.tolist(), rows.class_ids.tolist(), strict=True):
        _label(canvas, box, f"{class_name(names, c)[:_MAX_LABEL]} {score:.0%}", color, style)
    if caption:
        _caption(canvas, caption, style)
    return canvas


def encode_jpeg(image: Image, quality: int = 85) -> bytes:
    """JPEG bytes of a BGR uint8 picture; quality 1..100."""
    encoded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
    return encoded.tobytes()


@functools.cache
def class_color(class_id: int) -> Color:
    """A bright BGR colour, always the same for a class."""
    hue = (0.57 + class_id * _GOLDEN) % 1.0
    value = 1.0 if class_id % 2 == 0 else 0.88
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.78, value)
    return round(blue * 255), round(green * 255), round(red * 255)


class _Style:
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


Box: TypeAlias = tuple[int, int, int, int]


def _corners(box: npt.NDArray[np.float32]) -> Box:
    x1, y1, x2, y2 = (round(v) for v in box.tolist())
    return x1, y1, x2, y2


def _tint(canvas: Image, box: Box, color: Color) -> None:
    x1, y1, x2, y2 = (max(0, v) for v in box)
    inside = canvas[y1:y2, x1:x2]
    if inside.size:
        flat = np.full_like(inside, color)
        canvas[y1:y2, x1:x2] = cv2.addWeighted(inside, 1 - _TINT, flat, _TINT, 0)


def _frame(canvas: Image, box: Box, color: Color, style: _Style) -> None:
    """A thin line all round and heavier corners, so that crowded boxes stay apart."""
    x1, y1, x2, y2 = box
    cv2.rectangle(canvas, (x1, y1), (x2, y2), color, style.line, cv2.LINE_AA)
    reach = max(2, min(x2 - x1, y2 - y1) // 5)
    for x, step_x in ((x1, reach), (x2, -reach)):
        for y, step_y in ((y1, reach), (y2, -reach)):
            corner = np.array([(x + step_x, y), (x, y), (x, y + step_y)], np.int32)
            cv2.polylines(canvas, [corner], False, color, style.line * 2 + 1, cv2.LINE_AA)


def _label(canvas: Image, box: Box, text: str, color: Color, style: _Style) -> None:
    """A filled chip on the box's upper edge, inside the box where there is no room above."""
    text = _printable(text)
    width, height, depth = style.measure(text)
    chip_w, chip_h = width + 2 * style.gap, height + depth + style.gap
    left = max(0, min(box[0] - style.line // 2, canvas.shape[1] - chip_w))
    top = box[1] - chip_h if box[1] >= chip_h else max(0, box[1])
    cv2.rectangle(canvas, (left, top), (left + chip_w, top + chip_h), color, cv2.FILLED)
    ink = _DARK if _luminance(color) > 110 else _LIGHT
    _write(canvas, text, (left + style.gap, top + style.gap // 2 + height), ink, style)


def _caption(canvas: Image, text: str, style: _Style) -> None:
    text = _printable(text)
    width, height, depth = style.measure(text)
    bottom, right = canvas.shape[:2]
    top = max(0, bottom - height - depth - 2 * style.gap)
    strip = canvas[top:, : min(right, width + 2 * style.gap)]
    strip[:] = strip // 3  # dark glass: the picture shows through, white letters stay readable
    _write(canvas, text, (style.gap, top + style.gap + height), _LIGHT, style)


def _write(canvas: Image, text: str, origin: tuple[int, int], color: Color, style: _Style) -> None:
    cv2.putText(canvas, text, origin, _FONT, style.font, color, style.weight, cv2.LINE_AA)


def _printable(text: str) -> str:
    """OpenCV 4 draws ASCII only; the signs a caption is likely to have get their nearest letter."""
    return text.translate(_PLAIN).encode("ascii", "replace").decode()


def _luminance(color: Color) -> float:
    blue, green, red = color
    return 0.114 * blue + 0.587 * green + 0.299 * red
