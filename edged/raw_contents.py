"""Tensors to bytes and back, as the Open Inference Protocol's raw contents have them: little-endian, C order.

A BYTES tensor is, per element, its length as uint32 and then that many bytes.
"""

from __future__ import annotations

import math
import struct

import numpy as np

from edged.errors import InvalidTensor
from edged.tensors import Array, numpy_dtype


def to_array(name: str, datatype: str, shape: tuple[int, ...], data: memoryview | bytes) -> Array:
    """A read-only array over `data` without a copy (BYTES: an object array of bytes). InvalidInput on a wrong size."""
    if datatype == "BYTES":
        elements = _split(name, bytes(data))
        if len(elements) != math.prod(shape):
            wanted = math.prod(shape)
            raise InvalidTensor(f"tensor {name!r} holds {len(elements)} elements, BYTES{list(shape)} takes {wanted}")
        return np.array(elements, dtype=np.object_).reshape(shape)
    dtype = numpy_dtype(datatype)
    if math.prod(shape) * dtype.itemsize != len(data):
        wanted = math.prod(shape) * dtype.itemsize
        raise InvalidTensor(f"tensor {name!r} holds {len(data)} bytes, {datatype}{list(shape)} takes {wanted}")
    return np.frombuffer(data, dtype=dtype).reshape(shape)


def to_bytes(array: Array) -> bytes | memoryview:
    """The raw contents of an array; a view if no conversion is needed."""
    if array.dtype == np.object_:
        return b"".join(struct.pack("<I", len(element)) + element for element in array.ravel().tolist())
    contiguous = np.ascontiguousarray(array)
    return contiguous.reshape(-1).view(np.uint8).data if contiguous.size else b""


def _split(name: str, data: bytes) -> list[bytes]:
    elements, position = [], 0
    while position < len(data):
        if position + 4 > len(data):
            raise InvalidTensor(f"tensor {name!r} ends inside a BYTES length")
        (size,) = struct.unpack_from("<I", data, position)
        position += 4
        if position + size > len(data):
            raise InvalidTensor(f"tensor {name!r} ends inside a BYTES element")
        elements.append(data[position : position + size])
        position += size
    return elements
