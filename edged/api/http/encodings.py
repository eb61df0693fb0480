"""Bodies in gzip and deflate, which are zlib's two formats. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from edged.api.http.exchange import Part
from edged.errors import InvalidInput, TooLarge, Unsupported

MOST = 16 << 20  # bytes that a body may unpack to; a few kilobytes of it cost as much work as so many bytes would
MOST_TIMES = 1032  # times its size that a body may unpack to: https://zlib.net/zlib_tech.html
_EITHER = 47  # zlib's or gzip's head, whichever is there
_BITS = {"gzip": 31, "deflate": 15}
_NAMES = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}
_FAST = 1  # tensors hardly shrink, whatever the effort


def unpacked(body: bytes, encoding: str, limit: int) -> bytes:
    """A body as it was before it was packed. TooLarge above `limit` bytes, InvalidInput for what is damaged."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in _NAMES:
        raise Unsupported(f"content-encoding {encoding[:40]!r} is not known here; use gzip, deflate or none")
    reader = zlib.decompressobj(_EITHER)
    try:
        found = reader.decompress(body, limit + 1)
    except zlib.error:
        raise InvalidInput(f"the body is no {name}") from None
    if len(found) > limit:
        raise TooLarge(f"the body unpacks to more than {limit} bytes; send it as it is, without content-encoding")
    if not reader.eof or reader.unused_data:
        raise InvalidInput(f"the body is not one whole {name}")
    return found


def accepted(header: str) -> str | None:
    """Which of our encodings a client takes, by its Accept-Encoding; None where none."""
    for each in header.split(","):
        name, _, quality = each.partition(";")
        if name.strip().lower() in _BITS and quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            return name.strip().lower()
    return None


def packed(parts: Iterable[Part], encoding: str) -> bytes:
    """A body in one of our encodings."""
    writer = zlib.compressobj(_FAST, zlib.DEFLATED, _BITS[encoding])
    return b"".join([*map(writer.compress, parts), writer.flush()])
