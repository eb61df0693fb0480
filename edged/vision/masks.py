"""Masks as COCO's uncompressed run lengths over a whole picture: compact, exact, and plain integers on the wire.

Pixels are counted down the columns, from left to right, in runs of off, on, off, ...; the first run may be empty, the
last one is not. Format: `rleEncode` of the COCO API, uint32 [runs], adding up to width * height.
"""

from __future__ import annotations

from typing import TypeAlias, cast

import cv2
import numpy as np
import numpy.typing as npt

Counts: TypeAlias = npt.NDArray[np.uint32]
Inside: TypeAlias = npt.NDArray[np.bool_]


def encode(inside: Inside, x: int, y: int, width: int, height: int) -> Counts:
    """The mask `inside`, bool [h, w], whose corner lies at x, y of a picture of width x height.

    An array whose columns are contiguous (the transpose of a C contiguous one) is read without a copy. ValueError where
    it does not lie inside the picture.
    """
    rows, columns = inside.shape
    _check_inside(columns, rows, x, y, width, height)
    column, row = _changes(inside)
    edges = (x + column) * height + y + row
    return _counts(edges, width * height)


def encode_coarse(inside: Inside, step: int, box: tuple[int, int, int, int], width: int, height: int) -> Counts:
    """As `encode`, of a mask with a pixel for every step x step of the picture that covers `box` (x1, y1, x2, y2), bool
    [ceil(h / step), ceil(w / step)]; cut to the box. Costs what the coarse mask and the runs cost."""
    x1, y1, x2, y2 = box
    _check_inside(x2 - x1, y2 - y1, x1, y1, width, height)
    column, row = _changes(inside)
    each = np.bincount(column, minlength=inside.shape[1])
    # Every column of the coarse mask stands for `step` of the picture's, the last perhaps for fewer.
    coarse = np.arange(x2 - x1) // step
    many = each[coarse]
    first = (np.cumsum(each) - each)[coarse] - (np.cumsum(many) - many)
    row = row[np.repeat(first, many) + np.arange(many.sum())]
    column = np.repeat(np.arange(x1, x2), many)
    edges = column * height + y1 + np.minimum(row * step, y2 - y1)
    return _counts(edges, width * height)


def _check_inside(columns: int, rows: int, x: int, y: int, width: int, height: int) -> None:
    if not (0 <= x <= width - columns and 0 <= y <= height - rows):
        raise ValueError(f"a mask of {columns}x{rows} pixels at {x}, {y} is not inside of {width}x{height}")


def _changes(inside: Inside) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Column and row where runs that are on begin and end, one column after the other."""
    rows, columns = inside.shape
    # One pixel that is off between columns ends every run where its column ends.
    apart = np.zeros((columns, rows + 1), np.bool_)
    apart[:, :rows] = inside.T
    pixels = apart.reshape(-1)
    changes = np.flatnonzero(pixels[1:] != pixels[:-1]) + 1
    if pixels.size and pixels[0]:
        changes = np.concatenate(((0,), changes))
    column, row = np.divmod(changes, rows + 1)
    return column, row


def _counts(edges: npt.NDArray[np.int64], total: int) -> Counts:
    """Runs between edges that alternately begin and end one that is on."""
    joined = edges[2::2] == edges[1:-1:2]  # a run down to the last row that goes on at the top of the next column
    if joined.any():
        keep = np.ones(len(edges), np.bool_)
        keep[2::2] = keep[1:-1:2] = ~joined
        edges = edges[keep]
    bounds = np.concatenate(((0,), edges, (total,) if not len(edges) or edges[-1] < total else ()))
    return np.diff(bounds).astype(np.uint32)


def decode(counts: Counts, width: int, height: int) -> Inside:
    """bool [height, width]. ValueError where the runs are not those of a picture of this size."""
    inside, x, y = crop(counts, width, height)
    whole = np.zeros((height, width), np.bool_)
    whole[y : y + inside.shape[0], x : x + inside.shape[1]] = inside
    return whole


def crop(counts: Counts, width: int, height: int) -> tuple[Inside, int, int]:
    """The smallest part that holds all of a mask: bool [h, w], and the x, y of its corner; 0x0 for an empty mask.

    Costs what the part costs, however large the picture. ValueError as for `decode`.
    """
    edges = np.cumsum(counts, dtype=np.int64)
    if not len(edges) or edges[-1] != width * height:
        raise ValueError(f"runs of {int(edges[-1]) if len(edges) else 0} pixels are no mask of {width}x{height}")
    starts, stops = edges[0:-1:2], edges[1::2]
    there = stops > starts
    starts, stops = starts[there], stops[there]
    if not len(starts):
        return np.zeros((0, 0), np.bool_), 0, 0
    first, last = int(starts[0]) // height, int(stops[-1] - 1) // height
    pixels = np.zeros((last + 1 - first) * height + 1, np.int8)
    pixels[starts - first * height] += 1
    pixels[stops - first * height] -= 1
    inside = np.cumsum(pixels[:-1], dtype=np.int8).view(np.bool_).reshape(-1, height).T
    rows = np.flatnonzero(inside.any(axis=1))
    top, bottom = int(rows[0]), int(rows[-1]) + 1
    return inside[top:bottom], first, top


def area(counts: Counts) -> int:
    """Pixels that are on."""
    return int(counts[1::2].sum(dtype=np.int64))


def polygon(counts: Counts, width: int, height: int) -> npt.NDArray[np.int32]:
    """The outer contour of a mask's largest piece, int32 [n, 2]: x, y of the pixels on its rim, in order.

    At least three points, so that everybody takes it for a polygon, or none for an empty mask. `cv2.fillPoly` paints
    the piece from it again, without its holes. ValueError as for `decode`.
    """
    inside, x, y = crop(counts, width, height)
    if not inside.size:
        return np.empty((0, 2), np.int32)
    found = cv2.findContours(inside.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE, offset=(x, y))[0]
    largest = max(found, key=lambda contour: (cv2.contourArea(contour), len(contour)))
    points = cast(npt.NDArray[np.int32], largest.reshape(-1, 2))
    return points if len(points) >= 3 else np.pad(points, ((0, 3 - len(points)), (0, 0)), mode="edge")
