"""What the daemon and the tracker's process say to each other: MessagePack in frames, four bytes of length first.

Pipes carry it, one each way. Answers come in the order of the questions.
"""

from __future__ import annotations

import struct

import msgspec

from edged import packages

HEADER = struct.Struct("<I")
LARGEST = 16 << 20
"""Bytes of a message: hundreds of thousands of detections."""


class Follow(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Detections of a camera's frame, as `Detections.pack` gives them. `after`: the highest id it has had so far, which
    counts if the tracker does not know the camera: it may have started after the camera."""

    number: int
    camera: int
    after: int
    captured: float
    found: bytes


class Forget(msgspec.Struct, frozen=True, array_like=True, tag=True):
    camera: int


ToTracker = Follow | Forget


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The first word: the library is there."""


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
# What decoding may raise for bytes that are no message.
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)

_encoder = msgspec.msgpack.Encoder()


def pack(message: ToTracker | FromTracker) -> bytes:
    payload = _encoder.encode(message)
    return HEADER.pack(len(payload)) + payload


def not_installed(module: str) -> str:
    """What is wrong if one of the tracker's libraries is missing, and what to do."""
    return f"tracking needs a library that is not installed ({module}): {packages.install_extra('tracking')}"
