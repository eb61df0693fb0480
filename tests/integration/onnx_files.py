"""Small ONNX models for tests. IR and opset are set by hand: the library's newest are newer than runtimes take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DTYPES = {
    "FP32": TensorProto.FLOAT,
    "FP16": TensorProto.FLOAT16,
    "FP64": TensorProto.DOUBLE,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "BOOL": TensorProto.BOOL,
    "BYTES": TensorProto.STRING,
    "BF16": TensorProto.BFLOAT16,
}


def save(path: Path, graph: onnx.GraphProto, domains: dict[str, int] | None = None, **options: object) -> Path:
    opsets = [helper.make_opsetid(domain, version) for domain, version in {"": 17, **(domains or {})}.items()]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path, **options)
    return path


def identity(path: Path, datatype: str, operator: str = "Identity", domain: str = "") -> Path:
    """y = x of any dtype, shape [n, 4]; or another operator of one input and one output."""
    shape = ["n", 4]
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"], domain=domain)],
        "identity",
        [helper.make_tensor_value_info("x", DTYPES[datatype], shape)],
        [helper.make_tensor_value_info("y", DTYPES[datatype], shape)],
    )
    return save(path, graph, {domain: 1} if domain else None)


def scale(path: Path, factor: float) -> Path:
    """y = factor * x, FP32 [1, 4]: tells versions of a model apart."""
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "f"], ["y"])],
        "scale",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(np.array([factor], np.float32), "f")],
    )
    return save(path, graph)


def pick(path: Path) -> Path:
    """y = the x-th of four numbers, x INT64 [1]: fails at an index beyond them."""
    graph = helper.make_graph(
        [helper.make_node("Gather", ["numbers", "x"], ["y"])],
        "pick",
        [helper.make_tensor_value_info("x", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        [numpy_helper.from_array(np.arange(4, dtype=np.float32), "numbers")],
    )
    return save(path, graph)


def convolutions(path: Path, layers: int = 4, external: bool = False) -> Path:
    """A small stack of convolutions over pictures [1, 3, 64, 64]; weights optionally in `weights.bin` beside it."""
    random = np.random.default_rng(layers)
    nodes, weights, last, channels = [], [], "x", 3
    for index in range(layers):
        name = f"w{index}"
        kernel = random.standard_normal((8, channels, 3, 3)).astype(np.float32) / 6
        weights.append(numpy_helper.from_array(kernel, name))
        nodes.append(helper.make_node("Conv", [last, name], [f"c{index}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{index}"], [f"r{index}"]))
        last, channels = f"r{index}", 8
    nodes[-1].output[0] = "y"
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 64, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 64, 64])],
        weights,
    )
    if not external:
        return save(path, graph)
    return save(path, graph, save_as_external_data=True, location="weights.bin", size_threshold=0)
