"""Which operator makes each output of a model: it says what its values are, for example probabilities. Pure."""

from __future__ import annotations

import onnx

from edged.jobs import onnx_walk

# What passes values on as they are: shapes, types and the numbers that stand for them change.
_PASSING = frozenset(
    (
        *("Cast", "DequantizeLinear", "Dropout", "Flatten", "Identity", "QuantizeLinear"),
        *("Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"),
    )
)
_MOST_STEPS = 64  # a cycle is no graph, and a file may hold one


def heads(graph: onnx.GraphProto) -> dict[str, str]:
    """For every output the operator that computes its values; empty for one that is an input or a constant.

    A softmax that was written out, Exp and then Div, counts as Softmax.
    """
    makers = {name: node for node in graph.node for name in node.output}
    return {onnx_walk.text(value.name): _head(makers, value.name) for value in graph.output}


def _head(makers: dict[str, onnx.NodeProto], name: str) -> str:
    for _ in range(_MOST_STEPS):
        node = makers.get(name)
        if node is None:
            return ""
        if node.op_type not in _PASSING or not node.input:
            numerator = makers.get(node.input[0]) if node.op_type == "Div" and node.input else None
            is_softmax = numerator is not None and numerator.op_type == "Exp"
            return "Softmax" if is_softmax else onnx_walk.operator(node)
        name = node.input[0]
    return ""
