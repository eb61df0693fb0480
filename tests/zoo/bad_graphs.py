"""Graphs that cannot be computed: cycles, loose ends, names used twice."""

from __future__ import annotations

from pathlib import Path

import onnx

from edged.models.finding import Category, Stage
from tests.zoo.exhibit import SERVED, Hall, refused
from tests.zoo.good_graphs import LOCAL, calling, function
from tests.zoo.parts import body, chain, choice, constant, node, relu, value

HALL = Hall()
_NO_GRAPH = refused(Stage.GRAPH, Category.NO_GRAPH) + refused(Stage.PARSE, Category.NO_GRAPH)
_CYCLE = refused(Stage.GRAPH, Category.CYCLE)
_DANGLING = refused(Stage.GRAPH, Category.DANGLING)
_DUPLICATE = refused(Stage.GRAPH, Category.DUPLICATE)
_BAD_NAME = refused(Stage.GRAPH, Category.BAD_NAME)


# -- no graph --------------------------------------------------------------------------------------------------------


@HALL.model(*_NO_GRAPH)
def no_graph() -> onnx.ModelProto:
    """A model with everything but a graph"""
    proto = relu()
    proto.ClearField("graph")
    return proto


HALL.models(
    _NO_GRAPH,
    no_nodes=("A graph that computes nothing and promises an output", chain()),
    no_outputs=("A graph that tells nobody what it computed", relu(outputs=[])),
)


# -- cycles ----------------------------------------------------------------------------------------------------------


@HALL.model(*_CYCLE)
def cycle_of_two() -> onnx.ModelProto:
    """Two nodes that read each other"""
    return chain(node("Add", "x b", "a"), node("Relu", "a", "b"), node("Neg", "b", "y"))


HALL.models(
    _CYCLE,
    cycle_of_one=("A node that reads what it makes", chain(node("Add", "x y", "y"))),
    cycle_of_many=(
        "A ring of two thousand nodes",
        chain(*[node("Identity", f"t{at}", f"t{(at + 1) % 2000}") for at in range(2000)], node("Add", "x t0", "y")),
    ),
)


@HALL.model(*_CYCLE)
def cycle_in_a_branch() -> onnx.ModelProto:
    """A cycle inside the branch of an If"""
    ring = body(node("Add", "x b", "a"), node("Relu", "a", "b"), outputs=[value("b")])
    plain = body(node("Neg", "x", "e"), outputs=[value("e")])
    return chain(choice(ring, plain), inputs=[value("up", "BOOL", []), value("x")])


@HALL.model(*_CYCLE)
def cycle_through_a_branch() -> onnx.ModelProto:
    """A branch that reads what the If makes"""
    then = body(node("Relu", "y", "t"), outputs=[value("t")])
    other = body(node("Neg", "x", "e"), outputs=[value("e")])
    return chain(choice(then, other), inputs=[value("up", "BOOL", []), value("x")])


@HALL.model(*_CYCLE)
def cycle_off_the_way() -> onnx.ModelProto:
    """A cycle that no output depends on"""
    return chain(node("Relu", "x", "y"), node("Add", "x b", "a"), node("Relu", "a", "b"))


@HALL.model(*_CYCLE)
def function_calls_itself() -> onnx.ModelProto:
    """A function that calls itself: whoever puts it in place of its call never ends"""
    return calling(function("Outer", [node("Outer", "a", "b", domain=LOCAL)], {LOCAL: 1}))


@HALL.model(*_CYCLE)
def functions_call_each_other() -> onnx.ModelProto:
    """Two functions that call each other"""
    two = [
        function(name, [node(other, "a", "c", domain=LOCAL), node("Relu", "c", "b")], {LOCAL: 1})
        for name, other in (("Outer", "Inner"), ("Inner", "Outer"))
    ]
    return calling(*two)


# -- loose ends ------------------------------------------------------------------------------------------------------


HALL.models(
    _DANGLING,
    dangling_input=("A node that reads what nothing makes", chain(node("Add", "x nobody", "y"))),
    dangling_output=("An output that nothing makes", relu(outputs=[value("y"), value("nobody")])),
)


@HALL.model(*_DANGLING)
def dangling_in_a_branch() -> onnx.ModelProto:
    """A branch that reads what nothing makes, inside or outside"""
    then = body(node("Add", "x nobody", "t"), outputs=[value("t")])
    other = body(node("Neg", "x", "e"), outputs=[value("e")])
    return chain(choice(then, other), inputs=[value("up", "BOOL", []), value("x")])


@HALL.model(*_DANGLING)
def dangling_out_of_a_branch() -> onnx.ModelProto:
    """A node that reads what is made inside a branch, where it cannot be seen from outside"""
    then = body(node("Relu", "x", "inside"), node("Neg", "inside", "t"), outputs=[value("t")])
    other = body(node("Neg", "x", "e"), outputs=[value("e")])
    nodes = choice(then, other, output="h"), node("Add", "h inside", "y")
    return chain(*nodes, inputs=[value("up", "BOOL", []), value("x")])


# ONNX says that functions do not see it; ONNX Runtime puts them in place of their call, where it is seen.
@HALL.model(SERVED, *_DANGLING)
def dangling_in_a_function() -> onnx.ModelProto:
    """A function that reads a tensor of the graph, which functions do not see"""
    return calling(function("Outer", [node("Add", "a x", "b")]))


@HALL.model(*_DANGLING)
def dangling_output_of_a_branch() -> onnx.ModelProto:
    """A branch whose output nothing makes"""
    then = body(node("Relu", "x", "t"), outputs=[value("nobody")])
    other = body(node("Neg", "x", "e"), outputs=[value("e")])
    return chain(choice(then, other), inputs=[value("up", "BOOL", []), value("x")])


# -- names -----------------------------------------------------------------------------------------------------------


@HALL.model(*_DUPLICATE)
def node_makes_an_input() -> onnx.ModelProto:
    """A node whose output is called as an input is"""
    return chain(node("Relu", "x", "x"), node("Neg", "x", "y"))


@HALL.model(*_DUPLICATE)
def node_makes_a_constant() -> onnx.ModelProto:
    """A node whose output is called as an initialiser is"""
    return chain(node("Relu", "x", "w"), node("Add", "x w", "y"), constants=[constant("w", 1)])


HALL.models(
    _DUPLICATE,
    two_nodes_make_one_tensor=("Two nodes with the same output", chain(node("Relu", "x", "y"), node("Neg", "x", "y"))),
    two_inputs_of_one_name=("Two inputs called x", relu(inputs=[value("x"), value("x", "INT64")])),
)


@HALL.model(*_DUPLICATE)
def two_outputs_of_one_name() -> onnx.ModelProto:
    """One output told twice: an answer has a place for one of a name"""
    return relu(outputs=[value("y"), value("y")])


# Runtimes take one of the two without a word; ONNX says that names are unique.
@HALL.model(*_DUPLICATE)
def two_constants_of_one_name() -> onnx.ModelProto:
    """Two initialisers called w, with different numbers"""
    return chain(node("Mul", "x w", "y"), constants=[constant("w", 1), constant("w", 2)])


@HALL.model(*_DUPLICATE)
def two_functions_of_one_name() -> onnx.ModelProto:
    """Two functions that cannot be told apart"""
    return calling(*(function("Outer", [node(operator, "a", "b")]) for operator in ("Relu", "Neg")))


# ONNX tells only tensors apart by their names; ONNX Runtime nodes as well.
@HALL.model(*_DUPLICATE, *refused(Stage.SESSION, Category.REFUSED))
def two_nodes_of_one_name() -> onnx.ModelProto:
    """Two nodes called the same"""
    return chain(node("Relu", "x", "h", name="same"), node("Neg", "h", "y", name="same"))


@HALL.model(*_DUPLICATE)
def two_models_in_one_file() -> onnx.ModelProto:
    """A model appended to itself, which protobuf reads as one with everything twice"""
    return onnx.ModelProto.FromString(relu().SerializeToString() * 2)


@HALL.model(*_DUPLICATE)
def branch_hides_a_name() -> onnx.ModelProto:
    """A branch that makes a tensor called as one outside is"""
    then = body(node("Neg", "x", "h"), outputs=[value("h")])
    other = body(node("Neg", "x", "e"), outputs=[value("e")])
    nodes = node("Relu", "x", "h"), choice(then, other, output="z"), node("Add", "h z", "y")
    return chain(*nodes, inputs=[value("up", "BOOL", []), value("x")])


HALL.models(
    _BAD_NAME,
    input_without_a_name=("An input that nobody could name in a request", relu(inputs=[value("x"), value("")])),
    output_without_a_name=("An output that nobody could tell", relu(outputs=[value("y"), value("")])),
)


# Protobuf of one kind refuses such bytes as text, of another kind hands them on.
@HALL.file(*_BAD_NAME, *refused(Stage.PARSE, Category.DAMAGED, Category.BAD_NAME))
def name_not_utf8(path: Path) -> None:
    """Names of bytes that are no text"""
    proto = chain(node("Relu", "INPUT", "y"), inputs=[value("INPUT")])
    path.write_bytes(proto.SerializeToString().replace(b"INPUT", b"\xff\xfe\xfd\xfc\xfb"))
