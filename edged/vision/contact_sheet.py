"""A picture with a tile for each of several results, so that a person can compare the results."""

from __future__ import annotations

import math
from collections.abc import Sequence

import cv2
import msgspec
import numpy as np

from edged.vision.image import Image

SIDE = 360  # pixels: the largest width or height of the picture in a tile
_GAP, _LINE = 6, 18  # pixels
_FONT, _SCALE = cv2.FONT_HERSHEY_SIMPLEX, 0.42
_DARK, _LIGHT, _DIM = (24, 24, 24), (255, 255, 255), (170, 170, 170)


class Tile(msgspec.Struct, frozen=True, eq=False):
    """One result: a picture, BGR uint8, of at most `SIDE` x `SIDE` pixels, and two lines of text above it."""

    picture: Image
    title: str
    line: str


def fit(picture: Image) -> Image:
    """Return a picture with its longer side resized to `SIDE`."""
    height, width = picture.shape[:2]
    scale = SIDE / max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    resized = cv2.resize(picture, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    return np.asarray(resized, np.uint8)


def contact_sheet(tiles: Sequence[Tile]) -> Image:
    """Return a picture of the tiles, at least one, in a grid with about as many rows as columns. The first tile is at
    the top left."""
    columns = math.ceil(math.sqrt(len(tiles)))
    rows = math.ceil(len(tiles) / columns)
    tallest = max(tile.picture.shape[0] for tile in tiles)
    across, down = SIDE + 2 * _GAP, tallest + 2 * _LINE + 3 * _GAP
    sheet: Image = np.full((rows * down, columns * across, 3), _DARK, np.uint8)
    for number, tile in enumerate(tiles):
        row, column = divmod(number, columns)
        top, left = row * down + _GAP, column * across + _GAP
        _write(sheet, tile.title, left, top + _LINE - _GAP, _LIGHT)
        _write(sheet, tile.line, left, top + 2 * _LINE - _GAP, _DIM)
        height, width = tile.picture.shape[:2]
        top += 2 * _LINE
        sheet[top : top + height, left : left + width] = tile.picture
    return sheet


def _write(sheet: Image, text: str, left: int, baseline: int, color: tuple[int, int, int]) -> None:
    """Write one line of text, cut at the edge of the tile. Characters other than printable ASCII become "?"."""
    text = "".join(char if " " <= char <= "~" else "?" for char in text)
    while text and cv2.getTextSize(text, _FONT, _SCALE, 1)[0][0] > SIDE:
        text = text[:-1]
    cv2.putText(sheet, text, (left, baseline), _FONT, _SCALE, color, 1, cv2.LINE_AA)
