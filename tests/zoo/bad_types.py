"""Types and shapes that contradict each other, and those that nobody could be sent."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from edged.models.finding import Category, Stage
from tests.zoo.exhibit import SERVED, Hall, refused
from tests.zoo.parts import body, chain, choice, constant, node, relu, value

HALL = Hall()
_TYPE = refused(Stage.GRAPH, Category.TYPE_MISMATCH)
_SHAPE = refused(Stage.GRAPH, Category.SHAPE_MISMATCH)
_UNSERVABLE = refused(Stage.GRAPH, Category.UNSERVABLE_TYPE)


# -- types -----------------------------------------------------------------------------------------------------------


@HALL.model(*_TYPE)
def type_mixed() -> onnx.ModelProto:
    """A sum of a float and an integer"""
    return chain(node("Add", "x k", "y"), constants=[constant("k", 1, np.int64)])


@HALL.model(*_TYPE)
def type_not_taken() -> onnx.ModelProto:
    """A text is multiplied"""
    return chain(node("Mul", "x x", "y"), inputs=[value("x", "BYTES")], outputs=[value("y", "BYTES")])


@HALL.model(*_TYPE)
def type_declared_otherwise() -> onnx.ModelProto:
    """An output declared as integers that is made of floats"""
    return relu(outputs=[value("y", "INT64")])


@HALL.model(*_TYPE)
def type_of_condition() -> onnx.ModelProto:
    """An If by a number"""
    then, other = body(node("Relu", "x", "t"), outputs=[value("t")]), body(node("Neg", "x", "e"), outputs=[value("e")])
    return chain(choice(then, other), inputs=[value("up", dims=[]), value("x")])


@HALL.model(*_TYPE)
def type_of_branches() -> onnx.ModelProto:
    """An If whose branches make different types"""
    then = body(node("Relu", "x", "t"), outputs=[value("t")])
    other = body(node("Cast", "x", "e", to=TensorProto.INT64), outputs=[value("e", "INT64")])
    return chain(choice(then, other), inputs=[value("up", "BOOL", []), value("x")])


# -- shapes ----------------------------------------------------------------------------------------------------------


def _matrices(one: list[int], other: list[int]) -> onnx.ModelProto:
    inputs = [value("a", dims=one), value("b", dims=other)]
    return chain(node("MatMul", "a b", "y"), inputs=inputs, outputs=[value("y", dims=None)])


HALL.add("shape_of_matrices", "a product of matrices that do not fit", partial(_matrices, [3, 4], [5, 6]), *_SHAPE)


@HALL.model(*_SHAPE)
def shape_not_broadcast() -> onnx.ModelProto:
    """A sum of three and five numbers"""
    ends: dict[str, Any] = {"inputs": [value("x", dims=[3])], "outputs": [value("y", dims=None)]}
    return chain(node("Add", "x five", "y"), constants=[constant("five", np.ones(5))], **ends)


# ONNX's own rules pass over these two, which show when the model runs.
_SHOWN_LATE = _SHAPE + refused(Stage.INFERENCE, Category.FAILED)


@HALL.model(*_SHOWN_LATE)
def shape_of_weights() -> onnx.ModelProto:
    """A convolution of three channels over a picture of four"""
    weights = constant("w", np.ones((8, 3, 3, 3)))
    ends: dict[str, Any] = {"inputs": [value("x", dims=[1, 4, 16, 16])], "outputs": [value("y", dims=None)]}
    return chain(node("Conv", "x w", "y"), constants=[weights], **ends)


@HALL.model(*_SHAPE)
def shape_joined() -> onnx.ModelProto:
    """Rows of different lengths put below each other"""
    ends: dict[str, Any] = {
        "inputs": [value("a", dims=[2, 3]), value("b", dims=[2, 4])],
        "outputs": [value("y", dims=None)],
    }
    return chain(node("Concat", "a b", "y", axis=0), **ends)


@HALL.model(*_SHOWN_LATE)
def shape_rearranged() -> onnx.ModelProto:
    """Six numbers rearranged as four"""
    ends: dict[str, Any] = {"inputs": [value("x", dims=[2, 3])], "outputs": [value("y", dims=None)]}
    return chain(node("Reshape", "x four", "y"), constants=[constant("four", [4], np.int64)], **ends)


@HALL.model(*_SHAPE)
def shape_deep_inside() -> onnx.ModelProto:
    """Shapes that only turn out not to fit when those before are worked out"""
    constants = [constant("w", np.ones((4, 7))), constant("v", np.ones((8, 2)))]
    nodes = node("MatMul", "x w", "h"), node("Relu", "h", "g"), node("MatMul", "g v", "y")
    return chain(*nodes, constants=constants, outputs=[value("y", dims=["n", 2])])


# Exporters are careless with the shapes of outputs, and runtimes only warn of it: refusing all of these would refuse
# models that people use every day.
@HALL.model(SERVED, *_SHAPE)
def shape_declared_otherwise() -> onnx.ModelProto:
    """An output declared with five columns that has four"""
    return relu(outputs=[value("y", dims=["n", 5])])


@HALL.model(SERVED, *_SHAPE)
def shape_of_another_rank() -> onnx.ModelProto:
    """An output declared with three dimensions that has two"""
    return relu(outputs=[value("y", dims=["n", 4, 1])])


# A tensor that contradicts itself: the bytes are not what its shape says. Damage or a wrong shape, as one sees it.
_BYTES = _SHAPE + refused(Stage.GRAPH, Category.INVALID_NODE) + refused(Stage.PARSE, Category.DAMAGED)
_BYTES += refused(Stage.MEMORY, Category.TOO_MUCH_MEMORY)  # by what the shape says


def _weights(change: Mapping[str, Any]) -> onnx.ModelProto:
    weights = constant("w", [1, 2, 3, 4])
    for field, content in change.items():
        weights.ClearField(field)
        if field == "dims":
            weights.dims.extend(content)
        else:
            setattr(weights, field, content)
    return chain(node("Mul", "x w", "y"), constants=[weights])


for _name, _how, _change in (
    ("weights_too_short", "weights with fewer bytes than their shape says", {"raw_data": bytes(12)}),
    ("weights_too_long", "weights with more bytes than their shape says", {"raw_data": bytes(64)}),
    ("weights_absent", "weights with a shape and no bytes", {"raw_data": b""}),
    ("weights_negative", "weights with a negative size", {"dims": [-4]}),
    ("weights_overflow", "weights whose sizes multiply to nothing in 64 bits", {"dims": [2**32, 2**32]}),
    ("weights_without_a_type", "weights without a type of elements", {"data_type": 0}),
    ("weights_of_an_unknown_type", "weights of a type that there is not", {"data_type": 999}),
):
    _endings = _BYTES + _TYPE + refused(Stage.GRAPH, Category.UNSERVABLE_TYPE) if "type" in _name else _BYTES
    HALL.add(_name, _how, partial(_weights, _change), *_endings)


# -- what nobody could be sent ---------------------------------------------------------------------------------------


def _of_type(kind: int) -> onnx.ModelProto:
    ends = ([helper.make_tensor_value_info(name, kind, [4])] for name in "xy")
    return chain(node("Identity", "x", "y"), inputs=next(ends), outputs=next(ends), opset=23, ir=11)


for _name, _how, _kind in (
    ("elements_complex", "complex numbers", TensorProto.COMPLEX64),
    ("elements_float8", "numbers of eight bits", TensorProto.FLOAT8E4M3FN),
    ("elements_int4", "integers of four bits", TensorProto.INT4),
    ("elements_undefined", "elements of no type", TensorProto.UNDEFINED),
    ("elements_unknown", "elements of a type that there is not", 999),
):
    HALL.add(_name, f"an input of {_how}", partial(_of_type, int(_kind)), *_UNSERVABLE)


_FLOATS = helper.make_tensor_type_proto(TensorProto.FLOAT, [4])


def _taking(kind: onnx.TypeProto, operator: str) -> onnx.ModelProto:
    return chain(node(operator, "x", "y"), inputs=[helper.make_value_info("x", kind)], outputs=[value("y", dims=None)])


@HALL.model(*_UNSERVABLE)
def sequence_in() -> onnx.ModelProto:
    """An input that is a sequence of tensors"""
    sequence = helper.make_value_info("x", helper.make_sequence_type_proto(_FLOATS))
    return chain(node("ConcatFromSequence", "x", "y", axis=0), inputs=[sequence], outputs=[value("y", dims=None)])


@HALL.model(*_UNSERVABLE)
def sequence_out() -> onnx.ModelProto:
    """An output that is a sequence of tensors"""
    sequence = helper.make_value_info("y", helper.make_sequence_type_proto(_FLOATS))
    return chain(node("SplitToSequence", "x", "y", axis=0), outputs=[sequence])


@HALL.model(*_UNSERVABLE)
def map_out() -> onnx.ModelProto:
    """Probabilities by name, as scikit-learn's converters write them unless told otherwise"""
    kind = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.STRING, _FLOATS))
    zipped = node("ZipMap", "x", "y", domain="ai.onnx.ml", classlabels_strings=["a", "b", "c", "d"])
    return chain(zipped, outputs=[helper.make_value_info("y", kind)], domains={"ai.onnx.ml": 3})


HALL.add(
    "optional_in",
    "an input that may be nothing",
    partial(_taking, helper.make_optional_type_proto(_FLOATS), "OptionalGetElement"),
    *_UNSERVABLE,
)


@HALL.model(*_UNSERVABLE)
def sparse_in() -> onnx.ModelProto:
    """An input that is a sparse tensor"""
    return _taking(helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [4]), "Relu")


@HALL.model(*_UNSERVABLE)
def input_without_a_type() -> onnx.ModelProto:
    """An input of which nothing but the name is said"""
    proto = relu()
    proto.graph.input[0].ClearField("type")
    return proto
