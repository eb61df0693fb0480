"""Converts tensors in JSON to raw contents and back. Pure.

Numbers are decoded and encoded in blocks, so that only a part of a large tensor exists as Python objects at a time.
Nested lists are read as one list, row by row. JSON has no NaN and no infinities. As in Triton's clients, the bare words
`NaN`, `Infinity` and `-Infinity` stand for them. In requests these words can also be strings.
"""

from __future__ import annotations

import math
import secrets
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np

from edged.decoding import explain
from edged.errors import InvalidTensor, TooLarge
from edged.files import NOT_JSON
from edged.tensors import Array, numpy_dtype, to_array

_NAME = secrets.token_hex(8).encode()  # random, so that no request contains it
_LONG = 1 << 16  # bytes; if more are between two quotes, the list between these quotes is set aside
_COLON = 64  # bytes after a key within which its list must begin


@dataclass(frozen=True)
class Piece:
    """A part of a text, `text[start:end]`, without a copy."""

    text: bytes
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


def set_aside(text: bytes) -> tuple[bytes, dict[bytes, Piece]]:
    """Replace each long list in a JSON text by a unique string. Return the new text, and a mapping from these strings
    (with their quotes) to the lists."""
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
    """Return the list that follows a colon at `start`; None if no list follows. The list ends at the last `]` before
    the next `}`. If there is no `}` before `end`, the list ends at the last `]` before `end`."""
    first = text.find(b"[", start, start + _COLON)
    if first < 0 or text[start:first].strip() != b":":
        return None
    brace = text.find(b"}", first, end)
    last = text.rfind(b"]", first, end if brace < 0 else brace)
    return None if last < 0 else Piece(text, first, last + 1)


_BLOCK = 1 << 18  # characters of numbers that are read at a time
_ROWS = 1 << 14  # numbers that are written at a time
_FLAT = bytes.maketrans(b"[]", b"  ")
_JSON_LESS = ("FP16", "BF16")
_DEEPEST = 32
_MOST_STRINGS = 8 << 20  # limit of JSON in characters: as Python objects, strings are several times as large

_Number = list[float | Literal["NaN", "Infinity", "-Infinity"]]
_floats = msgspec.json.Decoder(_Number)
_whole = msgspec.json.Decoder(list[int])
_flags = msgspec.json.Decoder(list[bool])
_anything = msgspec.json.Decoder(list[Any])
_encoder = msgspec.json.Encoder()


def read(name: str, datatype: str, shape: list[int], data: bytes | Piece) -> bytes | memoryview:
    """Return the raw contents of an input whose values are JSON text. Raises InvalidInput or TooLarge, naming the
    tensor."""
    _require_json(f"input {name!r}", datatype)
    piece = data if isinstance(data, Piece) else Piece(data, 0, len(data))
    if not piece.text.startswith(b"[", piece.start):
        raise InvalidTensor(f"input {name!r}: 'data' is not a list")
    if datatype == "BYTES":
        if len(piece) > _MOST_STRINGS:
            raise TooLarge(
                f"input {name!r} has {len(piece)} characters of JSON, more than the limit of {_MOST_STRINGS};"
                " send strings as binary data"
            )
        strings = _strings(name, piece.text[piece.start : piece.end])
        _require_count(name, len(strings), shape)
        return b"".join(struct.pack("<I", len(each)) + each for each in strings)
    return _numbers(name, datatype, shape, piece)


def _numbers(name: str, datatype: str, shape: list[int], piece: Piece) -> bytes | memoryview:
    dtype = numpy_dtype(datatype)
    count = sum(block.count(b",") + 1 for block in _blocks(piece))  # a string with a comma makes decoding fail
    if len(piece) <= _BLOCK and not piece.text[piece.start : piece.end].strip(b"[] \t\r\n,"):
        count = 0  # no numbers: lists of empty lists
    _require_count(name, count, shape)
    values = np.empty(count, dtype)
    position = depth = 0
    for block in _blocks(piece) if count else ():
        depth += block.count(b"[") - block.count(b"]")
        # Brackets become spaces, so that two numbers without a comma between them are refused.
        part = _decoded(name, datatype, dtype, b"[" + block.translate(_FLAT) + b"]")
        if not part.size or position + part.size > count:
            break
        values[position : position + part.size] = part
        position += part.size
    if position != count or depth:
        raise InvalidTensor(f"input {name!r}: 'data' is not a list of numbers with brackets that match")
    return values.view(np.uint8).data if values.size else b""


def write(name: str, datatype: str, shape: tuple[int, ...], data: bytes | memoryview) -> bytes:
    """Return an output's raw contents as JSON text, one flat list. Raises InvalidInput if JSON cannot hold a value."""
    _require_json(f"output {name!r}", datatype)
    if datatype == "BYTES":
        elements = to_array(name, datatype, shape, data).reshape(-1).tolist()
        return _encoder.encode([_text(name, element) for element in elements])
    values = to_array(name, datatype, shape, data).reshape(-1)
    blocks = (_written(values[start : start + _ROWS]) for start in range(0, values.size, _ROWS))
    return b"[" + b",".join(blocks) + b"]"


def item_size(datatype: str) -> int:
    """Return the bytes of one element of a datatype that has a fixed size."""
    return numpy_dtype(datatype).itemsize


def with_bare_words(text: bytes) -> bytes:
    """Return JSON with NaN and infinities in quotes. If a string contains one of these words, the text becomes invalid
    JSON, so that it is refused and not misread."""
    quoted = text.replace(b"NaN", b'"NaN"').replace(b"Infinity", b'"Infinity"')
    return quoted.replace(b'-"Infinity"', b'"-Infinity"')


def has_bare_words(text: bytes) -> bool:
    return b"NaN" in text or b"Infinity" in text


def _require_json(tensor: str, datatype: str) -> None:
    if datatype in _JSON_LESS:
        raise InvalidTensor(f"{tensor} is {datatype}, which JSON cannot carry; use the binary tensor data extension")


def _require_count(name: str, count: int, shape: list[int]) -> None:
    if any(dim < 0 for dim in shape) or count != math.prod(shape):
        raise InvalidTensor(f"input {name!r}: 'data' has {count} values, which do not fit the shape {shape[:16]}")


def _blocks(piece: Piece) -> Iterator[bytes]:
    """Yield the text in parts. The text is cut at commas, which are left out."""
    start = piece.start
    while start < piece.end:
        cut = piece.text.find(b",", start + _BLOCK, piece.end)
        end = piece.end if cut < 0 else cut
        yield piece.text[start:end]
        start = end + 1


def _decoded(name: str, datatype: str, dtype: np.dtype[np.generic], block: bytes) -> Array:
    try:
        if dtype.kind == "b":
            return np.array(_flags.decode(block), dtype)
        if dtype.kind == "f":
            with np.errstate(over="ignore"):
                return np.array(_real(block), np.float64).astype(dtype)
        wide = np.array(_whole.decode(block), np.uint64 if dtype.kind == "u" else np.int64)
    except (msgspec.DecodeError, OverflowError) as error:
        raise InvalidTensor(f"input {name!r} is {datatype}, but 'data' has other values: {explain(error)}") from None
    bounds = np.iinfo(dtype.name)
    if wide.size and (int(wide.min()) < bounds.min or int(wide.max()) > bounds.max):
        raise InvalidTensor(f"input {name!r} has values that do not fit {datatype}")
    return wide.astype(dtype)


def _real(block: bytes) -> _Number:
    try:
        return _floats.decode(block)
    except msgspec.DecodeError:
        if not has_bare_words(block):
            raise
        return _floats.decode(with_bare_words(block))


def _strings(name: str, text: bytes) -> list[bytes]:
    found: list[bytes] = []
    try:
        _flatten(_anything.decode(text), found, _DEEPEST)
    except (*NOT_JSON, TypeError):
        raise InvalidTensor(f"input {name!r} is BYTES, but 'data' is not a list of strings") from None
    return found


def _flatten(values: list[Any], found: list[bytes], deepest: int) -> None:
    """Append the strings in nested lists to `found`. Raises TypeError for other values, and for lists that are nested
    too deeply."""
    for value in values:
        if isinstance(value, str):
            found.append(value.encode())
        elif isinstance(value, list) and deepest:
            _flatten(value, found, deepest - 1)
        else:
            raise TypeError


def _written(values: Array) -> bytes:
    if values.dtype.kind != "f" or bool(np.isfinite(values).all()):
        return _encoder.encode(values.tolist())[1:-1]
    words = {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity"}
    return b",".join(words.get(str(value)) or _encoder.encode(value) for value in values.tolist())


def _text(name: str, element: bytes) -> str:
    try:
        return element.decode()
    except UnicodeDecodeError:
        raise InvalidTensor(
            f"output {name!r} is not UTF-8, which JSON needs; set the output's parameter 'binary_data' to true"
        ) from None
