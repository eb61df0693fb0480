"""Takes copies of camera frames as they pass, with the model's answers, for what looks at a few of them.

A tap is asked for every frame, on the event loop, so `wants` must cost next to nothing. A frame that no tap wants is
not copied.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from edged.serving.work import Answered, FrameWork


class Tapped(msgspec.Struct, frozen=True):
    """A copy of a frame, and its answer: encoded if `pixel_format` is empty, else raw with `width` and `height` in
    pixels, `stride` in bytes."""

    model: str
    camera: str
    data: bytes
    pixel_format: str
    width: int
    height: int
    stride: int
    work: FrameWork  # its roi and thresholds; its data has been released
    answer: Answered


class Tap(Protocol):
    """What looks at some of the frames of streams."""

    def wants(self, model: str, camera: str, now: float) -> bool:
        """Whether to copy the frame that came at `now` (monotonic seconds)."""

    def take(self, frame: Tapped) -> None:
        """Accept a frame that was wanted and is answered. Frames that fail or are skipped are not given."""
