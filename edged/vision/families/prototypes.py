"""Masks of single detections, as fine as the original picture, from prototypes that all detections share."""

from __future__ import annotations

import math

import cv2
import numpy as np
import numpy.typing as npt

from edged.errors import TooLarge
from edged.tensors import Array
from edged.vision import masks
from edged.vision.masks import Counts
from edged.vision.placement import Placement

Floats = npt.NDArray[np.float32]

MOST_PIXELS = 1 << 25  # of the boxes of all masks of a picture: four times 4K, some 50 ms on one core
MOST_RUNS = 1 << 24  # 64 MiB; masks as ragged as that are noise


class Prototypes:
    """Prototypes [m, h, w] that lie over a whole input of `size` (width, height) pixels.

    A mask is where their weighted sum, interpolated between their pixels, is above zero. Only what lies below a
    detection's box is computed, straight in the pixels of the picture, whichever way that was placed. Where boxes
    cover more than `MOST_PIXELS` in all, those with more than their share are computed with fewer pixels, each of which
    stands for a square of the picture's.
    """

    def __init__(self, prototypes: Array, size: tuple[int, int], placement: Placement) -> None:
        self._prototypes = prototypes.astype(np.float32, copy=False)
        self._width, self._height = placement.width, placement.height
        # From the middle of a pixel of the picture to an index of the prototypes, whose middles lie at .5 as well.
        fine = np.array(((prototypes.shape[2] / size[0],), (prototypes.shape[1] / size[1],)))
        way = placement.to_input() * fine
        way[:, 2] += way[:, :2].sum(axis=1) / 2 - 0.5
        self._way = way

    def masks(self, weights: Array, boxes: Floats) -> list[Counts | None]:
        """The masks of n detections with weights [n, m] and boxes, xyxy [n, 4] in pixels of the picture and inside it.

        None where nothing in the box is above zero. TooLarge for masks of more than `MOST_RUNS` runs.
        """
        pixels = np.ceil(boxes - 0.5).astype(int)  # those whose middle is in the box
        areas = (pixels[:, 2:] - pixels[:, :2]).clip(0).prod(axis=1)
        steps = np.where(areas * len(areas) > MOST_PIXELS, math.ceil(math.sqrt(areas.sum() / MOST_PIXELS)), 1)
        found: list[Counts | None] = []
        runs = 0
        for row, box, step in zip(weights.astype(np.float32), pixels.tolist(), steps.tolist(), strict=True):
            found.append(self._mask(row, box, max(step, 1)))
            runs += 0 if found[-1] is None else len(found[-1])
            if runs > MOST_RUNS:
                raise TooLarge(
                    f"the masks of {len(areas)} detections are over the limit of {MOST_RUNS} runs; raise the score"
                    " threshold, or lower max_detections"
                )
        return found

    def _mask(self, weights: Floats, box: list[int], step: int) -> Counts | None:
        x1, y1, x2, y2 = box
        if x2 <= x1 or y2 <= y1:
            return None
        columns, rows = -(-(x2 - x1) // step), -(-(y2 - y1) // step)
        aside = (step - 1) / 2  # from the first of `step` pixels to the middle of them all
        last = (columns - 1) * step + aside, (rows - 1) * step + aside
        corners = np.array(((x1 + aside, y1 + aside, 1), (x1 + last[0], y1 + last[1], 1))) @ self._way.T
        left, right = self._reach(corners[:, 0], self._prototypes.shape[2])
        top, bottom = self._reach(corners[:, 1], self._prototypes.shape[1])
        logits = self._logits(weights, slice(top, bottom), slice(left, right))
        way = self._way.copy()
        way[:, 2] += way[:, :2] @ (x1 + aside, y1 + aside) - (left, top)
        way[:, :2] *= step
        # Columns and rows change places, so that runs down the columns lie one after the other in memory.
        fine = cv2.warpAffine(
            logits,
            way[:, (1, 0, 2)],
            (rows, columns),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REPLICATE,
        )
        inside = (fine > 0).T
        if not inside.any():
            return None
        if step > 1:
            return masks.encode_coarse(inside, step, (x1, y1, x2, y2), self._width, self._height)
        return masks.encode(inside, x1, y1, self._width, self._height)

    def _logits(self, weights: Floats, rows: slice, columns: slice) -> Floats:
        """The weighted sum of a part of the prototypes. A small part is copied together; of a large one that would cost
        more than the sum of them all."""
        part = self._prototypes[:, rows, columns]
        if part.size * 8 < self._prototypes.size:
            return np.tensordot(weights, part, axes=1)
        return np.tensordot(weights, self._prototypes, axes=1)[rows, columns]

    @staticmethod
    def _reach(ends: npt.NDArray[np.float64], size: int) -> tuple[int, int]:
        """The first and the one after the last index that are interpolated between."""
        low = min(max(math.floor(ends.min()), 0), size - 1)
        return low, max(low + 1, min(math.ceil(ends.max()) + 1, size))
