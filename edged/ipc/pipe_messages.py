"""Messages on a pipe between the daemon and a child: MessagePack, after four bytes of length."""

from __future__ import annotations

import struct
from typing import BinaryIO

import msgspec

HEADER = struct.Struct("<I")
# Errors of decoding any bytes.
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)

_encoder = msgspec.msgpack.Encoder()


def pack(message: msgspec.Struct) -> bytes:
    payload = _encoder.encode(message)
    return HEADER.pack(len(payload)) + payload


def read(pipe: BinaryIO, largest: int) -> bytes | None:
    """Return the bytes of the next message; None if the other end is closed. ValueError if it is too large."""
    header = pipe.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (size,) = HEADER.unpack(header)
    if size > largest:
        raise ValueError(f"a message of {size} bytes; at most {largest} are allowed")
    payload = pipe.read(size)
    return payload if len(payload) == size else None
