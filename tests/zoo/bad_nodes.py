"""Operators that no runtime has, and nodes that their operators do not allow."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx

from edged.models.finding import Category, Stage
from tests.zoo.exhibit import SERVED, Hall, refused
from tests.zoo.parts import body, chain, constant, graph, node, value

HALL = Hall()
_DOMAIN = refused(Stage.OPERATORS, Category.UNKNOWN_DOMAIN)
_OPERATOR = refused(Stage.OPERATORS, Category.UNKNOWN_OPERATOR)
_INVALID = refused(Stage.GRAPH, Category.INVALID_NODE)
# An attribute and the shapes contradict each other: either may be reported.
_IMPOSSIBLE = _INVALID + refused(Stage.GRAPH, Category.SHAPE_MISMATCH)


# -- operators -------------------------------------------------------------------------------------------------------


@HALL.model(*_DOMAIN)
def domain_unknown() -> onnx.ModelProto:
    """A custom operator"""
    return chain(node("Frobnicate", "x", "y", name="odd", domain="com.example"), domains={"com.example": 1})


@HALL.model(*_DOMAIN)
def operator_of_extensions() -> onnx.ModelProto:
    """Words taken apart by an operator of onnxruntime-extensions, whose library no runtime here loads"""
    domains, ends = {"ai.onnx.contrib": 1}, {"inputs": [value("x", "BYTES")], "outputs": [value("y", "BYTES")]}
    return chain(node("StringUpper", "x", "y", domain="ai.onnx.contrib"), domains=domains, **ends)


HALL.texts(
    (*_DOMAIN, *_OPERATOR, *_INVALID),
    """
    # Where a domain is not declared, one may miss the declaration or the operator.
    domain_not_declared: An operator of a domain without a version
        y = com.example.Frobnicate(x)
    """,
)


@HALL.model(*_DOMAIN, *_OPERATOR)
def domain_in_a_branch() -> onnx.ModelProto:
    """A custom operator in the branch that is not taken"""
    strange = node("Frobnicate", "x", "t", domain="com.example")
    then, other = body(strange, outputs=[value("t")]), body(node("Neg", "x", "e"), outputs=[value("e")])
    chosen = node("If", "up", "y", then_branch=then, else_branch=other)
    return chain(chosen, constants=[constant("up", False, np.bool_)], domains={"com.example": 1})


@HALL.model(*_OPERATOR)
def operator_of_a_known_domain() -> onnx.ModelProto:
    """An operator that a runtime's own domain does not have"""
    return chain(node("Frobnicate", "x", "y", domain="com.microsoft"), domains={"com.microsoft": 1})


HALL.texts(
    _OPERATOR,
    """
    operator_of_a_later_version: An operator that came with version 20, in a model of version 17
        y = Gelu(x)
    operator_unknown: An operator that ONNX never had
        [odd] y = Frobnicate(x)
    operator_in_other_case: ReLU as mathematicians write it
        y = RELU(x)
    """,
)


HALL.texts(
    (*_OPERATOR, *_INVALID),
    """
    operator_withdrawn: An operator that was withdrawn with version 10
        <float[2] factors = {1,2}> { y = Upsample(x, factors) }
    operator_without_a_name: A node that does not say what it does
        y = (x)
    """,
)


@HALL.model(*_OPERATOR)
def operator_with_a_long_name() -> onnx.ModelProto:
    """An operator whose name is a megabyte long: the error must be shorter"""
    return chain(node("Relu" * 250_000, "x", "y"))


@HALL.model(*refused(Stage.OPERATORS, Category.NOT_IMPLEMENTED), *refused(Stage.SESSION, Category.NOT_IMPLEMENTED))
def operator_not_implemented() -> onnx.ModelProto:
    """A convolution of doubles: ONNX allows it, ONNX Runtime's processor kernels do not"""
    weights = constant("w", np.ones((2, 3, 3, 3)), np.float64)
    ends = [value("x", "FP64", [1, 3, 8, 8])], [value("y", "FP64", None)]
    return chain(node("Conv", "x w", "y"), inputs=ends[0], outputs=ends[1], constants=[weights])


# -- attributes and arity --------------------------------------------------------------------------------------------


def _made(operator: str, inputs: str, outputs: str = "y", **attributes: Any) -> onnx.ModelProto:
    """x FP32 [2, 4] with a constant `k`, to whatever comes out."""
    made = node(operator, inputs, outputs, **attributes)
    ends = [value("x", dims=[2, 4])], [value("y", dims=None)]
    return chain(made, inputs=ends[0], outputs=ends[1], constants=[constant("k", [[1, 2, 3, 4]])])


for _name, _how, _make in (
    ("attribute_unknown", "an attribute that the operator does not have", partial(_made, "Relu", "x", alpha=1.0)),
    ("attribute_missing", "an attribute that the operator cannot do without", partial(_made, "Concat", "x x")),
    ("attribute_of_a_wrong_type", "a text where a number belongs", partial(_made, "Concat", "x x", axis="zero")),
    ("attribute_without_a_graph", "an If with one branch", partial(_made, "If", "x", then_branch=graph([], [], []))),
    ("inputs_too_few", "a sum of one", partial(_made, "Add", "x")),
    ("inputs_too_many", "a ReLU of two", partial(_made, "Relu", "x k")),
    ("inputs_none", "a sum of nothing", partial(_made, "Add", "")),
    ("outputs_too_many", "a ReLU with two results", partial(_made, "Relu", "x", "y z")),
    ("constant_without_a_value", "a constant that does not say which", partial(_made, "Constant", "")),
    ("cast_to_nothing", "a conversion to an unknown type", partial(_made, "Cast", "x", to=999)),
):
    HALL.add(_name, _how, _make, *_INVALID)

for _name, _how, _make in (
    ("axis_beyond", "the ninth dimension of two", partial(_made, "Concat", "x x", axis=9)),
    ("axis_huge", "an axis as far from zero as can be", partial(_made, "Softmax", "x", axis=-(2**63))),
    ("permutation_wrong", "dimensions changed round that are not there", partial(_made, "Transpose", "x", perm=[0, 7])),
    ("permutation_repeated", "one dimension twice", partial(_made, "Transpose", "x", perm=[0, 0])),
    ("split_to_nothing", "parts that do not add up", partial(_made, "Split", "x", "y z w", axis=1)),
):
    # A runtime that keeps 32 bits of a number takes the huge axis for the first one, which is harmless.
    HALL.add(_name, _how, _make, *_IMPOSSIBLE, *((SERVED,) if _name == "axis_huge" else ()))


HALL.texts(
    _INVALID,
    """
    attribute_twice: One attribute with two values
        (float[2,4] x) => (float[] y) <float[1,4] k = {1,2,3,4}> { y = Concat<axis = 0, axis = 1>(x, x) }
    """,
)


@HALL.model(*_INVALID)
def attribute_without_a_type() -> onnx.ModelProto:
    """An attribute that does not say which kind of value it has"""
    proto = _made("Concat", "x x", axis=0)
    proto.graph.node[0].attribute[0].type = onnx.AttributeProto.UNDEFINED
    return proto


HALL.texts(
    (SERVED, *_INVALID),
    """
    # ONNX does not allow it; ONNX Runtime goes by the attribute's default.
    attribute_refers_to_nothing: An attribute handed on from a function, where there is no function
        (float[2,4] x) => (float[] y) <float[1,4] k = {1,2,3,4}> { y = LeakyRelu<alpha: float = @slope>(x) }
    """,
)


HALL.texts(
    (*_INVALID, *refused(Stage.GRAPH, Category.TYPE_MISMATCH)),
    """
    loop_of_wrong_arity: A Loop that carries one value, with a body that takes none
        <bool yes = {1}, int64 three = {3}> { y = Loop(three, yes, x) <body = body(int64 i, bool go) => (bool on) {
        on = Identity(go) }> }
    """,
)


def _convolved(**attributes: Any) -> onnx.ModelProto:
    weights = constant("w", np.ones((2, 3, 3, 3)))
    ends = [value("x", dims=[1, 3, 8, 8])], [value("y", dims=None)]
    return chain(node("Conv", "x w", "y", **attributes), inputs=ends[0], outputs=ends[1], constants=[weights])


# Numbers that a runtime divides by, or takes for sizes: its graph may be refused, or it fails when it runs; it must not
# take anything else with it.
_HARMFUL = _IMPOSSIBLE + refused(Stage.SESSION, Category.REFUSED, Category.CRASHED)
_HARMFUL += refused(Stage.INFERENCE, Category.FAILED, Category.CRASHED)
for _name, _how, _attributes in (
    ("convolution_group_0", "no groups: a division by zero", {"group": 0}),
    ("convolution_group_huge", "more groups than there are numbers", {"group": 2**62}),
    ("convolution_stride_0", "a step of nothing: a division by zero", {"strides": [0, 0]}),
    ("convolution_stride_negative", "steps backwards", {"strides": [-1, -1]}),
    ("convolution_dilation_huge", "a window wider than any picture", {"dilations": [2**40, 2**40]}),
    ("convolution_pads_negative", "a picture that is cut off entirely", {"pads": [-9, -9, -9, -9]}),
    ("convolution_kernel_wrong", "a window other than that of the weights", {"kernel_shape": [5, 5]}),
):
    HALL.add(_name, f"a convolution with {_how}", partial(_convolved, **_attributes), *_HARMFUL)


def _pooled(**attributes: Any) -> onnx.ModelProto:
    ends = [value("x", dims=[1, 3, 8, 8])], [value("y", dims=None)]
    return chain(node("MaxPool", "x", "y", **attributes), inputs=ends[0], outputs=ends[1])


HALL.add("pool_of_0", "a pool of no pixels", partial(_pooled, kernel_shape=[0, 0]), *_HARMFUL)
HALL.add(
    "pool_stride_0", "a pool with a step of nothing", partial(_pooled, kernel_shape=[2, 2], strides=[0, 0]), *_HARMFUL
)
HALL.add(
    "depth_to_space_0",
    "blocks of no size: a division by zero",
    lambda: chain(
        node("DepthToSpace", "x", "y", blocksize=0),
        inputs=[value("x", dims=[1, 4, 2, 2])],
        outputs=[value("y", dims=None)],
    ),
    *_HARMFUL,
)
