"""Contradictory types and shapes, and types that the protocol cannot carry."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from edged.models.finding import Category, Stage
from tests.zoo.exhibit import SERVED, Hall, refused
from tests.zoo.parts import chain, constant, node, value

HALL = Hall()
_TYPE = refused(Stage.GRAPH, Category.TYPE_MISMATCH)
_SHAPE = refused(Stage.GRAPH, Category.SHAPE_MISMATCH)
_UNSERVABLE = refused(Stage.GRAPH, Category.UNSERVABLE_TYPE)


# -- types -----------------------------------------------------------------------------------------------------------


HALL.texts(
    _TYPE,
    """
    type_mixed: A sum of a float and an integer
        <int64 k = {1}> { y = Add(x, k) }
    type_not_taken: A text is multiplied
        (string[n,4] x) => (string[n,4] y) { y = Mul(x, x) }
    type_declared_otherwise: An output declared as integers that has floats
        (float[n,4] x) => (int64[n,4] y) { y = Relu(x) }
    type_of_condition: An If with a number as condition
        (float up, float[n,4] x) => (float[n,4] y) { y = If(up) <else_branch = branch () => (float[n,4] e) {
        e = Neg(x) }, then_branch = branch () => (float[n,4] t) { t = Relu(x) }> }
    type_of_branches: An If whose branches make different types
        (bool up, float[n,4] x) => (float[n,4] y) { y = If(up) <else_branch = branch () => (int64[n,4] e) {
        e = Cast<to = 7>(x) }, then_branch = branch () => (float[n,4] t) { t = Relu(x) }> }
    """,
)


# -- shapes ----------------------------------------------------------------------------------------------------------


def _matrices(one: list[int], other: list[int]) -> onnx.ModelProto:
    inputs = [value("a", dims=one), value("b", dims=other)]
    return chain(node("MatMul", "a b", "y"), inputs=inputs, outputs=[value("y", dims=None)])


HALL.add("shape_of_matrices", "a product of matrices that do not fit", partial(_matrices, [3, 4], [5, 6]), *_SHAPE)


# ONNX's own rules do not find these two; they show when the model runs.
_SHOWN_LATE = _SHAPE + refused(Stage.INFERENCE, Category.FAILED)


@HALL.model(*_SHOWN_LATE)
def shape_of_weights() -> onnx.ModelProto:
    """A convolution of three channels over a picture of four"""
    weights = constant("w", np.ones((8, 3, 3, 3)))
    ends: dict[str, Any] = {"inputs": [value("x", dims=[1, 4, 16, 16])], "outputs": [value("y", dims=None)]}
    return chain(node("Conv", "x w", "y"), constants=[weights], **ends)


HALL.texts(
    _SHAPE,
    """
    shape_not_broadcast: A sum of three and five numbers
        (float[3] x) => (float[] y) <float[5] five = {1,1,1,1,1}> { y = Add(x, five) }
    shape_joined: A concatenation of rows of different lengths
        (float[2,3] a, float[2,4] b) => (float[] y) { y = Concat<axis = 0>(a, b) }
    """,
)


HALL.texts(
    _SHOWN_LATE,
    """
    shape_rearranged: Six numbers reshaped to four
        (float[2,3] x) => (float[] y) <int64[1] four = {4}> { y = Reshape(x, four) }
    """,
)


@HALL.model(*_SHAPE)
def shape_deep_inside() -> onnx.ModelProto:
    """Shapes that turn out to be incompatible only after inference of earlier ones"""
    constants = [constant("w", np.ones((4, 7))), constant("v", np.ones((8, 2)))]
    nodes = node("MatMul", "x w", "h"), node("Relu", "h", "g"), node("MatMul", "g v", "y")
    return chain(*nodes, constants=constants, outputs=[value("y", dims=["n", 2])])


HALL.texts(
    (SERVED, *_SHAPE),
    """
    # Exporters often declare wrong output shapes, and runtimes only warn: refusing these would refuse models that are
    # in wide use.
    shape_declared_otherwise: An output declared with five columns that has four
        (float[n,4] x) => (float[n,5] y) { y = Relu(x) }
    shape_of_another_rank: An output declared with three dimensions that has two
        (float[n,4] x) => (float[n,4,1] y) { y = Relu(x) }
    """,
)


# A tensor whose bytes do not match its shape. Either the bytes or the shape may be reported.
_BYTES = _SHAPE + refused(Stage.GRAPH, Category.INVALID_NODE) + refused(Stage.PARSE, Category.DAMAGED)
_BYTES += refused(Stage.MEMORY, Category.TOO_MUCH_MEMORY)  # by the size of the shape


def _weights(change: Mapping[str, Any]) -> onnx.ModelProto:
    weights = constant("w", [1, 2, 3, 4])
    for field, content in change.items():
        weights.ClearField(field)
        if isinstance(content, list):
            getattr(weights, field).extend(content)
        else:
            setattr(weights, field, content)
    return chain(node("Mul", "x w", "y"), constants=[weights])


for _name, _how, _change in (
    ("weights_too_short", "weights with fewer bytes than their shape says", {"raw_data": bytes(12)}),
    ("weights_too_long", "weights with more bytes than their shape says", {"raw_data": bytes(64)}),
    ("weights_absent", "weights with a shape and no bytes", {"raw_data": b""}),
    (
        "weights_of_too_few_values",
        "weights as numbers, too few",
        {"raw_data": b"", "float_data": [1, 2]},
    ),
    ("weights_negative", "weights with a negative size", {"dims": [-4]}),
    ("weights_overflow", "weights with sizes whose product is zero in 64 bits", {"dims": [2**32, 2**32]}),
    ("weights_without_a_type", "weights without an element type", {"data_type": 0}),
    ("weights_of_an_unknown_type", "weights of an unknown type", {"data_type": 999}),
):
    _endings = _BYTES + _TYPE + refused(Stage.GRAPH, Category.UNSERVABLE_TYPE) if "type" in _name else _BYTES
    HALL.add(_name, _how, partial(_weights, _change), *_endings)


# -- types that the protocol cannot carry ----------------------------------------------------------------------------


def _of_type(kind: int) -> onnx.ModelProto:
    ends = ([helper.make_tensor_value_info(name, kind, [4])] for name in "xy")
    return chain(node("Identity", "x", "y"), inputs=next(ends), outputs=next(ends), opset=23, ir=11)


for _name, _how, _kind in (
    ("elements_complex", "complex numbers", TensorProto.COMPLEX64),
    ("elements_float8", "numbers of eight bits", TensorProto.FLOAT8E4M3FN),
    ("elements_int4", "integers of four bits", TensorProto.INT4),
    ("elements_undefined", "elements of the type UNDEFINED", TensorProto.UNDEFINED),
    ("elements_unknown", "elements of an unknown type", 999),
    ("elements_negative", "elements of a negative type", -1),
):
    HALL.add(_name, f"an input of {_how}", partial(_of_type, int(_kind)), *_UNSERVABLE)


_FLOATS = helper.make_tensor_type_proto(TensorProto.FLOAT, [4])


def _taking(kind: onnx.TypeProto, operator: str) -> onnx.ModelProto:
    return chain(node(operator, "x", "y"), inputs=[helper.make_value_info("x", kind)], outputs=[value("y", dims=None)])


@HALL.model(*_UNSERVABLE)
def map_out() -> onnx.ModelProto:
    """Probabilities by class name, as scikit-learn's converters write them by default"""
    kind = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.STRING, _FLOATS))
    zipped = node("ZipMap", "x", "y", domain="ai.onnx.ml", classlabels_strings=["a", "b", "c", "d"])
    return chain(zipped, outputs=[helper.make_value_info("y", kind)], domains={"ai.onnx.ml": 3})


HALL.add(
    "optional_in",
    "an optional input type",
    partial(_taking, helper.make_optional_type_proto(_FLOATS), "OptionalGetElement"),
    *_UNSERVABLE,
)


HALL.texts(
    _UNSERVABLE,
    """
    sequence_in: An input that is a sequence of tensors
        (seq(float[4]) x) => (float[] y) { y = ConcatFromSequence<axis = 0>(x) }
    sequence_out: An output that is a sequence of tensors
        (float[n,4] x) => (seq(float[4]) y) { y = SplitToSequence<axis = 0>(x) }
    sequence_out_unsaid: An output without a type, which by its node is a sequence of tensors
        (float[n,4] x) => ( y) { y = SplitToSequence<axis = 0>(x) }
    sparse_in: An input that is a sparse tensor
        (sparse_tensor(float[4]) x) => (float[] y) { y = Relu(x) }
    input_without_a_type: An input with a name only
        ( x) => (float[n,4] y) { y = Relu(x) }
    """,
)
