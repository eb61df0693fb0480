"""Masks in COCO's uncompressed run-length encoding over a whole picture.

A mask is uint32 [runs]: the lengths of alternating runs of off and on pixels, which add up to width * height. Pixels
are counted down each column, columns from left to right. The first run is off and may be empty; the last run is never
empty. Format: `rleEncode` of the COCO API.
"""

from __future__ import annotations

from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt

from edged import packages
from edged.errors import Unsupported

Counts: TypeAlias = npt.NDArray[np.uint32]
Inside: TypeAlias = npt.NDArray[np.bool_]


def encode(inside: Inside, x: int, y: int, width: int, height: int) -> Counts:
    """Encode the mask `inside`, bool [h, w], whose upper left corner is at x, y of a picture of width x height.

    An array with contiguous columns (the transpose of a C contiguous one) is encoded fastest. Raises ValueError if the
    mask exceeds the picture.
    """
    rows, columns = inside.shape
    _check_inside(columns, rows, x, y, width, height)
    column, row = _changes(inside)
    edges = (x + column) * height + y + row
    return _counts(edges, width * height)


def encode_coarse(inside: Inside, step: int, box: tuple[int, int, int, int], width: int, height: int) -> Counts:
    """Encode a mask that has 1/step of the picture's resolution. The mask covers `box` (x1, y1, x2, y2) and is cut to
    `box`.

    `inside` is bool [ceil(h / step), ceil(w / step)], for a box of w x h pixels. The time depends only on the size of
    `inside` and the number of runs. Raises ValueError if `box` exceeds the picture.
    """
    x1, y1, x2, y2 = box
    _check_inside(x2 - x1, y2 - y1, x1, y1, width, height)
    column, row = _changes(inside)
    each = np.bincount(column, minlength=inside.shape[1])
    # Every column of the coarse mask stands for `step` columns of the picture, the last perhaps for fewer.
    coarse = np.arange(x2 - x1) // step
    many = each[coarse]
    first = (np.cumsum(each) - each)[coarse] - (np.cumsum(many) - many)
    row = row[np.repeat(first, many) + np.arange(many.sum())]
    column = np.repeat(np.arange(x1, x2), many)
    edges = column * height + y1 + np.minimum(row * step, y2 - y1)
    return _counts(edges, width * height)


def _check_inside(columns: int, rows: int, x: int, y: int, width: int, height: int) -> None:
    if not (0 <= x <= width - columns and 0 <= y <= height - rows):
        raise ValueError(f"a mask of {columns}x{rows} pixels at {x}, {y} exceeds the picture of {width}x{height}")


def _changes(inside: Inside) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the columns and rows where runs of on pixels begin and end, column by column."""
    rows, columns = inside.shape
    # An off pixel between columns ends every run at the end of its column.
    apart = np.zeros((columns, rows + 1), np.bool_)
    apart[:, :rows] = inside.T
    pixels = apart.reshape(-1)
    changes = np.flatnonzero(pixels[1:] != pixels[:-1]) + 1
    if pixels.size and pixels[0]:
        changes = np.concatenate(((0,), changes))
    column, row = np.divmod(changes, rows + 1)
    return column, row


def _counts(edges: npt.NDArray[np.int64], total: int) -> Counts:
    """Return run lengths from edges that alternately begin and end a run of on pixels."""
    joined = edges[2::2] == edges[1:-1:2]  # a run ends at the last row, and the next one begins at the first row
    if joined.any():
        keep = np.ones(len(edges), np.bool_)
        keep[2::2] = keep[1:-1:2] = ~joined
        edges = edges[keep]
    bounds = np.concatenate(((0,), edges, (total,) if not len(edges) or edges[-1] < total else ()))
    return np.diff(bounds).astype(np.uint32)


def decode(counts: Counts, width: int, height: int) -> Inside:
    """Decode to bool [height, width]. Raises ValueError if the runs do not add up to a picture of this size."""
    inside, x, y = crop(counts, width, height)
    whole = np.zeros((height, width), np.bool_)
    whole[y : y + inside.shape[0], x : x + inside.shape[1]] = inside
    return whole


def crop(counts: Counts, width: int, height: int) -> tuple[Inside, int, int]:
    """Decode only the bounding box of a mask. Return bool [h, w], and x and y of the box's upper left corner. For an
    empty mask the array is 0x0.

    The cost depends on the number of runs and on the columns of the box, in the full height of the picture. Raises
    ValueError like `decode`.
    """
    edges = np.cumsum(counts, dtype=np.int64)
    if not len(edges) or edges[-1] != width * height:
        found = int(edges[-1]) if len(edges) else 0
        raise ValueError(f"the runs of a mask have {found} pixels in all, but the picture has {width}x{height}")
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


def polygon(counts: Counts, width: int, height: int) -> npt.NDArray[np.int32]:
    """Return the outer contour of the largest connected part of a mask, int32 [n, 2]: x, y of the border's corners, in
    order.

    The contour has at least three points, as a valid polygon needs, or no points if the mask is empty. `cv2.fillPoly`
    restores the part, but with filled holes. Raises ValueError like `decode`, Unsupported without OpenCV.
    """
    try:
        import cv2  # imported here to save memory in the daemon and in commands, which need OpenCV only for this
    except ImportError:
        raise Unsupported(packages.missing("cv2", "the polygon of a mask")) from None

    inside, x, y = crop(counts, width, height)
    if not inside.size:
        return np.empty((0, 2), np.int32)
    found = cv2.findContours(inside.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE, offset=(x, y))[0]
    largest = max(found, key=lambda contour: (cv2.contourArea(contour), len(contour)))
    points = cast(npt.NDArray[np.int32], largest.reshape(-1, 2))
    return points if len(points) >= 3 else np.pad(points, ((0, 3 - len(points)), (0, 0)), mode="edge")
