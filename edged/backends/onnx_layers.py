"""Where in a graph the work is: its layers, what lies between them, and what comes before the first or after the last.

Nearly all time goes into layers with weights, and what lies between two of them should not change precision on the way.
After the last layer boxes are decoded and scores computed: little work on values whose last digits matter, such as
coordinates in pixels. So this is what decides which nodes another precision is worth its loss for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import onnx

from edged.backends.onnx_graph import FLOAT, Model, captured

LAYERS = frozenset(
    ("Attention", "Conv", "ConvTranspose", "DeformConv", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN")
)
_INTEGER = frozenset(("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"))
QUANTISED = frozenset(("DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear")) | _INTEGER
# A detector may compute the mean of a distribution with a convolution of some 16 weights: no layer, but box decoding.
_LEAST_WEIGHTS = 64
# Inputs that are positions, by operator: they may be as large as a picture has pixels, and nothing is learnt there.
_POSITIONS = {"RoiAlign": (1, 2), "GridSample": (1,), "Resize": (1, 2, 3), "Upsample": (1,)}


class Layers:
    """Of a sorted graph: `layers`, `between` and `last` are sets of indexes of nodes.

    Between is what works on what a layer said for another layer to hear it, following float32 values only. Last is a
    layer that no other layer hears.
    """

    def __init__(self, model: Model) -> None:
        self._model, self._nodes = model, list(model.graph.node)
        self.layers = frozenset(index for index, node in enumerate(self._nodes) if self._is_layer(node))
        heard, said = self._heard(), self._said()
        self.between = frozenset(
            index
            for index, node in enumerate(self._nodes)
            if index not in self.layers and not said.isdisjoint(_uses(node)) and not heard.isdisjoint(node.output)
        )
        self.last = frozenset(index for index in self.layers if heard.isdisjoint(self._nodes[index].output))
        self._before = frozenset(
            index
            for index, node in enumerate(self._nodes)
            if said.isdisjoint(_uses(node)) and not heard.isdisjoint(node.output)
        )

    def place(self, index: int) -> str:
        """Where a node is that is neither a layer nor between two, in words."""
        return "before the first layer" if index in self._before else "after the last layer"

    def _is_layer(self, node: onnx.NodeProto) -> bool:
        if node.op_type not in LAYERS or node.domain not in ("", "ai.onnx"):
            return False
        counts = [self._model.element_count(name) for name in node.input[:2]]
        return max((count for count in counts if count is not None), default=_LEAST_WEIGHTS) >= _LEAST_WEIGHTS

    def _heard(self) -> set[str]:
        """Every float32 value that some layer is computed from."""
        heard: set[str] = set()
        for index in reversed(range(len(self._nodes))):
            node = self._nodes[index]
            if index in self.layers or not heard.isdisjoint(node.output):
                heard |= set(self._floats(self._values(node)))
        return heard

    def _said(self) -> set[str]:
        """Every float32 value that is computed from what a layer said."""
        said: set[str] = set()
        for index, node in enumerate(self._nodes):
            if index in self.layers or not said.isdisjoint(_uses(node)):
                said |= set(self._floats(node.output))
        return said

    def _values(self, node: onnx.NodeProto) -> Iterator[str]:
        positions = _POSITIONS.get(node.op_type, ())
        yield from (name for slot, name in enumerate(node.input) if slot not in positions)
        yield from captured(node)

    def _floats(self, names: Iterable[str]) -> Iterator[str]:
        return (name for name in names if self._model.types.get(name) == FLOAT)


def _uses(node: onnx.NodeProto) -> set[str]:
    return {*node.input, *captured(node)}


def told(kept: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """A line for each operator and the reason why it was kept as it is, with how many there are."""
    counts = Counter(kept).items()
    return tuple(f"{op}{f' x{count}' if count > 1 else ''}: {reason}" for (op, reason), count in counts)
