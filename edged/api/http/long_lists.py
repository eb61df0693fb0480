"""Long lists of numbers in JSON text are set aside before the text is decoded. Pure.

Decoding holds the interpreter for the whole text: 16 MiB of numbers would stop every camera for about 30 ms. Between
two quotes there is no string, so a list in a long gap holds numbers or is refused when it is read, piece by piece.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

_NAME = secrets.token_hex(8).encode()  # which no text has by chance or by guess
_LONG = 1 << 16  # bytes from one quote to the next, above which a list is set aside
_COLON = 64  # bytes behind a name in which its list begins


@dataclass(frozen=True)
class Piece:
    """Part of a text, `text[start:end]`, that is not copied."""

    text: bytes
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


def set_aside(text: bytes) -> tuple[bytes, dict[bytes, Piece]]:
    """The text with a string in place of each long list, and the lists by these strings, quotes included."""
    kept: list[bytes] = []
    lists: dict[bytes, Piece] = {}
    done, quote = 0, text.find(b'"')
    while quote >= 0:
        following = text.find(b'"', quote + 1)
        end = len(text) if following < 0 else following
        if end - quote > _LONG and (piece := _list(text, quote + 1, end)) is not None:
            name = b'"%s %d"' % (_NAME, len(lists))
            lists[name] = piece
            kept += (text[done : piece.start], name)
            done = piece.end
        quote = following
    return b"".join((*kept, text[done:])), lists


def _list(text: bytes, start: int, end: int) -> Piece | None:
    """The list that follows a colon at `start`; it ends before the object does."""
    first = text.find(b"[", start, start + _COLON)
    if first < 0 or text[start:first].strip() != b":":
        return None
    brace = text.find(b"}", first, end)
    last = text.rfind(b"]", first, end if brace < 0 else brace)
    return None if last < 0 else Piece(text, first, last + 1)
