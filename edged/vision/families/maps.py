"""Finds maps in a model's output, cuts them to the part that shows the picture, and computes the class of each place.

A map of h x w cells covers the whole input, with its padding. A map has at most as many cells as the input has pixels.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from edged.tensors import Array, Dim, TensorSpec
from edged.vision.content import Box
from edged.vision.families.contract import Evidence
from edged.vision.families.decoding import AT_LEAST_ONE, Floats, Outputs, picture_tensor
from edged.vision.placement import Placement
from edged.vision.preprocess import Preprocess

Ids = npt.NDArray[np.integer]

_T = TypeVar("_T", bound=np.generic)

_MOST_FLOATS = 1 << 20  # interpolated at once: 4 MiB, so that they stay in the processor's cache
_MOST_TURNED = 1024  # the most rows, and the most columns, of a map that is turned back from a tilted window
_MOST_STRIDE = 64  # the most input pixels along a side of a cell


class Layout(NamedTuple):
    """The layout of an output. `channels` is 1 if the output has no dimension for channels. `cells` are the rows and
    columns of its maps."""

    channels: Dim
    cells: tuple[Dim, Dim]
    is_last: bool = False  # the channels are the last dimension


def layout_of(output: TensorSpec, evidence: Evidence) -> Layout | None:
    """Return the layout of an output [N, h, w], [N, channels, h, w] or [N, h, w, channels], if its maps can cover the
    input. If two layouts are possible, prefer the layout with the channels at the same place as in the picture
    input."""
    shape = output.shape
    layouts = []
    if len(shape) == 3:
        layouts = [Layout(1, (shape[1], shape[2]))]
    elif len(shape) == 4:
        layouts = [Layout(shape[1], (shape[2], shape[3])), Layout(shape[3], (shape[1], shape[2]), True)]
        if evidence.picture.layout == "NHWC":
            layouts.reverse()
    return next((each for each in layouts if each.channels != 0 and _covers(each.cells, evidence.size)), None)


def _covers(cells: tuple[Dim, Dim], size: tuple[int, int] | None) -> bool:
    """Whether a map with these rows and columns can cover an input of `size` (width, height): a cell for each pixel, or
    for each square of pixels, up to one cell more or less. True for open dimensions."""
    height, width = cells
    if cells == (1, 1):
        return False
    if size is None or isinstance(width, str) or isinstance(height, str):
        return True
    strides = size[0] / max(width, 1), size[1] / max(height, 1)
    is_proportional = abs(width * size[1] - height * size[0]) <= max(size)
    return min(strides) >= 1 and max(strides) <= _MOST_STRIDE and is_proportional


def single_map(outputs: Outputs, name: str, index: int) -> Array:
    """Return the map [h, w] of picture `index` in a tensor [N, h, w], [N, 1, h, w] or [N, h, w, 1]. Raises
    EngineUnusable if the tensor is missing or has another shape."""
    found = outputs.get(name)
    if found is not None and found.ndim == 4 and 1 in (found.shape[1], found.shape[3]):
        outputs = {name: found[:, 0] if found.shape[1] == 1 else found[..., 0]}
    return picture_tensor(outputs, name, index, AT_LEAST_ONE, AT_LEAST_ONE)


def part(placement: Placement) -> Box | None:
    """Return the part of the picture that the model got; None for the whole picture."""
    edges = placement.edges
    return None if edges == (0, 0, placement.width, placement.height) else edges


def shown(cells: npt.NDArray[_T], placement: Placement, preprocess: Preprocess) -> npt.NDArray[_T]:
    """Cut the padding off the map `cells`, [h, w], of the input, and turn the rest back to the orientation of the
    picture as sent. Returns a view, except for a tilted window.

    The edges of the cut are rounded to whole cells, and at least one cell is left. The result covers
    `placement.edges`. Places in `placement.edges` that are outside a tilted window get the nearest cell of the map.
    """
    height, width = cells.shape
    inner_w, inner_h = placement.inner
    columns = _part(placement.pad_x, inner_w, preprocess.width, width)
    rows = _part(placement.pad_y, inner_h, preprocess.height, height)
    if placement.tilted is not None:
        to_cells = placement.to_input() * ((width / preprocess.width,), (height / preprocess.height,))
        to_cells[:, 2] -= columns.start, rows.start
        return _turned_back(cells[rows, columns], to_cells, placement.edges)
    turns = 0 if placement.window is None else placement.window.rotation // 90
    return np.rot90(cells[rows, columns], turns)


def _turned_back(cells: npt.NDArray[_T], to_cells: npt.NDArray[np.float64], edges: Box) -> npt.NDArray[_T]:
    """Return a map, in the orientation of the picture, that covers the part `edges` of the picture. `to_cells` is the
    affine matrix [2, 3] from the picture to `cells`. A cell of the returned map covers about as much of the picture as
    a cell of `cells`, and at least one pixel."""
    left, top, right, bottom = edges
    counts, density = [], np.minimum(np.linalg.norm(to_cells[:, :2], axis=0), 1.0)
    for length, each in zip((right - left, bottom - top), density.tolist(), strict=True):
        counts.append(min(max(round(length * each), 1), _MOST_TURNED))
    x, y = ((np.arange(count) + 0.5) / count for count in counts)
    points = np.stack(np.meshgrid(left + x * (right - left), top + y * (bottom - top)))
    at = np.tensordot(to_cells[:, :2], points, 1) + to_cells[:, 2, None, None]
    column, row = (np.clip(each, 0, most - 1).astype(int) for each, most in zip(at, cells.shape[::-1], strict=True))
    turned: npt.NDArray[_T] = cells[row, column]
    return turned


def _part(pad: int, inner: int, side: int, cells: int) -> slice:
    first = min(max(round(pad * cells / side), 0), cells - 1)
    return slice(first, max(round((pad + inner) * cells / side), first + 1))


def best_classes(planes: Floats) -> Ids:
    """Return the class with the highest score in each cell, [...], from scores [classes, ...]. Of equal scores, the
    first one counts. Scores that are NaN do not count.

    A comparison for each plane takes a tenth of the time of `argmax` along the first axis.
    """
    found = np.zeros(planes.shape[1:], np.uint8 if len(planes) <= 256 else np.int32)
    best = np.full(planes.shape[1:], -np.inf, planes.dtype)
    is_better = np.empty(planes.shape[1:], np.bool_)
    for class_id, plane in enumerate(planes):
        np.greater(plane, best, out=is_better)
        np.fmax(best, plane, out=best)
        np.copyto(found, class_id, where=is_better, casting="unsafe")
    return found


def enlarged_classes(planes: Floats, across: int, down: int) -> Ids:
    """Divide each cell into `down` x `across` places and return the best class of each place, [h * down, w * across].

    Scores [classes, h, w] are interpolated bilinearly between the centres of cells, as by PyTorch with
    `align_corners=False`.

    Between four cells of the same class, interpolation cannot change the class. So only places between cells of
    different classes are interpolated. The result is exact, in a fraction of the time and memory.
    """
    coarse = best_classes(planes)
    if across == down == 1:
        return coarse
    height, width = coarse.shape
    # Cells at the edges are repeated, so that every place is between four cells. Block i has the places from the centre
    # of cell i - 1 to the centre of cell i.
    rows, columns = (np.clip(np.arange(-1, n + 1), 0, n - 1) for n in (height, width))
    padded = coarse[rows[:, None], columns]
    corners = padded[:-1, :-1], padded[:-1, 1:], padded[1:, :-1], padded[1:, 1:]
    fine = np.repeat(np.repeat(corners[0], down, axis=0), across, axis=1)
    blocks = fine.reshape(height + 1, down, width + 1, across).swapaxes(1, 2)
    block_rows, block_columns = np.nonzero(np.any([corners[0] != each for each in corners[1:]], axis=0))
    scores, weights = planes.reshape(len(planes), -1), _weights(across, down)
    step = max(1, _MOST_FLOATS // (len(planes) * across * down))
    for start in range(0, len(block_rows), step):
        j, i = block_rows[start : start + step], block_columns[start : start + step]
        cells = np.stack([rows[j + y] * width + columns[i + x] for y in (0, 1) for x in (0, 1)], axis=1)
        with np.errstate(invalid="ignore"):  # infinity times 0
            between = np.take(scores, cells, axis=1) @ weights
        blocks[j, i] = best_classes(between).reshape(-1, down, across)
    top, left = down - down // 2, across - across // 2
    return fine[top : top + height * down, left : left + width * across]


def _weights(across: int, down: int) -> Floats:
    """Return the weights of four neighbouring cells at each place between their centres, float32
    [4, down * across]."""
    (x, y) = ((np.arange(n) + (0.5 if n % 2 == 0 else 0.0)) / n for n in (across, down))
    pairs = [v[:, None] * h for v in (1 - y, y) for h in (1 - x, x)]
    return np.stack(pairs).reshape(4, -1).astype(np.float32)
