"""Reads tables of one column a grid cell, [4 + classes + more, A]: cx, cy, w, h in input pixels, a score for each
class, and whatever else a family tells of a cell. Doubles are left to the reader.

The whole table is never transposed or copied: thousands of columns are looked at and some dozens read.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

from edged.tensors import Array
from edged.vision.families.candidates import Candidates, corners, offer
from edged.vision.nms import MAX_CANDIDATES, best_first


def offer_cells(table: Array, classes: int, score: float) -> Candidates:
    """The cells above a score, in no order. A cell counts once, with its best class, and not at all with a NaN score
    or a box that cannot be; of too many the best `MAX_CANDIDATES` count."""
    scores = table[4 : 4 + classes]
    best = _best(scores)
    cells = np.flatnonzero(best > score)
    if len(cells) > MAX_CANDIDATES:
        cells = cells[best_first(best[cells].astype(np.float32), MAX_CANDIDATES)]
    chosen = scores[:, cells]
    class_ids = chosen.argmax(axis=0)
    boxes = corners(table[:4, cells].T.astype(np.float32))
    found, rows = offer(boxes, chosen[class_ids, np.arange(len(cells))], class_ids, score)
    return Candidates(found, cells[rows])


def _best(scores: Array) -> npt.NDArray[np.float32]:
    """The best score of each column, NaN where one is NaN; scores are [classes, A].

    numpy compares FP16 value by value, forty times slower than integers. For values from zero up the bit
    patterns order as the values do, with NaN above all; negative values order below, which is all a threshold
    needs to know.
    """
    if scores.dtype == np.float16:
        return cast(npt.NDArray[np.float32], scores.view(np.int16).max(axis=0).view(np.float16))
    return cast(npt.NDArray[np.float32], scores.max(axis=0))
