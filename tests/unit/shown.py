"""The part of a picture that a roi shows, computed with plain numpy: an oracle for placements, masks and points."""

from __future__ import annotations

import numpy as np

from edged.vision.placement import Fit, Placement, Region, Roi, crop_window, place, place_window


def placed(roi: Roi | None, size: tuple[int, int], shape: tuple[int, int], fit: Fit) -> Placement:
    """Return the placement of the roi of a picture in an input. `size` and `shape` are (width, height)."""
    window = crop_window(roi, *size)
    return place(*size, *shape, fit) if window is None else place_window(window, *size, *shape, fit)


def shown(array: np.ndarray, roi: Roi | None) -> np.ndarray:
    """Return the part of an array [h, w, ...] that a roi shows, rotated."""
    roi = roi or Roi()
    region = roi.region or Region()
    bottom = region.y + region.height if region.height else len(array)
    right = region.x + region.width if region.width else array.shape[1]
    return np.rot90(array[region.y : bottom, region.x : right], -roi.rotation // 90)


def in_input(placement: Placement, roi: Roi | None) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y of the middle of each picture pixel in the input, as [height, width]; NaN for hidden pixels."""
    height, width = placement.height, placement.width
    numbers = shown(np.arange(height * width).reshape(height, width), roi)
    rows, columns = np.indices(numbers.shape)
    across, down = np.full(height * width, np.nan), np.full(height * width, np.nan)
    across[numbers] = (columns + 0.5) * placement.scale_x + placement.pad_x
    down[numbers] = (rows + 0.5) * placement.scale_y + placement.pad_y
    return across.reshape(height, width), down.reshape(height, width)
