"""Chooses the crops of a picture for a pipeline's second model. A crop shows one detection of the first model. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from edged.vision.detections import Detections, class_name
from edged.vision.placement import Region, Roi
from edged.vision.tilted import Corners, upright

_MOST_PIXELS = 64 * 1024 * 1024  # as `image.MAX_PIXELS`; importing `image` would load OpenCV


class CropRule(msgspec.Struct, frozen=True):
    """Which detections get a crop: the `most` detections with the best scores, of the classes in `classes` or, if
    `classes` is empty, of all classes.

    A crop is the box of a detection, enlarged on each side by `margin` times the width or height of the box. If
    `is_upright` is set and the detector returns oriented boxes, the crop is the oriented box, turned upright.
    """

    classes: frozenset[str] = frozenset()
    most: int = 8
    margin: float = 0.0
    is_upright: bool = False


class Crops(msgspec.Struct, frozen=True):
    """The crops of one picture, the best score first. `rows` are the row numbers of the detections, `regions` are the
    parts of the picture. `left_out` counts the detections of the rule's classes that have no crop, because the rule
    allows no more crops or because the detection has no area in the picture."""

    rows: tuple[int, ...] = ()
    regions: tuple[Roi, ...] = ()
    left_out: int = 0


def choose(
    found: Detections, names: Sequence[str], rule: CropRule, width: int, height: int, rotation: int = 0
) -> Crops:
    """Choose the crops of a picture of width x height pixels. `names` are the names of the detector's classes. Both
    models get the picture rotated clockwise by `rotation` degrees.

    Boxes and size come from a process that may be hostile. Boxes that are not finite get no crop. Raises ValueError if
    the size is impossible.
    """
    if min(width, height) < 1 or width * height > _MOST_PIXELS:
        raise ValueError(f"a picture of {width}x{height} pixels is impossible; it must have 1 to {_MOST_PIXELS} pixels")
    scores = np.nan_to_num(found.scores, nan=-math.inf)
    wanted = np.argsort(-scores, kind="stable")
    if rule.classes:
        passed = [number for number in set(found.class_ids.tolist()) if class_name(names, number) in rule.classes]
        wanted = wanted[np.isin(found.class_ids[wanted], passed)]
    boxes = _whole_pixels(found.boxes, rule.margin, width, height)
    rows = wanted[(boxes[wanted, :2] < boxes[wanted, 2:]).all(axis=1)][: rule.most].tolist()
    regions = tuple(_region(found, row, boxes[row], rule, width, height, rotation) for row in rows)
    return Crops(tuple(rows), regions, len(wanted) - len(rows))


def _whole_pixels(boxes: npt.NDArray[np.float32], margin: float, width: int, height: int) -> npt.NDArray[np.float64]:
    """Enlarge boxes by `margin`, cut the boxes to the picture, and round their edges outwards to whole pixels. Return
    xyxy [n, 4], with NaN for a box that is not finite."""
    exact = boxes.astype(np.float64)
    exact[~np.isfinite(exact).all(axis=1)] = np.nan
    more, limit = (exact[:, 2:] - exact[:, :2]) * margin, (width, height)
    low, high = np.clip(exact[:, :2] - more, 0, limit), np.clip(exact[:, 2:] + more, 0, limit)
    return np.concatenate((np.floor(low), np.ceil(high)), axis=1)


def _region(
    found: Detections,
    row: int,
    box: npt.NDArray[np.float64],
    rule: CropRule,
    width: int,
    height: int,
    rotation: int,
) -> Roi:
    """Return the crop of a detection. `box` is the axis-aligned crop in whole pixels, from `_whole_pixels`."""
    if rule.is_upright and found.corners is not None:
        corners = _tilted(found.corners[row], rule.margin, width, height, rotation)
        if corners is not None:
            return Roi(corners=corners)
    left, top, right, bottom = map(int, box.tolist())
    return Roi(Region(left, top, right - left, bottom - top), rotation)


def _tilted(corners: npt.NDArray[np.float32], margin: float, width: int, height: int, rotation: int) -> Corners | None:
    """Return the corners of an oriented crop. Return None if a corner is not finite, a side is under one pixel, the
    centre of the crop is outside the picture, or the crop has more than twice the area of the picture."""
    if not np.isfinite(corners).all():
        return None
    exact = corners.astype(np.float64)
    centre = exact.mean(axis=0)
    larger = (exact - centre) * (1 + 2 * margin) + centre
    sides = np.linalg.norm(np.roll(larger, -1, axis=0) - larger, axis=1)
    across, along = max(sides[0], sides[2]), max(sides[1], sides[3])
    is_inside = 0 <= centre[0] <= width and 0 <= centre[1] <= height
    if not is_inside or sides.min() < 1 or across * along > 2 * width * height:
        return None
    return upright(larger.astype(np.float32), rotation)
