"""Versions of the format and of the operators: those that the installed runtime accepts, and newer ones. Trials
determine which (`runtime.py`)."""

from __future__ import annotations

from functools import partial

import onnx

from edged.models.finding import Category, Stage
from tests.zoo.exhibit import SERVED, Hall, refused
from tests.zoo.parts import chain, constant, node, relu
from tests.zoo.runtime import Reach

_TOO_NEW = refused(Stage.OPSET, Category.OPSET_TOO_NEW)
_IR_TOO_NEW = refused(Stage.OPSET, Category.IR_TOO_NEW)


def hall(reach: Reach) -> Hall:
    """Return all versions, with the outcomes expected for a runtime of this reach."""
    versions = Hall()
    opsets = {str(opset): opset for opset in range(7, 27)} | {"beyond": reach.opset + 1, "far_beyond": 999}
    for name, opset in opsets.items():
        endings = (SERVED,) if opset <= reach.opset else _TOO_NEW
        versions.add(f"opset_{name}", f"operators of version {opset}", partial(relu, opset=opset), *endings)
    irs = {str(ir): ir for ir in range(4, 14)} | {"beyond": reach.ir + 1, "far_beyond": 99, "huge": 2**40}
    for name, ir in irs.items():
        endings = (SERVED,) if ir <= reach.ir else _IR_TOO_NEW
        versions.add(f"ir_{name}", f"format version {ir}", partial(relu, ir=ir), *endings)
    versions.add("ir_3", "format version 3, which lists initializers as inputs", _listed, SERVED)
    versions.add(
        "initializer_listed", "an initializer that is listed as an input, as optional ones are", _later, SERVED
    )
    unused = partial(relu, domains={"ai.onnx.ml": 99})
    versions.add("opset_of_unused_domain", "a future version of a domain that no node uses", unused, *_TOO_NEW)
    return versions


def _listed(ir: int = 3) -> onnx.ModelProto:
    """Return y = x * w, with w both an input and an initializer."""
    weights = constant("w", [1, 2, 3, 4])
    proto = chain(node("Mul", "x w", "y"), constants=[weights], ir=ir, opset=8)
    proto.graph.input.append(onnx.helper.make_tensor_value_info("w", weights.data_type, [4]))
    return proto


def _later() -> onnx.ModelProto:
    return _listed(ir=8)


FIXED = Hall()
_NO_OPSET = refused(Stage.GRAPH, Category.NO_GRAPH) + refused(Stage.PARSE, Category.NO_GRAPH)
_TOO_OLD = refused(Stage.OPSET, Category.OPSET_TOO_OLD)


@FIXED.model(*_NO_OPSET)
def opset_missing() -> onnx.ModelProto:
    """No version of the operators"""
    proto = relu()
    del proto.opset_import[:]
    return proto


# Runtimes use the last one, others report an error: both are acceptable.
@FIXED.model(SERVED, *refused(Stage.GRAPH, Category.DUPLICATE))
def opset_twice() -> onnx.ModelProto:
    """Two versions of one domain"""
    proto = relu()
    proto.opset_import.append(onnx.helper.make_opsetid("", 13))
    return proto


FIXED.models(
    _TOO_OLD,
    opset_0=("Opset 0, which does not exist", relu(opset=0)),
    opset_negative=("A negative opset", relu(opset=-(2**40))),
)


@FIXED.model(*_TOO_OLD)
def opset_1() -> onnx.ModelProto:
    """Opset 1, of which runtimes support few operators"""
    return chain(node("Relu", "x", "y", consumed_inputs=[0]), opset=1, ir=3)


# A runtime that truncates it to 32 bits reads 17, which it supports.
@FIXED.model(SERVED, *refused(Stage.OPSET, Category.OPSET_TOO_NEW))
def opset_beyond_32_bits() -> onnx.ModelProto:
    """An opset beyond 32 bits, which truncates to 17"""
    return relu(opset=2**32 + 17)


@FIXED.model(*refused(Stage.OPSET, Category.IR_TOO_NEW))
def ir_beyond_32_bits() -> onnx.ModelProto:
    """An IR version beyond 32 bits, which truncates to 9"""
    return relu(ir=2**32 + 9)
