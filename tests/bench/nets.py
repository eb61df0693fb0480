"""Networks as large as those that boxes serve: their weights are drawn, their work is like the real ones'."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests import models


@dataclass(frozen=True)
class Net:
    """Convolutions over pictures of `size` pixels; each of `channels` begins with a stride of two."""

    name: str
    size: int
    channels: tuple[int, ...]
    more: int  # convolutions after each stride


# As costly on a CPU as a tiny CNN, a MobileNetV3-small and a YOLO11n of 320 pixels.
NETS = (
    Net("tiny", 64, (8, 16), 1),
    Net("mobilenet-like", 224, (16, 24, 48, 96), 1),
    Net("yolo-like", 320, (16, 32, 64, 128, 128), 2),
)


def save(net: Net, path: Path, seed: int = 0) -> None:
    """Write a model with the input images [N, 3, size, size] and the output out [N, channels], FP32."""
    random, count, last, source = np.random.default_rng(seed), 0, 3, "images"
    nodes, weights = list[onnx.NodeProto](), list[onnx.TensorProto]()
    for channels in net.channels:
        for stride in (2, *[1] * net.more):
            drawn = random.standard_normal((channels, last, 3, 3)) * (2 / (last * 9)) ** 0.5
            weights.append(numpy_helper.from_array(drawn.astype(np.float32), f"w{count}"))
            about = {"strides": [stride, stride], "pads": [1, 1, 1, 1]}
            nodes.append(helper.make_node("Conv", [source, f"w{count}"], [f"c{count}"], **about))
            source, last, count = f"r{count}", channels, count + 1
            nodes.append(helper.make_node("Relu", [nodes[-1].output[0]], [source]))
    nodes += models.nodes(f"g = GlobalAveragePool({source})", "out = Flatten(g)")
    inputs = [models.value("images", "FP32", ["N", 3, net.size, net.size])]
    models.save(models.model(nodes, inputs, [models.value("out", "FP32", ["N", last])], weights), path)
