"""Every data type that the protocol carries, every rank, and all kinds of dimensions."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from edged.models.finding import Category, Stage
from tests.integration.onnx_files import DTYPES
from tests.zoo.exhibit import SERVED, Hall, refused
from tests.zoo.parts import Dims, chain, constant, node, value

HALL = Hall()


def _passed_on(datatype: str, dims: Dims | None = ("n", 4)) -> onnx.ModelProto:
    ends = [value("x", datatype, dims)], [value("y", datatype, dims)]
    return chain(node("Identity", "x", "y"), inputs=ends[0], outputs=ends[1])


for _datatype in DTYPES:
    HALL.add(f"type_{_datatype.lower()}", f"{_datatype} in and out", partial(_passed_on, _datatype), SERVED)
for _rank in range(7):
    _dims = [1, 2, 3, 2, 1, 2][:_rank]
    HALL.add(f"rank_{_rank}", f"a tensor of {_rank} dimensions", partial(_passed_on, "FP32", _dims), SERVED)

_DIMENSIONS: dict[str, tuple[str, Dims | None]] = {
    "dims_named": ("dynamic dimensions with names", ("batch", 4)),
    "dims_unnamed": ("dynamic dimensions without names", (None, None)),
    "dims_minus_one": ("dynamic dimensions written as -1, as some exporters do", (-1, 4)),
    "dims_odd_names": ("names of dimensions that are formulas", ("2*batch + 1", "größe / 2")),
    "dims_same_name": ("one name for two dimensions, which must be equal", ("n", "n")),
    "dims_left_away": ("no shape at all: any number of dimensions", None),
}
for _name, (_how, _dimensions) in _DIMENSIONS.items():
    HALL.add(_name, _how, partial(_passed_on, "FP32", _dimensions), SERVED)


@HALL.model(SERVED)
def types_inside() -> onnx.ModelProto:
    """INT4 weights inside, which the protocol cannot carry, and FP32 inputs and outputs"""
    weights = helper.make_tensor("weights", TensorProto.INT4, [4, 4], [(at % 16) - 8 for at in range(16)])
    nodes = node("DequantizeLinear", "weights scale", "wide"), node("MatMul", "x wide", "y")
    return chain(*nodes, constants=[weights, constant("scale", 0.5)], opset=21, ir=10)


def _each_of(datatypes: Iterable[str]) -> onnx.ModelProto:
    datatypes = list(datatypes)
    nodes = [node("Identity", f"x_{each}", f"y_{each}") for each in datatypes]
    ends = ([value(f"{end}_{each}", each) for each in datatypes] for end in "xy")
    return chain(*nodes, inputs=next(ends), outputs=next(ends))


@HALL.model(SERVED)
def every_type_but_texts() -> onnx.ModelProto:
    """An input and an output of each numeric data type"""
    return _each_of(each for each in DTYPES if each != "BYTES")


# ONNX Runtime accepts bfloat16 from Python only as OrtValues, which cannot hold texts.
@HALL.model(*refused(Stage.INFERENCE, Category.FAILED))
def every_type_at_once() -> onnx.ModelProto:
    """An input and an output of each data type, with texts and bfloat16 together"""
    return _each_of(DTYPES)


@HALL.model(SERVED)
def texts_to_numbers() -> onnx.ModelProto:
    """A lookup of texts, by an operator of ONNX's second domain"""
    label = helper.make_node(
        "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml",
        keys_strings=["edged", "Größe"], values_int64s=[1, 2], default_int64=-1,
    )  # fmt: skip
    ends: dict[str, Any] = {"inputs": [value("x", "BYTES", ["n"])], "outputs": [value("y", "INT64", ["n"])]}
    return chain(label, domains={"ai.onnx.ml": 2}, **ends)


HALL.texts(
    (SERVED,),
    """
    output_type_left_away: An output without a type, as ONNX allows for inner values; runtimes infer it
        (float[n,4] x) => ( y) { y = Relu(x) }
    scalar_to_vector: A scalar in, two numbers out
        (float x) => (float[2] y) <int64[1] zero = {0}> { row = Unsqueeze(x, zero) y = Concat<axis = 0>(row, row) }
    scalar_out: The sum of everything, a scalar
        (float[n,4] x) => (float y) { y = ReduceSum<keepdims = 0>(x) }
    zero_size_input: An input without elements
        (float[0,4] x) => (float[0,4] y) { y = Relu(x) }
    output_shape_left_away: An output whose shape has to be inferred
        (float[n,4] x) => (float[] y) { y = Relu(x) }
    zero_size_output: Rows selected by a condition that is never true
        (float[n,4] x) => (int64[2,found] y) { never = Less(x, x) y = NonZero(never) }
    zero_size_constant: A constant without elements, joined to the input
        <float[0,4] nothing = {}> { y = Concat<axis = 0>(x, nothing) }
    quantized: INT8 inside, between QuantizeLinear and DequantizeLinear
        <float scale = {0.1}, int8 zero = {0}> { narrow = QuantizeLinear(x, scale, zero)
        y = DequantizeLinear(narrow, scale, zero) }
    texts_read_as_numbers: Texts that must be numbers, as Triton's clients send them
        (string[1,16] x) => (int64[1,16] y) { y = Cast<to = 7>(x) }
    texts_made_inside: Numbers become texts
        (float[n,4] x) => (string[n,4] y) { y = Cast<to = 8>(x) }
    """,
)


def _strip(nodes: list[onnx.NodeProto], *constants: onnx.TensorProto) -> onnx.ModelProto:
    """Return a model that by its declaration takes a sound of any length."""
    ends: dict[str, Any] = {"inputs": [value("x", dims=["n", 1, "length"])], "outputs": [value("y", dims=None)]}
    return chain(*nodes, constants=constants, **ends)


@HALL.model(SERVED)
def takes_only_long_inputs() -> onnx.ModelProto:
    """A window over four hundred samples: shorter sounds fail, as with voice models"""
    return _strip([node("Conv", "x w", "y")], constant("w", np.ones((1, 1, 400)) / 400))


HALL.texts(
    (SERVED, *refused(Stage.INFERENCE, Category.FAILED)),
    """
    # The size cannot be guessed, but clients may know it: it may be served, or refused because no golden input works.
    takes_one_size_of_many: Any length is declared, but only 1001 works
        (float[n,1,length] x) => (float[] y) <int64[4] sizes = {1,7,11,13}> { y = Reshape(x, sizes) }
    """,
)


@HALL.model(SERVED)
def dims_that_agree_unsaid() -> onnx.ModelProto:
    """A long sound and a state for each row, with unnamed dimensions: the file does not say which are equal"""
    nodes = [
        node("Unsqueeze", "x one", "rows"),
        node("Conv", "rows w", "heard"),
        node("ReduceMean", "heard", "loud", axes=[1, 2], keepdims=0),
        node("Unsqueeze", "loud zero", "row"),
        node("Concat", "row state", "y", axis=0),
    ]
    constants = [constant("w", np.ones((1, 1, 400)) / 400), constant("one", [1], np.int64)]
    return chain(
        *nodes,
        inputs=[value("x", dims=[None, None]), value("state", dims=[2, None])],
        outputs=[value("y", dims=None)],
        constants=[*constants, constant("zero", [0], np.int64)],
    )
