"""How a camera wants its frames to be treated."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import msgspec

from edged.errors import InvalidInput
from edged.serving.schedule import Share

Mode: TypeAlias = Literal["freshest", "every_frame"]

_WEIGHTS = (0.01, 100.0)
_PRIORITIES = (-100, 100)


class StreamOptions(msgspec.Struct, frozen=True):
    """`freshest`: one frame waits and the newest wins; `every_frame`: all are answered, in their order.

    max_fps: frames a second that are taken, 0 for all. max_staleness: seconds after its capture that a frame may still
    be chosen, 0 for any; the clocks of the client and of this box have to agree. share: its part of the engine against
    other cameras. track: whether detections get ids that follow them from frame to frame.
    """

    mode: Mode = "freshest"
    max_fps: float = 0.0
    max_staleness: float = 0.0
    share: Share = Share()
    track: bool = False

    @classmethod
    def checked(
        cls,
        mode: Mode = "freshest",
        max_fps: float = 0.0,
        max_staleness: float = 0.0,
        weight: float = 0.0,
        priority: int = 0,
        track: bool = False,
    ) -> StreamOptions:
        """Options from outside, a weight of 0 meaning 1; InvalidInput for what is out of range."""
        weight = weight or 1.0
        if not 0 <= max_fps <= 1e6 or not 0 <= max_staleness < math.inf:  # NaN is neither
            raise InvalidInput(f"max_fps={max_fps:g} and max_staleness={max_staleness:g} s must be 0 or more")
        if not _WEIGHTS[0] <= weight <= _WEIGHTS[1]:
            raise InvalidInput(f"weight={weight:g} must lie between {_WEIGHTS[0]:g} and {_WEIGHTS[1]:g}")
        if not _PRIORITIES[0] <= priority <= _PRIORITIES[1]:
            raise InvalidInput(f"priority={priority} must lie between {_PRIORITIES[0]} and {_PRIORITIES[1]}")
        return cls(mode, max_fps, max_staleness, Share(weight, priority), track)
