"""A case in ONNX Runtime itself, in this process, without a daemon."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime

from tests.onnx_backend.cases import Case, Exchange


class Reference:
    """A case opened like the daemon's reference engine: on the CPU, without optimisation."""

    def __init__(self, case: Case) -> None:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        model = case.model.SerializeToString()
        self._case = case
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def answers(self, exchange: Exchange) -> list[Any]:
        """Return the outputs in the model's order. Raises the runtime's own exceptions."""
        names = [output.name for output in self._session.get_outputs()]
        given = list(zip(self._case.inputs, exchange.inputs, strict=True))
        if not any(_is_bfloat16(entry) for entry in (*self._case.inputs, *self._case.model.graph.output)):
            return list(self._session.run(names, {entry.name: array for entry, array in given}))
        values = {entry.name: _value(array, entry) for entry, array in given}
        return [_array(value) for value in self._session.run_with_ort_values(names, values)]


def _is_bfloat16(entry: onnx.ValueInfoProto) -> bool:
    return bool(entry.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16)


def _value(array: Any, entry: onnx.ValueInfoProto) -> onnxruntime.OrtValue:
    if not _is_bfloat16(entry):
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), onnx.TensorProto.BFLOAT16)


def _array(value: onnxruntime.OrtValue) -> Any:
    """Return the values as a numpy array; for BF16, which numpy lacks, with the dtype of ml_dtypes."""
    if "bfloat16" not in value.data_type():
        return value.numpy()
    bits = (ctypes.c_uint16 * math.prod(value.shape())).from_address(value.data_ptr())
    return np.array(bits, np.uint16).view(ml_dtypes.bfloat16).reshape(value.shape())
