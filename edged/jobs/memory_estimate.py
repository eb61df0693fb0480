"""What a model takes at least, by what it says of itself: nothing is allocated to find out. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import onnx

from edged.jobs import onnx_walk
from edged.jobs.weights import BITS
from edged.models.inspection import Footprint


def footprint(tensors: Iterable[onnx.TensorProto], inferred: onnx.ModelProto) -> Footprint:
    """Of a model with these tensors, and the same with its shapes worked out as far as they can be; open dimensions
    count as one."""
    weights = sum(math.prod(tensor.dims) * BITS.get(tensor.data_type, 8) // 8 for tensor in tensors)
    largest, name = max(_sizes(inferred), default=(0, ""))
    return Footprint(weights, largest, name)


def _sizes(proto: onnx.ModelProto) -> Iterator[tuple[int, str]]:
    for graph in onnx_walk.all_graphs(proto):
        for value in (*graph.input, *graph.output, *graph.value_info):
            tensor = value.type.tensor_type
            if tensor.HasField("shape"):  # which what is no tensor has not
                sizes = [dim.dim_value if dim.HasField("dim_value") else 1 for dim in tensor.shape.dim]
                sizes = [1 if size < 0 else size for size in sizes]  # some exporters write -1 for an open one
                yield math.prod(sizes) * BITS.get(tensor.elem_type, 8) // 8, onnx_walk.text(value.name)
