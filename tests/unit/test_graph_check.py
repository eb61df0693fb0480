"""Valid graphs. Invalid ones are in tests/zoo, which test_inspect.py uses."""

from __future__ import annotations

import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

from edged.jobs import graph_check
from edged.jobs.onnx_walk import Walk
from edged.models.finding import Finding
from tests import models


def check(proto: onnx.ModelProto) -> Finding | None:
    return graph_check.check(Walk.of(proto))


def chain(*lines: str | onnx.NodeProto, **more: object) -> onnx.ModelProto:
    """Return a model with these nodes, the inputs x FP32[2] and up BOOL[], and the output y FP32[2]."""
    ends = [models.value("x", "FP32", [2]), models.value("up", "BOOL", [])], [models.value("y", "FP32", [2])]
    return models.model(models.nodes(*lines), *ends, **more)  # type: ignore[arg-type]


def constant(name: str) -> TensorProto:
    return TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[2], raw_data=bytes(8))


def choice(then: str, output: str = "t", made: str = "y") -> str:
    """Return an If whose then branch has these nodes."""
    return f"""[choice] {made} = If(up) <
        then_branch = branch () => (float[2] {output}) {{ {then} }},
        else_branch = other () => (float[2] e) {{ e = Neg(x) }}
    >"""


def function(name: str, body: str, opsets: str = '"": 20') -> onnx.FunctionProto:
    return onnx.parser.parse_function(f'<domain: "mine", opset_import: [{opsets}]> {name} (a) => (b) {{ {body} }}')


def calling(*functions: onnx.FunctionProto) -> onnx.ModelProto:
    return chain(f"y = mine.{functions[0].name}(x)", domains={"mine": 1}, functions=functions)


def deep(levels: int) -> onnx.ModelProto:
    """Return a model of functions in which each function calls the next one twice."""
    bodies = [f"c = mine.F{at + 1}(a) b = mine.F{at + 1}(c)" for at in range(levels)] + ["b = Relu(a)"]
    return calling(*(function(f"F{at}", body) for at, body in enumerate(bodies)))


def with_equal_opsets() -> onnx.ModelProto:
    proto = chain("y = Add(x, w)", initializers=(constant("w"),))
    proto.opset_import.extend(helper.make_opsetid(name, models.OPSET) for name in ("", "ai.onnx"))
    return proto


RIGHT: dict[str, onnx.ModelProto] = {
    "convolution": models.conv(),
    "branches": models.branches(),
    "loop": models.loop(),
    "equal opsets, as onnx.compose writes them": with_equal_opsets(),
    "equal opsets of a function": calling(function("F", "b = Relu(a)", '"": 20, "": 20, "ai.onnx": 20')),
    "consumers first": chain("y = Neg(h)", "h = Abs(x)"),
    "optional input left out": chain("y = Clip(x, , x)"),
    "branch reads a value that is defined later": chain(choice("t = Neg(h)"), "h = Abs(x)"),
    "same names in both branches": chain(choice("e = Neg(x)", output="e")),
    # ONNX's checker and ONNX Runtime accept these, because they read a body before the outputs of its node exist.
    "branch names its output as its node does": chain(choice("y = Neg(x)", output="y")),
    "branch defines a value that is defined again later": chain(
        choice("h = Neg(x)", output="h", made="c"), "h = Abs(c)", "y = Neg(h)"
    ),
    "body names an input as a value outside": chain(
        """y = Loop(times, up, x) <
            body = body (int64 i, bool go, float[2] y) => (bool on, float[2] w) { on = Identity(go) w = Add(y, y) }
        >""",
        initializers=(TensorProto(name="times", data_type=TensorProto.INT64, int64_data=[2]),),
    ),
    "some functions": deep(10),
    "4-bit weights": chain(
        "y = Neg(x)", initializers=(TensorProto(name="q", data_type=TensorProto.INT4, dims=[3], raw_data=b"ab"),)
    ),
}


@pytest.mark.parametrize("proto", RIGHT.values(), ids=RIGHT)
def test_check_graph_that_can_be_computed_is_accepted(proto: onnx.ModelProto) -> None:
    assert check(proto) is None


def test_walk_finds_graphs_nodes_and_tensors_of_branches_and_functions() -> None:
    inner = "[choice] t = If(up) <then_branch = b () => (float[2] t) <float[2] deep = {0, 0}>"
    inner += " { t = Constant<value = float[2] attached {0, 0}>() }, else_branch = o () => (float[2] e) { e = Neg(x) }>"
    twice = function("Twice", f"b = Neg(a) {choice('t = Abs(a)', made='unused')}")
    lines = choice(inner, made="z"), "y = mine.Twice(x)"
    walk = Walk.of(chain(*lines, functions=[twice], initializers=(constant("w"),), domains={"mine": 1}))
    assert len(walk.graphs) == 5  # the main graph, and two branches of each If
    assert walk.graphs[0] is walk.proto.graph
    kinds = sorted(each.op_type for each in walk.nodes)
    assert kinds == ["Abs", "Constant", "If", "If", "If", "Neg", "Neg", "Neg", "Neg", "Twice"]
    assert walk.nodes[0].op_type == "If"
    assert [tensor.name for tensor in walk.tensors] == ["w", "deep", "attached"]
    walk.tensors[0].ClearField("raw_data")
    assert not walk.proto.graph.initializer[0].raw_data
