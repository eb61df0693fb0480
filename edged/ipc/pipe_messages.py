"""Messages on a pipe between the daemon and a child: MessagePack after a length of four bytes (little-endian)."""

from __future__ import annotations

import struct
from typing import BinaryIO

import msgspec

HEADER = struct.Struct("<I")
# The errors that decoding arbitrary bytes may raise.
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)

_encoder = msgspec.msgpack.Encoder()


def pack(message: msgspec.Struct) -> bytes:
    payload = _encoder.encode(message)
    return HEADER.pack(len(payload)) + payload


def read(pipe: BinaryIO, largest: int) -> bytes | None:
    """Return the bytes of the next message; None at the end. Raises ValueError if the message is too large."""
    header = pipe.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (size,) = HEADER.unpack(header)
    if size > largest:
        raise ValueError(f"a message of {size} bytes; at most {largest} are allowed")
    payload = pipe.read(size)
    return payload if len(payload) == size else None
