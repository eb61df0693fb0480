"""OpenVINO on the CPU. An engine is the blob that `export_model` writes.

OpenVINO's own cache is not used: it answers with stale or altered weights without a word. The blob lives under
edged's key and digest instead. A blob of another OpenVINO version or instruction set raises when it is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

# OpenVINO falls back to a stub when its telemetry package cannot be imported; so nothing can be sent or written home.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None is how an import is blocked

import numpy as np
import openvino as ov

from edged.backend.contract import Backend, Order, Session, Signature, one_line
from edged.errors import EngineUnusable, Unsuitable
from edged.tensors import Array

_BLOB = "engine.blob"
_PRECISIONS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
# Operators that hold a body of their own. Where one runs zero times, a reused request shows the previous answer.
_BODIES = frozenset({"Loop", "TensorIterator", "If"})
# What the CPU plugin computes exactly. 64-bit integers are narrowed to 32 and doubles to floats inside it, so a
# model with such tensors at its edge is left to other backends.
_EXACT = frozenset({"FP32", "FP16", "INT32", "UINT8", "INT8", "BOOL"})


class _OvSession:
    def __init__(self, compiled: ov.CompiledModel, signature: Signature) -> None:
        self._compiled = compiled
        self._inputs = {spec.name: index for index, spec in enumerate(signature.inputs)}
        self._outputs = {spec.name: index for index, spec in enumerate(signature.outputs)}
        # In an imported model every operator is an ExecutionNode that keeps its kind in its runtime information.
        notes = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
        layers = {str(note["layerType"].value) for note in notes if "layerType" in note}
        self._request = None if _BODIES & layers else compiled.create_infer_request()

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        names = self._outputs if outputs is None else outputs
        try:
            request = self._request or self._compiled.create_infer_request()
            request.infer({self._inputs[n]: a if a.ndim else a.copy() for n, a in inputs.items()}, share_inputs=True)
            return {name: np.array(request.get_output_tensor(self._outputs[name]).data) for name in names}
        except Exception as error:  # the runtime's errors have no common base
            raise EngineUnusable(f"inference failed: {one_line(error)}") from error

    def close(self) -> None:
        self._request = None
        del self._compiled


class _OpenVino:
    name = "openvino"

    def version(self) -> str:
        return str(ov.__version__).partition("-")[0]  # the build's number and branch follow

    def build(self, order: Order, out: Path, tell: Callable[[float], None]) -> None:
        inexact = {s.datatype for s in (*order.signature.inputs, *order.signature.outputs)} - _EXACT
        if inexact:
            raise Unsuitable(f"OpenVINO's CPU device would not keep {', '.join(sorted(inexact))} tensors exact")
        try:
            compiled = ov.Core().compile_model(order.model, order.recipe.device.upper(), _properties(order))
            (out / _BLOB).write_bytes(compiled.export_model().getbuffer())
        except Exception as error:  # the runtime's errors have no common base
            raise EngineUnusable(f"OpenVINO refuses the model: {one_line(error)}") from error

    def open(self, order: Order) -> Session:
        if order.artefact is None:
            raise EngineUnusable("this engine has not been built yet")
        blob = order.artefact.load(_BLOB)
        try:
            compiled = ov.Core().import_model(blob, order.recipe.device.upper(), _properties(order))
            return _OvSession(compiled, order.signature)
        except Exception as error:  # the runtime's errors have no common base
            raise EngineUnusable(f"OpenVINO refuses the engine: {one_line(error)}") from error

    def check(self, model: Path) -> None:
        core = ov.Core()
        try:
            supported = core.query_model(core.read_model(str(model)), "CPU")
        except Exception as error:  # the runtime's errors have no common base
            raise EngineUnusable(f"OpenVINO refuses the model: {one_line(error)}") from error
        if not supported:
            raise EngineUnusable("OpenVINO's CPU device has none of the model's operators")


def _properties(order: Order) -> dict[str, str]:
    properties = {
        "PERFORMANCE_HINT": "LATENCY",
        # Without it a CPU with bfloat16 answers in bfloat16.
        "INFERENCE_PRECISION_HINT": _PRECISIONS[order.recipe.precision],
        "CACHE_DIR": "",
    }
    if order.recipe.threads:
        properties["INFERENCE_NUM_THREADS"] = str(order.recipe.threads)
    return properties


BACKEND: Backend = _OpenVino()
