"""Messages between the daemon and an engine host, on one stream socket: the format, and the host's end.

A frame is a header, a message (MessagePack) and bulk bytes. Messages are small, because decoding a message blocks the
event loop. Bulk bytes are never decoded, and the loop does other work between two reads of bulk bytes.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Sequence

import msgspec

from edged.errors import TooLarge

HEADER = struct.Struct("<IQ")  # the size of the message, and of the bulk bytes that follow it
LARGEST_MESSAGE = 1 << 20  # bytes
_INLINE = 64 << 10  # the most bulk bytes inside a message, so that an answer with few objects is one piece of memory


class Bulk:
    """The bulk bytes of one message. Small pieces go inside the message while it has room; other pieces follow the
    message in the order of `put`."""

    def __init__(self) -> None:
        self._room = _INLINE
        self.pieces: list[bytes | memoryview] = []

    def put(self, data: bytes | memoryview) -> tuple[bytes, int]:
        """Add a piece. Return the bytes to put in the message, and how many bytes follow the message instead."""
        if len(data) <= self._room:
            self._room -= len(data)
            return bytes(data), 0
        self.pieces.append(data)
        return b"", len(data)


class HostEnd:
    """The host's end. One thread receives, any thread may send."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._reader = self._socket.makefile("rb")
        self._lock, self._encoder = threading.Lock(), msgspec.msgpack.Encoder()

    def receive(self) -> bytes | None:
        """Return the bytes of the next message, or None if the daemon has closed the connection."""
        header = self._reader.read(HEADER.size)
        if len(header) < HEADER.size:
            return None
        size, _ = HEADER.unpack(header)
        data = self._reader.read(size)
        return data if len(data) == size else None

    def send(self, message: msgspec.Struct, pieces: Sequence[bytes | memoryview] = ()) -> None:
        """Send a message and the bytes that follow it. Raises TooLarge if the daemon would reject the message."""
        data = bytearray(HEADER.size)
        self._encoder.encode_into(message, data, HEADER.size)
        size = len(data) - HEADER.size
        if size > LARGEST_MESSAGE:
            raise TooLarge(
                f"a message of the engine host ({type(message).__name__}) has {size} bytes, more than the limit of"
                f" {LARGEST_MESSAGE} bytes; request fewer outputs at a time"
            )
        HEADER.pack_into(data, 0, size, sum(map(len, pieces)))
        with self._lock:
            for each in (data, *pieces):
                self._socket.sendall(each)
