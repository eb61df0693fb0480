"""Messages between the daemon and the tracker's process, on two pipes (`edged.ipc.pipe_messages`).

Answers are sent in the order of the requests.
"""

from __future__ import annotations

import msgspec

from edged import packages

LARGEST = 16 << 20
"""The largest message in bytes: enough for hundreds of thousands of detections."""


class Follow(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Request the track ids of a frame's detections. `found`: the detections, packed by `Detections.pack`. `captured`:
    seconds on the camera's clock. `after`: the camera's highest track id so far; a new tracker assigns only higher
    ids."""

    number: int
    camera: int
    after: int
    captured: float
    found: bytes


class Forget(msgspec.Struct, frozen=True, array_like=True, tag=True):
    camera: int


ToTracker = Follow | Forget


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The process's first message: the tracker has imported its library."""


class Unfit(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The tracker's library cannot be used; `message` says what to do. The process ends."""

    message: str


class Followed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A track id for each detection of the frame, in order; -1 for a detection without a track."""

    number: int
    ids: tuple[int, ...]


class NotFollowed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The tracker's library failed on this frame; the camera's tracks start again."""

    number: int
    message: str


FromTracker = Ready | Unfit | Followed | NotFollowed


def not_installed(module: str) -> str:
    """Return the message for a missing library of the tracker, with the remedy."""
    return f"tracking needs a library that is not installed ({module}): {packages.install_extra('tracking')}"
