"""Small ONNX files for tests, with the IR version and opset that the oldest runtimes accept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from edged.tensors import Array
from tests import models

DTYPES = models.ONNX_TYPES


def write(
    path: Path,
    graph: str,
    constants: Mapping[str, Array] | None = None,
    domains: Mapping[str, int] | None = None,
    **options: object,
) -> Path:
    """Write a graph in ONNX's textual syntax; options are those of `onnx.save`."""
    onnx.save(models.parse(graph, constants, opset=17, ir_version=9, domains=domains), path, **options)
    return path


def identity(path: Path, datatype: str, operator: str = "Identity", domain: str = "") -> Path:
    """Write y = x of any dtype, shape [n, 4], or another operator with one input and one output."""
    ends = (models.value(name, datatype, ["n", 4]) for name in "xy")
    node = onnx.helper.make_node(operator, ["x"], ["y"], domain=domain)
    domains = {domain: 1} if domain else None
    return models.save(models.model([node], [next(ends)], [next(ends)], opset=17, ir_version=9, domains=domains), path)


def scale(path: Path, factor: float) -> Path:
    """Write y = factor * x, FP32 [1, 4]. Different factors distinguish versions of a model."""
    return write(path, f"(float[1,4] x) => (float[1,4] y) <float[1] f = {{{factor}}}> {{ y = Mul(x, f) }}")


def pick(path: Path) -> Path:
    """Write y = the x-th of four numbers, x INT64 [1]. An index out of range fails."""
    numbers = "<float[4] numbers = {0, 1, 2, 3}>"
    return write(path, f"(int64[1] x) => (float[1] y) {numbers} {{ y = Gather(numbers, x) }}")


def convolutions(path: Path, layers: int = 4, external: bool = False) -> Path:
    """Write a small stack of convolutions over pictures [1, 3, 64, 64]; `external` puts weights into `weights.bin`."""
    random = np.random.default_rng(layers)
    weights = {
        f"w{index}": random.standard_normal((8, 8 if index else 3, 3, 3)).astype(np.float32) / 6
        for index in range(layers)
    }
    names = ["x", *(f"r{index}" for index in range(1, layers)), "y"]
    nodes = [
        f"c{at} = Conv<pads = [1, 1, 1, 1]>({names[at]}, w{at}) {names[at + 1]} = Relu(c{at})" for at in range(layers)
    ]
    graph = f"(float[1,3,64,64] x) => (float[1,8,64,64] y) {{ {' '.join(nodes)} }}"
    if not external:
        return write(path, graph, weights)
    return write(path, graph, weights, save_as_external_data=True, location="weights.bin", size_threshold=0)
