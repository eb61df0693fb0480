"""Models that go beyond what a request may take, each in one way and only when it is asked to.

What they are asked when they are read and verified is harmless: an input at or below `EDGE` does nothing unusual.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests import models
from tests.models import value

EDGE = 1e6
_X, _Y = [value("x", "FP32", [1])], [value("y", "FP32", [1])]
# How far x is above the edge, as a number of elements or rounds.
_ABOVE = (
    helper.make_node("Sub", ["x", "edge"], ["d"]),
    helper.make_node("Relu", ["d"], ["above"]),
    helper.make_node("Cast", ["above"], ["n"], to=TensorProto.INT64),
)
_CONSTANTS = (
    numpy_helper.from_array(np.array([EDGE], np.float32), "edge"),
    numpy_helper.from_array(np.array([1], np.int64), "one"),
)


def endless(marked_mb: int = 0) -> ModelProto:
    """A Loop of as many rounds as x is above the edge; y depends on every round, so that none can be left out.

    With `marked_mb` it takes so many mebibytes first, but not for what is at the edge: its host can be told by them.
    """
    counter = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["c_out"]),
            helper.make_node("Sin", ["v"], ["s"]),
            helper.make_node("Add", ["s", "step"], ["v_out"]),
        ],
        "body",
        [counter, condition, value("v", "FP32", [1])],
        [helper.make_tensor_value_info("c_out", TensorProto.BOOL, []), value("v_out", "FP32", [1])],
        [numpy_helper.from_array(np.array([1], np.float32), "step")],
    )
    nodes = [
        *_ABOVE,
        helper.make_node("Min", ["n", "most"], ["few"]),
        helper.make_node("Add", ["few", "one"], ["size"]),
        helper.make_node("Expand", ["x", "size"], ["wide"]),
        helper.make_node("ReduceMax", ["wide"], ["start"], keepdims=1),
        helper.make_node("Squeeze", ["n"], ["rounds"]),
        helper.make_node("Loop", ["rounds", "", "start"], ["y"], body=body),
    ]
    most = numpy_helper.from_array(np.array([marked_mb << 18], np.int64), "most")
    return models.model(nodes, _X, _Y, (*_CONSTANTS, most))


def large() -> ModelProto:
    """y is as many zeros as x is above the edge, and one."""
    nodes = [
        *_ABOVE,
        helper.make_node("Add", ["n", "one"], ["size"]),
        helper.make_node("ConstantOfShape", ["size"], ["y"]),
    ]
    return models.model(nodes, _X, [value("y", "FP32", ["n"])], _CONSTANTS)


def greedy() -> ModelProto:
    """y is small, and on the way to it x is expanded to as many elements as it is above the edge."""
    nodes = [
        *_ABOVE,
        helper.make_node("Add", ["n", "one"], ["size"]),
        helper.make_node("Expand", ["x", "size"], ["wide"]),
        helper.make_node("CumSum", ["wide", "axis"], ["sums"]),
        helper.make_node("ReduceMax", ["sums"], ["y"], keepdims=1),
    ]
    axis = numpy_helper.from_array(np.array(0, np.int64), "axis")
    return models.model(nodes, _X, _Y, (*_CONSTANTS, axis))


def logarithm() -> ModelProto:
    """y = log(x), which is NaN below zero and -inf at zero, and z = x."""
    nodes = [
        helper.make_node("Log", ["x"], ["y"]),
        helper.make_node("Identity", ["x"], ["z"]),
    ]
    return models.model(nodes, _X, [*_Y, value("z", "FP32", [1])])


def place(folder: Path, name: str, proto: ModelProto, **settings: str) -> None:
    """Puts a model and its settings into a daemon's folder, served by the runtime that can be stopped."""
    models.save(proto, folder / name / "1" / "model.onnx")
    output = {"backends": "onnxruntime", **{key.replace("__", "."): word for key, word in settings.items()}}
    (folder / name / "edged.toml").write_text("".join(f'"{key}" = "{word}"\n' for key, word in output.items()))
