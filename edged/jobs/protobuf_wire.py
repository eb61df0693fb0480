"""Why a file that protobuf refuses is no model: cut off, damaged, or nested too deep. Reads bytes, believes nothing.

Format: https://protobuf.dev/programming-guides/encoding and onnx/onnx.proto. Only what can be nested without end is
followed: graphs inside the attributes of nodes, and types inside types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

Trouble: TypeAlias = Literal["truncated", "damaged", "too deep", ""]

# Field numbers that lead from one kind of message to another.
_LEADS: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "function": {7: "node"},
    "graph": {1: "node", 11: "value", 12: "value", 13: "value"},
    "node": {5: "attribute"},
    "attribute": {6: "graph", 11: "graph", 14: "type", 15: "type"},
    "value": {2: "type"},
    "type": {4: "inner", 9: "inner", 5: "map"},
    "inner": {1: "type"},
    "map": {2: "type"},
}
_DEEPEST = 99  # messages inside one another; protobuf's own limit is 100
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5


def trouble(data: bytes) -> Trouble:
    """What is wrong with the bytes of a model; empty where nothing can be seen."""
    waiting = [("model", 0, len(data), 0)]
    found: Trouble = ""
    while waiting:
        kind, start, end, depth = waiting.pop()
        try:
            for number, first, after in _fields(data, start, end):
                inner = _LEADS[kind].get(number)
                if inner is None:
                    continue
                if depth >= _DEEPEST:
                    return "too deep"
                waiting.append((inner, first, after, depth + 1))
        except _Cut:
            found = found or ("truncated" if end == len(data) else "damaged")
        except ValueError:
            found = found or "damaged"
    return found


class _Cut(ValueError):
    """A field that reaches beyond the message that it is in."""


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each field that holds bytes. ValueError where the bytes are no message."""
    while at < end:
        tag, at = _varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise ValueError("a field of number 0")
        if kind == _VARINT:
            _, at = _varint(data, at, end)
        elif kind == _BYTES:
            size, at = _varint(data, at, end)
            if size > end - at:
                raise _Cut
            yield number, at, at + size
            at += size
        elif kind in (_EIGHT, _FOUR):
            at += 8 if kind == _EIGHT else 4
            if at > end:
                raise _Cut
        else:
            raise ValueError(f"a field of kind {kind}")


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if at >= end:
            raise _Cut
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number of more than 64 bits")
