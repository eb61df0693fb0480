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

import re
from collections import Counter
from typing import Any, Protocol

import numpy as np
import openvino as ov

from edged.backends.contract import (
    ONE_INSTANCE,
    Backend,
    Composition,
    Graphs,
    Nodes,
    Order,
    Parallelism,
    Recipe,
    Session,
    Signature,
    one_line,
)
from edged.device import intel
from edged.device.root import Root
from edged.errors import EngineUnusable, NotTaken, Unsuitable
from edged.tensors import Array

_BLOB = "engine.blob"
# Operators that hold a body. If one runs zero times, a reused request shows the previous answer.
_BODIES = frozenset({"Loop", "TensorIterator", "If"})
# What the plugins compute exactly. 64-bit integers are narrowed to 32 and doubles to floats inside them, so a model
# with such tensors at its edge is left to other backends.
_EXACT = frozenset({"FP32", "FP16", "INT32", "UINT8", "INT8", "BOOL"})
# What a recipe's kind of device is called by OpenVINO, and what is to be installed where OpenVINO does not see it.
_KINDS = {
    "cpu": ("CPU", "reinstall the package openvino"),
    "intel-gpu": ("GPU", "install intel-opencl-icd, and let edged's user into the group render"),
    "intel-npu": (
        "NPU",
        "install intel-level-zero-npu and intel-driver-compiler-npu, and let edged's user into the group render",
    ),
}
_NO_ADDRESS = "0000:00:00.0"  # what a driver says that does not know
_PRECISIONS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
# In which precision the parts of a quantised graph compute that are not quantised: on a CPU as before, on the others
# in what they are made for.
_BESIDE_INT8 = {"CPU": "f32", "GPU": "f16", "NPU": "f16"}
# They hold, hand over or relabel values, but compute nothing.
_PASSIVE = frozenset(
    {"Input", "Output", "Const", "Constant", "Parameter", "Result", "Reorder", "Reshape", "MemoryInput"}
)
_FEW = 5  # a precision that fewer than one layer in so many compute in is not what was asked for
# OpenVINO's names of precisions, as edged has them.
_NAMES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "i8": "int8", "u8": "int8"}
_UNCONVERTED = re.compile(r"No conversion rule found for operations: (?P<names>.+?)(?= To facilitate| -- |$)")
_MEMORY = re.compile(r"bad_alloc|bad allocation|Cannot allocate|out of memory", re.IGNORECASE)
# `Exception from src/core.cpp:105:` and `Check 'x' failed at src/y.cpp:151:`, any number of them.
_SOURCES = re.compile(r"(?:Exception from \S+:\d+: ?|Check '.*?' failed at \S+:\d+: ?)+")


class _OvSession:
    def __init__(self, compiled: ov.CompiledModel, signature: Signature) -> None:
        self._compiled, self._signature = compiled, signature
        self._inputs = {spec.name: index for index, spec in enumerate(signature.inputs)}
        self._outputs = {spec.name: index for index, spec in enumerate(signature.outputs)}
        known = kinds(compiled)
        self._request = None if known is None or _BODIES & known else compiled.create_infer_request()

    def nodes(self) -> Nodes:
        return nodes(self._compiled)

    def replica(self) -> _OvSession:
        return _OvSession(self._compiled, self._signature)  # with a request of its own

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
        self, order: Order, out: Path, report: Callable[[float], None], graphs: Callable[[], Graphs]
    ) -> Composition:
        core, recipe = ov.Core(), order.recipe
        device = find(core, recipe.device)
        _require_suitable(order, device)
        properties = compile_properties(recipe, device)
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
        device = find(core, order.recipe.device)
        properties = compile_properties(order.recipe, device, order.parallelism)
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
        device = find(core, recipe.device)
        try:
            model = core.read_model(order.model)
        except Exception as error:  # the runtime's errors have no common base
            raise describe_refusal(error) from error
        _require_suitable(order, device)
        try:
            core.compile_model(model, device, compile_properties(recipe, device))
        except Exception as error:  # the runtime's errors have no common base
            raise describe_refusal(error) from error

    def check(self, model: Path) -> None:
        core = ov.Core()
        try:
            supported = core.query_model(core.read_model(str(model)), "CPU")
        except Exception as error:  # the runtime's errors have no common base
            raise EngineUnusable(f"OpenVINO refuses the model: {one_line(error)}") from error
        if not supported:
            raise EngineUnusable("OpenVINO's CPU device has none of the model's operators")


def _require_suitable(order: Order, device: str) -> None:
    """Unsuitable if the device would not keep what the model promises."""
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


class Core(Protocol):
    """What is used here of openvino.Core."""

    @property
    def available_devices(self) -> Sequence[str]: ...

    def get_property(self, device: str, name: str) -> Any: ...


def find(core: Core, device: str, root: Root | None = None) -> str:
    """OpenVINO's name of a recipe's device: "GPU" or "GPU.1" for "intel-gpu:1". Unsuitable if it sees no such.

    The facts number what sysfs shows, of which OpenVINO may see less and in another order; so a device is known by its
    PCI address, and by its being the only one of its kind where OpenVINO does not report it.
    """
    kind, _, index = device.partition(":")
    if kind not in _KINDS:
        raise Unsuitable(f"OpenVINO serves cpu, intel-gpu and intel-npu devices, not {device}; use another backend")
    name, remedy = _KINDS[kind]
    seen = list(core.available_devices)
    alike = [one for one in seen if one.partition(".")[0] == name]
    number = int(index) if index.isdecimal() else 0
    places = intel.addresses(root or Root(), kind)
    found = {_place(core, one): one for one in reversed(alike)}  # of two at one place the first
    if number < len(places) and places[number] in found:
        return found[places[number]]
    if number == 0 and len(alike) == 1 and len(places) < 2:
        return alike[0]
    if number < len(places) and "" in found:
        raise Unsuitable(f"OpenVINO does not tell which of its devices {device} is; update openvino and Intel's driver")
    raise Unsuitable(f"OpenVINO does not see {device}, only {', '.join(seen) or 'nothing'}; {remedy}")


def compile_properties(recipe: Recipe, device: str, parallelism: Parallelism = ONE_INSTANCE) -> dict[str, str]:
    """What a model is compiled and its blob is imported with. Unsuitable for a precision that the device has not."""
    kind = device.partition(".")[0]
    precision = _BESIDE_INT8[kind] if recipe.precision == "int8" else _PRECISIONS.get(recipe.precision)
    if precision is None:
        raise Unsuitable(f"OpenVINO has no precision {recipe.precision}; there are {', '.join(_PRECISIONS)} and int8")
    if kind == "NPU" and precision != "f16":
        raise Unsuitable(f"the NPU computes in nothing wider than fp16: {recipe.precision} is for other devices")
    wanted = {
        "PERFORMANCE_HINT": "LATENCY",
        # Without it a CPU with bfloat16 answers in bfloat16, and a GPU in float16.
        "INFERENCE_PRECISION_HINT": precision,
        "CACHE_DIR": "",
    }
    threads = parallelism.threads or recipe.threads
    if kind == "CPU" and parallelism.instances > 1:
        wanted["NUM_STREAMS"] = str(parallelism.instances)
        threads *= parallelism.instances  # the property counts the threads of all streams
    if threads and kind == "CPU":
        wanted["INFERENCE_NUM_THREADS"] = str(threads)
    return wanted


def _place(core: Core, name: str) -> str:
    """The PCI address of a device as sysfs writes it; empty if it is unknown.

    Format of the property: ov::device::PCIInfo in openvino/runtime/properties.hpp.
    """
    try:
        info = core.get_property(name, "DEVICE_PCI_INFO")
        address = f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.{info.function:x}"
        return "" if address == _NO_ADDRESS else address
    except Exception:  # the runtime's errors have no common base, and older versions do not know the property
        return ""


def kinds(compiled: Any) -> frozenset[str] | None:
    """The kinds of a compiled model's operators; None if the plugin does not report it.

    In an imported model every operator is an ExecutionNode that keeps its kind in its runtime information.
    """
    layers = _layers(compiled)
    return None if layers is None else frozenset(kind for kind, _ in layers)


def nodes(compiled: Any) -> Nodes:
    """Its operators by kind, under the device that runs them; nothing if OpenVINO does not say which that is.

    A compiled model is on one device: edged never asks for AUTO or HETERO, which spread a model over several.
    """
    devices = _devices(compiled)
    layers = _layers(compiled) or ()
    counts = Counter(kind for kind, _ in layers if kind not in _PASSIVE) if len(devices) == 1 else Counter[str]()
    return {device: dict(sorted(counts.items())) for device in devices}


def composition(compiled: Any, recipe: Recipe, device: str) -> Composition:
    """How many layers compute in which precision; with a note if it is not the one that was asked for."""
    layers = _layers(compiled)
    if layers is None:
        note = f"OpenVINO's {device} device does not tell what it made of the model"
        return Composition(nodes=nodes(compiled), notes=(note,))
    counts = Counter(_NAMES.get(precision, precision) for kind, precision in layers if kind not in _PASSIVE)
    notes = list[str]()
    if counts[recipe.precision] * _FEW < counts.total():  # such as the layers that only convert to it and back
        mostly = max(counts, key=lambda name: counts[name])
        notes.append(f"asked for {recipe.precision}, OpenVINO computes in {mostly} on this {device}")
    return Composition(layers=dict(sorted(counts.items())), nodes=nodes(compiled), notes=tuple(notes))


def _devices(compiled: Any) -> tuple[str, ...]:
    try:
        return tuple(str(name) for name in compiled.get_property("EXECUTION_DEVICES"))
    except Exception:  # the runtime's errors have no common base
        return ()


def _layers(compiled: Any) -> list[tuple[str, str]] | None:
    """Kind and precision of each operator that tells both."""
    try:
        notes = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
        return [
            (str(note["layerType"].value), str(note["runtimePrecision"].value) if "runtimePrecision" in note else "")
            for note in notes
            if "layerType" in note
        ]
    except Exception:  # the runtime's errors have no common base
        return None


def describe_refusal(error: Exception) -> NotTaken:
    """Return the runtime's refusal of a model with its reason, for people and for programs."""
    reason = " ".join(str(error).split())
    if match := _UNCONVERTED.search(reason):
        names = [re.sub(r"-\d+$", "", name) for name in match["names"].split(", ")]
        return NotTaken(f"OpenVINO does not have {', '.join(names)[:200]}", "unknown_operator", names[0])
    why = "too_much_memory" if isinstance(error, MemoryError) or _MEMORY.search(reason) else "refused"
    return NotTaken(f"OpenVINO refuses the model: {one_line(Exception(_SOURCES.sub('', reason)), 300)}", why)


BACKEND: Backend = _OpenVino()
