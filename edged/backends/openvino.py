"""OpenVINO on the CPU and on Intel's GPUs and NPUs. An engine is the blob that `export_model` writes.

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

from edged.backends import openvino_device, openvino_refusals
from edged.backends.contract import Backend, Composition, Graphs, Nodes, Order, Session, Signature, one_line
from edged.backends.openvino_layers import composition, kinds, nodes
from edged.errors import EngineUnusable, Unsuitable
from edged.tensors import Array

_BLOB = "engine.blob"
# Operators that hold a body of their own. Where one runs zero times, a reused request shows the previous answer.
_BODIES = frozenset({"Loop", "TensorIterator", "If"})
# What the plugins compute exactly. 64-bit integers are narrowed to 32 and doubles to floats inside them, so a model
# with such tensors at its edge is left to other backends.
_EXACT = frozenset({"FP32", "FP16", "INT32", "UINT8", "INT8", "BOOL"})


class _OvSession:
    def __init__(self, compiled: ov.CompiledModel, signature: Signature) -> None:
        self._compiled = compiled
        self._inputs = {spec.name: index for index, spec in enumerate(signature.inputs)}
        self._outputs = {spec.name: index for index, spec in enumerate(signature.outputs)}
        known = kinds(compiled)
        self._request = None if known is None or _BODIES & known else compiled.create_infer_request()

    def nodes(self) -> Nodes:
        return nodes(self._compiled)

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
    in_graph = frozenset({"int8"})

    def version(self) -> str:
        return str(ov.__version__).partition("-")[0]  # the build's number and branch follow

    def build(
        self, order: Order, out: Path, tell: Callable[[float], None], graphs: Callable[[], Graphs]
    ) -> Composition:
        core, recipe = ov.Core(), order.recipe
        device = openvino_device.find(core, recipe.device)
        _require_suitable(order, device)
        properties = openvino_device.properties(recipe, device)
        try:
            compiled = core.compile_model(order.model, device, properties)
            (out / _BLOB).write_bytes(compiled.export_model().getbuffer())
        except Exception as error:  # the runtime's errors have no common base
            raise EngineUnusable(f"OpenVINO refuses the model: {one_line(error)}") from error
        return composition(compiled, recipe, device)

    def open(self, order: Order) -> Session:
        if order.artefact is None:
            raise EngineUnusable("this engine has not been built yet")
        blob, core = order.artefact.load(_BLOB), ov.Core()
        device = openvino_device.find(core, order.recipe.device)
        properties = openvino_device.properties(order.recipe, device)
        try:
            compiled = core.import_model(blob, device, properties)
            return _OvSession(compiled, order.signature)
        except Exception as error:  # the runtime's errors have no common base
            raise EngineUnusable(f"OpenVINO refuses the engine: {one_line(error)}") from error

    def operators(self) -> None:
        return None  # it has no list; what it lacks it names when it reads a model

    def trial(self, order: Order) -> None:
        """Compiled, and not run: an engine that was built is compared with the reference before it serves."""
        core, recipe = ov.Core(), order.recipe
        device = openvino_device.find(core, recipe.device)
        try:
            model = core.read_model(order.model)
        except Exception as error:  # the runtime's errors have no common base
            raise openvino_refusals.told(error) from error
        _require_suitable(order, device)
        try:
            core.compile_model(model, device, openvino_device.properties(recipe, device))
        except Exception as error:  # the runtime's errors have no common base
            raise openvino_refusals.told(error) from error

    def check(self, model: Path) -> None:
        core = ov.Core()
        try:
            supported = core.query_model(core.read_model(str(model)), "CPU")
        except Exception as error:  # the runtime's errors have no common base
            raise EngineUnusable(f"OpenVINO refuses the model: {one_line(error)}") from error
        if not supported:
            raise EngineUnusable("OpenVINO's CPU device has none of the model's operators")


def _require_suitable(order: Order, device: str) -> None:
    """Unsuitable when the device would not keep what the model promises."""
    signature = order.signature
    inexact = {spec.datatype for spec in (*signature.inputs, *signature.outputs)} - _EXACT
    if inexact:
        raise Unsuitable(f"OpenVINO's {device} device would not keep {', '.join(sorted(inexact))} tensors exact")
    open_inputs = [spec.name for spec in signature.inputs if not spec.is_static]
    if device.startswith("NPU") and open_inputs:
        raise Unsuitable(
            f"OpenVINO's NPU takes models of fixed shapes only, and input {open_inputs[0]!r} has open dimensions;"
            " export the model with fixed ones"
        )


BACKEND: Backend = _OpenVino()
