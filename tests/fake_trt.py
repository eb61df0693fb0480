"""Stand-ins for TensorRT's Python modules, as far as a build uses them.

Each generation has, and lacks, what the real one does; `tests/integration/test_tensorrt_bindings.py` compares them with
the real bindings. A `Script` says what happens; a `Trace` records the calls.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

GENERATIONS = ("8.6", "10", "11", "rtx")


@dataclass
class Tensor:
    name: str
    dtype: Any
    shape: tuple[int, ...]
    is_shape_tensor: bool = False


@dataclass
class Script:
    """What the module does. `inputs` and `outputs` are (name, dtype, shape); `errors` are the parser's, as dicts from
    method name to return value; `says` are (severity, message) logged while building; `phases` is called with the
    progress monitor while building."""

    inputs: Sequence[tuple[str, str, tuple[int, ...]]] = (("x", "FLOAT", (1, 4)),)
    outputs: Sequence[tuple[str, str, tuple[int, ...]]] = (("y", "FLOAT", (1, 4)),)
    errors: Sequence[dict[str, Any]] = ()
    parser_says: Sequence[tuple[str, str]] = ()
    says: Sequence[tuple[str, str]] = ()
    plan: bytes | None = b"plan"
    phases: Callable[[Any], None] = lambda monitor: None
    cores: int = 0
    on_dla: bool = True
    profile_index: int = 0
    cache_fits: Sequence[bool] = ()  # the results of set_timing_cache; True after the last
    inspector: str = '{"Layers": []}'
    loads: bool = True
    validity: tuple[str, int] = ("VALID", 0)
    no_builder: str = ""


@dataclass
class Trace:
    flags: set[str] = field(default_factory=set)
    network_flags: int = 0
    config: Any = None
    profiles: list[dict[str, Any]] = field(default_factory=list)
    capability: list[tuple[str, int]] = field(default_factory=list)
    caches: list[bytes] = field(default_factory=list)
    host_code: list[bool] = field(default_factory=list)
    dla_cores: list[int | None] = field(default_factory=list)  # the runtime's DLA_core when it loads a plan


def make(generation: str, script: Script | None = None) -> tuple[Any, Trace]:
    """Return the module of a generation, and the trace of its calls."""
    return _module(generation, script or Script())


def _module(generation: str, script: Script) -> tuple[Any, Trace]:
    trace = Trace()
    old, rtx, modern = generation == "8.6", generation == "rtx", generation in ("11", "rtx")
    trt = SimpleNamespace(__version__="9.9.9")

    def members(name: str, *names: str) -> Any:
        return enum.IntEnum(name, list(names), start=0)

    flags = ["TF32", "GPU_FALLBACK", "VERSION_COMPATIBLE", "EXCLUDE_LEAN_RUNTIME"]
    trt.BuilderFlag = members("BuilderFlag", *flags, *([] if modern else ["FP16", "INT8"]))
    typed = [] if old else ["STRONGLY_TYPED"]
    trt.NetworkDefinitionCreationFlag = members("Flag", *([] if modern else ["EXPLICIT_BATCH"]), *typed)
    trt.MemoryPoolType = members("MemoryPoolType", "WORKSPACE")
    trt.ProfilingVerbosity = members("ProfilingVerbosity", "LAYER_NAMES_ONLY", "NONE", "DETAILED")
    trt.LayerInformationFormat = members("LayerInformationFormat", "ONELINE", "JSON")
    trt.DeviceType = members("DeviceType", "GPU", "DLA")
    trt.HardwareCompatibilityLevel = members("HardwareCompatibilityLevel", "NONE", "AMPERE_PLUS")
    trt.DataType = members("DataType", "FLOAT", "HALF", "INT8", "INT32", "BOOL", "UINT8", "INT64", "BF16", "FP8")
    trt.ILogger = _Logger
    if rtx:
        trt.ComputeCapability = members("ComputeCapability", "NONE", "CURRENT", "SM75", "SM86", "SM120")
        trt.IRuntimeCache = type("IRuntimeCache", (), {})
        trt.EngineValidity = members("EngineValidity", "VALID", "SUBOPTIMAL", "INVALID")
        trt.EngineInvalidityDiagnostics = enum.IntEnum(
            "Diagnostics", {"VERSION_MISMATCH": 1, "UNSUPPORTED_CC": 2, "MALFORMED_ENGINE": 32}
        )
    if not old:
        trt.IProgressMonitor = type("IProgressMonitor", (), {"__init__": lambda self: None})
    trt.init_libnvinfer_plugins = lambda logger, namespace: True
    trt.Builder = lambda logger: _Builder(trt, script, trace, logger, monitored=not old, targets=rtx)
    trt.OnnxParser = lambda network, logger: _Parser(trt, script, network, logger, terse=old)
    trt.Runtime = lambda logger: _runtime(trt, script, trace, logger, rtx)
    return trt, trace


class _Logger:
    def __init__(self) -> None:
        pass


def _tell(logger: Any, output: Sequence[tuple[str, str]]) -> None:
    for severity, message in output:
        logger.log(SimpleNamespace(name=severity), message)


class _Config:
    def __init__(self, trt: Any, script: Script, trace: Trace, monitored: bool, targets: bool) -> None:
        self._trt, self._script, self._trace = trt, script, trace
        self._fits = list(script.cache_fits)
        trace.config, trace.flags = self, {"TF32"}  # TensorRT's default
        self.pools: dict[str, int] = {}
        if monitored:
            self.progress_monitor: Any = None
        if targets:
            self.num_compute_capabilities = 0
            self.set_compute_capability = self._set_capability

    def set_flag(self, flag: Any) -> None:
        self._trace.flags.add(flag.name)

    def clear_flag(self, flag: Any) -> None:
        self._trace.flags.discard(flag.name)

    def set_memory_pool_limit(self, pool: Any, size: int) -> None:
        self.pools[pool.name] = size

    def add_optimization_profile(self, profile: Any) -> int:
        self._trace.profiles.append(profile.shapes)
        return self._script.profile_index

    def create_timing_cache(self, data: bytes) -> Any:
        self._trace.caches.append(data)
        return SimpleNamespace(serialize=lambda: memoryview(b"measured"))

    def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        return self._fits.pop(0) if self._fits else True

    def can_run_on_DLA(self, layer: Any) -> bool:
        return self._script.on_dla

    def _set_capability(self, capability: Any, index: int) -> bool:
        assert index < self.num_compute_capabilities
        self._trace.capability.append((capability.name, index))
        return True


class _Builder:
    def __init__(self, trt: Any, script: Script, trace: Trace, logger: Any, monitored: bool, targets: bool) -> None:
        if script.no_builder:
            _tell(logger, [("ERROR", script.no_builder)])
            raise TypeError("pybind11::init(): factory function returned nullptr")
        self._trt, self._script, self._trace, self._logger = trt, script, trace, logger
        self._kind = (monitored, targets)
        self.num_DLA_cores = script.cores

    def create_network(self, flags: int) -> Any:
        self._trace.network_flags = flags
        return _Network()

    def create_builder_config(self) -> Any:
        return _Config(self._trt, self._script, self._trace, *self._kind)

    def create_optimization_profile(self) -> Any:
        shapes: dict[str, Any] = {}
        return SimpleNamespace(shapes=shapes, set_shape=lambda name, *three: shapes.update({name: three}))

    def build_serialized_network(self, network: Any, config: Any) -> memoryview | None:
        _tell(self._logger, self._script.says)
        if getattr(config, "progress_monitor", None) is not None:
            self._script.phases(config.progress_monitor)
        return None if self._script.plan is None else memoryview(self._script.plan)


class _Network:
    def __init__(self) -> None:
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.layers: list[Any] = []
        self.num_inputs = self.num_outputs = self.num_layers = 0
        self.get_input = lambda index: self.inputs[index]
        self.get_output = lambda index: self.outputs[index]
        self.get_layer = lambda index: self.layers[index]


class _Parser:
    def __init__(self, trt: Any, script: Script, network: _Network, logger: Any, terse: bool) -> None:
        self._trt, self._script, self._network, self._logger, self._terse = trt, script, network, logger, terse

    @property
    def num_errors(self) -> int:
        return len(self._script.errors)

    def parse_from_file(self, model: str) -> bool:
        _tell(self._logger, self._script.parser_says)
        network = self._network
        for found, output in ((network.inputs, self._script.inputs), (network.outputs, self._script.outputs)):
            found += [Tensor(name, self._trt.DataType[dtype], shape) for name, dtype, shape in output]
        network.num_inputs, network.num_outputs = len(network.inputs), len(network.outputs)
        network.layers = [_layer("conv1", "CONVOLUTION", network), _layer("relu1", "ACTIVATION", network)]
        network.num_layers = len(network.layers)
        return not self._script.errors

    def get_error(self, index: int) -> Any:
        output = dict(self._script.errors[index])
        if self._terse:
            output = {name: answer for name, answer in output.items() if name in ("code", "desc", "node")}
        output["code"] = SimpleNamespace(name=output["code"])
        return SimpleNamespace(**{name: lambda answer=answer: answer for name, answer in output.items()})


def _layer(name: str, kind: str, network: _Network) -> Any:
    return SimpleNamespace(
        name=name,
        type=SimpleNamespace(name=kind),
        num_inputs=len(network.inputs[:1]),
        num_outputs=len(network.outputs[:1]),
        get_input=lambda index: network.inputs[index],
        get_output=lambda index: network.outputs[index],
    )


def _runtime(trt: Any, script: Script, trace: Trace, logger: Any, rtx: bool) -> Any:
    runtime = SimpleNamespace(engine_host_code_allowed=True, DLA_core=None)

    def deserialise(plan: Any) -> Any:
        trace.host_code.append(runtime.engine_host_code_allowed)
        trace.dla_cores.append(runtime.DLA_core)
        if not script.loads:
            _tell(logger, [("ERROR", "IRuntime::deserializeCudaEngine: Error Code 1: Serialization (wrong tag)")])
            return None
        inspector = SimpleNamespace(get_engine_information=lambda form: script.inspector)
        return SimpleNamespace(num_layers=7, create_engine_inspector=lambda: inspector)

    runtime.deserialize_cuda_engine = deserialise
    if rtx:
        verdict, bits = script.validity
        runtime.get_engine_validity = lambda plan: (trt.EngineValidity[verdict], bits)
    return runtime
