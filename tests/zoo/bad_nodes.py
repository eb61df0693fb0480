"""Unknown operators, and nodes that their operators do not allow."""

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
# The attribute and the shapes contradict each other; either may be reported.
_IMPOSSIBLE = _INVALID + refused(Stage.GRAPH, Category.SHAPE_MISMATCH)


# -- operators -------------------------------------------------------------------------------------------------------


@HALL.model(*_DOMAIN)
def domain_unknown() -> onnx.ModelProto:
    """A custom operator"""
    return chain(node("Frobnicate", "x", "y", name="odd", domain="com.example"), domains={"com.example": 1})


@HALL.model(*_DOMAIN)
def operator_of_extensions() -> onnx.ModelProto:
    """An operator of onnxruntime-extensions, a library that no runtime here loads"""
    domains, ends = {"ai.onnx.contrib": 1}, {"inputs": [value("x", "BYTES")], "outputs": [value("y", "BYTES")]}
    return chain(node("StringUpper", "x", "y", domain="ai.onnx.contrib"), domains=domains, **ends)


HALL.texts(
    (*_DOMAIN, *_OPERATOR, *_INVALID),
    """
    # For an undeclared domain, either the declaration or the operator may be reported.
    domain_not_declared: An operator of a domain without a version
        y = com.example.Frobnicate(x)
    """,
)


@HALL.model(*_DOMAIN, *_OPERATOR)
def domain_in_a_branch() -> onnx.ModelProto:
    """A custom operator in the branch that is never taken"""
    strange = node("Frobnicate", "x", "t", domain="com.example")
    then, other = body(strange, outputs=[value("t")]), body(node("Neg", "x", "e"), outputs=[value("e")])
    chosen = node("If", "up", "y", then_branch=then, else_branch=other)
    return chain(chosen, constants=[constant("up", False, np.bool_)], domains={"com.example": 1})


@HALL.model(*_OPERATOR)
def operator_of_a_known_domain() -> onnx.ModelProto:
    """An unknown operator in a runtime's own domain"""
    return chain(node("Frobnicate", "x", "y", domain="com.microsoft"), domains={"com.microsoft": 1})


HALL.texts(
    _OPERATOR,
    """
    operator_of_a_later_version: An operator of opset 20 in a model of opset 17
        y = Gelu(x)
    operator_unknown: An operator that ONNX never had
        [odd] y = Frobnicate(x)
    operator_in_other_case: ReLU in the wrong case
        y = RELU(x)
    """,
)


HALL.texts(
    (*_OPERATOR, *_INVALID),
    """
    operator_withdrawn: An operator that opset 10 removed
        <float[2] factors = {1,2}> { y = Upsample(x, factors) }
    operator_without_a_name: A node without an operator
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
    """Return a model of one node: x FP32 [2, 4] and a constant `k`, to outputs of any shape."""
    made = node(operator, inputs, outputs, **attributes)
    ends = [value("x", dims=[2, 4])], [value("y", dims=None)]
    return chain(made, inputs=ends[0], outputs=ends[1], constants=[constant("k", [[1, 2, 3, 4]])])


for _name, _how, _make in (
    ("attribute_unknown", "an attribute unknown to the operator", partial(_made, "Relu", "x", alpha=1.0)),
    ("attribute_missing", "a missing required attribute", partial(_made, "Concat", "x x")),
    ("attribute_of_a_wrong_type", "a text where a number belongs", partial(_made, "Concat", "x x", axis="zero")),
    ("attribute_without_a_graph", "an If with one branch", partial(_made, "If", "x", then_branch=graph([], [], []))),
    ("inputs_too_few", "a sum of one", partial(_made, "Add", "x")),
    ("inputs_too_many", "a ReLU of two", partial(_made, "Relu", "x k")),
    ("inputs_none", "a sum of nothing", partial(_made, "Add", "")),
    ("outputs_too_many", "a ReLU with two results", partial(_made, "Relu", "x", "y z")),
    ("constant_without_a_value", "a Constant without a value", partial(_made, "Constant", "")),
    ("cast_to_nothing", "a conversion to an unknown type", partial(_made, "Cast", "x", to=999)),
):
    HALL.add(_name, _how, _make, *_INVALID)

for _name, _how, _make in (
    ("axis_beyond", "axis 9 of two dimensions", partial(_made, "Concat", "x x", axis=9)),
    ("axis_huge", "the lowest 64-bit integer as axis", partial(_made, "Softmax", "x", axis=-(2**63))),
    ("permutation_wrong", "a permutation of missing dimensions", partial(_made, "Transpose", "x", perm=[0, 7])),
    ("permutation_repeated", "one dimension twice", partial(_made, "Transpose", "x", perm=[0, 0])),
    ("split_to_nothing", "parts that do not add up", partial(_made, "Split", "x", "y z w", axis=1)),
):
    # A runtime that truncates the huge axis to 32 bits reads axis 0, which is harmless.
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
    """An attribute without a type"""
    proto = _made("Concat", "x x", axis=0)
    proto.graph.node[0].attribute[0].type = onnx.AttributeProto.UNDEFINED
    return proto


HALL.texts(
    (SERVED, *_INVALID),
    """
    # ONNX does not allow it; ONNX Runtime uses the attribute's default.
    attribute_refers_to_nothing: A reference to a function's attribute outside any function
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


# Numbers that a runtime divides by, or uses as sizes. The graph may be refused, or fail when it runs, but it must not
# affect anything else.
_HARMFUL = _IMPOSSIBLE + refused(Stage.SESSION, Category.REFUSED, Category.CRASHED)
_HARMFUL += refused(Stage.INFERENCE, Category.FAILED, Category.CRASHED)
for _name, _how, _attributes in (
    ("convolution_group_0", "no groups: a division by zero", {"group": 0}),
    ("convolution_group_huge", "far too many groups", {"group": 2**62}),
    ("convolution_stride_0", "a stride of 0: a division by zero", {"strides": [0, 0]}),
    ("convolution_stride_negative", "a negative stride", {"strides": [-1, -1]}),
    ("convolution_dilation_huge", "a window wider than any picture", {"dilations": [2**40, 2**40]}),
    ("convolution_pads_negative", "padding that removes the whole picture", {"pads": [-9, -9, -9, -9]}),
    ("convolution_kernel_wrong", "a kernel size other than that of the weights", {"kernel_shape": [5, 5]}),
):
    HALL.add(_name, f"a convolution with {_how}", partial(_convolved, **_attributes), *_HARMFUL)


def _pooled(**attributes: Any) -> onnx.ModelProto:
    ends = [value("x", dims=[1, 3, 8, 8])], [value("y", dims=None)]
    return chain(node("MaxPool", "x", "y", **attributes), inputs=ends[0], outputs=ends[1])


HALL.add("pool_of_0", "a pool of no pixels", partial(_pooled, kernel_shape=[0, 0]), *_HARMFUL)
HALL.add("pool_stride_0", "a pool with a stride of 0", partial(_pooled, kernel_shape=[2, 2], strides=[0, 0]), *_HARMFUL)
HALL.add(
    "depth_to_space_0",
    "a block size of 0: a division by zero",
    lambda: chain(
        node("DepthToSpace", "x", "y", blocksize=0),
        inputs=[value("x", dims=[1, 4, 2, 2])],
        outputs=[value("y", dims=None)],
    ),
    *_HARMFUL,
)
