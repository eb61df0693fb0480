"""Paints what a model found on a picture, for demos and for looking at what it saw."""

from __future__ import annotations

import colorsys
import functools
from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from edged.vision import masks, strokes
from edged.vision.classifications import Classes
from edged.vision.detections import Detections, class_name
from edged.vision.image import Image
from edged.vision.skeleton import paint_keypoints
from edged.vision.strokes import Box, Color, Style

_GOLDEN = 0.618033988749895  # steps of the golden ratio keep any run of class ids far apart in hue
_TINT, _MASK_TINT = 0.12, 0.45
_MAX_LABEL = 40
_MAX_CLASSES = 5


def annotate(
    image: Image,
    detections: Detections,
    names: Sequence[str],
    caption: str | None = None,
    classes: Classes | None = None,
) -> Image:
    """A new picture, BGR uint8 of the same size, with all that detections tell: masks, boxes or oriented boxes,
    keypoints, and labels "#7 name 87%", the number being the tracker's; with the best `classes` of the whole picture
    in the upper corner and a caption in the lower.

    Lines and letters grow with the picture. The better of two overlapping detections is painted on top. ValueError for
    masks of a picture of another size.
    """
    canvas: Image = image.copy()
    style = Style(image.shape[1], image.shape[0])
    rows = detections.select(np.argsort(detections.scores, kind="stable"))
    boxes = [_whole(box) for box in rows.boxes]
    colors = [class_color(class_id) for class_id in rows.class_ids.tolist()]
    _paint_areas(canvas, rows, boxes, colors)
    _paint_outlines(canvas, rows, boxes, colors, style)
    if rows.keypoints is not None:
        for keypoints, color in zip(rows.keypoints, colors, strict=True):
            paint_keypoints(canvas, keypoints, color, style)
    for box, text, color in zip(boxes, _labels(rows, names), colors, strict=True):
        strokes.label(canvas, box, text, color, style)
    if classes is not None:
        strokes.listing(canvas, _lines(classes, names), style)
    if caption:
        strokes.caption(canvas, caption, style)
    return canvas


def encode_jpeg(image: Image, quality: int = 85) -> bytes:
    """JPEG bytes of a BGR uint8 picture; quality 1..100."""
    encoded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
    return encoded.tobytes()


@functools.lru_cache(maxsize=4096)
def class_color(class_id: int) -> Color:
    """A bright BGR colour, always the same for a class."""
    hue = (0.57 + class_id * _GOLDEN) % 1.0
    value = 1.0 if class_id % 2 == 0 else 0.88
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.78, value)
    return round(blue * 255), round(green * 255), round(red * 255)


def _whole(box: npt.NDArray[np.float32]) -> Box:
    x1, y1, x2, y2 = (round(v) for v in box.tolist())
    return x1, y1, x2, y2


def _paint_areas(canvas: Image, rows: Detections, boxes: Sequence[Box], colors: Sequence[Color]) -> None:
    """Where the objects are: their masks, or else their boxes. Oriented boxes and keypoints are left clear."""
    if rows.masks is not None:
        height, width = canvas.shape[:2]
        for mask, color in zip(rows.masks, colors, strict=True):
            inside, x, y = masks.crop(mask, width, height)
            strokes.tint(canvas, (x, y, x + inside.shape[1], y + inside.shape[0]), color, _MASK_TINT, inside)
    elif rows.corners is None and rows.keypoints is None:
        for box, color in zip(boxes, colors, strict=True):
            strokes.tint(canvas, box, color, _TINT)


def _paint_outlines(
    canvas: Image, rows: Detections, boxes: Sequence[Box], colors: Sequence[Color], style: Style
) -> None:
    if rows.corners is not None:
        for corners, color in zip(rows.corners, colors, strict=True):
            strokes.outline(canvas, strokes.whole(corners), color, style.line + 1)
        return
    for box, color in zip(boxes, colors, strict=True):
        strokes.frame(canvas, box, color, style)


def _labels(rows: Detections, names: Sequence[str]) -> list[str]:
    trackers = [-1] * len(rows) if rows.tracker_ids is None else rows.tracker_ids.tolist()
    told = zip(trackers, rows.class_ids.tolist(), rows.scores.tolist(), strict=True)
    return [
        f"{f'#{tracker} ' if tracker >= 0 else ''}{class_name(names, class_id)[:_MAX_LABEL]} {score:.0%}"
        for tracker, class_id, score in told
    ]


def _lines(classes: Classes, names: Sequence[str]) -> list[tuple[str, Color]]:
    best = zip(classes.class_ids.tolist()[:_MAX_CLASSES], classes.scores.tolist()[:_MAX_CLASSES], strict=True)
    return [(f"{class_name(names, c)[:_MAX_LABEL]} {score:.0%}", class_color(c)) for c, score in best]
