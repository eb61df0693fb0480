"""Models that open but cannot answer, or answer NaN or infinity."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx

from edged.models.finding import Category, Stage
from tests.zoo.exhibit import SERVED, Hall, refused
from tests.zoo.parts import chain, constant, node, value

HALL = Hall()
_FAILED = refused(Stage.INFERENCE, Category.FAILED)

_NOT_NUMBERS: dict[str, tuple[str, list[onnx.NodeProto], list[onnx.TensorProto]]] = {
    "nan_constant": ("adds NaN", [node("Add", "x k", "y")], [constant("k", np.nan)]),
    "nan_by_division": ("zero divided by zero", [node("Sub", "x x", "z"), node("Div", "z z", "y")], []),
    "nan_by_root": (
        "the square root of a negative number",
        [node("Abs", "x", "a"), node("Add", "a k", "b"), node("Neg", "b", "c"), node("Sqrt", "c", "y")],
        [constant("k", 1)],
    ),
    "infinite_by_division": (
        "one divided by zero",
        [node("Sub", "x x", "z"), node("Div", "k z", "y")],
        [constant("k", 1)],
    ),
    "infinite_by_power": (
        "more than a float holds",
        [node("Abs", "x", "a"), node("Add", "a k", "b"), node("Exp", "b", "y")],
        [constant("k", 1000)],
    ),
}
for _name, (_how, _nodes, _constants) in _NOT_NUMBERS.items():
    _make = partial(chain, *_nodes, constants=_constants)
    HALL.add(_name, _how, _make, SERVED, warns=Category.NOT_FINITE)


@HALL.model(SERVED, warns=Category.NOT_FINITE)
def nan_in_half() -> onnx.ModelProto:
    """NaN in half precision"""
    ends: dict[str, Any] = {"inputs": [value("x", "FP16")], "outputs": [value("y", "FP16")]}
    return chain(node("Add", "x k", "y"), constants=[constant("k", np.nan, np.float16)], **ends)


@HALL.model(SERVED, warns=Category.NOT_FINITE)
def nan_beside_numbers() -> onnx.ModelProto:
    """One output with numbers and one with NaN"""
    nodes = node("Relu", "x", "y"), node("Add", "x k", "z")
    return chain(*nodes, outputs=[value("y"), value("z")], constants=[constant("k", np.nan)])


@HALL.model(*_FAILED)
def row_beyond_the_table() -> onnx.ModelProto:
    """Looks up the row after the last, for any input"""
    constants = [constant("table", np.ones((4, 4))), constant("row", [4], np.int64), constant("nothing", 0, np.int64)]
    nodes = [
        node("Shape", "x", "sizes"),
        node("ReduceMin", "sizes", "least", keepdims=0),
        node("Mul", "least nothing", "zero"),
        node("Add", "row zero", "at"),
        node("Gather", "table at", "y"),
    ]
    return chain(*nodes, outputs=[value("y", dims=[1, 4])], constants=constants)


HALL.texts(
    (*_FAILED, *refused(Stage.SESSION, Category.REFUSED), *refused(Stage.INFERENCE, Category.CRASHED)),
    """
    divided_by_nothing: An integer divided by zero, for any input: on some machines the process crashes
        (int32[4] x) => (int32[4] y) { z = Sub(x, x) y = Div(x, z) }
    """,
)


HALL.texts(
    _FAILED,
    """
    rearranged_in_vain: Reshapes its input to a size that never fits, which only a run shows
        (float[n,4] x) => (float[m] y) <int64[1] seven = {7}, int64[1] one = {1}> { sizes = Shape(x)
        count = ReduceProd<keepdims = 1>(sizes) more = Add(count, one) y = Reshape(x, more) }
    """,
)


HALL.texts(
    (SERVED,),
    """
    table_is_small: Looks up rows of a table of two: small numbers find one, large ones are refused by the runtime
        (int64[1] x) => (float[1,4] y) <float[2,4] table = {1,1,1,1,1,1,1,1}> { y = Gather(table, x) }
    """,
)
