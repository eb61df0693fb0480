"""The frames of HTTP/2 by hand (RFC 9113), for what no library would send. Headers are literals without Huffman codes
and without the dynamic table (RFC 7541, 6.2.2), so that every byte is known."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator, Sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACK, END_STREAM, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8
LARGEST_FRAME = 16384  # bytes of payload that may be sent without being told more
WINDOW = 4  # the setting SETTINGS_INITIAL_WINDOW_SIZE
_CANCEL = 8

Header = tuple[bytes, bytes]


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"", length: int | None = None) -> bytes:
    """One frame; `length` lies about the payload's."""
    size = len(payload) if length is None else length
    return (
        struct.pack(">I", size & 0xFFFFFF)[1:]
        + bytes((kind & 0xFF, flags & 0xFF))
        + struct.pack(">I", stream)
        + payload
    )


def settings(**values: int) -> bytes:
    """A SETTINGS frame; names are `s1` to `s65535`, by the number of the setting."""
    return frame(SETTINGS, payload=b"".join(struct.pack(">HI", int(key[1:]), v) for key, v in values.items()))


def block(headers: Sequence[Header]) -> bytes:
    """A header block."""
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in headers)


def call(
    stream: int, path: str, extra: Sequence[Header] = (), *, authority: str = "edged", flags: int = END_HEADERS
) -> bytes:
    """What begins a gRPC call."""
    headers = [
        *((b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()), (b":authority", authority.encode())),
        *((b"content-type", b"application/grpc"), (b"te", b"trailers")),
        *extra,
    ]
    return frame(HEADERS, flags, stream, block(headers))


def message(stream: int, body: bytes, *, announced: int | None = None, ends: bool = True, compressed: int = 0) -> bytes:
    """A gRPC message in DATA frames; `announced` lies about its length."""
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
    """A WINDOW_UPDATE frame: so many bytes more may be sent to us."""
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", size))


def connect(address: str, seconds: float = 10.0) -> socket.socket:
    """A connection to `unix:PATH` or `HOST:PORT`."""
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
    """A connection that said what every HTTP/2 client says first, and `more`."""
    connection = connect(address, seconds)
    try:
        connection.sendall(PREFACE + settings() + b"".join(more))
    except OSError:
        connection.close()
        raise
    return connection


def frames(connection: socket.socket) -> Iterator[tuple[int, int, int, bytes]]:
    """What comes, as (kind, flags, stream, payload), until the other end closes or says nothing for the timeout."""
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
    """A string literal of HPACK, its length as an integer with a prefix of seven bits (RFC 7541, 5.1)."""
    size = len(value)
    if size < 127:
        return bytes((size,)) + value
    size -= 127
    rest = bytearray((127,))
    while size >= 128:
        rest.append(size % 128 + 128)
        size //= 128
    return bytes(rest) + bytes((size,)) + value
