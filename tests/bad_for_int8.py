"""Small classifiers with depthwise convolutions that are easy, hard or impossible to quantise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx.numpy_helper import to_array

from tests import models
from tests.models import model, value
from tests.unit import precision_models as nets

SIZE, CHANNELS, CLASSES = 32, 16, 10


def classifier(bad: Sequence[int] = (), blocks: int = 4, spread: float = 1e5, seed: int = 0) -> onnx.ModelProto:
    """Blocks of a depthwise and a 1x1 convolution with ReLU; then the mean over the picture and the scores of classes.

    In a block of `bad`, the input of the 1x1 convolution has channels whose size differs by `spread`, and its weights
    make up for that: one scale for all loses the small channels, and no other layer is affected.
    """
    lines = ["c = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, first)", "r0 = Relu(c)"]
    constants = [nets.random("first", CHANNELS, 3, 3, 3, seed=seed)]
    sizes = np.geomspace(1, spread, CHANNELS).astype(np.float32)
    for block in range(blocks):
        deep = np.abs(to_array(nets.random(f"deep{block}", CHANNELS, 1, 3, 3, seed=seed)))
        flat = to_array(nets.random(f"flat{block}", CHANNELS, CHANNELS, 1, 1, seed=seed))
        if block in bad:
            deep, flat = deep * sizes.reshape(-1, 1, 1, 1), flat / sizes.reshape(1, -1, 1, 1)
        constants += [nets.constant(f"deep{block}", deep), nets.constant(f"flat{block}", flat)]
        lines += [
            f"d{block} = Conv<pads = [1, 1, 1, 1], group = {CHANNELS}>(r{block}, deep{block})",
            f"f{block} = Conv(d{block}, flat{block})",
            f"r{block + 1} = Relu(f{block})",
        ]
    lines += [f"m = GlobalAveragePool(r{blocks})", "t = Flatten(m)", "s = Gemm(t, last)", "y = Softmax(s)"]
    constants.append(nets.constant("last", to_array(nets.random("last", CHANNELS, CLASSES)) * 20))
    shape = [value("x", "FP32", [1, 3, SIZE, SIZE])], [value("y", "FP32", [1, CLASSES])]
    return model(models.nodes(*lines), *shape, constants)
