"""Models that need too much memory or time, and models too deep or too long for their readers."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from edged.models.finding import Category, Stage
from tests.zoo.exhibit import SERVED, Ending, Exhibit, Hall, refused
from tests.zoo.good_graphs import LOCAL, calling, counted_loop, function, long_chain
from tests.zoo.parts import chain, constant, graph, node, relu, value

HALL = Hall()
_MEMORY = refused(Stage.MEMORY, Category.TOO_MUCH_MEMORY)
# For models whose need shows only in a run: the runtime runs out of memory, or is stopped at its limit.
_RUNS_OUT = _MEMORY + refused(Stage.INFERENCE, Category.TOO_MUCH_MEMORY, Category.FAILED, Category.CRASHED)
_TIMED_OUT = refused(Stage.INFERENCE, Category.TIMED_OUT)
_TOO_DEEP = refused(Stage.PARSE, Category.TOO_DEEP)
_READING = (Stage.GRAPH, Stage.OPERATORS, Stage.MEMORY, Stage.SESSION, Stage.INFERENCE)  # stages that read nodes
_4_TIB = [1 << 20, 1 << 20]  # of FP32


# -- memory ----------------------------------------------------------------------------------------------------------


HALL.texts(
    _MEMORY,
    """
    input_of_4_tib: An input too large for any box
        (float[1048576,1048576] x) => (float[1048576,1048576] y) { y = Relu(x) }
    """,
)


HALL.texts(
    (*_MEMORY, *refused(Stage.GRAPH, Category.SHAPE_MISMATCH)),
    """
    # Sizes whose product does not fit into 64 bits are too much memory, or an invalid shape.
    input_beyond_64_bits: Sizes with a product that is zero in 64 bits
        (float[4294967296,4294967296] x) => (float[4294967296,4294967296] y) { y = Relu(x) }
    """,
)


@HALL.model(*_MEMORY, *_RUNS_OUT, *refused(Stage.SESSION, Category.TOO_MUCH_MEMORY, Category.REFUSED, Category.CRASHED))
def constant_of_4_tib() -> onnx.ModelProto:
    """As many zeros as a constant says: constant folding would make them all"""
    nodes = node("ConstantOfShape", "sizes", "zeros"), node("ReduceSum", "zeros", "sum", keepdims=0)
    return chain(*nodes, node("Add", "x sum", "y"), constants=[constant("sizes", _4_TIB, np.int64)])


@HALL.model(*_RUNS_OUT)
def inside_of_4_tib() -> onnx.ModelProto:
    """The sum of a column times a row, of a million each: small ends, a large intermediate result"""
    column, row = constant("column", [-1, 1], np.int64), constant("row", [1, -1], np.int64)
    nodes = [
        node("Reshape", "x column", "a"),
        node("Reshape", "x row", "b"),
        node("MatMul", "a b", "h"),
        node("ReduceSum", "h", "y", keepdims=0),
    ]
    ends: dict[str, Any] = {"inputs": [value("x", dims=[1 << 20])], "outputs": [value("y", dims=[])]}
    return chain(*nodes, constants=[column, row], **ends)


def _sized_by_input(datatype: str, nodes: list[onnx.NodeProto], *constants: onnx.TensorProto) -> onnx.ModelProto:
    """Makes as many numbers as its input says. Ordinary inputs are small, so it may be served; requests are limited
    when they run. It may also be refused because extreme golden inputs fail."""
    ends: dict[str, Any] = {"inputs": [value("x", datatype, [1])], "outputs": [value("y", dims=None)]}
    return chain(*nodes, constants=constants, **ends)


_BY_INPUT = (SERVED, *refused(Stage.INFERENCE, Category.TOO_MUCH_MEMORY))
_FOUR, _ONE, _NOUGHT = constant("four", [[1, 2, 3, 4]]), constant("one", 1), constant("nought", 0)
_WIDE = node("Cast", "x", "size", to=TensorProto.INT64)
_POINT = node("Squeeze", "x", "size")
for _name, _how, _datatype, _nodes, _constants in (
    ("zeros_by_input", "zeros", "INT64", [node("ConstantOfShape", "x", "y")], ()),
    ("zeros_by_small_input", "zeros", "INT32", [_WIDE, node("ConstantOfShape", "size", "y")], ()),
    ("expanded_by_input", "copies of a number", "INT64", [node("Expand", "one x", "y")], (_ONE,)),
    ("range_by_input", "numbers in a row", "FP32", [_POINT, node("Range", "nought size one", "y")], (_NOUGHT, _ONE)),
    (
        "tiled_by_input",
        "copies of a row",
        "INT64",
        [node("Concat", "x unit", "times", axis=0), node("Tile", "four times", "y")],
        (_FOUR, constant("unit", [1], np.int64)),
    ),
):
    _how = f"as many {_how} as an {_datatype} input says"
    HALL.add(_name, _how, partial(_sized_by_input, _datatype, _nodes, *_constants), *_BY_INPUT)


HALL.texts(
    _RUNS_OUT,
    """
    output_of_4_tib: A number expanded to four tebibytes
        (float[1,1] x) => (float[1048576,1048576] y) <int64[2] sizes = {1048576,1048576}> { y = Expand(x, sizes) }
    grows_without_end: A Loop that collects a result per trip, with a million million trips
        <bool yes = {1}, int64 trips = {1000000000000}, float one = {1}, int64[1] sizes = {262144}> {
        all = Loop(trips, yes) <body = body(int64 i, bool go) => (bool on, float[] kept) { on = Identity(go)
        kept = Expand(one, sizes) }> sum = ReduceSum<keepdims = 0>(all) y = Add(x, sum) }
    always_too_many: As many zeros as an input says, and a million million more
        (int64[1] x) => (float[] y) <int64[1] many = {1000000000000}> { a = Abs(x) size = Max(a, many)
        y = ConstantOfShape(size) }
    """,
)


# -- time ------------------------------------------------------------------------------------------------------------


def _endless(*carried: onnx.NodeProto) -> onnx.ModelProto:
    inner = graph(
        [node("Identity", "go", "on"), *carried],
        [value("i", "INT64", []), value("go", "BOOL", []), value("v")],
        [value("on", "BOOL", []), value("w")],
        name="body",
    )
    return chain(node("Loop", ["", "yes", "x"], ["y"], body=inner), constants=[constant("yes", True, np.bool_)])


HALL.add("loop_endless", "a Loop that never ends", partial(_endless, node("Identity", "v", "w")), *_TIMED_OUT)
HALL.add(
    "loop_of_many_trips",
    "a Loop of a million million trips",
    partial(counted_loop, "trips", [], [constant("trips", 10**12, np.int64)]),
    *_TIMED_OUT,
)


# -- depth and length ------------------------------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    digits = []
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


def _message(tag: int, content: bytes) -> bytes:
    """Encode a field with a message (or a text), as protobuf does."""
    return bytes([tag << 3 | 2]) + _varint(len(content)) + content


def _named(output: str) -> bytes:
    """Encode the name of a graph and its only output."""
    return _message(2, b"branch") + _message(12, value(output).SerializeToString())


def _nested(depth: int, path: Path) -> None:
    """Write Ifs inside each other, encoded by hand because protobuf writes no deeper than it reads.

    Field numbers are from onnx.proto. Graph: 1 node, 2 name, 11 input, 12 output. Node: 1 inputs, 2 outputs,
    4 operator, 5 attribute. Attribute: 1 name, 6 graph, 20 type (5: graph).
    """

    def plain(name: str) -> bytes:
        return _message(1, node("Neg", ["x"], [name]).SerializeToString()) + _named(name)

    inner = plain("y0")
    for level in range(1, depth + 1):
        branches = (("then_branch", inner), ("else_branch", plain(f"n{level}")))
        held = (_message(1, name.encode()) + _message(6, body) + b"\xa0\x01\x05" for name, body in branches)
        chosen = _message(1, b"up") + _message(2, f"y{level}".encode()) + _message(4, b"If")
        inner = _message(1, chosen + b"".join(_message(5, each) for each in held)) + _named(f"y{level}")
    shell = relu()
    shell.ClearField("graph")
    inputs = (value("up", "BOOL", []), value("x"))
    inner += b"".join(_message(11, each.SerializeToString()) for each in inputs)
    path.write_bytes(shell.SerializeToString() + _message(7, inner))


for _name, _how, _depth in (
    ("nested_by_hundreds", "four hundred Ifs inside each other, more than protobuf reads", 400),
    ("nested_by_thousands", "five thousand Ifs: a recursive reader overflows its stack", 5_000),
):
    HALL.exhibits.append(Exhibit(_name, _how, partial(_nested, _depth), _TOO_DEEP))


@HALL.model(SERVED, costly=True)
def chain_of_100_000() -> onnx.ModelProto:
    """A hundred thousand nodes in a row"""
    return long_chain(100_000)


# Present runtimes take too long for it; a faster one may serve it.
@HALL.model(SERVED, *(Ending(stage, Category.TIMED_OUT) for stage in _READING), costly=True)
def node_of_100_000_outputs() -> onnx.ModelProto:
    """A node with a hundred thousand outputs, one of them used"""
    count = 100_000
    parts = node("Split", ["x"], [f"p{at}" for at in range(count)], num_outputs=count)
    ends: dict[str, Any] = {"inputs": [value("x", dims=[count])], "outputs": [value("y", dims=[1])]}
    return chain(parts, node("Relu", "p7", "y"), opset=18, **ends)


@HALL.model(*refused(Stage.GRAPH, Category.INVALID_NODE), costly=True)
def attribute_of_100_mb() -> onnx.ModelProto:
    """A text of a hundred megabytes for an unknown attribute: the error must not repeat it"""
    return chain(node("Relu", "x", "y", note="x" * (100 << 20)))


@HALL.model(SERVED, costly=True)
def description_of_100_mb() -> onnx.ModelProto:
    """A description of a hundred megabytes, which is allowed"""
    proto = relu()
    proto.doc_string = "x" * (100 << 20)
    return proto


# Each function calls the next twice: inlined, they are a thousand million nodes.
_LAUGHS = (
    refused(Stage.GRAPH, Category.TOO_DEEP, Category.TOO_LARGE) + refused(Stage.PARSE, Category.TOO_DEEP) + _MEMORY
)
_LAUGHS += refused(Stage.SESSION, Category.TIMED_OUT, Category.TOO_MUCH_MEMORY, Category.CRASHED, Category.REFUSED)


@HALL.model(*_LAUGHS)
def functions_that_double() -> onnx.ModelProto:
    """Thirty functions, each calling the next twice: a few kilobytes that grow to a thousand million nodes"""
    names = ["Outer", *(f"F{at}" for at in range(29))]
    doubled = [
        function(name, [node(after, "a", "c", domain=LOCAL), node(after, "c", "b", domain=LOCAL)], {LOCAL: 1})
        for name, after in pairwise(names)
    ]
    return calling(*doubled, function(names[-1], [node("Relu", "a", "b")]))


@HALL.model(SERVED)
def functions_in_a_row() -> onnx.ModelProto:
    """Fifty functions, each calling the next once"""
    names = ["Outer", *(f"F{at}" for at in range(49))]
    handed = [function(name, [node(after, "a", "b", domain=LOCAL)], {LOCAL: 1}) for name, after in pairwise(names)]
    return calling(*handed, function(names[-1], [node("Relu", "a", "b")]))
