"""Checks whether a tensor in a file is valid: its type exists, no size is negative, and its data has the right length.

A runtime that trusts a wrong size reads beyond the end of the data, or allocates too much memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import onnx
from onnx import TensorProto

from edged.jobs import onnx_walk
from edged.models.finding import Category, Finding, Stage
from edged.models.inspection import Footprint

# Bits of one element, by onnx.TensorProto.DataType (onnx.proto).
BITS = {
    **dict.fromkeys((2, 3, 9, 17, 18, 19, 20, 24), 8),  # 8-bit integers, booleans, 8-bit floats
    **dict.fromkeys((4, 5, 10, 16), 16),
    **dict.fromkeys((1, 6, 12), 32),
    **dict.fromkeys((7, 11, 13, 14), 64),
    15: 128,
    **dict.fromkeys((21, 22, 23), 4),
    **dict.fromkeys((25, 26), 2),
}
# The field with the values, if they are not in raw_data, by onnx.TensorProto.DataType.
_FIELDS = {1: "float_data", 14: "float_data", 7: "int64_data", 11: "double_data", 15: "double_data", 8: "string_data"}
_FIELDS |= dict.fromkeys((12, 13), "uint64_data") | dict.fromkeys((2, 3, 4, 5, 6, 9, 10, 16), "int32_data")
_PAIRS = (14, 15)  # complex numbers, which take two entries for each value


def element_count(tensor: TensorProto) -> int:
    """Return the number of elements according to the declared shape."""
    return math.prod(tensor.dims)


def byte_size(tensor: TensorProto) -> int | None:
    """Return the bytes of a tensor's values; None if the type has no fixed size, or if the type or a dimension is
    invalid."""
    bits = BITS.get(tensor.data_type)
    if bits is None or any(size < 0 for size in tensor.dims):
        return None
    return -(-element_count(tensor) * bits // 8)


def check(tensor: TensorProto) -> Finding | None:
    """Return the finding about a tensor; None if the tensor is valid. `external_data.py` checks external values."""
    name = onnx_walk.text(tensor.name)
    if tensor.data_type not in BITS and tensor.data_type != TensorProto.STRING:
        kind = "no type" if not tensor.data_type else f"type {tensor.data_type}, which ONNX does not have"
        return _finding(Category.UNSERVABLE_TYPE, f"the values of tensor {name!r} have {kind}", name)
    negative = next((size for size in tensor.dims if size < 0), None)
    if negative is not None:
        return _finding(Category.SHAPE_MISMATCH, f"tensor {name!r} has a negative dimension, {negative}", name)
    if tensor.data_location == TensorProto.EXTERNAL:
        return None
    if tensor.HasField("raw_data"):
        takes, holds = byte_size(tensor), len(tensor.raw_data)
        if takes is None or takes != holds:
            shape = f"{onnx.TensorProto.DataType.Name(tensor.data_type)}{list(tensor.dims)}"
            what = f"tensor {name!r} has {holds} bytes; shape {shape[:100]} needs {takes if takes is not None else 0}"
            return _finding(Category.SHAPE_MISMATCH, what, name)
        return None
    return _check_fields(tensor, name)


def _check_fields(tensor: TensorProto, name: str) -> Finding | None:
    field = _FIELDS.get(tensor.data_type)
    if field is None:
        return None
    count, held = element_count(tensor), len(getattr(tensor, field))
    count *= 2 if tensor.data_type in _PAIRS else 1
    if count == held:
        return None
    what = f"tensor {name!r} has {held} values; its shape {str(list(tensor.dims))[:100]} needs {count}"
    return _finding(Category.SHAPE_MISMATCH, what, name)


def _finding(category: Category, message: str, name: str) -> Finding:
    return Finding(Stage.GRAPH, category, message, "export the model again", name)


def footprint(tensors: Iterable[onnx.TensorProto], inferred: onnx.ModelProto) -> Footprint:
    """Return the bytes of the weights (`tensors`) and of the largest value of a model. `inferred` is the model with
    inferred shapes. A dynamic dimension counts as 1."""
    weights = sum(math.prod(tensor.dims) * BITS.get(tensor.data_type, 8) // 8 for tensor in tensors)
    largest, name = max(_sizes(inferred), default=(0, ""))
    return Footprint(weights, largest, name)


def _sizes(proto: onnx.ModelProto) -> Iterator[tuple[int, str]]:
    for graph in onnx_walk.all_graphs(proto):
        for value in (*graph.input, *graph.output, *graph.value_info):
            tensor = value.type.tensor_type
            if tensor.HasField("shape"):  # false if the value is not a tensor
                sizes = [dim.dim_value if dim.HasField("dim_value") else 1 for dim in tensor.shape.dim]
                sizes = [1 if size < 0 else size for size in sizes]  # some exporters write -1 for an open size
                yield math.prod(sizes) * BITS.get(tensor.elem_type, 8) // 8, onnx_walk.text(value.name)
