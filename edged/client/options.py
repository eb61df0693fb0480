"""What a stream asks of the daemon beside the picture, checked before anything is sent."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edged.errors import InvalidInput
from edged.proto import cameras_pb2 as pb

_TURNS = (0, 90, 180, 270)
_PRIORITY = 100

Region = tuple[int, int, int, int]
"""x, y, width and height in pixels of the picture as sent; a width or height of 0 goes to the edge."""


@dataclass(frozen=True)
class Asked:
    """Goes with every frame, and `options` with the first of every call; None leaves it to the model and the daemon."""

    thresholds: pb.Thresholds | None = None
    region: pb.Region | None = None
    rotation: int = 0
    options: pb.StreamOptions | None = None


def asked(
    score: float | None = None,
    iou: float | None = None,
    max_detections: int | None = None,
    class_agnostic: bool | None = None,
    region: Region | None = None,
    rotation: int = 0,
    options: pb.StreamOptions | None = None,
) -> Asked:
    """InvalidInput for a value out of range."""
    if rotation not in _TURNS:
        raise InvalidInput(f"rotation={rotation} is not a quarter turn; give 0, 90, 180 or 270 degrees clockwise")
    limits = _thresholds(score, iou, max_detections, class_agnostic)
    return Asked(limits, None if region is None else _region(region), rotation, options)


def stream_options(
    every_frame: bool = False,
    max_fps: float = 0.0,
    max_staleness: float = 0.0,
    weight: float = 1.0,
    priority: int = 0,
    track: bool = False,
) -> pb.StreamOptions | None:
    """None where all is as it is anyway. InvalidInput for a value out of range."""
    for name, value in (("max_fps", max_fps), ("max_staleness", max_staleness)):
        if not 0 <= value < 2**31 / 1000:
            raise InvalidInput(f"{name}={value:g} is out of range; give a positive number, or 0 for no limit")
    if not 0 < weight < math.inf:
        raise InvalidInput(f"weight={weight:g} is out of range; give a positive number, 1 is the rule")
    if not -_PRIORITY <= priority <= _PRIORITY:
        raise InvalidInput(f"priority={priority} is out of range; give a whole number from -100 to 100, 0 is the rule")
    options = pb.StreamOptions(
        mode=pb.StreamOptions.EVERY_FRAME if every_frame else pb.StreamOptions.FRESHEST,
        max_fps=max_fps,
        # A limit never becomes none by rounding.
        max_staleness_ms=max(1, round(max_staleness * 1000)) if max_staleness else 0,
        weight=0.0 if weight == 1 else weight,
        priority=priority,
        track=track,
    )
    return options if options.ByteSize() else None


def _thresholds(
    score: float | None, iou: float | None, max_detections: int | None, class_agnostic: bool | None
) -> pb.Thresholds | None:
    for name, value in (("score", score), ("iou", iou)):
        if value is not None and not 0 <= value <= 1:
            raise InvalidInput(f"{name}={value} is out of range; give a number from 0 to 1")
    if max_detections is not None and not 0 < max_detections < 2**32:
        raise InvalidInput(f"max_detections={max_detections} is out of range; give a whole number from 1")
    if score is None and iou is None and max_detections is None and class_agnostic is None:
        return None
    limits = pb.Thresholds(score=score, iou=iou, max_detections=max_detections)
    if class_agnostic is not None:
        limits.class_agnostic = class_agnostic
    return limits


def _region(region: Region) -> pb.Region:
    if len(region) != 4 or not all(0 <= value < 2**32 for value in region):
        raise InvalidInput(f"region={region} is no part of a picture; give x, y, width and height in pixels")
    x, y, width, height = region
    return pb.Region(x=x, y=y, width=width, height=height)
