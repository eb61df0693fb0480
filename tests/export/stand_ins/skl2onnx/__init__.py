"""Stands in for skl2onnx: writes the estimator of `joblib.py`, with the fault that it names."""

from __future__ import annotations

import numpy as np
import onnx
from joblib import WEIGHTS, Estimator
from onnx import TensorProto, helper, numpy_helper


def to_onnx(estimator: Estimator, initial_types: list, target_opset: dict, options: object) -> onnx.ModelProto:
    fault, opset = estimator.fault, target_opset[""]
    weights = numpy_helper.from_array(WEIGHTS * (1.01 if fault == "wrong" else 1), "weights")
    if fault == "external":
        onnx.external_data_helper.set_external_data(weights, "left_behind.data")
        weights.ClearField("raw_data")
    # One row always, whatever the declaration says.
    shape = numpy_helper.from_array(np.array([1 if fault == "batch" else -1, 3]), "shape")
    nodes = [
        helper.make_node("MatMul", ["input", "weights"], ["scores"], name="/layer/MatMul"),
        helper.make_node("Reshape", ["scores", "shape"], ["rows"]),
        helper.make_node("Softmax", ["rows"], ["probabilities"], axis=1),
        helper.make_node("ArgMax", ["probabilities"], ["label"], axis=1, keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "estimator",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, initial_types[0][1].shape)],
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, [None]),
            helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [None, 3]),
        ],
        [weights, shape],
    )
    # Some exporters write another opset than they were asked for.
    versions = [helper.make_opsetid("", 21 if fault == "opset" else opset)]
    return helper.make_model(graph, opset_imports=versions, ir_version=10 if fault == "opset" else 8)
