"""OpenVINO on the CPU and on Intel's GPUs and NPUs. An engine is the blob that `export_model` writes.

edged does not use OpenVINO's cache, which accepts stale or altered weights without an error. Instead edged stores the
blob under its key and with a digest. Importing a blob of another OpenVINO version or instruction set raises an error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

# This entry prevents all telemetry: if OpenVINO cannot import its telemetry package, it uses a stub.
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
# Operators with a subgraph. If the subgraph runs zero times, a reused request returns the previous answer. So models
# with these operators get a new request for each inference.
_BODIES = frozenset({"Loop", "TensorIterator", "If"})
# Datatypes that the plugins keep exact. They narrow 64-bit integers to 32 bits and doubles to floats. So models with
# inputs or outputs of other datatypes are left to other backends.
_EXACT = frozenset({"FP32", "FP16", "INT32", "UINT8", "INT8", "BOOL"})
# For each kind of device: OpenVINO's name, and the remedy if OpenVINO does not see the device.
_KINDS = {
    "cpu": ("CPU", "reinstall the package openvino"),
    "intel-gpu": ("GPU", "install intel-opencl-icd, and let edged's user into the group render"),
    "intel-npu": (
        "NPU",
        "install intel-level-zero-npu and intel-driver-compiler-npu, and let edged's user into the group render",
    ),
}
_NO_ADDRESS = "0000:00:00.0"  # a driver that does not know the address reports this one
_PRECISIONS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
# The precision of those parts of an int8 graph that are not quantised: float32 on a CPU, float16 on GPUs and NPUs,
# which are made for float16.
_BESIDE_INT8 = {"CPU": "f32", "GPU": "f16", "NPU": "f16"}
# Operators that store, pass on or relabel values, but compute nothing.
_PASSIVE = frozenset(
    {"Input", "Output", "Const", "Constant", "Parameter", "Result", "Reorder", "Reshape", "MemoryInput"}
)
_FEW = 5  # if fewer than one layer in five computes in the requested precision, a note says so
# OpenVINO's name of each precision -> edged's name.
_NAMES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "i8": "int8", "u8": "int8"}
_UNCONVERTED = re.compile(r"No conversion rule found for operations: (?P<names>.+?)(?= To facilitate| -- |$)")
_MEMORY = re.compile(r"bad_alloc|bad allocation|Cannot allocate|out of memory", re.IGNORECASE)
# Prefixes of messages: any number of `Exception from src/core.cpp:105:` and `Check 'x' failed at src/y.cpp:151:`.
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
        return _OvSession(self._compiled, self._signature)  # each session has its own request

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
    converted_in_graph = frozenset({"int8"})

    def version(self) -> str:
        return str(ov.__version__).partition("-")[0]  # without the build number and branch that follow

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
        return None  # OpenVINO has no list; it names missing operators when it reads a model

    def trial(self, order: Order) -> None:
        """Compile the model, but do not run it: every built engine is verified later, before it serves."""
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
    """Raise Unsuitable if the device cannot keep the model's datatypes exact, or needs fixed shapes."""
    signature = order.signature
    inexact = {spec.datatype for spec in (*signature.inputs, *signature.outputs)} - _EXACT
    if inexact:
        raise Unsuitable(
            f"OpenVINO's {device} device cannot keep {', '.join(sorted(inexact))} tensors exact; use another backend"
        )
    open_inputs = [spec.name for spec in signature.inputs if not spec.is_static]
    if device.startswith("NPU") and open_inputs:
        raise Unsuitable(
            f"OpenVINO's NPU needs fixed shapes, but input {open_inputs[0]!r} has open dimensions;"
            " export the model with fixed dimensions"
        )


class Core(Protocol):
    """The part of openvino.Core that is used here."""

    @property
    def available_devices(self) -> Sequence[str]: ...

    def get_property(self, device: str, name: str) -> Any: ...


def find(core: Core, device: str, root: Root | None = None) -> str:
    """Return OpenVINO's name of a recipe's device: for "intel-gpu:1" this may be "GPU" or "GPU.1". Raises Unsuitable if
    OpenVINO does not serve this kind of device, does not see the device, or does not show which one it is.

    edged counts the devices in sysfs; OpenVINO may see fewer of them, in another order. So a device is identified by
    its PCI address. If OpenVINO does not report addresses, the device must be the only one of its kind.
    """
    kind, _, index = device.partition(":")
    if kind not in _KINDS:
        raise Unsuitable(f"OpenVINO serves cpu, intel-gpu and intel-npu devices, not {device}; use another backend")
    name, remedy = _KINDS[kind]
    seen = list(core.available_devices)
    alike = [one for one in seen if one.partition(".")[0] == name]
    number = int(index) if index.isdecimal() else 0
    places = intel.addresses(root or Root(), kind)
    found = {_place(core, one): one for one in reversed(alike)}  # of two devices with the same address, the first
    if number < len(places) and places[number] in found:
        return found[places[number]]
    if number == 0 and len(alike) == 1 and len(places) < 2:
        return alike[0]
    if number < len(places) and "" in found:
        raise Unsuitable(f"cannot tell which OpenVINO device is {device}; update openvino and Intel's driver")
    raise Unsuitable(f"OpenVINO does not see {device}; it sees {', '.join(seen) or 'no device'}; {remedy}")


def compile_properties(recipe: Recipe, device: str, parallelism: Parallelism = ONE_INSTANCE) -> dict[str, str]:
    """Return the properties for compiling a model and for importing its blob. Raises Unsuitable if the device does not
    compute in the recipe's precision."""
    kind = device.partition(".")[0]
    precision = _BESIDE_INT8[kind] if recipe.precision == "int8" else _PRECISIONS.get(recipe.precision)
    if precision is None:
        raise Unsuitable(f"OpenVINO has no precision {recipe.precision}; it has {', '.join(_PRECISIONS)} and int8")
    if kind == "NPU" and precision != "f16":
        raise Unsuitable(f"the NPU does not compute in {recipe.precision}; use fp16 or int8")
    wanted = {
        "PERFORMANCE_HINT": "LATENCY",
        # Without this hint, a CPU that has bfloat16 computes in bfloat16, and a GPU in float16.
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
    """Return the PCI address of a device as sysfs writes it; empty if it is unknown.

    The format of the property DEVICE_PCI_INFO is ov::device::PCIInfo in openvino/runtime/properties.hpp.
    """
    try:
        info = core.get_property(name, "DEVICE_PCI_INFO")
        address = f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.{info.function:x}"
        return "" if address == _NO_ADDRESS else address
    except Exception:  # the runtime's errors have no common base, and older versions do not know the property
        return ""


def kinds(compiled: Any) -> frozenset[str] | None:
    """Return the types of a compiled model's operators; None if the plugin does not report them.

    In an imported model every operator is an ExecutionNode, whose runtime information has the original type.
    """
    layers = _layers(compiled)
    return None if layers is None else frozenset(kind for kind, _ in layers)


def nodes(compiled: Any) -> Nodes:
    """Return a mapping from the device that runs a compiled model to the number of the model's operators of each type.
    Return an empty mapping if OpenVINO does not report the device.

    A compiled model runs on one device: edged never uses AUTO or HETERO, which may spread a model over several devices.
    """
    devices = _devices(compiled)
    layers = _layers(compiled) or ()
    counts = Counter(kind for kind, _ in layers if kind not in _PASSIVE) if len(devices) == 1 else Counter[str]()
    return {device: dict(sorted(counts.items())) for device in devices}


def composition(compiled: Any, recipe: Recipe, device: str) -> Composition:
    """Return the composition of a compiled model: the number of layers that compute in each precision. A note says if
    few layers use the requested precision, or if the plugin does not report layers."""
    layers = _layers(compiled)
    if layers is None:
        note = f"OpenVINO's {device} device does not report the layers of the compiled model"
        return Composition(nodes=nodes(compiled), notes=(note,))
    counts = Counter(_NAMES.get(precision, precision) for kind, precision in layers if kind not in _PASSIVE)
    notes = list[str]()
    if counts[recipe.precision] * _FEW < counts.total():  # a few layers may only convert to the precision and back
        mostly = max(counts, key=lambda name: counts[name])
        notes.append(f"{recipe.precision} was requested, but OpenVINO computes in {mostly} on this {device}")
    return Composition(layers=dict(sorted(counts.items())), nodes=nodes(compiled), notes=tuple(notes))


def _devices(compiled: Any) -> tuple[str, ...]:
    try:
        return tuple(str(name) for name in compiled.get_property("EXECUTION_DEVICES"))
    except Exception:  # the runtime's errors have no common base
        return ()


def _layers(compiled: Any) -> list[tuple[str, str]] | None:
    """Return the type and precision of each operator that reports a type; None if the plugin reports nothing."""
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
    """Return the runtime's refusal of a model as NotTaken: a message, a code, and the operator if known."""
    reason = " ".join(str(error).split())
    if match := _UNCONVERTED.search(reason):
        names = [re.sub(r"-\d+$", "", name) for name in match["names"].split(", ")]
        return NotTaken(
            f"OpenVINO lacks operators of the model: {', '.join(names)[:200]}", "unknown_operator", names[0]
        )
    why = "too_much_memory" if isinstance(error, MemoryError) or _MEMORY.search(reason) else "refused"
    return NotTaken(f"OpenVINO refuses the model: {one_line(Exception(_SOURCES.sub('', reason)), 300)}", why)


BACKEND: Backend = _OpenVino()
