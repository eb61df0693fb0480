"""A model in int8: its layers get their inputs and weights through Q/DQ pairs, everything else stays float32.

The pairs are where TensorRT wants them: before layers, never behind them, so that what follows a layer can be fused
with it; symmetric, with zero points of zero; weights in float32 behind a pair of their own, one scale for each channel;
no pair for a bias. Scales come from the least and greatest value that each input had on the calibration data.

Layers that cost little and lose much stay float32: the last ones, whose outputs become coordinates and scores, and
depthwise convolutions, whose channels differ in range while their common input has one scale.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when the runtime is imported

import numpy as np
import onnx
from onnxruntime import quantization

from edged.backends.contract import one_line
from edged.backends.onnx_graph import FLOAT, Model
from edged.backends.onnx_layers import QUANTISED, Layers, told
from edged.errors import EngineUnusable, Unsuitable
from edged.jobs.onnx_prepare import prepare, restore_header
from edged.tensors import Array

_FORMS = ("Conv", "ConvTranspose", "Gemm", "MatMul")  # that every runtime has in int8
_OPTIONS = {
    "ActivationSymmetric": True,
    "WeightSymmetric": True,
    "AddQDQPairToWeight": True,  # TensorRT 8 takes no weights in int8
    "QuantizeBias": False,  # which would be int32, and TensorRT takes none
    "OpTypesToExcludeOutputQuantization": list(_FORMS),
}


def to_int8(
    source: Path, out: Path, calibration: Sequence[Mapping[str, Array]]
) -> tuple[bool, tuple[str, ...], tuple[str, ...]]:
    """Writes the model as `out`; false, and no file, where it is quantised already.

    With it: what stays in float32 and why, and notes. Unsuitable or EngineUnusable when the model cannot be changed.
    """
    model = Model.read(source)
    if any(node.op_type in QUANTISED for node in model.graph.node):
        return False, (), ("it is quantised already",)
    _check(model, calibration)
    with _workplace(out.parent) as work:
        prepared, notes = prepare(model, work)
        chosen, kept = _choose(Model.read(prepared))
        if not chosen:
            raise Unsuitable(f"{source.name} has no layer that int8 would speed up; build it in another precision")
        made = work / "quantised.onnx"
        _quantise(prepared, made, chosen, calibration)
        result = Model.read(made)
        _check_result(result, chosen)
        restore_header(result.proto, model.proto)
        result.write(out)
    return True, kept, notes


def _check(model: Model, calibration: Sequence[Mapping[str, Array]]) -> None:
    """Unsuitable when the calibration data is not what the model takes."""
    wanted = {
        value.name: onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        for value in model.graph.input
        if value.name not in model.constants
    }
    for number, sample in enumerate(calibration, 1):
        found = {name: array.dtype for name, array in sample.items()}
        if found != wanted:
            raise Unsuitable(f"calibration sample {number} has {_words(found)}, but the model takes {_words(wanted)}")
        if not all(np.isfinite(array).all() for array in sample.values() if array.dtype.kind == "f"):
            raise Unsuitable(f"calibration sample {number} has values that are not finite")


def _words(inputs: Mapping[str, np.dtype[np.generic]]) -> str:
    return ", ".join(f"{name} {dtype}" for name, dtype in inputs.items()) or "nothing"


@contextlib.contextmanager
def _workplace(folder: Path) -> Iterator[Path]:
    """A folder that goes again. The library makes temporary files as well, which are to go there too."""
    with tempfile.TemporaryDirectory(prefix=".quantise-", dir=folder) as work:
        before, tempfile.tempdir = tempfile.tempdir, work
        try:
            yield Path(work)
        finally:
            tempfile.tempdir = before


def _choose(model: Model) -> tuple[list[str], tuple[str, ...]]:
    """The names of the layers to quantise, and why the others are not."""
    layers, chosen, kept = Layers(model), list[str](), list[tuple[str, str]]()
    for index in sorted(layers.layers):
        node = model.graph.node[index]
        reason = "the last layer before an output" if index in layers.last else _obstacle(node, model)
        if reason:
            kept.append((node.op_type, reason))
        else:
            chosen.append(node.name)
    return chosen, told(kept)


def _obstacle(node: onnx.NodeProto, model: Model) -> str:
    """Why a layer cannot be quantised; empty when it can."""
    if node.op_type not in _FORMS:
        return "runtimes have no int8 form of it"
    weights = model.constants.get(node.input[1])
    if weights is None or weights.data_type != FLOAT or node.input[0] in model.constants:
        return "its weights are not constant"
    if model.types.get(node.input[0]) != FLOAT:
        return "the type of its input is not known"
    if node.op_type == "MatMul" and len(weights.dims) != 2:
        return "its weights are no matrix"
    if len(weights.dims) > 2 and weights.dims[1] == 1 and _attribute(node, "group", 1) > 1:
        return "depthwise: its channels differ too much for one scale"
    # The library forgets the factor of a bias that it leaves alone.
    if node.op_type == "Gemm" and _attribute(node, "beta", 1.0) != 1.0:
        return "its bias has a factor"
    return ""


def _attribute(node: onnx.NodeProto, name: str, default: float) -> float:
    values = [onnx.helper.get_attribute_value(attribute) for attribute in node.attribute if attribute.name == name]
    return float(values[0]) if values else default


class _Reader(quantization.CalibrationDataReader):  # type: ignore[misc]  # the library has no types
    def __init__(self, calibration: Sequence[Mapping[str, Array]]) -> None:
        self._samples = iter(calibration)

    def get_next(self) -> dict[str, Array] | None:
        sample = next(self._samples, None)
        return None if sample is None else dict(sample)


def _quantise(model: Path, out: Path, nodes: list[str], calibration: Sequence[Mapping[str, Array]]) -> None:
    large = model.with_name(f"{model.name}.data").exists()
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            # A layer without a finite range is told of by name afterwards; numpy would name a line of a library.
            warnings.simplefilter("ignore", RuntimeWarning)
            quantization.quantize_static(
                model,
                out,
                _Reader(calibration),
                quant_format=quantization.QuantFormat.QDQ,
                op_types_to_quantize=list(_FORMS),
                per_channel=True,
                activation_type=quantization.QuantType.QInt8,
                weight_type=quantization.QuantType.QInt8,
                nodes_to_quantize=nodes,
                use_external_data_format=large,
                calibrate_method=quantization.CalibrationMethod.MinMax,
                extra_options=dict(_OPTIONS),
            )
    except MemoryError:  # which the child has words of its own for
        raise
    except Exception as error:  # of the runtime and of the library's Python, without a common base
        reason = one_line(error)
        raise EngineUnusable(f"the model cannot be quantised: {reason}; give other samples or fp16") from error


def _check_result(model: Model, chosen: list[str]) -> None:
    """EngineUnusable unless each chosen layer takes input and weights from Q/DQ pairs with scales that are numbers."""
    producers = {name: node for node in model.graph.node for name in node.output}
    layers = {node.name: node for node in model.graph.node}
    for name in chosen:
        for value in layers[name].input[:2]:
            pair = producers.get(value)
            if pair is None or pair.op_type != "DequantizeLinear":
                raise EngineUnusable(f"quantising left layer {name} in float32; build it in another precision")
            scales = model.array(model.constants[pair.input[1]])
            if not np.all(np.isfinite(scales)) or not np.all(scales > 0):
                raise EngineUnusable(f"layer {name} has no finite range on the calibration data; give other samples")
