"""Graphs that cannot be computed: cycles, dangling names, duplicate names."""

from __future__ import annotations

from pathlib import Path

import onnx

from edged.models.finding import Category, Stage
from tests.zoo.exhibit import SERVED, Hall, refused
from tests.zoo.good_graphs import LOCAL, calling, function
from tests.zoo.parts import chain, node, relu, value

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
    no_nodes=("A graph without nodes that declares an output", chain()),
    no_outputs=("A graph without outputs", relu(outputs=[])),
)


# -- cycles ----------------------------------------------------------------------------------------------------------


HALL.models(
    _CYCLE,
    cycle_of_one=("A node that reads its own output", chain(node("Add", "x y", "y", name="own"))),
    cycle_of_many=(
        "A ring of two thousand nodes",
        chain(*[node("Identity", f"t{at}", f"t{(at + 1) % 2000}") for at in range(2000)], node("Add", "x t0", "y")),
    ),
)


HALL.texts(
    _CYCLE,
    """
    cycle_of_two: Two nodes that read each other
        a = Add(x, b) b = Relu(a) y = Neg(b)
    cycle_in_a_branch: A cycle inside the branch of an If
        (bool up, float[n,4] x) => (float[n,4] y) { y = If(up) <else_branch = branch () => (float[n,4] e) {
        e = Neg(x) }, then_branch = branch () => (float[n,4] b) { a = Add(x, b) b = Relu(a) }> }
    cycle_through_a_branch: A branch that reads the If's output
        (bool up, float[n,4] x) => (float[n,4] y) { [choice] y = If(up) <else_branch = branch () => (float[n,4] e) {
        e = Neg(x) }, then_branch = branch () => (float[n,4] t) { t = Relu(y) }> }
    cycle_off_the_way: A cycle that no output depends on
        y = Relu(x) a = Add(x, b) b = Relu(a)
    """,
)


@HALL.model(*_CYCLE)
def function_calls_itself() -> onnx.ModelProto:
    """A function that calls itself: inlining never ends"""
    return calling(function("Outer", [node("Outer", "a", "b", domain=LOCAL)], {LOCAL: 1}))


@HALL.model(*_CYCLE)
def functions_call_each_other() -> onnx.ModelProto:
    """Two functions that call each other"""
    two = [
        function(name, [node(other, "a", "c", domain=LOCAL), node("Relu", "c", "b")], {LOCAL: 1})
        for name, other in (("Outer", "Inner"), ("Inner", "Outer"))
    ]
    return calling(*two)


# -- dangling names --------------------------------------------------------------------------------------------------


# By ONNX's rules functions cannot see it; ONNX Runtime inlines the function where it can.
@HALL.model(SERVED, *_DANGLING)
def dangling_in_a_function() -> onnx.ModelProto:
    """A function that reads a tensor of the graph, which functions do not see"""
    return calling(function("Outer", [node("Add", "a x", "b")]))


HALL.texts(
    _DANGLING,
    """
    dangling_input: A node that reads an undefined tensor
        [sum] y = Add(x, missing)
    dangling_output: An output that no node makes
        (float[n,4] x) => (float[n,4] y, float[n,4] missing) { y = Relu(x) }
    dangling_in_a_branch: A branch that reads a tensor undefined inside and outside
        (bool up, float[n,4] x) => (float[n,4] y) { y = If(up) <else_branch = branch () => (float[n,4] e) {
        e = Neg(x) }, then_branch = branch () => (float[n,4] t) { t = Add(x, missing) }> }
    dangling_out_of_a_branch: A node that reads a tensor from inside a branch, where it is not visible
        (bool up, float[n,4] x) => (float[n,4] y) { h = If(up) <else_branch = branch () => (float[n,4] e) {
        e = Neg(x) }, then_branch = branch () => (float[n,4] t) { inside = Relu(x) t = Neg(inside) }>
        y = Add(h, inside) }
    dangling_output_of_a_branch: A branch with an output that no node makes
        (bool up, float[n,4] x) => (float[n,4] y) { y = If(up) <else_branch = branch () => (float[n,4] e) {
        e = Neg(x) }, then_branch = branch () => (float[n,4] missing) { t = Relu(x) }> }
    """,
)


# -- names -----------------------------------------------------------------------------------------------------------


@HALL.model(*_DUPLICATE)
def two_functions_of_one_name() -> onnx.ModelProto:
    """Two functions with the same name"""
    return calling(*(function("Outer", [node(operator, "a", "b")]) for operator in ("Relu", "Neg")))


HALL.texts(
    (*_DUPLICATE, *refused(Stage.SESSION, Category.REFUSED)),
    """
    # ONNX requires unique names of tensors only; ONNX Runtime of nodes as well.
    two_nodes_of_one_name: Two nodes with the same name
        [same] h = Relu(x) [same] y = Neg(h)
    """,
)


@HALL.model(*_DUPLICATE)
def function_of_two_opsets() -> onnx.ModelProto:
    """A function that names two versions of one domain"""
    outer = function("Outer", [node("Relu", "a", "b")])
    outer.opset_import.append(onnx.helper.make_opsetid("ai.onnx", 13))
    return calling(outer)


@HALL.model(*_DUPLICATE)
def two_models_in_one_file() -> onnx.ModelProto:
    """A model appended to itself, which protobuf reads as one model with everything twice"""
    return onnx.ModelProto.FromString(relu().SerializeToString() * 2)


HALL.texts(
    _DUPLICATE,
    """
    node_makes_an_input: A node whose output has the name of an input
        x = Relu(x) y = Neg(x)
    node_makes_a_constant: A node whose output has the name of an initializer
        <float w = {1}> { w = Relu(x) y = Add(x, w) }
    two_nodes_make_one_tensor: Two nodes with the same output
        y = Relu(x) [two] y = Neg(x)
    two_inputs_of_one_name: Two inputs called x
        (float[n,4] x, int64[n,4] x) => (float[n,4] y) { y = Relu(x) }
    two_outputs_of_one_name: One output listed twice
        (float[n,4] x) => (float[n,4] y, float[n,4] y) { y = Relu(x) }
    # Runtimes take one of the two silently; ONNX requires unique names.
    two_constants_of_one_name: Two initializers called w, with different numbers
        <float w = {1}, float w = {2}> { y = Mul(x, w) }
    branch_hides_a_name: A branch with a tensor that has the name of one outside
        (bool up, float[n,4] x) => (float[n,4] y) { h = Relu(x)
        z = If(up) <else_branch = branch () => (float[n,4] e) {
        e = Neg(x) }, then_branch = branch () => (float[n,4] h) { h = Neg(x) }> y = Add(h, z) }
    branch_hides_an_input: A branch with a tensor that has the name of an input
        (bool up, float[n,4] x) => (float[n,4] y) { y = If(up) <else_branch = branch () => (float[n,4] e) {
        e = Neg(x) }, then_branch = branch () => (float[n,4] x) { [in] x = Neg(up) }> }
    branch_in_a_branch_hides_a_name: A branch in a branch with a tensor that has the name of one outside both
        (bool up, float[n,4] x) => (float[n,4] y) { h = Relu(x)
        y = If(up) <else_branch = branch () => (float[n,4] e) { e = Neg(x) }, then_branch = branch () =>
        (float[n,4] t) { t = If(up) <else_branch = branch () => (float[n,4] f) { f = Neg(x) },
        then_branch = branch () => (float[n,4] h) { [in] h = Neg(x) }> }> }
    """,
)


HALL.texts(
    _BAD_NAME,
    """
    input_without_a_name: An input without a name
        (float[n,4] x, float[n,4] "") => (float[n,4] y) { y = Relu(x) }
    output_without_a_name: An output without a name
        (float[n,4] x) => (float[n,4] y, float[n,4] "") { y = Relu(x) }
    """,
)


# Some protobuf implementations refuse such bytes as text, others pass them on.
@HALL.file(*_BAD_NAME, *refused(Stage.PARSE, Category.DAMAGED, Category.BAD_NAME))
def name_not_utf8(path: Path) -> None:
    """Names that are not valid UTF-8"""
    proto = chain(node("Relu", "INPUT", "y"), inputs=[value("INPUT")])
    path.write_bytes(proto.SerializeToString().replace(b"INPUT", b"\xff\xfe\xfd\xfc\xfb"))
