"""What of a graph cannot be computed, named by its node; and what only looks so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edged.jobs import graph_check
from edged.jobs.onnx_walk import Walk
from edged.models.finding import Category, Finding, Stage
from tests import models

node = helper.make_node


def check(proto: onnx.ModelProto) -> Finding | None:
    return graph_check.check(Walk.of(proto))


def chain(*nodes: onnx.NodeProto, constants: tuple[TensorProto, ...] = (), **more: object) -> onnx.ModelProto:
    """x FP32[2] to y, with a boolean `up` beside it."""
    inputs = [models.value("x", "FP32", [2]), models.value("up", "BOOL", [])]
    return models.model(nodes, inputs, [models.value("y", "FP32", [2])], constants, **more)  # type: ignore[arg-type]


def constant(name: str) -> TensorProto:
    return numpy_helper.from_array(np.zeros(2, np.float32), name)


def branch(*nodes: onnx.NodeProto, output: str = "t") -> onnx.GraphProto:
    return helper.make_graph(nodes, "branch", [], [models.value(output, "FP32", [2])])


def choice(then: onnx.GraphProto, output: str = "y") -> onnx.NodeProto:
    other = branch(node("Neg", ["x"], ["e"]), output="e")
    return node("If", ["up"], [output], "choice", then_branch=then, else_branch=other)


def function(name: str, *nodes: onnx.NodeProto) -> onnx.FunctionProto:
    return helper.make_function("mine", name, ["a"], ["b"], nodes, [helper.make_opsetid("", models.OPSET)])


def calling(*functions: onnx.FunctionProto) -> onnx.ModelProto:
    call = node(functions[0].name, ["x"], ["y"], domain="mine")
    return chain(call, domains={"mine": 1}, functions=functions)


def deep(levels: int) -> onnx.ModelProto:
    """Functions of which each calls the next twice."""
    made = [
        function(
            f"F{at}", node(f"F{at + 1}", ["a"], ["c"], domain="mine"), node(f"F{at + 1}", ["c"], ["b"], domain="mine")
        )
        for at in range(levels)
    ]
    return calling(*made, function(f"F{levels}", node("Relu", ["a"], ["b"])))


def altered(change: Callable[[onnx.ModelProto], object]) -> Callable[[], onnx.ModelProto]:
    def make() -> onnx.ModelProto:
        proto = chain(node("Add", ["x", "w"], ["y"], "sum"), constants=(constant("w"),))
        change(proto)
        return proto

    return make


WRONG: dict[str, tuple[Callable[[], onnx.ModelProto], Category, str]] = {
    "no nodes": (lambda: chain(), Category.NO_GRAPH, ""),
    "no outputs": (altered(lambda p: p.graph.ClearField("output")), Category.NO_GRAPH, ""),
    "no opsets": (altered(lambda p: p.ClearField("opset_import")), Category.NO_GRAPH, ""),
    "itself": (lambda: chain(node("Add", ["x", "y"], ["y"], "own")), Category.CYCLE, "own"),
    "each other": (
        lambda: chain(node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Neg", ["b"], ["y"])),
        Category.CYCLE,
        "a|b",
    ),
    "through a branch": (lambda: chain(choice(branch(node("Relu", ["y"], ["t"])))), Category.CYCLE, "choice"),
    "in a branch": (lambda: chain(choice(branch(node("Add", ["x", "t"], ["t"], "in")))), Category.CYCLE, "in"),
    "function calls itself": (
        lambda: calling(function("F", node("F", ["a"], ["b"], domain="mine"))),
        Category.CYCLE,
        "mine.F",
    ),
    "functions without end": (lambda: deep(40), Category.TOO_LARGE, ""),
    "input of nobody": (lambda: chain(node("Add", ["x", "nobody"], ["y"], "sum")), Category.DANGLING, "sum"),
    "nameless node": (lambda: chain(node("Add", ["x", "nobody"], ["y"])), Category.DANGLING, "y"),
    "output of nobody": (lambda: chain(node("Neg", ["x"], ["z"])), Category.DANGLING, "y"),
    "in a branch, of nobody": (
        lambda: chain(choice(branch(node("Add", ["x", "nobody"], ["t"], "in")))),
        Category.DANGLING,
        "in",
    ),
    "out of a branch": (
        lambda: chain(choice(branch(node("Neg", ["x"], ["t"])), "h"), node("Add", ["h", "t"], ["y"], "late")),
        Category.DANGLING,
        "late",
    ),
    "in a function, of nobody": (
        lambda: calling(function("F", node("Add", ["a", "x"], ["b"], "in"))),
        Category.DANGLING,
        "in",
    ),
    "made twice": (
        lambda: chain(node("Neg", ["x"], ["y"]), node("Abs", ["x"], ["y"], "two")),
        Category.DUPLICATE,
        "two",
    ),
    "two nodes of one name": (
        lambda: chain(node("Neg", ["x"], ["h"], "one"), node("Abs", ["h"], ["y"], "one")),
        Category.DUPLICATE,
        "one",
    ),
    "a branch makes what is there before it": (
        lambda: chain(node("Abs", ["x"], ["h"]), choice(branch(node("Neg", ["h"], ["h"], "in"), output="h"))),
        Category.DUPLICATE,
        "in",
    ),
    "a branch makes an input": (
        lambda: chain(choice(branch(node("Neg", ["up"], ["x"], "in"), output="x"))),
        Category.DUPLICATE,
        "in",
    ),
    "a branch in a branch makes what is there before both": (
        lambda: chain(
            node("Abs", ["x"], ["h"]),
            choice(branch(choice(branch(node("Neg", ["x"], ["h"], "in"), output="h"), output="t"))),
        ),
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
        lambda: calling(
            helper.make_function(
                *("mine", "F", ["a"], ["b"], [node("Relu", ["a"], ["b"])]),
                [helper.make_opsetid("", 13), helper.make_opsetid("ai.onnx", 17)],
            )
        ),
        Category.DUPLICATE,
        "",
    ),
    "two functions": (
        lambda: calling(*(function("F", node(kind, ["a"], ["b"])) for kind in ("Neg", "Abs"))),
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
    "four tebibytes of nothing": (
        altered(lambda p: p.graph.initializer[0].dims.append(1 << 40)),
        Category.SHAPE_MISMATCH,
        "w",
    ),
    "a negative size": (altered(lambda p: p.graph.initializer[0].dims.append(-1)), Category.SHAPE_MISMATCH, "w"),
    "no such type": (
        altered(lambda p: setattr(p.graph.initializer[0], "data_type", 77)),
        Category.UNSERVABLE_TYPE,
        "w",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_computed_is_told_by_its_category_and_node(what: str) -> None:
    make, category, where = WRONG[what]
    found = check(make())
    assert found is not None
    assert (found.stage, found.category) == (Stage.GRAPH, category), found
    assert found.node in where.split("|")
    assert "\n" not in found.message
    assert found.remedy


def test_too_few_values_in_fields_are_noticed_as_well() -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], float_data=[1.0, 2.0])
    found = check(chain(node("Add", ["x", "w"], ["y"]), constants=(tensor,)))
    assert found is not None
    assert found.message == "tensor 'w' has 2 values; its shape [3] needs 3"


def test_a_ring_is_told_with_its_length_however_long_it_is() -> None:
    ring = [node("Identity", [f"t{at}"], [f"t{(at + 1) % 5000}"]) for at in range(5000)]
    found = check(chain(*ring, node("Add", ["x", "t0"], ["y"])))
    assert found is not None
    assert "a cycle of 5000 nodes" in found.message


RIGHT: dict[str, Callable[[], onnx.ModelProto]] = {
    "convolution": models.conv,
    "branches": models.branches,
    "equal opsets, as onnx.compose writes them": altered(
        lambda p: p.opset_import.extend(helper.make_opsetid(name, models.OPSET) for name in ("", "ai.onnx"))
    ),
    "equal opsets of a function": lambda: calling(
        helper.make_function(
            *("mine", "F", ["a"], ["b"], [node("Relu", ["a"], ["b"])]),
            [helper.make_opsetid(name, models.OPSET) for name in ("", "", "ai.onnx")],
        )
    ),
    "loop": models.loop,
    "consumers first": lambda: chain(node("Neg", ["h"], ["y"]), node("Abs", ["x"], ["h"])),
    "an optional input left out": lambda: chain(node("Clip", ["x", "", "x"], ["y"])),
    "a branch reads what comes later in the file": lambda: chain(
        choice(branch(node("Neg", ["h"], ["t"]))), node("Abs", ["x"], ["h"])
    ),
    "the same names in both branches": lambda: chain(choice(branch(node("Neg", ["x"], ["e"]), output="e"))),
    # What ONNX's own checker and ONNX Runtime take as well: they come to the body before its node has made anything.
    "a branch calls its output as its node does": lambda: chain(choice(branch(node("Neg", ["x"], ["y"]), output="y"))),
    "a branch makes what is made again after it": lambda: chain(
        choice(branch(node("Neg", ["x"], ["h"]), output="h"), output="c"),
        node("Abs", ["c"], ["h"]),
        node("Neg", ["h"], ["y"]),
    ),
    "functions within reason": lambda: deep(10),
    "4-bit weights": lambda: chain(
        node("Neg", ["x"], ["y"]),
        constants=(TensorProto(name="q", data_type=TensorProto.INT4, dims=[3], raw_data=b"ab"),),
    ),
}


@pytest.mark.parametrize("what", RIGHT)
def test_what_can_be_computed_is_left_alone(what: str) -> None:
    assert check(RIGHT[what]()) is None


def test_a_body_may_call_its_inputs_as_something_outside_is_called() -> None:
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Add", ["y", "y"], ["w"])],
        "body",
        [models.value("i", "INT64", []), models.value("go", "BOOL", []), models.value("y", "FP32", [2])],
        [models.value("on", "BOOL", []), models.value("w", "FP32", [2])],
    )
    times = numpy_helper.from_array(np.array(2), "times")
    assert check(chain(node("Loop", ["times", "up", "x"], ["y"], body=body), constants=(times,))) is None


def test_a_model_is_gone_through_once_and_all_that_is_in_it_is_found() -> None:
    """Wherever it is: in the branches of branches, and in functions and their branches."""
    inner = branch(node("Constant", [], ["t"], value=constant("attached")))
    inner.initializer.append(constant("deep"))
    within = branch(choice(inner, "t"))
    call = node("Twice", ["x"], ["y"], domain="mine")
    twice = function("Twice", node("Neg", ["a"], ["b"]), choice(branch(node("Abs", ["a"], ["t"])), "unused"))
    proto = chain(choice(within, "z"), call, functions=[twice], constants=(constant("w"),), domains={"mine": 1})
    walk = Walk.of(proto)
    assert len(walk.graphs) == 5  # each If has an `else` of its own
    assert walk.graphs[0] is proto.graph
    kinds = sorted(each.op_type for each in walk.nodes)
    assert kinds == ["Abs", "Constant", "If", "If", "If", "Neg", "Neg", "Neg", "Neg", "Twice"]
    assert walk.nodes[0].op_type == "If"
    assert [tensor.name for tensor in walk.tensors] == ["w", "deep", "attached"]
    walk.tensors[0].ClearField("raw_data")
    assert not proto.graph.initializer[0].raw_data


def test_finding_of_a_graph_has_the_remedy_of_its_category() -> None:
    finding = check(onnx.ModelProto(ir_version=8, opset_import=[helper.make_opsetid("", 17)]))
    assert finding is not None
    assert (finding.category, finding.remedy) == (Category.NO_GRAPH, Category.NO_GRAPH.remedy)


def test_admission_page_lists_every_category() -> None:
    page = (Path(__file__).parents[2] / "docs" / "admission.md").read_text().partition("## Categories")[2]
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert {name.strip(" `") for row in rows for name in row.split(",")} == {category.value for category in Category}
