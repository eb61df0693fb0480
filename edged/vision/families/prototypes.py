"""Masks of single detections, as fine as the original picture, from prototypes that all detections share."""

from __future__ import annotations

import math

import cv2
import numpy as np
import numpy.typing as npt

from edged.tensors import Array
from edged.vision import masks
from edged.vision.masks import Counts
from edged.vision.placement import Placement

Floats = npt.NDArray[np.float32]


class Prototypes:
    """Prototypes [m, h, w] that lie over a whole input of `size` (width, height) pixels.

    A mask is where their weighted sum, interpolated between their pixels, is above zero. Only what lies below a
    detection's box is computed, straight in the pixels of the picture, whichever way that was placed.
    """

    def __init__(self, prototypes: Array, size: tuple[int, int], placement: Placement) -> None:
        self._prototypes = prototypes
        self._width, self._height = placement.width, placement.height
        # From the middle of a pixel of the picture to an index of the prototypes, whose middles lie at .5 as well.
        fine = np.array(((prototypes.shape[2] / size[0],), (prototypes.shape[1] / size[1],)))
        way = placement.to_input() * fine
        way[:, 2] += way[:, :2].sum(axis=1) / 2 - 0.5
        self._way = way

    def masks(self, weights: Array, boxes: Floats) -> list[Counts | None]:
        """The masks of n detections with weights [n, m] and boxes, xyxy [n, 4] in pixels of the picture and inside it.

        None where nothing in the box is above zero.
        """
        pixels = np.ceil(boxes - 0.5).astype(int).tolist()  # those whose middle is in the box
        return [self._mask(row, *box) for row, box in zip(weights.astype(np.float32), pixels, strict=True)]

    def _mask(self, weights: Floats, x1: int, y1: int, x2: int, y2: int) -> Counts | None:
        if x2 <= x1 or y2 <= y1:
            return None
        corners = np.array(((x1, y1, 1), (x2 - 1, y2 - 1, 1))) @ self._way.T
        left, right = self._reach(corners[:, 0], self._prototypes.shape[2])
        top, bottom = self._reach(corners[:, 1], self._prototypes.shape[1])
        part = self._prototypes[:, top:bottom, left:right].astype(np.float32)
        logits = np.tensordot(weights, part, axes=1)
        way = self._way.copy()
        way[:, 2] += way[:, :2] @ (x1, y1) - (left, top)
        # Columns and rows change places, so that runs down the columns lie one after the other in memory.
        fine = cv2.warpAffine(
            logits,
            way[:, (1, 0, 2)],
            (y2 - y1, x2 - x1),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REPLICATE,
        )
        inside = fine > 0
        return masks.encode(inside.T, x1, y1, self._width, self._height) if inside.any() else None

    @staticmethod
    def _reach(ends: npt.NDArray[np.float64], size: int) -> tuple[int, int]:
        """The first and the one after the last index that are interpolated between."""
        low = min(max(math.floor(ends.min()), 0), size - 1)
        return low, max(low + 1, min(math.ceil(ends.max()) + 1, size))
