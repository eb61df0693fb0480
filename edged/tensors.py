"""Tensor names, datatypes and shapes, with the names of the Open Inference Protocol.

A datatype is one of the protocol's names (`FP32`, `UINT8`, `BYTES`, ...). A shape is a tuple whose entries are a fixed
size (`int`) or the name of a dynamic dimension (`str`, `"?"` if the model does not name the dimension).

Raw contents are a tensor's bytes, little-endian and in C order. Each element of a BYTES tensor is its length as uint32,
followed by its bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from edged.errors import InvalidTensor

Dim: TypeAlias = int | str
Shape: TypeAlias = tuple[Dim, ...]
Array: TypeAlias = npt.NDArray[np.generic]

# The shape of a tensor that may have any number of dimensions.
ANY_SHAPE: Shape = ("...",)

# Open Inference Protocol datatype -> numpy dtype of the same bytes. numpy has no BF16: its two bytes are a uint16.
# BYTES elements are Python bytes objects.
_NUMPY: dict[str, np.dtype[np.generic]] = {
    "BOOL": np.dtype(np.bool_),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BF16": np.dtype(np.uint16),
    "BYTES": np.dtype(np.object_),
}
DATATYPES = tuple(_NUMPY)


class TensorSpec(msgspec.Struct, frozen=True):
    """One input or output of a model: name, datatype and shape."""

    name: str
    datatype: str
    shape: Shape

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape as in the protocol, with -1 for every dynamic dimension."""
        return tuple(d if isinstance(d, int) else -1 for d in self.shape)

    @property
    def is_static(self) -> bool:
        return all(isinstance(d, int) for d in self.shape)

    def admits(self, shape: tuple[int, ...]) -> bool:
        """Whether a concrete shape fits: it has the same rank as this shape, and the same size in every fixed
        dimension. `ANY_SHAPE` admits every shape."""
        if self.shape == ANY_SHAPE:
            return True
        return len(shape) == len(self.shape) and all(
            want == got for want, got in zip(self.shape, shape, strict=True) if isinstance(want, int)
        )


def numpy_dtype(datatype: str) -> np.dtype[np.generic]:
    """Return the numpy dtype of a protocol datatype. Raises KeyError for an unknown name."""
    return _NUMPY[datatype]


def byte_size(datatype: str, shape: tuple[int, ...]) -> int:
    """Return the size of a tensor in bytes. Raises ValueError for BYTES, whose elements have no fixed size."""
    if datatype == "BYTES":
        raise ValueError("a BYTES tensor has no fixed size")
    return math.prod(shape) * _NUMPY[datatype].itemsize


def owned(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return copies of a session's arrays. The originals are valid only until the session's next call, and their memory
    may be freed with the session."""
    return {name: array.copy() for name, array in arrays.items()}


def to_array(name: str, datatype: str, shape: tuple[int, ...], data: memoryview | bytes) -> Array:
    """Return an array with this shape: a read-only view of `data`, or for BYTES a new object array of bytes. Raises
    InvalidTensor if `data` does not have the size that datatype and shape need."""
    if datatype == "BYTES":
        elements = _split(name, bytes(data))
        if len(elements) != math.prod(shape):
            wanted = math.prod(shape)
            raise InvalidTensor(f"tensor {name!r} has {len(elements)} elements, but BYTES{list(shape)} needs {wanted}")
        return np.array(elements, dtype=np.object_).reshape(shape)
    dtype = numpy_dtype(datatype)
    if math.prod(shape) * dtype.itemsize != len(data):
        wanted = math.prod(shape) * dtype.itemsize
        raise InvalidTensor(f"tensor {name!r} has {len(data)} bytes, but {datatype}{list(shape)} needs {wanted}")
    return np.frombuffer(data, dtype=dtype).reshape(shape)


def to_bytes(array: Array) -> bytes | memoryview:
    """Return the raw contents of an array; a view of its memory if no conversion is needed."""
    if array.dtype == np.object_:
        return b"".join(struct.pack("<I", len(element)) + element for element in array.ravel().tolist())
    contiguous = np.ascontiguousarray(array)
    return contiguous.reshape(-1).view(np.uint8).data if contiguous.size else b""


def _split(name: str, data: bytes) -> list[bytes]:
    elements, position = [], 0
    while position < len(data):
        if position + 4 > len(data):
            raise InvalidTensor(f"tensor {name!r} is truncated: it ends inside the length of a BYTES element")
        (size,) = struct.unpack_from("<I", data, position)
        position += 4
        if position + size > len(data):
            raise InvalidTensor(f"tensor {name!r} is truncated: it ends inside a BYTES element")
        elements.append(data[position : position + size])
        position += size
    return elements
