"""HTTP/2 frames built by hand (RFC 9113), for input that no library sends. Header fields are literals without Huffman
coding and without the dynamic table (RFC 7541, 6.2.2), so that every byte is known."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator, Sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACK, END_STREAM, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8
LARGEST_FRAME = 16384  # largest payload in bytes unless the peer allows more
WINDOW = 4  # the setting SETTINGS_INITIAL_WINDOW_SIZE
_CANCEL = 8

Header = tuple[bytes, bytes]


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"", length: int | None = None) -> bytes:
    """Return one frame. `length` replaces the true length of the payload."""
    size = len(payload) if length is None else length
    return (
        struct.pack(">I", size & 0xFFFFFF)[1:]
        + bytes((kind & 0xFF, flags & 0xFF))
        + struct.pack(">I", stream)
        + payload
    )


def settings(**values: int) -> bytes:
    """Return a SETTINGS frame. Names are `s1` to `s65535`, by the number of the setting."""
    return frame(SETTINGS, payload=b"".join(struct.pack(">HI", int(key[1:]), v) for key, v in values.items()))


def block(headers: Sequence[Header]) -> bytes:
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in headers)


def call(
    stream: int, path: str, extra: Sequence[Header] = (), *, authority: str = "edged", flags: int = END_HEADERS
) -> bytes:
    """Return the HEADERS frame that begins a gRPC call."""
    headers = [
        *((b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()), (b":authority", authority.encode())),
        *((b"content-type", b"application/grpc"), (b"te", b"trailers")),
        *extra,
    ]
    return frame(HEADERS, flags, stream, block(headers))


def message(stream: int, body: bytes, *, announced: int | None = None, ends: bool = True, compressed: int = 0) -> bytes:
    """Return a gRPC message in DATA frames. `announced` replaces the true length of the message."""
    size = len(body) if announced is None else announced
    data = bytes((compressed,)) + struct.pack(">I", size) + body
    pieces = [data[at : at + LARGEST_FRAME] for at in range(0, len(data), LARGEST_FRAME)]
    last = len(pieces) - 1
    return b"".join(frame(DATA, END_STREAM if ends and i == last else 0, stream, p) for i, p in enumerate(pieces))


def reset(stream: int, code: int = _CANCEL) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", code))


def ping(number: int = 0) -> bytes:
    return frame(PING, 0, 0, struct.pack(">Q", number))


def update(stream: int, size: int) -> bytes:
    """Return a WINDOW_UPDATE frame: the peer may send `size` more bytes."""
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", size))


def connect(address: str, seconds: float = 10.0) -> socket.socket:
    """Connect to `unix:PATH` or `HOST:PORT`."""
    if address.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(seconds)
        try:
            connection.connect(address.removeprefix("unix:"))
        except OSError:
            connection.close()
            raise
        return connection
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), seconds)


def greeted(address: str, *more: bytes, seconds: float = 10.0) -> socket.socket:
    """Connect, send the client preface and empty SETTINGS, then `more`."""
    connection = connect(address, seconds)
    try:
        connection.sendall(PREFACE + settings() + b"".join(more))
    except OSError:
        connection.close()
        raise
    return connection


def frames(connection: socket.socket) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield received frames as (kind, flags, stream, payload), until the peer closes or the timeout passes."""
    held = b""
    with contextlib.suppress(OSError):
        while piece := connection.recv(1 << 16):
            held += piece
            while len(held) >= 9:
                size = int.from_bytes(held[:3], "big")
                if len(held) < 9 + size:
                    break
                yield held[3], held[4], int.from_bytes(held[5:9], "big") & 0x7FFFFFFF, held[9 : 9 + size]
                held = held[9 + size :]


def _text(value: bytes) -> bytes:
    """Return a string literal of HPACK: the length with a 7-bit prefix (RFC 7541, 5.1), then the text."""
    size = len(value)
    if size < 127:
        return bytes((size,)) + value
    size -= 127
    rest = bytearray((127,))
    while size >= 128:
        rest.append(size % 128 + 128)
        size //= 128
    return bytes(rest) + bytes((size,)) + value
