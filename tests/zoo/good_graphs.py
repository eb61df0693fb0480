"""Graphs as exporters write them: control flow, functions, omitted, duplicate and unused parts."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.compose
from onnx import helper

from tests.integration.onnx_files import DTYPES
from tests.zoo.exhibit import SERVED, Hall
from tests.zoo.parts import body, chain, choice, constant, dense, graph, model, node, relu, value

HALL = Hall()
LOCAL = "zoo.local"


def nested_ifs(depth: int) -> onnx.ModelProto:
    """Return y = x through `depth` Ifs, each inside the one before."""
    inner = body(node("Identity", "x", "y0"), outputs=[value("y0")])
    for level in range(1, depth + 1):
        other = body(node("Neg", "x", f"n{level}"), outputs=[value(f"n{level}")])
        inner = body(choice(inner, other, output=f"y{level}"), outputs=[value(f"y{level}")])
    inner.input.extend([value("up", "BOOL", []), value("x")])
    return model(inner)


def counted_loop(trips: str, nodes: list[onnx.NodeProto], constants: list[onnx.TensorProto]) -> onnx.ModelProto:
    """Return a Loop that doubles x `trips` times; `nodes` make its inputs."""
    inner = graph(
        [node("Identity", "go", "on"), node("Add", "v v", "w")],
        [value("i", "INT64", []), value("go", "BOOL", []), value("v")],
        [value("on", "BOOL", []), value("w")],
        name="body",
    )
    yes = constant("yes", True, np.bool_)
    return chain(*nodes, node("Loop", [trips, "yes", "x"], ["y"], body=inner), constants=[yes, *constants])


def function(name: str, nodes: list[onnx.NodeProto], domains: dict[str, int] | None = None) -> onnx.FunctionProto:
    """Return a function from `a` to `b`."""
    opsets = [helper.make_opsetid(domain, version) for domain, version in {"": 17, **(domains or {})}.items()]
    return helper.make_function(LOCAL, name, ["a"], ["b"], nodes, opsets)


def calling(*functions: onnx.FunctionProto, first: str = "Outer", ir: int = 9) -> onnx.ModelProto:
    """Return a model that calls one of its own functions."""
    call = node(first, "x", "y", domain=LOCAL)
    return chain(call, domains={LOCAL: 1}, functions=functions, ir=ir)


def long_chain(nodes: int) -> onnx.ModelProto:
    names = ["x", *(f"t{at}" for at in range(1, nodes)), "y"]
    return chain(*(node("Identity", [names[at]], [names[at + 1]]) for at in range(nodes)))


@HALL.model(SERVED, costly=True)
def if_nested_deep() -> onnx.ModelProto:
    """Twenty Ifs inside each other, which every parser accepts"""
    return nested_ifs(20)


@HALL.model(SERVED)
def local_function() -> onnx.ModelProto:
    """A model-local function"""
    return calling(function("Outer", [node("Relu", "a", "c"), node("Neg", "c", "b")]))


@HALL.model(SERVED)
def functions_in_functions() -> onnx.ModelProto:
    """Functions that call each other, listed in the order of the calls"""
    outer = function(
        "Outer", [node("Inner", "a", "c", domain=LOCAL), node("Inner", "c", "b", domain=LOCAL)], {LOCAL: 1}
    )
    return calling(outer, function("Inner", [node("Relu", "a", "b")]))


@HALL.model(SERVED)
def function_with_attribute() -> onnx.ModelProto:
    """A function that passes an attribute on"""
    scaled = node("LeakyRelu", "a", "b")
    reference = onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    scaled.attribute.append(reference)
    made = helper.make_function(LOCAL, "Outer", ["a"], ["b"], [scaled], [helper.make_opsetid("", 17)], ["slope"])
    return chain(node("Outer", "x", "y", domain=LOCAL, slope=0.2), domains={LOCAL: 1}, functions=[made])


@HALL.model(SERVED)
def function_with_branches() -> onnx.ModelProto:
    """A function with an If inside"""
    then = body(node("Relu", "a", "t"), outputs=[value("t")])
    other = body(node("Neg", "a", "e"), outputs=[value("e")])
    nodes = [
        node("ReduceSum", "a", "sum", keepdims=0),
        node("Greater", "sum sum", "up"),
        choice(then, other, output="b"),
    ]
    return calling(function("Outer", nodes))


@HALL.model(SERVED)
def function_never_called() -> onnx.ModelProto:
    """A function that is never called"""
    return relu(domains={LOCAL: 1}, functions=[function("Outer", [node("Relu", "a", "b")])])


@HALL.model(SERVED)
def function_overloads() -> onnx.ModelProto:
    """Two functions with the same name and different overloads, since IR 10"""
    two = [function("Outer", [node(operator, "a", "b")]) for operator in ("Relu", "Neg")]
    calls = [node("Outer", "x", "h", domain=LOCAL), node("Outer", "h", "y", domain=LOCAL)]
    for number in (0, 1):
        two[number].overload = calls[number].overload = f"kind{number}"
    return chain(*calls, domains={LOCAL: 1}, functions=two, ir=10)


@HALL.model(SERVED)
def optional_outputs_left_away() -> onnx.ModelProto:
    """A node with its first output omitted: only the last state of a recurrent layer is wanted"""
    weights = [constant("w", np.ones((1, 12, 4)) / 9), constant("r", np.ones((1, 12, 4)) / 9)]
    row = constant("front", [0], np.int64)
    nodes = node("Unsqueeze", "x front", "steps"), node("GRU", "steps w r", ["", "y"], hidden_size=4)
    return chain(*nodes, outputs=[value("y", dims=[1, "n", 4])], constants=[*weights, row])


@HALL.model(SERVED)
def many_inputs_and_outputs() -> onnx.ModelProto:
    """A hundred inputs and a hundred outputs"""
    names = [f"{at:03}" for at in range(100)]
    nodes = [node("Relu", f"x{name}", f"y{name}") for name in names]
    ends = ([value(f"{end}{name}", dims=[2]) for name in names] for end in "xy")
    return chain(*nodes, inputs=next(ends), outputs=next(ends))


@HALL.model(SERVED)
def sparse_weights() -> onnx.ModelProto:
    """Sparse weights"""
    proto = chain(node("Mul", "x w", "y"))
    values, at = constant("w", [2.0, 3.0]), constant("", [0, 3], np.int64)
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, at, [4]))
    return proto


@HALL.model(SERVED)
def domain_spelled_out() -> onnx.ModelProto:
    """ONNX's own domain by its long name"""
    proto = chain(node("Relu", "x", "y", domain="ai.onnx"))
    proto.opset_import[0].domain = "ai.onnx"
    return proto


@HALL.model(SERVED)
def merged() -> onnx.ModelProto:
    """Two models merged by onnx.compose, with an opset entry of each"""
    first, second = relu(), chain(node("Neg", "a", "b"), inputs=[value("a")], outputs=[value("b")])
    return onnx.compose.merge_models(first, second, [("y", "a")])


HALL.texts(
    (SERVED,),
    """
    if_constant_condition: An If whose condition never changes
        <bool up = {1}> { y = If(up) <else_branch = branch () => (float[n,4] e) {
        e = Neg(x) }, then_branch = branch () => (float[n,4] t) { t = Relu(x) }> }
    if_shapes_differ: Branches with results of different shapes
        (bool up, float[n,4] x) => (float[] y) { y = If(up) <else_branch = branch () => (float e) {
        e = ReduceSum<keepdims = 0>(x) }, then_branch = branch () => (float[n,4] t) { t = Relu(x) }> }
    loop_collects: A Loop that collects a result per trip
        (float[n,4] x) => (float[trips,n,4] y) <bool yes = {1}, int64 three = {3}> { last,
        y = Loop(three, yes, x) <body = body(int64 i, bool go, float[n,4] v) => (bool on, float[n,4] w, float[n,4]
        kept) {
        on = Identity(go) w = Identity(v) kept = Relu(v) }> }
    scan_sums: A Scan that adds up rows
        <float[4] start = {0,0,0,0}> { last,
        y = Scan(start, x) <body = body(float[4] sum, float[4] row) => (float[4] next, float[4] seen) {
        next = Add(sum, row) seen = Identity(next) }, num_scan_inputs = 1> }
    output_is_read_inside: An output that another node reads
        (float[n,4] x) => (float[n,4] h, float[n,4] y) { h = Relu(x) y = Neg(h) }
    constants_only: No inputs: always the same answer
        () => (float[1,4] y) <float[1,4] a = {1,2,3,4}, float[1,4] b = {1,1,1,1}> { y = Add(a, b) }
    random_numbers: An output that differs in every run
        (float[n,4] x) => (float[n,4] y, float[n,4] z) { y = Relu(x)
        z = RandomUniformLike<high: float = 1, low: float = 0>(x) }
    """,
)


@HALL.model(SERVED)
def metadata_of_all_kinds() -> onnx.ModelProto:
    """Metadata in many languages, long and empty, and a description of a megabyte"""
    proto = relu()
    helper.set_model_props(proto, {"names": "['a', 'b']", "größe": "\N{SNOWMAN}", "long": "x" * 100_000, "none": ""})
    proto.doc_string = "a word " * 150_000
    return proto


HALL.models(
    (SERVED,),
    if_branches=("An If with an input as condition", nested_ifs(1)),
    if_nested=("Four Ifs inside each other", nested_ifs(4)),
    loop_counted=("A Loop of three trips", counted_loop("three", [], [constant("three", 3, np.int64)])),
    loop_of_no_trip=("A Loop that never runs", counted_loop("none", [], [constant("none", 0, np.int64)])),
    sequence_inside=(
        "A sequence inside, tensors at the ends",
        chain(node("SplitToSequence", "x", "rows", axis=0), node("ConcatFromSequence", "rows", "y", axis=0)),
    ),
    optional_inputs_left_away=(
        "Omitted inputs of a node: empty names in the middle, missing ones at the end",
        chain(node("Clip", ["x", "", "most"], ["h"]), node("Clip", "h", "y"), constants=[constant("most", 0.5)]),
    ),
    input_never_used=("An input that no node reads", relu(inputs=[value("x"), value("unused", "INT64", [3])])),
    constant_never_used=("Weights that no node reads", relu(constants=[constant("unused", np.ones((64, 64)))])),
    one_tensor_two_outputs=(
        "Two outputs with the same content",
        chain(node("Relu", "x", "y"), node("Identity", "y", "z"), outputs=[value("y"), value("z")]),
    ),
    output_is_a_constant=(
        "One output from the input, and one that is a constant",
        relu(outputs=[value("y"), value("version", "INT64", [1])], constants=[constant("version", [7], np.int64)]),
    ),
    output_is_an_input=("One output that is the input itself", relu(outputs=[value("y"), value("x")])),
    weights_in_typed_fields=(
        "Weights as typed values instead of bytes",
        chain(node("Mul", "x w", "y"), constants=[helper.make_tensor("w", DTYPES["FP32"], [4], [1.0, 2.0, 3.0, 4.0])]),
    ),
    trained_network=("Three dense layers", dense()),
    many_nodes=("Five thousand nodes in a row", long_chain(5000)),
)
