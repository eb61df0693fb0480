"""Chooses the crops of a picture for a pipeline's second model: one for each detection of the first model. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from edged.vision.detections import Detections, class_name
from edged.vision.placement import Region, Roi
from edged.vision.tilted import Corners, upright

_MOST_PIXELS = 64 * 1024 * 1024  # `image.MAX_PIXELS`, which needs OpenCV


class CropRule(msgspec.Struct, frozen=True):
    """Which detections get a crop: at most `most` of the `classes` (empty for all), the best scores first.

    A crop is the box, enlarged on each side by `margin` times its width or height. With `is_upright`, it is the
    oriented box instead, turned upright, if the detector gives corners.
    """

    classes: frozenset[str] = frozenset()
    most: int = 8
    margin: float = 0.0
    is_upright: bool = False


class Crops(msgspec.Struct, frozen=True):
    """The crops of one picture: the row of the detection for each, in decreasing order of scores, and its region.

    `left_out` counts the detections of the rule's classes that have no crop: they are too many, or have no area in the
    picture.
    """

    rows: tuple[int, ...] = ()
    regions: tuple[Roi, ...] = ()
    left_out: int = 0


def choose(
    found: Detections, names: Sequence[str], rule: CropRule, width: int, height: int, rotation: int = 0
) -> Crops:
    """Choose the crops of a picture of width x height pixels. Models get it rotated clockwise by `rotation` degrees.
    `names` are those of the detector's classes.

    Boxes and size come from a process that may be hostile. Boxes that are not finite get no crop. Raises ValueError if
    the size is impossible.
    """
    if min(width, height) < 1 or width * height > _MOST_PIXELS:
        raise ValueError(f"a picture of {width}x{height} pixels")
    scores = np.nan_to_num(found.scores, nan=-math.inf)
    wanted = [row for row in np.argsort(-scores, kind="stable").tolist() if _is_wanted(found, row, names, rule)]
    rows, regions = list[int](), list[Roi]()
    for row in wanted:
        if len(rows) == rule.most:
            break
        region = _region(found, row, rule, width, height, rotation)
        if region is not None:
            rows.append(row)
            regions.append(region)
    return Crops(tuple(rows), tuple(regions), len(wanted) - len(rows))


def _is_wanted(found: Detections, row: int, names: Sequence[str], rule: CropRule) -> bool:
    return not rule.classes or class_name(names, int(found.class_ids[row])) in rule.classes


def _region(found: Detections, row: int, rule: CropRule, width: int, height: int, rotation: int) -> Roi | None:
    """Return the crop of a detection; None if no part of it is in the picture."""
    if rule.is_upright and found.corners is not None:
        corners = _tilted(found.corners[row], rule.margin, width, height, rotation)
        if corners is not None:
            return Roi(corners=corners)
    box = found.boxes[row].astype(np.float64)
    if not np.isfinite(box).all():
        return None
    x1, y1, x2, y2 = box.tolist()
    across, along = (x2 - x1) * rule.margin, (y2 - y1) * rule.margin
    left, top = math.floor(_within(x1 - across, width)), math.floor(_within(y1 - along, height))
    right, bottom = math.ceil(_within(x2 + across, width)), math.ceil(_within(y2 + along, height))
    if right <= left or bottom <= top:
        return None
    return Roi(Region(left, top, right - left, bottom - top), rotation)


def _tilted(corners: npt.NDArray[np.float32], margin: float, width: int, height: int, rotation: int) -> Corners | None:
    """Return the corners of an oriented crop; None if it has no area, or far more than the picture."""
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


def _within(value: float, limit: int) -> float:
    return min(max(value, 0.0), float(limit))
