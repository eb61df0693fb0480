"""Reads the metadata in the header of a GGUF file. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

The file may be hostile: counts and lengths are checked before anything is read, and arrays are skipped.
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import BinaryIO, TypeAlias

Value: TypeAlias = "int | float | bool | str"

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_MOST_ENTRIES, _MOST_TEXT, _MOST_ITEMS = 4096, 1 << 20, 1 << 21
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _ARRAY = 8, 9
_ALIGNMENT = "general.alignment"
# Types of tensors: the values in a block, and the bytes of a block. A tensor of another type counts as 0 bytes.
_BLOCKS = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    30: (1, 2),  # BF16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    10: (256, 84),  # Q2_K
    11: (256, 110),  # Q3_K
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
}
_MOST_TENSORS, _MOST_DIMENSIONS = 1 << 16, 8


def read_facts(path: Path) -> dict[str, Value]:
    """Return the file's metadata by key, without lists. Raises OSError if the file cannot be read. Raises ValueError if
    the file is not a GGUF file, exceeds a limit of this module, or is shorter than its tensors."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if file.read(4) != _MAGIC:
            raise ValueError("it is not a GGUF file")
        version, tensors, entries = _unpack(file, "<IQQ")
        if version not in _VERSIONS:
            raise ValueError(f"it has GGUF version {version}; edged reads versions {_VERSIONS[0]} and {_VERSIONS[1]}")
        if entries > _MOST_ENTRIES:
            raise ValueError(f"its header has {entries} entries; edged reads at most {_MOST_ENTRIES}")
        found: dict[str, Value] = {}
        for _ in range(entries):
            key = _text(file)
            (kind,) = _unpack(file, "<I")
            value = _value(file, kind)
            if value is not None:
                found[key] = value
        end = _end(file, tensors, found.get(_ALIGNMENT, 32))
        if end > (size := os.fstat(file.fileno()).st_size):
            raise ValueError(f"it is damaged: it has {size} bytes of {end}; copy the file again")
        return found


def _end(file: BinaryIO, tensors: int, alignment: Value) -> int:
    """Read the list of tensors, and return the offset at which the last tensor ends, in bytes."""
    if tensors > _MOST_TENSORS:
        raise ValueError(f"it has {tensors} tensors; edged reads at most {_MOST_TENSORS}")
    end = 0
    for _ in range(tensors):
        _text(file)
        (dimensions,) = _unpack(file, "<I")
        if dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"a tensor has {dimensions} dimensions; edged reads at most {_MOST_DIMENSIONS}")
        shape = _unpack(file, f"<{dimensions}Q")
        kind, offset = _unpack(file, "<IQ")
        values, size = _BLOCKS.get(kind, (1, 0))
        end = max(end, offset + math.prod(shape) // values * size)
    if not isinstance(alignment, int) or not 0 < alignment <= _MOST_TEXT:
        raise ValueError(f"its key {_ALIGNMENT!r} has the invalid value {alignment}; convert the model again")
    return -(-file.tell() // alignment) * alignment + end


def _value(file: BinaryIO, kind: int) -> Value | None:
    if kind == _TEXT:
        return _text(file)
    if kind == _ARRAY:
        item, count = _unpack(file, "<IQ")
        if count > _MOST_ITEMS:
            raise ValueError(f"its header has a list of {count} items; edged reads at most {_MOST_ITEMS}")
        if item == _TEXT:
            for _ in range(count):
                _skip(file, _unpack(file, "<Q")[0])
        elif item in _NUMBERS:
            _skip(file, count * struct.calcsize(_NUMBERS[item]))
        else:
            raise ValueError("its header has lists in lists, which edged does not read; convert the model again")
        return None
    if kind not in _NUMBERS:
        raise ValueError(f"its header has a value of unknown type {kind}; convert the model again")
    value: Value = _unpack(file, _NUMBERS[kind])[0]
    return value


def _text(file: BinaryIO) -> str:
    (length,) = _unpack(file, "<Q")
    if length > _MOST_TEXT:
        raise ValueError(
            f"its header has a string of {length} bytes; edged reads at most {_MOST_TEXT}; convert the model again"
        )
    data = file.read(length)
    if len(data) < length:
        raise ValueError("its header is incomplete; copy the file again")
    return data.decode("utf-8", "replace")


def _skip(file: BinaryIO, length: int) -> None:
    if length > _MOST_ITEMS * 8:
        most = _MOST_ITEMS * 8
        raise ValueError(
            f"its header has a list with a string of {length} bytes; edged reads at most {most}; convert the model"
            " again"
        )
    file.seek(length, os.SEEK_CUR)


def _unpack(file: BinaryIO, layout: str) -> tuple[int, ...]:
    size = struct.calcsize(layout)
    data = file.read(size)
    if len(data) < size:
        raise ValueError("its header is incomplete; copy the file again")
    return struct.unpack(layout, data)
