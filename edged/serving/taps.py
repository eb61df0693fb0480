"""Copies camera frames for taps. A tap is a part of the daemon that examines a few of the frames, with their answers.

`wants` of each tap is called for every frame, on the event loop, so it must cost next to nothing. A frame that no tap
wants is not copied.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from edged.errors import EdgedError
from edged.serving.pipeline_slot import PipelineSlot
from edged.serving.sound import AnySlot, SoundSource
from edged.serving.work import Answered, FrameWork

MOST_BYTES = 64 << 20  # larger frames are not copied: the event loop would stop for tens of milliseconds


class Tapped(msgspec.Struct, frozen=True):
    """A copy of a frame, and its answer. `data` is encoded if `pixel_format` is empty, otherwise raw pixels with
    `width` and `height` in pixels and `stride` in bytes."""

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
    """A part of the daemon that examines some of the frames of streams."""

    def wants(self, model: str, camera: str, now: float) -> bool:
        """Whether to copy a frame that was received at `now` (monotonic seconds). The tap gets no copy if the frame
        then fails or is skipped."""

    def take(self, frame: Tapped) -> None:
        """Receive the copy of a wanted frame, once the frame is answered."""


class Copy(NamedTuple):
    """A copy of a frame's bytes, and the taps that want it."""

    model: str
    data: bytes
    taps: tuple[Tap, ...]

    def give(self, camera: str, work: FrameWork) -> None:
        """Pass the copy of an answered frame to the taps."""
        about = (work.pixel_format, work.width, work.height, work.stride, work)
        tapped = Tapped(self.model, camera, self.data, *about, work.future.result())
        for tap in self.taps:
            tap.take(tapped)


def copy_of(taps: tuple[Tap, ...], slot: AnySlot, camera: str, work: FrameWork) -> Copy | None:
    """Return a copy of a frame that goes to `slot`; None if no tap wants it, or if it cannot be copied.

    A frame of a pipeline counts for the first model. Sound is never copied.
    """
    if isinstance(slot, SoundSource):
        return None
    model = slot.rule.detect if isinstance(slot, PipelineSlot) else slot.model
    wanting = tuple(tap for tap in taps if tap.wants(model, camera, work.received))
    data = _bytes_of(work) if wanting else b""
    return Copy(model, data, wanting) if data else None


def _bytes_of(work: FrameWork) -> bytes:
    """Return the bytes of a frame; empty if it is too large or cannot be read."""
    data = work.data
    if isinstance(data, bytes | memoryview):
        return bytes(data) if len(data) <= MOST_BYTES else b""
    if data.size > MOST_BYTES:
        return b""
    copy = bytearray(data.size)
    try:
        data.read_into(memoryview(copy))
    except EdgedError:  # the slot meets the same error, which becomes the frame's answer
        return b""
    return bytes(copy)
