"""Graphs that cannot be computed, with the category and the node that the check names; and graphs that can."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

from edged.jobs import graph_check
from edged.jobs.onnx_walk import Walk
from edged.models.finding import Category, Finding, Stage
from tests import models


def check(proto: onnx.ModelProto) -> Finding | None:
    return graph_check.check(Walk.of(proto))


def chain(*lines: str | onnx.NodeProto, **more: object) -> onnx.ModelProto:
    """These nodes between x FP32[2], up BOOL and y."""
    ends = [models.value("x", "FP32", [2]), models.value("up", "BOOL", [])], [models.value("y", "FP32", [2])]
    return models.model(models.nodes(*lines), *ends, **more)  # type: ignore[arg-type]


def constant(name: str) -> TensorProto:
    return TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[2], raw_data=bytes(8))


def choice(then: str, output: str = "t", made: str = "y") -> str:
    """An If of which one branch has the nodes `then`."""
    return f"""[choice] {made} = If(up) <
        then_branch = branch () => (float[2] {output}) {{ {then} }},
        else_branch = other () => (float[2] e) {{ e = Neg(x) }}
    >"""


def function(name: str, body: str, opsets: str = '"": 20') -> onnx.FunctionProto:
    return onnx.parser.parse_function(f'<domain: "mine", opset_import: [{opsets}]> {name} (a) => (b) {{ {body} }}')


def calling(*functions: onnx.FunctionProto) -> onnx.ModelProto:
    return chain(f"y = mine.{functions[0].name}(x)", domains={"mine": 1}, functions=functions)


def deep(levels: int) -> onnx.ModelProto:
    """Functions of which each calls the next twice."""
    bodies = [f"c = mine.F{at + 1}(a) b = mine.F{at + 1}(c)" for at in range(levels)] + ["b = Relu(a)"]
    return calling(*(function(f"F{at}", body) for at, body in enumerate(bodies)))


def altered(change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    proto = chain("[sum] y = Add(x, w)", initializers=(constant("w"),))
    change(proto)
    return proto


WRONG: dict[str, tuple[onnx.ModelProto, Category, str]] = {
    "no nodes": (chain(), Category.NO_GRAPH, ""),
    "no outputs": (altered(lambda p: p.graph.ClearField("output")), Category.NO_GRAPH, ""),
    "no opsets": (altered(lambda p: p.ClearField("opset_import")), Category.NO_GRAPH, ""),
    "itself": (chain("[own] y = Add(x, y)"), Category.CYCLE, "own"),
    "each other": (chain("a = Add(x, b)", "b = Relu(a)", "y = Neg(b)"), Category.CYCLE, "a|b"),
    "through a branch": (chain(choice("t = Relu(y)")), Category.CYCLE, "choice"),
    "in a branch": (chain(choice("[in] t = Add(x, t)")), Category.CYCLE, "in"),
    "function calls itself": (calling(function("F", "b = mine.F(a)")), Category.CYCLE, "mine.F"),
    "functions without end": (deep(40), Category.TOO_LARGE, ""),
    "unknown input": (chain("[sum] y = Add(x, unknown)"), Category.DANGLING, "sum"),
    "unknown input of a nameless node": (chain("y = Add(x, unknown)"), Category.DANGLING, "y"),
    "unknown output": (chain("z = Neg(x)"), Category.DANGLING, "y"),
    "unknown in a branch": (chain(choice("[in] t = Add(x, unknown)")), Category.DANGLING, "in"),
    "out of a branch": (chain(choice("t = Neg(x)", made="h"), "[late] y = Add(h, t)"), Category.DANGLING, "late"),
    "unknown in a function": (calling(function("F", "[in] b = Add(a, x)")), Category.DANGLING, "in"),
    "made twice": (chain("y = Neg(x)", "[two] y = Abs(x)"), Category.DUPLICATE, "two"),
    "two nodes with one name": (chain("[one] h = Neg(x)", "[one] y = Abs(h)"), Category.DUPLICATE, "one"),
    "branch makes what exists before it": (
        chain("h = Abs(x)", choice("[in] h = Neg(h)", output="h")),
        Category.DUPLICATE,
        "in",
    ),
    "branch makes an input": (chain(choice("[in] x = Neg(up)", output="x")), Category.DUPLICATE, "in"),
    "branch in a branch makes what exists before both": (
        chain("h = Abs(x)", choice(choice("[in] h = Neg(x)", output="h", made="t"))),
        Category.DUPLICATE,
        "in",
    ),
    "two initialisers": (altered(lambda p: p.graph.initializer.append(constant("w"))), Category.DUPLICATE, "w"),
    "two inputs": (altered(lambda p: p.graph.input.append(p.graph.input[0])), Category.DUPLICATE, "x"),
    "two outputs": (altered(lambda p: p.graph.output.append(p.graph.output[0])), Category.DUPLICATE, "y"),
    "two opsets": (
        altered(lambda p: p.opset_import.append(helper.make_opsetid("ai.onnx", 13))),
        Category.DUPLICATE,
        "",
    ),
    "two opsets of a function": (
        calling(function("F", "b = Relu(a)", '"": 13, "ai.onnx": 17')),
        Category.DUPLICATE,
        "",
    ),
    "two functions": (
        calling(*(function("F", f"b = {kind}(a)") for kind in ("Neg", "Abs"))),
        Category.DUPLICATE,
        "mine.F",
    ),
    "input without a name": (
        altered(lambda p: p.graph.input.append(models.value("", "FP32", [2]))),
        Category.BAD_NAME,
        "",
    ),
    "too few bytes": (
        altered(lambda p: setattr(p.graph.initializer[0], "raw_data", bytes(7))),
        Category.SHAPE_MISMATCH,
        "w",
    ),
    "too few values": (
        chain("y = Add(x, w)", initializers=(TensorProto(name="w", data_type=1, dims=[3], float_data=[1.0, 2.0]),)),
        Category.SHAPE_MISMATCH,
        "w",
    ),
    "four tebibytes of nothing": (
        altered(lambda p: p.graph.initializer[0].dims.append(1 << 40)),
        Category.SHAPE_MISMATCH,
        "w",
    ),
    "negative size": (altered(lambda p: p.graph.initializer[0].dims.append(-1)), Category.SHAPE_MISMATCH, "w"),
    "unknown type": (
        altered(lambda p: setattr(p.graph.initializer[0], "data_type", 77)),
        Category.UNSERVABLE_TYPE,
        "w",
    ),
}


@pytest.mark.parametrize(("proto", "category", "where"), WRONG.values(), ids=WRONG)
def test_check_graph_that_cannot_be_computed_is_found_by_category_and_node(
    proto: onnx.ModelProto, category: Category, where: str
) -> None:
    found = check(proto)
    assert found is not None
    assert (found.stage, found.category) == (Stage.GRAPH, category), found
    assert found.node in where.split("|")
    assert "\n" not in found.message
    assert found.remedy


def test_check_long_cycle_is_found_with_its_length() -> None:
    ring = [helper.make_node("Identity", [f"t{at}"], [f"t{(at + 1) % 5000}"]) for at in range(5000)]
    found = check(chain(*ring, "y = Add(x, t0)"))
    assert found is not None
    assert "a cycle of 5000 nodes" in found.message


def opsets(proto: onnx.ModelProto) -> None:
    proto.opset_import.extend(helper.make_opsetid(name, models.OPSET) for name in ("", "ai.onnx"))


RIGHT: dict[str, onnx.ModelProto] = {
    "convolution": models.conv(),
    "branches": models.branches(),
    "loop": models.loop(),
    "equal opsets, as onnx.compose writes them": altered(opsets),
    "equal opsets of a function": calling(function("F", "b = Relu(a)", '"": 20, "": 20, "ai.onnx": 20')),
    "consumers first": chain("y = Neg(h)", "h = Abs(x)"),
    "optional input left out": chain("y = Clip(x, , x)"),
    "branch reads what comes later in the file": chain(choice("t = Neg(h)"), "h = Abs(x)"),
    "same names in both branches": chain(choice("e = Neg(x)", output="e")),
    # ONNX's own checker and ONNX Runtime accept these: they read the body before its node has made anything.
    "branch names its output as its node does": chain(choice("y = Neg(x)", output="y")),
    "branch makes what is made again after it": chain(
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
    assert len(walk.graphs) == 5  # each If has two
    assert walk.graphs[0] is walk.proto.graph
    kinds = sorted(each.op_type for each in walk.nodes)
    assert kinds == ["Abs", "Constant", "If", "If", "If", "Neg", "Neg", "Neg", "Neg", "Twice"]
    assert walk.nodes[0].op_type == "If"
    assert [tensor.name for tensor in walk.tensors] == ["w", "deep", "attached"]
    walk.tensors[0].ClearField("raw_data")
    assert not walk.proto.graph.initializer[0].raw_data
