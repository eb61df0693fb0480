"""ONNX Runtime on the CPU. An engine is the graph that its optimiser made for this CPU, saved as ONNX.

The saved graph at level `all` is specific to the CPU's instruction set and records no version of the runtime that
made it; both are parts of the engine's key. The unoptimised session is edged's reference.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when the runtime is imported

import numpy as np
import onnxruntime as ort

from edged.backend.contract import UNOPTIMISED, Backend, Order, Session, Signature, one_line
from edged.errors import EngineUnusable, InvalidInput
from edged.tensors import Array

_BLOB = "model.onnx"
_WEIGHTS = "weights.bin"
# Protobuf cannot hold 2 GiB; weights beyond this are saved beside the graph.
_LARGE = 1 << 30
_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16
_LEVELS = {
    UNOPTIMISED: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
ort.set_default_logger_severity(4)


class _OrtSession:
    def __init__(self, session: ort.InferenceSession, signature: Signature) -> None:
        self._session = session
        self._outputs = [spec.name for spec in signature.outputs]
        self._text_inputs = frozenset(spec.name for spec in signature.inputs if spec.datatype == "BYTES")
        self._text_outputs = frozenset(spec.name for spec in signature.outputs if spec.datatype == "BYTES")
        self._bfloat = frozenset(
            spec.name for spec in (*signature.inputs, *signature.outputs) if spec.datatype == "BF16"
        )

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        names = self._outputs if outputs is None else list(outputs)
        feeds: dict[str, Array] = dict(inputs)
        for name in self._text_inputs:
            feeds[name] = _to_text(name, feeds[name])
        try:
            values = self._run_bfloat(names, feeds) if self._bfloat else self._session.run(names, feeds)
        except Exception as error:  # the runtime's errors have no common base of their own
            raise EngineUnusable(f"inference failed: {one_line(error)}") from error
        answer = dict(zip(names, values, strict=True))
        for name in self._text_outputs & answer.keys():
            answer[name] = _to_bytes(answer[name])
        return answer

    def close(self) -> None:
        del self._session

    def _run_bfloat(self, names: list[str], feeds: dict[str, Array]) -> list[Array]:
        """numpy has no bfloat16: such tensors go in and out as uint16 through the runtime's own values."""
        values = {name: self._to_value(name, array) for name, array in feeds.items()}
        return [_from_value(value) for value in self._session.run_with_ort_values(names, values)]

    def _to_value(self, name: str, array: Array) -> ort.OrtValue:
        if name in self._bfloat:
            return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _BFLOAT16)
        return ort.OrtValue.ortvalue_from_numpy(array)


def _from_value(value: ort.OrtValue) -> Array:
    if value.data_type() != "tensor(bfloat16)":
        array: Array = value.numpy()
        return array
    shape = tuple(value.shape())
    array = np.empty(shape, dtype=np.uint16)
    if array.nbytes:
        ctypes.memmove(array.ctypes.data, value.data_ptr(), array.nbytes)
    return array


def _to_text(name: str, array: Array) -> Array:
    """The runtime's strings are UTF-8 text; bytes that are not cannot be expressed."""
    try:
        text = [element.decode("utf-8") for element in array.ravel().tolist()]
    except UnicodeDecodeError as error:
        raise InvalidInput(f"input {name!r} holds bytes that are not UTF-8, which ONNX strings must be") from error
    return np.array(text, dtype=np.object_).reshape(array.shape)


def _to_bytes(array: Array) -> Array:
    encoded = [element.encode("utf-8") for element in array.ravel().tolist()]
    return np.array(encoded, dtype=np.object_).reshape(array.shape)


def _options(optimization: str, threads: int) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.graph_optimization_level = _LEVELS[optimization]
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    # Spinning threads take the box's cores from the cameras between two frames.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _create(source: str | bytes, options: ort.SessionOptions) -> ort.InferenceSession:
    try:
        return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except Exception as error:  # as above
        raise EngineUnusable(f"ONNX Runtime refuses the model: {one_line(error)}") from error


class _OnnxRuntime:
    name = "onnxruntime"

    def version(self) -> str:
        return str(ort.__version__)

    def build(self, order: Order, out: Path, tell: Callable[[float], None]) -> None:
        options = _options(order.recipe.optimization, order.recipe.threads)
        options.optimized_model_filepath = str(out / _BLOB)
        # Without a place of its own for them, the saved graph would go on pointing at the model's external weights.
        if order.external or _size(order.model) > _LARGE:
            options.add_session_config_entry("session.optimized_model_external_initializers_file_name", _WEIGHTS)
        _create(order.model, options)

    def open(self, order: Order) -> Session:
        if order.recipe.is_reference:
            return _OrtSession(_create(order.model, _options(UNOPTIMISED, order.recipe.threads)), order.signature)
        if order.artefact is None:
            raise EngineUnusable("this engine has not been built yet")
        # Optimised once is enough: doing it again at each start would only cost time.
        options = _options(UNOPTIMISED, order.recipe.threads)
        if _WEIGHTS in order.artefact.files:
            order.artefact.check()
            folder = order.artefact.root
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        return _OrtSession(_create(order.artefact.load(_BLOB), options), order.signature)

    def check(self, model: Path) -> None:
        _create(str(model), _options(UNOPTIMISED, 1))


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0  # the runtime has better words for it


BACKEND: Backend = _OnnxRuntime()
