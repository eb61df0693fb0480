"""Small ONNX files with the outputs of an exporter's model: planted tensors, independent of the picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests import models
from tests.vision_encoders import Outputs
from tests.vision_exports import Export


def graph(export: Export, outputs: Outputs, path: Path) -> Path:
    """Write a file with the export's tensors and metadata. If it has an input for sizes, the graph multiplies `boxes`
    by it, so they must be planted in 0..1."""
    nodes = [
        helper.make_node("Cast", [export.inputs[0].name], ["pixels"], to=models.ONNX_TYPES["FP32"]),
        helper.make_node("ReduceMean", ["pixels"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "nothing"], ["zero"]),
    ]
    initializers = [numpy_helper.from_array(np.array(0, np.float32), "nothing")]
    zero = "zero"
    if "Exp" in export.operators:  # marks a decoded YOLOX
        nodes += [helper.make_node("Exp", ["zero"], ["one"]), helper.make_node("Sub", ["one", "one"], ["still zero"])]
        zero = "still zero"
    sizes = next((spec.name for spec in export.inputs if spec.name == "orig_target_sizes"), None)
    for spec in export.outputs:
        array = outputs[spec.name]
        initializers.append(numpy_helper.from_array(array, f"planted {spec.name}"))
        nodes.append(helper.make_node("Cast", [zero], [f"zero {spec.name}"], to=models.ONNX_TYPES[spec.datatype]))
        is_scaled = sizes is not None and spec.name == "boxes"
        target = "relative" if is_scaled else spec.name
        nodes.append(helper.make_node("Add", [f"planted {spec.name}", f"zero {spec.name}"], [target]))
        if is_scaled:
            nodes += [
                helper.make_node("Concat", [sizes, sizes], ["both"], axis=1),
                helper.make_node("Cast", ["both"], ["scales"], to=models.ONNX_TYPES["FP32"]),
                helper.make_node("Unsqueeze", ["scales", "axis"], ["factors"]),
                helper.make_node("Mul", ["relative", "factors"], [spec.name]),
            ]
            initializers.append(numpy_helper.from_array(np.array([1], np.int64), "axis"))
    inputs = [models.value(spec.name, spec.datatype, spec.shape) for spec in export.inputs]
    answers = [models.value(spec.name, spec.datatype, spec.shape) for spec in export.outputs]
    proto = models.model(nodes, inputs, answers, initializers, metadata=export.metadata)
    onnx.checker.check_model(proto)
    return models.save(proto, path)
