"""Reads format and size of an encoded picture from its header. Nothing is decoded, and OpenCV is not needed.

Formats: JPEG (ITU T.81), PNG (RFC 2083), WebP (RFC 9649), BMP and GIF89a.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec

Encoded = bytes | memoryview

# Start-of-frame markers are 0xC0..0xCF without DHT (C4), JPG (C8) and DAC (CC).
_JPEG_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD9)})  # markers without a length: TEM, RSTn, SOI
_JPEG_STEPS = 10_000  # a real header needs a dozen; this limits the time for a hostile one


class Header(msgspec.Struct, frozen=True):
    """The format of a picture, its size in pixels, and the offset in bytes of the end of its header."""

    format: str
    width: int
    height: int
    end: int


def read_header(encoded: Encoded) -> Header | None:
    """Read the header of a picture. Return None if the header is truncated, damaged or of an unknown format."""
    for magic, offset, read in _READERS:
        if encoded[offset : offset + len(magic)] == magic:
            try:
                return read(encoded)
            except (struct.error, IndexError):
                return None
    return None


def _jpeg(data: Encoded) -> Header | None:
    at = 2
    for _ in range(_JPEG_STEPS):
        marker = data[at + 1]
        if data[at] != 0xFF or marker in (0x00, 0xFF):
            at += 1  # fill bytes and stray bytes between segments are skipped, as decoders do
        elif marker in _JPEG_SOF:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return Header("JPEG", width, height, at + 9)
        elif marker in _JPEG_BARE:
            at += 2
        elif marker in (0xD9, 0xDA):
            return None  # the scan or the end of the image comes before any frame header
        else:
            at += 2 + max(2, struct.unpack_from(">H", data, at + 2)[0])
    return None


def _png(data: Encoded) -> Header | None:
    kind, width, height = struct.unpack_from(">4sII", data, 12)
    return Header("PNG", width, height, 24) if kind == b"IHDR" else None


def _bmp(data: Encoded) -> Header | None:
    (size,) = struct.unpack_from("<I", data, 14)
    width, height = struct.unpack_from("<HH", data, 18) if size == 12 else struct.unpack_from("<ii", data, 18)
    return Header("BMP", width, abs(height), 26)  # a negative height means top-down rows


def _gif(data: Encoded) -> Header | None:
    width, height = struct.unpack_from("<HH", data, 6)
    return Header("GIF", width, height, 10)


def _webp(data: Encoded) -> Header | None:
    (chunk,) = struct.unpack_from("4s", data, 12)
    if chunk == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return Header("WebP", width & 0x3FFF, height & 0x3FFF, 30)
    if chunk == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return Header("WebP", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, 25)
    if chunk == b"VP8X":
        low_w, high_w, low_h, high_h = struct.unpack_from("<HBHB", data, 24)
        return Header("WebP", (low_w | high_w << 16) + 1, (low_h | high_h << 16) + 1, 30)
    return None


_READERS: tuple[tuple[bytes, int, Callable[[Encoded], Header | None]], ...] = (
    (b"\xff\xd8\xff", 0, _jpeg),
    (b"\x89PNG\r\n\x1a\n", 0, _png),
    (b"WEBP", 8, _webp),
    (b"BM", 0, _bmp),
    (b"GIF8", 0, _gif),
)
