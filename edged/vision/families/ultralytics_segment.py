"""Ultralytics models with a mask for each detection: task segment."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt

from edged.errors import TooLarge
from edged.tensors import Array
from edged.vision import masks
from edged.vision.detections import Detections
from edged.vision.families.contract import Claim, Evidence
from edged.vision.families.decoding import (
    AT_LEAST_ONE,
    Floats,
    Outputs,
    Thresholds,
    picture_tensor,
    suppress,
    with_area,
)
from edged.vision.families.ultralytics import UltralyticsTask
from edged.vision.masks import Counts
from edged.vision.placement import Placement
from edged.vision.signatures import patterns


class UltralyticsSegment(UltralyticsTask, frozen=True):
    """Detections with masks: a table with 32 coefficients for each detection, and 32 prototypes, [N, 32, H/4, W/4]. The
    mask of a detection has the pixels for which the sum of the prototypes, weighted by the detection's coefficients, is
    above zero. `reading.outputs` are the table and the prototypes.

    Source: `Segment.forward` and `process_mask` of the ultralytics package. As in this package, a mask is cut to the
    box of the detection, and a detection with an empty mask is dropped. Unlike in this package, masks always have the
    size of the original picture.
    """

    name = "ultralytics-segment"
    signatures = patterns("[N, 36+classes, cells], [N, 32, H/4, W/4]", "[N, R, 38], [N, 32, H/4, W/4]")
    task = "segment"

    def decode(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        """See `Family.decode`. The detections have masks."""
        prototypes = self._prototypes(outputs, index)
        found, weights = self._weighted(outputs, index, placement, thresholds)
        size = self.preprocess.width, self.preprocess.height
        if not len(found):
            return msgspec.structs.replace(found, masks=())
        masks = Prototypes(prototypes, size, placement).masks(weights, found.boxes)
        there = np.array([mask is not None for mask in masks], np.bool_)
        return msgspec.structs.replace(found.select(there), masks=tuple(mask for mask in masks if mask is not None))

    def boxes(self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds) -> Detections:
        """See `Family.boxes`. The result also has the detections whose mask is empty."""
        return self._weighted(outputs, index, placement, thresholds)[0]

    def _prototypes(self, outputs: Outputs, index: int) -> Array:
        return picture_tensor(outputs, self.reading.outputs[1], index, AT_LEAST_ONE, AT_LEAST_ONE, AT_LEAST_ONE)

    def _weighted(
        self, outputs: Outputs, index: int, placement: Placement, thresholds: Thresholds
    ) -> tuple[Detections, Array]:
        """Return detections without masks, and the weights of the prototypes for each mask, [n, 32]."""
        more = len(self._prototypes(outputs, index))
        offered, weights = self._select(self._table(outputs, index, more), more, thresholds.score)
        numbered = offered._replace(rows=np.arange(len(offered.rows)))
        kept = suppress(numbered, thresholds, needs_nms=self.needs_nms)
        boxes = placement.to_original(kept.found.boxes)
        seen = with_area(boxes)
        return msgspec.structs.replace(kept.found, boxes=boxes).select(seen), weights[kept.rows[seen]]

    @classmethod
    def claim(cls, evidence: Evidence, reason: str) -> Claim | None:
        prototypes = [spec for spec in evidence.outputs if len(spec.shape) == 4]
        if len(prototypes) != 1 or not isinstance(prototypes[0].shape[1], int):
            return None
        name = prototypes[0].name
        return cls._claim_table(evidence, reason, prototypes[0].shape[1], f", {name} the prototypes of masks", name)


MAX_PIXELS = 1 << 25  # pixels in the boxes of all masks of a picture: four times 4K, about 50 ms on one core
MAX_RUNS = 1 << 24  # 64 MiB; only noise has this many


class Prototypes:
    """Prototypes [m, h, w] that cover the whole input, which has `size` (width, height) pixels.

    A mask has the pixels for which the weighted sum of the prototypes, interpolated between their pixels, is above
    zero. Only the part in a detection's box is computed, directly in pixels of the picture, for any placement. If the n
    boxes cover more than `MAX_PIXELS` together, masks of boxes with more than `MAX_PIXELS` / n pixels are computed at a
    lower resolution.
    """

    def __init__(self, prototypes: Array, size: tuple[int, int], placement: Placement) -> None:
        self._prototypes = prototypes.astype(np.float32, copy=False)
        self._width, self._height = placement.width, placement.height
        # The map from pixel indices of the picture to indices of the prototypes. The centre of pixel i is at i + 0.5.
        fine = np.array(((prototypes.shape[2] / size[0],), (prototypes.shape[1] / size[1],)))
        way = placement.to_input() * fine
        way[:, 2] += way[:, :2].sum(axis=1) / 2 - 0.5
        self._way = way

    def masks(self, weights: Array, boxes: Floats) -> list[Counts | None]:
        """Return the masks of n detections with weights [n, m] and boxes xyxy [n, 4], which are in pixels of the
        picture and inside the picture. An empty mask is None. Raises TooLarge if the masks have more than `MAX_RUNS`
        runs."""
        pixels = np.ceil(boxes - 0.5).astype(int)  # pixels whose centre is in the box
        areas = (pixels[:, 2:] - pixels[:, :2]).clip(0).prod(axis=1)
        steps = np.where(areas * len(areas) > MAX_PIXELS, math.ceil(math.sqrt(areas.sum() / MAX_PIXELS)), 1)
        found: list[Counts | None] = []
        runs = 0
        for row, box, step in zip(weights.astype(np.float32), pixels.tolist(), steps.tolist(), strict=True):
            found.append(self._mask(row, box, max(step, 1)))
            runs += 0 if found[-1] is None else len(found[-1])
            if runs > MAX_RUNS:
                raise TooLarge(
                    f"the masks of {len(areas)} detections have over {MAX_RUNS} runs; raise thresholds.score, or lower"
                    " thresholds.max_detections"
                )
        return found

    def _mask(self, weights: Floats, box: list[int], step: int) -> Counts | None:
        import cv2  # imported here, because the daemon imports families without decoding

        x1, y1, x2, y2 = box
        if x2 <= x1 or y2 <= y1:
            return None
        columns, rows = -(-(x2 - x1) // step), -(-(y2 - y1) // step)
        aside = (step - 1) / 2  # from the first of `step` pixels to the centre of these pixels
        last = (columns - 1) * step + aside, (rows - 1) * step + aside
        corners = np.array(((x1 + aside, y1 + aside, 1), (x1 + last[0], y1 + last[1], 1))) @ self._way.T
        left, right = self._reach(corners[:, 0], self._prototypes.shape[2])
        top, bottom = self._reach(corners[:, 1], self._prototypes.shape[1])
        logits = self._logits(weights, slice(top, bottom), slice(left, right))
        way = self._way.copy()
        way[:, 2] += way[:, :2] @ (x1 + aside, y1 + aside) - (left, top)
        way[:, :2] *= step
        # Transposed, so that runs down the columns are contiguous in memory.
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
        """Return the weighted sum of a part of the prototypes. A small part is copied first. For a large part, the sum
        of all prototypes costs less than the copy."""
        part = self._prototypes[:, rows, columns]
        if part.size * 8 < self._prototypes.size:
            return np.tensordot(weights, part, axes=1)
        return np.tensordot(weights, self._prototypes, axes=1)[rows, columns]

    @staticmethod
    def _reach(ends: npt.NDArray[np.float64], size: int) -> tuple[int, int]:
        """Return the range of indices along one axis that the interpolation reads."""
        low = min(max(math.floor(ends.min()), 0), size - 1)
        return low, max(low + 1, min(math.ceil(ends.max()) + 1, size))
