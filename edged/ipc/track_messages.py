"""Messages between the daemon and the tracker's process, on two pipes (`edged.ipc.pipe_messages`).

Answers come in the order of the requests.
"""

from __future__ import annotations

import msgspec

from edged import packages

LARGEST = 16 << 20
"""Bytes of a message: hundreds of thousands of detections."""


class Follow(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Detections of a camera's frame, packed by `Detections.pack`. `after`: the highest id of the camera so far, for a
    tracker that started later than the camera."""

    number: int
    camera: int
    after: int
    captured: float
    found: bytes


class Forget(msgspec.Struct, frozen=True, array_like=True, tag=True):
    camera: int


ToTracker = Follow | Forget


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The first message: the library is imported."""


class Unfit(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The library cannot be used, and what to do about it; the process ends."""

    message: str


class Followed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """An id for each detection, -1 for none."""

    number: int
    ids: tuple[int, ...]


class NotFollowed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The library failed at this frame; the camera's tracks start again."""

    number: int
    message: str


FromTracker = Ready | Unfit | Followed | NotFollowed


def not_installed(module: str) -> str:
    """The message if one of the tracker's libraries is missing, with the remedy."""
    return f"tracking needs a library that is not installed ({module}): {packages.install_extra('tracking')}"
