"""The picture that a demonstration leaves: what its cameras see, with what the model finds in it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import cv2
import numpy as np

from edged.client.frames import Picture, read_picture
from edged.client.result import Result
from edged.vision.draw import annotate, encode_jpeg
from edged.vision.image import Image, decode

MOST = 9  # cameras on one picture
_TILE_WIDTH = 640


def paint(seen: Iterable[tuple[Picture, Result]]) -> bytes:
    """A JPEG with the annotated pictures side by side, each at most 640 pixels wide where there are several."""
    tiles = [_tile(picture, result) for picture, result in seen]
    return encode_jpeg(tiles[0] if len(tiles) == 1 else _mosaic(tiles))


def _tile(picture: Picture, result: Result) -> Image:
    image = picture if isinstance(picture, np.ndarray) else decode(read_picture(picture))
    image = cv2.cvtColor(image, cv2.COLOR_GRAY2BGR).astype(np.uint8) if image.ndim == 2 else image
    caption = f"{result.camera}  {result.backend}  {result.timings.infer_ms:.1f} ms"
    return annotate(image, result.boxes(), result.labels(), caption)


def _mosaic(tiles: Sequence[Image]) -> Image:
    """Row by row, as square as it can be; every tile has the size of the first, what is left over stays dark."""
    columns = math.ceil(math.sqrt(len(tiles)))
    rows = math.ceil(len(tiles) / columns)
    width = min(_TILE_WIDTH, tiles[0].shape[1])
    height = max(1, round(tiles[0].shape[0] * width / tiles[0].shape[1]))
    canvas = np.full((rows * height, columns * width, 3), 24, np.uint8)
    for number, tile in enumerate(tiles):
        y, x = number // columns * height, number % columns * width
        canvas[y : y + height, x : x + width] = cv2.resize(tile, (width, height), interpolation=cv2.INTER_AREA)
    return canvas
