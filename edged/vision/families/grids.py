"""Boxes of detectors that predict distances from the cells of grids to the sides of a box."""

from __future__ import annotations

import numpy as np

from edged.vision.families.decoding import Floats, Rows, softmax


def count_cells(size: tuple[int, int], strides: tuple[int, ...]) -> int:
    """Return the number of cells of the grids of an input of this size (width, height)."""
    return sum(across * down for across, down in _grids(size, strides))


def locate(rows: Rows, size: tuple[int, int], strides: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Return column and row [n, 2] of cells that are numbered grid by grid, row by row, and their strides [n, 1].

    `rows` are the numbers [n], below `count_cells`. Partial cells at the edges of the input count.
    """
    grids = np.array(_grids(size, strides), np.int64)
    ends = grids.prod(axis=1).cumsum()
    level = np.searchsorted(ends, rows, side="right")
    across = grids[level, 0]
    place = rows - np.concatenate(((0,), ends[:-1]))[level]
    cells = np.stack((place % across, place // across), axis=1, dtype=np.float32)
    return cells, np.array(strides, np.float32)[level, None]


def around(points: Floats, distances: Floats) -> Floats:
    """Return the boxes [n, 4] xyxy around points [n, 2] with distances [n, 4] to left, top, right and bottom."""
    with np.errstate(invalid="ignore"):  # infinite distances get boxes that are dropped later
        return np.concatenate((points - distances[:, :2], points + distances[:, 2:]), axis=1, dtype=np.float32)


def expected(logits: Floats) -> Floats:
    """Return the means [n, 4] of four distributions over 0, 1, 2, ..., whose logits are side by side in [n, 4 * bins].

    Source: Li et al., "Generalized Focal Loss", 2020 (distribution focal loss).
    """
    bins = logits.shape[1] // 4
    shares = softmax(logits.reshape(len(logits), 4, bins))
    with np.errstate(invalid="ignore"):
        means: Floats = shares @ np.arange(bins, dtype=np.float32)
    return means


def _grids(size: tuple[int, int], strides: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return columns and rows of each grid."""
    return [(-(-size[0] // stride), -(-size[1] // stride)) for stride in strides]
