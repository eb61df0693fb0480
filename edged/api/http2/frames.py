"""Frames of HTTP/2 as bytes. Format: RFC 9113, sections 4 and 6. Pure."""

from __future__ import annotations

import struct
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER = struct.Struct(">IBI")  # one number for the payload's size and the type, then flags, then the stream
DEFAULT_WINDOW = (1 << 16) - 1
DEFAULT_FRAME = 1 << 14
LARGEST_WINDOW = (1 << 31) - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, HAS_PRIORITY = 0x4, 0x8, 0x20
ENABLE_PUSH, MAX_STREAMS, INITIAL_WINDOW, MAX_FRAME, MAX_HEADER_LIST = 2, 3, 4, 5, 6  # identifiers of settings


class Code(IntEnum):
    """Why a stream or a connection ends (section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class ConnectionFault(Exception):
    """The other end broke the protocol or a limit; the connection ends with `code`."""

    def __init__(self, code: Code, why: str) -> None:
        super().__init__(why)
        self.code, self.why = code, why


_WORD = struct.Struct(">I")
_SETTING = struct.Struct(">HI")
_LAST_AND_CODE = struct.Struct(">II")


def head(kind: int, flags: int, stream: int, size: int) -> bytes:
    """Return the header of a frame (nine bytes) with a payload of `size` bytes."""
    return HEADER.pack(size << 8 | kind, flags, stream)


def settings(values: dict[int, int]) -> bytes:
    """Return a frame that announces settings."""
    payload = b"".join(_SETTING.pack(key, value) for key, value in values.items())
    return head(SETTINGS, 0, 0, len(payload)) + payload


def read_settings(payload: bytes) -> dict[int, int]:
    """Return the settings in a frame. Raises ConnectionFault for values that RFC 9113, section 6.5.2 forbids."""
    if len(payload) % _SETTING.size:
        raise ConnectionFault(Code.FRAME_SIZE_ERROR, "a SETTINGS frame of a wrong size")
    found: dict[int, int] = dict(_SETTING.iter_unpack(payload))
    if found.get(ENABLE_PUSH, 0) > 1:
        raise ConnectionFault(Code.PROTOCOL_ERROR, "an invalid SETTINGS_ENABLE_PUSH")
    if found.get(INITIAL_WINDOW, 0) > LARGEST_WINDOW:
        raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "a SETTINGS_INITIAL_WINDOW_SIZE above 2**31 - 1")
    if not DEFAULT_FRAME <= found.get(MAX_FRAME, DEFAULT_FRAME) < 1 << 24:
        raise ConnectionFault(Code.PROTOCOL_ERROR, "an invalid SETTINGS_MAX_FRAME_SIZE")
    return found


SETTINGS_ACK = head(SETTINGS, ACK, 0, 0)


def ping(payload: bytes, flags: int = 0) -> bytes:
    """Return a PING frame with a payload of eight bytes. With the flag ACK the frame is the answer to a PING."""
    return head(PING, flags, 0, 8) + payload


def window_update(stream: int, size: int) -> bytes:
    """Return a frame that allows the other end `size` more bytes; stream 0 is the connection."""
    return head(WINDOW_UPDATE, 0, stream, 4) + _WORD.pack(size)


def reset(stream: int, code: Code) -> bytes:
    """Return a frame that ends a stream at once."""
    return head(RST_STREAM, 0, stream, 4) + _WORD.pack(code)


def go_away(last: int, code: Code, why: str = "") -> bytes:
    """Return a GOAWAY frame: this end answers no stream after `last` on the connection."""
    payload = _LAST_AND_CODE.pack(last, code) + why.encode()
    return head(GOAWAY, 0, 0, len(payload)) + payload


def read_word(payload: bytes) -> int:
    """Return the number in a payload of four bytes, without the reserved bit. Raises ConnectionFault otherwise."""
    if len(payload) != _WORD.size:
        raise ConnectionFault(Code.FRAME_SIZE_ERROR, "a WINDOW_UPDATE or RST_STREAM frame whose payload is not 4 bytes")
    return int(_WORD.unpack(payload)[0]) & LARGEST_WINDOW


def without_padding(payload: bytes, flags: int) -> bytes:
    """Return the payload of a HEADERS frame without its padding and priority."""
    begin, end = 0, len(payload)
    if flags & PADDED:
        if not payload:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "a PADDED frame without a padding length")
        begin, end = 1, end - payload[0]
    if flags & HAS_PRIORITY:
        begin += 5
    if begin > end:
        raise ConnectionFault(Code.PROTOCOL_ERROR, "padding longer than its frame")
    return payload[begin:end]
