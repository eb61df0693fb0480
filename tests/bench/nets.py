"""Typical edge networks, built layer by layer with random weights: a tiny CNN, MobileNetV3-small and YOLO11n.

Sources: A. Howard et al., Searching for MobileNetV3, arXiv:1905.02244, table 2; the layers of yolo11.yaml at width 0.25
and depth 0.5, https://docs.ultralytics.com/models/yolo11. Batch normalisation is folded into the convolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests import models


@dataclass(frozen=True)
class Net:
    """A network with the input `images` [N, 3, size, size] and the output `out` [N, *out], FP32."""

    name: str
    size: int
    out: tuple[int, ...]
    draw: Callable[[Graph, str], str]  # appends its layers to an edge; returns the last edge


class Graph:
    """Nodes and random weights, added layer by layer. Edges carry no channel counts, so each layer is given its own."""

    def __init__(self, seed: int) -> None:
        self._random, self.nodes, self.weights = np.random.default_rng(seed), list[onnx.NodeProto](), []

    def add(self, kind: str, *sources: str, **about: object) -> str:
        """Add a node; return the name of its output."""
        name = f"{kind}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(sources), [name], **about))
        return name

    def constant(self, values: object, kind: type = np.int64) -> str:
        array = np.asarray(values, kind)
        self.weights.append(numpy_helper.from_array(array, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def split(self, source: str, *sizes: int, axis: int = 1) -> list[str]:
        names = [f"split{len(self.nodes)}_{part}" for part in range(len(sizes))]
        self.nodes.append(helper.make_node("Split", [source, self.constant(sizes)], names, axis=axis))
        return names

    def conv(
        self, x: str, before: int, after: int, kernel: int = 1, stride: int = 1, *, act: str = "", groups: int = 1
    ) -> str:
        """Add a convolution with bias and activation. The size is kept, divided by the stride."""
        fan = before // groups * kernel * kernel
        drawn = self._random.standard_normal((after, before // groups, kernel, kernel)) * (2 / fan) ** 0.5
        weights, bias = self.constant(drawn, np.float32), self.constant(np.zeros(after), np.float32)
        pads = [kernel // 2] * 4
        made = self.add(
            "Conv", x, weights, bias, strides=[stride] * 2, pads=pads, kernel_shape=[kernel] * 2, group=groups
        )
        if act == "SiLU":
            return self.add("Mul", made, self.add("Sigmoid", made))
        return self.add(act, made) if act else made


def _tiny(g: Graph, x: str) -> str:
    for before, after, stride in ((3, 8, 2), (8, 8, 1), (8, 16, 2), (16, 16, 1)):
        x = g.conv(x, before, after, 3, stride, act="Relu")
    return g.add("Flatten", g.add("GlobalAveragePool", x))


# Kernel, expanded and last channels, squeeze-and-excite, activation, stride.
_MOBILE = (
    (3, 16, 16, True, "Relu", 2),
    (3, 72, 24, False, "Relu", 2),
    (3, 88, 24, False, "Relu", 1),
    (5, 96, 40, True, "HardSwish", 2),
    (5, 240, 40, True, "HardSwish", 1),
    (5, 240, 40, True, "HardSwish", 1),
    (5, 120, 48, True, "HardSwish", 1),
    (5, 144, 48, True, "HardSwish", 1),
    (5, 288, 96, True, "HardSwish", 2),
    (5, 576, 96, True, "HardSwish", 1),
    (5, 576, 96, True, "HardSwish", 1),
)


def _mobilenet(g: Graph, x: str) -> str:
    x, channels = g.conv(x, 3, 16, 3, 2, act="HardSwish"), 16
    for kernel, wide, after, excites, act, stride in _MOBILE:
        y = x if wide == channels else g.conv(x, channels, wide, act=act)
        y = g.conv(y, wide, wide, kernel, stride, act=act, groups=wide)
        if excites:
            narrow = max(8, (wide // 4 + 4) // 8 * 8)
            scale = g.conv(g.add("GlobalAveragePool", y), wide, narrow, act="Relu")
            scale = g.add("HardSigmoid", g.conv(scale, narrow, wide), alpha=1 / 6, beta=0.5)
            y = g.add("Mul", y, scale)
        y = g.conv(y, wide, after)
        x, channels = (g.add("Add", x, y) if stride == 1 and after == channels else y), after
    x = g.add("GlobalAveragePool", g.conv(x, 96, 576, act="HardSwish"))
    return g.add("Flatten", g.conv(g.conv(x, 576, 1024, act="HardSwish"), 1024, 1000))


def _bottleneck(g: Graph, x: str, channels: int, between: int) -> str:
    y = g.conv(x, channels, between, 3, act="SiLU")
    return g.add("Add", x, g.conv(y, between, channels, 3, act="SiLU"))


def _c3k(g: Graph, x: str, channels: int) -> str:
    half = channels // 2
    y, z = g.conv(x, channels, half, act="SiLU"), g.conv(x, channels, half, act="SiLU")
    for _ in range(2):
        y = _bottleneck(g, y, half, half)
    return g.conv(g.add("Concat", y, z, axis=1), channels, channels, act="SiLU")


def _c3k2(g: Graph, x: str, before: int, after: int, share: float = 0.5, *, is_deep: bool = False) -> str:
    part = int(after * share)
    first, second = g.split(g.conv(x, before, 2 * part, act="SiLU"), part, part)
    third = _c3k(g, second, part) if is_deep else _bottleneck(g, second, part, part // 2)
    return g.conv(g.add("Concat", first, second, third, axis=1), 3 * part, after, act="SiLU")


def _pooled(g: Graph, x: str) -> str:
    """SPPF: a pyramid of pools."""
    parts = [g.conv(x, 256, 128, act="SiLU")]
    for _ in range(3):
        parts.append(g.add("MaxPool", parts[-1], kernel_shape=[5, 5], pads=[2] * 4, strides=[1, 1]))
    return g.conv(g.add("Concat", *parts, axis=1), 512, 256, act="SiLU")


def _attending(g: Graph, x: str, side: int) -> str:
    """C2PSA: half of the channels attend to each other's positions."""
    kept, y = g.split(g.conv(x, 256, 256, act="SiLU"), 128, 128)
    heads = g.add("Reshape", g.conv(y, 128, 256), g.constant([0, 2, 128, side * side]))
    query, key, value = g.split(heads, 32, 32, 64, axis=2)
    scores = g.add("MatMul", g.add("Transpose", query, perm=[0, 1, 3, 2]), key)
    weights = g.add("Softmax", g.add("Mul", scores, g.constant(32**-0.5, np.float32)), axis=-1)
    seen = g.add("MatMul", value, g.add("Transpose", weights, perm=[0, 1, 3, 2]))
    shape = g.constant([0, 128, side, side])
    place = g.conv(g.add("Reshape", value, shape), 128, 128, 3, groups=128)
    y = g.add("Add", y, g.conv(g.add("Add", g.add("Reshape", seen, shape), place), 128, 128))
    y = g.add("Add", y, g.conv(g.conv(y, 128, 256, act="SiLU"), 256, 128))
    return g.conv(g.add("Concat", kept, y, axis=1), 256, 256, act="SiLU")


def _detected(g: Graph, levels: list[tuple[str, int, int]]) -> str:
    """The head: for each position, four sides (each the mean of a distribution over 16 distances) and 80 scores."""
    boxes, scores = list[str](), list[str]()
    for x, channels, side in levels:
        y = g.conv(g.conv(x, channels, 64, 3, act="SiLU"), 64, 64, 3, act="SiLU")
        boxes.append(g.add("Reshape", g.conv(y, 64, 64), g.constant([0, 64, side * side])))
        y = g.conv(g.conv(x, channels, channels, 3, act="SiLU", groups=channels), channels, 80, act="SiLU")
        y = g.conv(g.conv(y, 80, 80, 3, act="SiLU", groups=80), 80, 80, act="SiLU")
        scores.append(g.add("Reshape", g.conv(y, 80, 80), g.constant([0, 80, side * side])))
    places = sum(side * side for _, _, side in levels)
    spread = g.add("Reshape", g.add("Concat", *boxes, axis=2), g.constant([0, 4, 16, places]))
    shares = g.add("Softmax", g.add("Transpose", spread, perm=[0, 2, 1, 3]), axis=1)
    sides = g.add("Reshape", g.conv(shares, 16, 1), g.constant([0, 4, places]))
    return g.add("Concat", sides, g.add("Sigmoid", g.add("Concat", *scores, axis=2)), axis=1)


def _yolo(g: Graph, x: str) -> str:
    def down(x: str, before: int, after: int) -> str:
        return g.conv(x, before, after, 3, 2, act="SiLU")

    def joined(x: str, other: str) -> str:
        return g.add("Concat", x, other, axis=1)

    def up(x: str) -> str:
        return g.add("Resize", x, "", g.constant([1, 1, 2, 2], np.float32), mode="nearest")

    x = _c3k2(g, down(down(x, 3, 16), 16, 32), 32, 64, 0.25)
    fine = _c3k2(g, down(x, 64, 64), 64, 128, 0.25)
    middle = _c3k2(g, down(fine, 128, 128), 128, 128, is_deep=True)
    coarse = _attending(g, _pooled(g, _c3k2(g, down(middle, 128, 256), 256, 256, is_deep=True)), 10)
    between = _c3k2(g, joined(up(coarse), middle), 384, 128)
    small = _c3k2(g, joined(up(between), fine), 256, 64)
    medium = _c3k2(g, joined(down(small, 64, 64), between), 192, 128)
    large = _c3k2(g, joined(down(medium, 128, 128), coarse), 384, 256, is_deep=True)
    return _detected(g, [(small, 64, 40), (medium, 128, 20), (large, 256, 10)])


NETS = (
    Net("tiny", 64, (16,), _tiny),
    Net("mobilenetv3-small", 224, (1000,), _mobilenet),
    Net("yolo11n", 320, (84, 2100), _yolo),
)


def save(net: Net, path: Path, seed: int = 0) -> None:
    """Write a network. `seed` selects the random weights."""
    graph = Graph(seed)
    graph.nodes.append(helper.make_node("Identity", [net.draw(graph, "images")], ["out"]))
    inputs = [models.value("images", "FP32", ["N", 3, net.size, net.size])]
    outputs = [models.value("out", "FP32", ["N", *net.out])]
    models.save(models.model(graph.nodes, inputs, outputs, graph.weights), path)
