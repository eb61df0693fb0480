"""ONNX Runtime's tools for int8: constant folding, and Q/DQ pairs by calibration. Runs in a child process."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnxruntime import quantization

from edged.backends.contract import one_line
from edged.errors import EngineUnusable
from edged.tensors import Array

FORMS = ("Conv", "ConvTranspose", "Gemm", "MatMul")  # operators that every runtime has in int8
# Metadata that marks a model as prepared. Without it `quantize_static` recommends its own preparation, which does less.
PREPARED = {"onnx.quant.pre_process": "onnxruntime.quant"}
_OPTIONS = {
    "ActivationSymmetric": True,
    "WeightSymmetric": True,
    "AddQDQPairToWeight": True,  # TensorRT 8 does not accept int8 weights
    "QuantizeBias": False,  # it would be int32, which TensorRT does not accept
    "OpTypesToExcludeOutputQuantization": list(FORMS),
}


def fold(model: Path, out: Path) -> None:
    """Write the model with constants folded, using only optimisations that suit every runtime."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(out)
    options.log_severity_level = 4
    if model.with_name(f"{model.name}.data").exists():
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", f"{out.name}.data")
    try:
        ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except Exception as error:  # the runtime's errors have no common base of their own
        raise EngineUnusable(f"ONNX Runtime refuses the model: {one_line(error)}") from error


class _Reader(quantization.CalibrationDataReader):  # type: ignore[misc]  # the library has no types
    def __init__(self, calibration: Sequence[Mapping[str, Array]]) -> None:
        self._samples = iter(calibration)

    def get_next(self) -> dict[str, Array] | None:
        sample = next(self._samples, None)
        return None if sample is None else dict(sample)


def quantize(model: Path, out: Path, nodes: list[str], calibration: Sequence[Mapping[str, Array]]) -> None:
    """Write the model with Q/DQ pairs before `nodes`; their scales come from the ranges on the calibration data."""
    large = model.with_name(f"{model.name}.data").exists()
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            # The caller reports layers without a finite range; numpy's warning would only name a library's line.
            warnings.simplefilter("ignore", RuntimeWarning)
            quantization.quantize_static(
                model,
                out,
                _Reader(calibration),
                quant_format=quantization.QuantFormat.QDQ,
                op_types_to_quantize=list(FORMS),
                per_channel=True,
                activation_type=quantization.QuantType.QInt8,
                weight_type=quantization.QuantType.QInt8,
                nodes_to_quantize=nodes,
                use_external_data_format=large,
                calibrate_method=quantization.CalibrationMethod.MinMax,
                extra_options=dict(_OPTIONS),
            )
    except MemoryError:  # the child reports its own memory limit
        raise
    except Exception as error:  # of the runtime and of the library's Python, without a common base
        reason = one_line(error)
        raise EngineUnusable(f"the model cannot be quantised: {reason}; use other samples or fp16") from error
