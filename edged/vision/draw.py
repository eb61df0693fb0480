"""Draws the answers of a model on a BGR uint8 picture: masks, boxes, keypoints, labels, maps and texts.

Line widths and font size scale with the picture.
"""

from __future__ import annotations

import colorsys
import functools
from collections.abc import Sequence
from itertools import islice
from typing import TypeAlias

import cv2
import numpy as np
import numpy.typing as npt

from edged.vision import masks
from edged.vision.content import Anomaly, ClassMap, Content, Depth, lines
from edged.vision.detections import Detections, class_name
from edged.vision.image import Image

Color: TypeAlias = tuple[int, int, int]
Box: TypeAlias = tuple[int, int, int, int]

_GOLDEN = 0.618033988749895  # hues in steps of the golden ratio: consecutive class ids get distinct hues
_TINT, _MASK_TINT = 0.12, 0.45
_MAX_LABEL = 40
_HEAT = cv2.COLORMAP_TURBO
_MAX_LINE = 48
_MAX_LINES = 5
_MAX_AREAS = 12  # lines about a class map: the legend of its colours
_DARK, _LIGHT = (24, 24, 24), (255, 255, 255)
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_MAX_COORDINATE = 1 << 15  # OpenCV computes in fractions of a pixel, and overflows above this coordinate
_ASCII = str.maketrans({"\u00b7": "-", "\u2013": "-", "\u2014": "-", "\u00d7": "x", "\u00b5": "u", "\u2026": "..."})

# COCO's 17 points of a person: nose; then left and right of eyes, ears, shoulders, elbows, wrists, hips, knees, ankles.
_PERSON = 17
_FACE = ((0, 1), (0, 2), (1, 2), (1, 3), (2, 4), (3, 5), (4, 6))
_BODY = ((5, 6), (5, 11), (6, 12), (11, 12))
_LIMBS = ((5, 7), (7, 9), (6, 8), (8, 10), (11, 13), (13, 15), (12, 14), (14, 16))
_SKELETON = (*_FACE, *_BODY, *_LIMBS)
_VISIBLE = 0.25  # keypoints with a lower score are hidden or guessed, and are not drawn


def annotate(
    image: Image,
    detections: Detections,
    names: Sequence[str],
    caption: str | None = None,
    content: Content | None = None,
    notes: Sequence[str] = (),
) -> Image:
    """Return a copy of a picture with `detections` drawn on it: masks, boxes or oriented boxes, keypoints, and labels
    such as "#7 name 87%", where 7 is the tracker id. If two detections overlap, the better one is on top. `notes` are
    texts below the boxes: one for each detection, or an empty sequence.

    `content` is written as lines in the upper left corner, and the map of the content is blended over the picture. The
    caption is in the lower left corner. Raises ValueError if the masks do not have the size of the picture.
    """
    canvas: Image = image.copy()
    if content is not None:
        _draw_map(canvas, content)
    style = _Style(image.shape[1], image.shape[0])
    order = np.argsort(detections.scores, kind="stable")
    rows = detections.select(order)
    boxes = [_rounded(box) for box in rows.boxes]
    colors = [class_color(class_id) for class_id in rows.class_ids.tolist()]
    _draw_areas(canvas, rows, boxes, colors)
    _draw_outlines(canvas, rows, boxes, colors, style)
    if rows.keypoints is not None:
        for keypoints, color in zip(rows.keypoints, colors, strict=True):
            _draw_keypoints(canvas, keypoints, color, style)
    for box, text, color in zip(boxes, _labels(rows, names), colors, strict=True):
        _draw_label(canvas, box, text, color, style)
    if notes:
        for box, index, color in zip(boxes, order.tolist(), colors, strict=True):
            if notes[index]:
                _draw_label(canvas, box, notes[index][:_MAX_LINE], color, style, is_below=True)
    if content is not None:
        most = _MAX_AREAS if isinstance(content, ClassMap) else _MAX_LINES
        rows_of_text = islice(lines(content, names), most)
        marked = [(text[:_MAX_LINE], class_color(each) if each >= 0 else _LIGHT) for text, each in rows_of_text]
        _draw_list(canvas, marked, style)
    if caption:
        _draw_caption(canvas, caption, style)
    return canvas


def encode_jpeg(image: Image, quality: int = 85) -> bytes:
    """Encode a BGR uint8 picture as JPEG; quality is 1..100."""
    encoded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
    return encoded.tobytes()


@functools.lru_cache(maxsize=4096)
def class_color(class_id: int) -> Color:
    """Return the colour of a class: bright, BGR, and the same in every picture."""
    hue = (0.57 + class_id * _GOLDEN) % 1.0
    value = 1.0 if class_id % 2 == 0 else 0.88
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.78, value)
    return round(blue * 255), round(green * 255), round(red * 255)


class _Style:
    """Sizes of lines and text in pixels, derived from the size of the picture."""

    def __init__(self, width: int, height: int) -> None:
        side = (width * height) ** 0.5
        self.line = max(1, round(side / 420))
        self.font = min(2.0, max(0.42, side / 1050))
        self.weight = max(1, round(self.font * 1.4))
        self.gap = max(2, round(self.font * 7))

    def measure(self, text: str) -> tuple[int, int, int]:
        """Return the width of a text, its height above the baseline, and its depth below the baseline."""
        (width, height), depth = cv2.getTextSize(text, _FONT, self.font, self.weight)
        return width, height, depth


def _draw_map(canvas: Image, content: Content) -> None:
    """Blend a map over the picture: a class map in the colours of its classes, a depth or anomaly map in colours from
    blue (far, low) to red (near, high)."""
    if isinstance(content, ClassMap):
        box, way = content.box, cv2.INTER_NEAREST
        runs = np.array([class_color(each) for each in content.class_ids], np.uint8)
        colors = np.repeat(runs, content.lengths, axis=0).reshape(content.height, content.width, 3)
    elif isinstance(content, Depth | Anomaly) and content.map is not None:
        box, way = content.map.box, cv2.INTER_LINEAR
        levels = (content.map.levels() >> 8).astype(np.uint8)
        is_near_low = isinstance(content, Depth) and not content.is_inverse
        colors = np.asarray(cv2.applyColorMap(~levels if is_near_low else levels, _HEAT), np.uint8)
    else:
        return
    x1, y1, x2, y2 = box or (0, 0, canvas.shape[1], canvas.shape[0])
    under = canvas[y1:y2, x1:x2]
    if under.size:
        laid = cv2.resize(colors, (under.shape[1], under.shape[0]), interpolation=way)
        under[:] = cv2.addWeighted(under, 1 - _MASK_TINT, laid, _MASK_TINT, 0)


def _draw_areas(canvas: Image, rows: Detections, boxes: Sequence[Box], colors: Sequence[Color]) -> None:
    """Tint the masks of detections. Without masks, tint the boxes, unless the detections have corners or keypoints."""
    if rows.masks is not None:
        height, width = canvas.shape[:2]
        for mask, color in zip(rows.masks, colors, strict=True):
            inside, x, y = masks.crop(mask, width, height)
            _tint(canvas, (x, y, x + inside.shape[1], y + inside.shape[0]), color, _MASK_TINT, inside)
    elif rows.corners is None and rows.keypoints is None:
        for box, color in zip(boxes, colors, strict=True):
            _tint(canvas, box, color, _TINT)


def _draw_outlines(
    canvas: Image, rows: Detections, boxes: Sequence[Box], colors: Sequence[Color], style: _Style
) -> None:
    if rows.corners is not None:
        for corners, color in zip(rows.corners, colors, strict=True):
            cv2.polylines(canvas, [_drawable(corners)], True, color, style.line + 1, cv2.LINE_AA)
        return
    for box, color in zip(boxes, colors, strict=True):
        _draw_box(canvas, box, color, style)


def _draw_box(canvas: Image, box: Box, color: Color, style: _Style) -> None:
    """Draw a thin outline with thicker corners, so that crowded boxes can be distinguished."""
    x1, y1, x2, y2 = box
    cv2.rectangle(canvas, (x1, y1), (x2, y2), color, style.line, cv2.LINE_AA)
    length = max(2, min(x2 - x1, y2 - y1) // 5)
    for x, step_x in ((x1, length), (x2, -length)):
        for y, step_y in ((y1, length), (y2, -length)):
            corner = np.array([(x + step_x, y), (x, y), (x, y + step_y)], np.int32)
            cv2.polylines(canvas, [corner], False, color, style.line * 2 + 1, cv2.LINE_AA)


def _draw_keypoints(canvas: Image, keypoints: npt.NDArray[np.float32], color: Color, style: _Style) -> None:
    """Draw the keypoints of one object, [k, 3], as dots. If there are 17, join them like a person's skeleton."""
    seen = keypoints[:, 2] >= _VISIBLE
    points = [(x, y) for x, y in _drawable(keypoints[:, :2]).tolist()]
    if len(points) == _PERSON:
        for one, other in _SKELETON:
            if seen[one] and seen[other]:
                cv2.line(canvas, points[one], points[other], color, style.line + 1, cv2.LINE_AA)
    for point, is_seen in zip(points, seen.tolist(), strict=True):
        if is_seen:
            cv2.circle(canvas, point, style.line * 2 + 1, _DARK, cv2.FILLED, cv2.LINE_AA)
            cv2.circle(canvas, point, style.line * 2, color, cv2.FILLED, cv2.LINE_AA)


def _draw_label(canvas: Image, box: Box, text: str, color: Color, style: _Style, *, is_below: bool = False) -> None:
    """Draw a filled label above the box, or below the box with `is_below`. If the picture has no space there, the label
    covers a part of the box."""
    text = _printable(text)
    width, height, depth = style.measure(text)
    label_w, label_h = width + 2 * style.gap, height + depth + style.gap
    left = max(0, min(box[0] - style.line // 2, canvas.shape[1] - label_w))
    if is_below:
        top = max(0, min(box[3], canvas.shape[0] - label_h))
    else:
        top = box[1] - label_h if box[1] >= label_h else max(0, box[1])
    cv2.rectangle(canvas, (left, top), (left + label_w, top + label_h), color, cv2.FILLED)
    blue, green, red = color
    is_bright = 0.114 * blue + 0.587 * green + 0.299 * red > 110
    _write(canvas, text, (left + style.gap, top + style.gap // 2 + height), _DARK if is_bright else _LIGHT, style)


def _draw_caption(canvas: Image, text: str, style: _Style) -> None:
    """Draw white text on a darkened background in the lower left corner."""
    text = _printable(text)
    width, height, depth = style.measure(text)
    top = max(0, canvas.shape[0] - height - depth - 2 * style.gap)
    _darken(canvas[top:, : width + 2 * style.gap])
    _write(canvas, text, (style.gap, top + style.gap + height), _LIGHT, style)


def _draw_list(canvas: Image, lines: Sequence[tuple[str, Color]], style: _Style) -> None:
    """Draw lines of text, each with a coloured mark, on a darkened background in the upper left corner."""
    texts = [_printable(text) for text, _ in lines]
    sizes = [style.measure(text) for text in texts]
    if not sizes:
        return
    step = max(height + depth for _, height, depth in sizes) + style.gap
    mark = max(height for _, height, _ in sizes)
    _darken(canvas[: step * len(texts) + style.gap, : max(width for width, _, _ in sizes) + mark + 3 * style.gap])
    for number, (text, (_, color)) in enumerate(zip(texts, lines, strict=True)):
        top = style.gap + number * step
        cv2.rectangle(canvas, (style.gap, top), (style.gap + mark // 2, top + mark), color, cv2.FILLED)
        _write(canvas, text, (2 * style.gap + mark // 2, top + mark), _LIGHT, style)


def _tint(canvas: Image, box: Box, color: Color, strength: float, inside: npt.NDArray[np.bool_] | None = None) -> None:
    """Tint a box. If `inside` (bool, of the box's size) is given, tint only the pixels for which it is true."""
    x1, y1, x2, y2 = (max(0, v) for v in box)
    under = canvas[y1:y2, x1:x2]
    if not under.size:
        return
    mixed = cv2.addWeighted(under, 1 - strength, np.full_like(under, color), strength, 0)
    if inside is None:
        canvas[y1:y2, x1:x2] = mixed
    else:
        np.copyto(under, mixed, where=inside[:, :, None])


def _darken(part: Image) -> None:
    part[:] = part // 3  # the picture stays visible, and white text readable


def _write(canvas: Image, text: str, origin: tuple[int, int], color: Color, style: _Style) -> None:
    cv2.putText(canvas, text, origin, _FONT, style.font, color, style.weight, cv2.LINE_AA)


def _labels(rows: Detections, names: Sequence[str]) -> list[str]:
    trackers = [-1] * len(rows) if rows.tracker_ids is None else rows.tracker_ids.tolist()
    return [
        f"{f'#{tracker} ' if tracker >= 0 else ''}{class_name(names, class_id)[:_MAX_LABEL]} {score:.0%}"
        for tracker, class_id, score in zip(trackers, rows.class_ids.tolist(), rows.scores.tolist(), strict=True)
    ]


def _rounded(box: npt.NDArray[np.float32]) -> Box:
    x1, y1, x2, y2 = (round(v) for v in box.tolist())
    return x1, y1, x2, y2


def _drawable(points: npt.NDArray[np.float32]) -> npt.NDArray[np.int32]:
    """Convert points to the integers that OpenCV draws; points far outside the picture stay outside."""
    return np.clip(np.rint(points), -_MAX_COORDINATE, _MAX_COORDINATE).astype(np.int32)


def _printable(text: str) -> str:
    """Replace characters that OpenCV cannot draw: it draws only ASCII."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()
