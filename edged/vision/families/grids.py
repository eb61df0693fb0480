"""Decodes the boxes of detectors that predict distances from the cells of grids to the sides of a box."""

from __future__ import annotations

import numpy as np

from edged.tensors import Array, TensorSpec
from edged.vision.families.decoding import Floats, Outputs, Rows, best_hits, picture_tensor, softmax


def count_cells(size: tuple[int, int], strides: tuple[int, ...]) -> int:
    """Return the number of cells of the grids of an input of this size (width, height)."""
    return sum(across * down for across, down in _grids(size, strides))


def locate(rows: Rows, size: tuple[int, int], strides: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Return the columns and rows of cells in their grids, [n, 2], and the strides of these grids, [n, 1].

    `rows` [n] are the numbers of the cells, below `count_cells`. All cells are numbered grid by grid, and row by row in
    a grid, with the partial cells at the edges of the input.
    """
    grids = np.array(_grids(size, strides), np.int64)
    ends = grids.prod(axis=1).cumsum()
    level = np.searchsorted(ends, rows, side="right")
    place = rows - np.concatenate(((0,), ends[:-1]))[level]
    return cells_at(place, grids[level, 0]), np.array(strides, np.float32)[level, None]


def cells_at(rows: Rows, across: int | Rows, per_cell: int = 1) -> Floats:
    """Return, for each of `rows`, the position (column, line) of its cell in a grid, [n, 2].

    `rows` [n] are row numbers of a table that has `per_cell` rows for each cell, and lists the cells line by line.
    `across` is the number of cells in a line of the grid: one number for all of `rows`, or one for each.
    """
    cells = rows // per_cell
    return np.stack((cells % across, cells // across), axis=1, dtype=np.float32)


def around(points: Floats, distances: Floats) -> Floats:
    """Return the boxes [n, 4] xyxy around points [n, 2] with distances [n, 4] to left, top, right and bottom."""
    with np.errstate(invalid="ignore"):  # boxes of infinite distances are dropped later
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


def tables_of(
    specs: tuple[TensorSpec, ...], size: tuple[int, int] | None, strides: tuple[int, ...]
) -> tuple[int, int] | None:
    """Return the numbers of classes and bins, if the tensors are scores [N, cells, classes] for each stride, followed
    by logits of distances [N, cells, 4 * bins] for each stride. Return None for other tensors."""
    half = len(strides)
    if size is None or len(specs) != 2 * half or any(len(spec.shape) != 3 for spec in specs):
        return None
    cells = [count_cells(size, (stride,)) for stride in strides] * 2
    if [spec.shape[1] for spec in specs] != cells:
        return None
    classes, sides = specs[0].shape[2], specs[half].shape[2]
    if [spec.shape[2] for spec in specs] != [classes] * half + [sides] * half:
        return None
    if not isinstance(classes, int) or not isinstance(sides, int) or sides < 8 or sides % 4:
        return None
    return classes, sides // 4


def decode_tables(
    outputs: Outputs,
    index: int,
    names: tuple[str, ...],
    shape: tuple[int, int],
    size: tuple[int, int],
    strides: tuple[int, ...],
    point: float,
    score: float,
) -> tuple[Array, Array, Array]:
    """Decode tensors of the layout that `tables_of` describes. Return the candidates' boxes (xyxy in input pixels),
    scores and class ids.

    `shape` are the numbers of classes and bins, `size` are width and height of the input. Distances are in units of
    cells, from a point of the cell, which is `point` cells right of and below the cell's upper left corner.
    """
    (classes, bins), half, parts = shape, len(strides), []
    for stride, scores_of, sides_of in zip(strides, names[:half], names[half:], strict=True):
        cells = count_cells(size, (stride,))
        scores = picture_tensor(outputs, scores_of, index, cells, classes)
        sides = picture_tensor(outputs, sides_of, index, cells, 4 * bins)
        places, class_ids = best_hits(scores, score)
        corner = cells_at(places, _grids(size, (stride,))[0][0])
        boxes = around(corner + np.float32(point), expected(sides[places].astype(np.float32))) * np.float32(stride)
        parts.append((boxes, scores[places, class_ids], class_ids))
    boxes, found, ids = (np.concatenate(part) for part in zip(*parts, strict=True))
    return boxes, found, ids


def _grids(size: tuple[int, int], strides: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return columns and rows of each grid."""
    return [(-(-size[0] // stride), -(-size[1] // stride)) for stride in strides]
