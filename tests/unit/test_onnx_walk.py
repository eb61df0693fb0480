"""Heads: the operator that computes each output. Operators that only pass values on are skipped."""

from __future__ import annotations

import pytest
from onnx import helper

from edged.jobs.onnx_walk import heads
from tests import models

GRAPHS = {
    "softmax": ([("Softmax", "x", "y")], "Softmax"),
    "logits": ([("Relu", "x", "a"), ("Identity", "a", "y")], "Relu"),
    "reshaped": ([("Sigmoid", "x", "a"), ("Flatten", "a", "b"), ("Cast", "b", "c"), ("Squeeze", "c", "y")], "Sigmoid"),
    "quantised": ([("Softmax", "x", "a"), ("QuantizeLinear", "a", "b"), ("DequantizeLinear", "b", "y")], "Softmax"),
    "written out": ([("Exp", "x", "a"), ("ReduceSum", "a", "b"), ("Div", "a b", "y")], "Softmax"),
    "divided": ([("Relu", "x", "a"), ("Div", "a a", "y")], "Div"),
    "an input": ([("Identity", "x", "y")], ""),
    "a cycle": ([("Identity", "y", "a"), ("Identity", "a", "y")], ""),
}


@pytest.mark.parametrize("what", GRAPHS)
def test_heads_output_is_traced_to_the_node_that_computes_it(what: str) -> None:
    nodes, expected = GRAPHS[what]
    graph = helper.make_graph(
        [helper.make_node(operator, inputs.split(), [output]) for operator, inputs, output in nodes],
        "g",
        [models.value("x", "FP32", [1, 4])],
        [models.value("y", "FP32", [1, 4])],
    )
    assert heads(graph) == {"y": expected}
