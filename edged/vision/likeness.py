"""A 64-bit hash of a picture, to find pictures that look nearly the same. Pure.

The picture is averaged to 8 rows of 8 cells. 56 bits say whether a cell is brighter than its left neighbour by more
than 2 of 255 gray levels (a difference hash with a margin, so that camera noise does not flip bits in uniform areas).
The other 8 bits encode the mean brightness, so that a scene by day and the same scene at dusk differ.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Gray: TypeAlias = npt.NDArray[np.uint8]
_Cells: TypeAlias = npt.NDArray[np.float32]

_CELLS = 8
_CLEARLY = 2.0  # gray levels of 255
_LEVELS = np.arange(1, 9) * 28.0  # for each level, one bit: whether the mean brightness is above the level
NEAR = 1  # pictures count as nearly the same if their hashes differ by at most this number of bits


def likeness(gray: Gray) -> int:
    """Return the hash of a picture, uint8 [height, width] with at least one pixel."""
    cells = _averaged(_averaged(gray.astype(np.float32), _CELLS).T, _CELLS).T
    bits = np.append((np.diff(cells, axis=1) > _CLEARLY).ravel(), cells.mean() > _LEVELS)
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def distance(one: int, other: int) -> int:
    """Return how many bits of two hashes differ, 0 to 64."""
    return (one ^ other).bit_count()


def _averaged(values: _Cells, count: int) -> _Cells:
    """Average the rows of a matrix to `count` rows; repeat rows if the matrix has fewer."""
    size = len(values)
    starts = np.arange(count) * size // count
    if size < count:
        return values[starts]
    ends = np.append(starts[1:], size)
    means: _Cells = (np.add.reduceat(values, starts, axis=0) / (ends - starts)[:, None]).astype(np.float32)
    return means
