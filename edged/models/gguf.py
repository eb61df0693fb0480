"""The facts in the head of a GGUF file. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

The file may be hostile: counts and lengths are checked before anything is read, and arrays are skipped.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO, TypeAlias

Value: TypeAlias = "int | float | bool | str"

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_MOST_ENTRIES, _MOST_TEXT, _MOST_ITEMS = 4096, 1 << 20, 1 << 21
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _ARRAY = 8, 9


def read_facts(path: Path) -> dict[str, Value]:
    """Return the numbers and texts in the head of a file. Raises OSError, or ValueError if it is not a GGUF file."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if file.read(4) != _MAGIC:
            raise ValueError("it is not a GGUF file")
        version, _, entries = _unpack(file, "<IQQ")
        if version not in _VERSIONS:
            raise ValueError(f"it has GGUF version {version}; known are {_VERSIONS[0]} and {_VERSIONS[1]}")
        if entries > _MOST_ENTRIES:
            raise ValueError(f"its head has {entries} entries; at most {_MOST_ENTRIES} are read")
        found: dict[str, Value] = {}
        for _ in range(entries):
            key = _text(file)
            (kind,) = _unpack(file, "<I")
            value = _value(file, kind)
            if value is not None:
                found[key] = value
        return found


def _value(file: BinaryIO, kind: int) -> Value | None:
    if kind == _TEXT:
        return _text(file)
    if kind == _ARRAY:
        item, count = _unpack(file, "<IQ")
        if count > _MOST_ITEMS:
            raise ValueError(f"its head has a list of {count} items; at most {_MOST_ITEMS} are read")
        if item == _TEXT:
            for _ in range(count):
                _skip(file, _unpack(file, "<Q")[0])
        elif item in _NUMBERS:
            _skip(file, count * struct.calcsize(_NUMBERS[item]))
        else:
            raise ValueError("its head has lists in lists")
        return None
    if kind not in _NUMBERS:
        raise ValueError(f"its head has a value of unknown type {kind}")
    value: Value = _unpack(file, _NUMBERS[kind])[0]
    return value


def _text(file: BinaryIO) -> str:
    (length,) = _unpack(file, "<Q")
    if length > _MOST_TEXT:
        raise ValueError(f"its head has a text of {length} bytes; at most {_MOST_TEXT} are read")
    data = file.read(length)
    if len(data) < length:
        raise ValueError("its head is incomplete")
    return data.decode("utf-8", "replace")


def _skip(file: BinaryIO, length: int) -> None:
    if length > _MOST_ITEMS * 8:
        raise ValueError("its head is larger than is read")
    file.seek(length, os.SEEK_CUR)


def _unpack(file: BinaryIO, layout: str) -> tuple[int, ...]:
    size = struct.calcsize(layout)
    data = file.read(size)
    if len(data) < size:
        raise ValueError("its head is incomplete")
    return struct.unpack(layout, data)
