"""Builds an engine: parse, configure, build, write, inspect. If this generation of the runtime lacks a feature, the
build continues without the feature, or fails with the reason.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import msgspec

from edged.backends.contract import Composition, Order, one_line
from edged.backends.profile import Profile
from edged.backends.trt import load
from edged.backends.trt.api import (
    DATATYPES,
    Builder,
    Config,
    Engine,
    Layer,
    MonitoredConfig,
    Network,
    TargetConfig,
    Tensor,
    Trt,
    find,
)
from edged.backends.trt.log import Log, explain, without_device
from edged.backends.trt.network import Parsed, create_builder, inputs, parse, require_datatypes, require_interface
from edged.backends.trt.options import Options
from edged.backends.trt.progress import Progress, watch
from edged.backends.trt.timings import Timings
from edged.decoding import ready
from edged.errors import EdgedError, EngineUnusable, OutOfSpace, Unsuitable

_FULL = (errno.ENOSPC, errno.EDQUOT)
_MOST_WARNINGS = 5
_CAPABILITY = re.compile(r"SM(\d+)(\d)")
# The inspector writes formats as "Row major linear FP32", "Half", "Four wide channel vectorized row major Int8 format".
_WORDS = {
    "bf16": re.compile(r"(?i)bf16|bfloat16"),
    "fp16": re.compile(r"(?i)fp16|half"),
    "fp32": re.compile(r"(?i)fp32|float\b"),
    **{name: re.compile(f"(?i){name}") for name in ("fp8", "int8", "int64", "int32", "bool")},
}
# Layers that only move or convert data; they are not counted by precision.
_MOVERS = re.compile(r"(?i)reformat|no_?op|constant|cast|shuffle|identity|dequantize|quantize|signal|wait|shape|assert")
_MOST_NAMES = 5


def build(trt: Trt, kind: str, version: str, order: Order, out: Path, report: Callable[[float], None]) -> Composition:
    """Build the order's engine into `out` and return its composition; see `Backend.build`."""
    with _device(trt, kind, order):
        log, progress, timings = Log(), Progress(report), Timings(trt, order.timings, version)
        plan, composition = _make(trt, kind, order, log, progress, timings)
        _write(out / load.BLOB, plan)
        timings.keep()
        composition = _inspected(trt, kind, order, plan, composition)
        progress.end()
    warnings = tuple(dict.fromkeys(log.warnings))
    notes = (*composition.notes, *timings.notes, *warnings[:_MOST_WARNINGS])
    if len(warnings) > _MOST_WARNINGS:
        notes += (f"{len(warnings) - _MOST_WARNINGS} more warnings",)
    return msgspec.structs.replace(composition, notes=notes)


def _make(
    trt: Trt, kind: str, order: Order, log: Log, progress: Progress, timings: Timings
) -> tuple[memoryview, Composition]:
    """Return the plan (the serialised engine), and the composition of the network before the build. All other memory of
    the build is freed."""
    options = Options.parse(order.recipe.optimization, order.recipe.options).eased(order.effort)
    require_datatypes(order.signature, kind)
    builder = create_builder(trt, log, kind)
    parsed = parse(trt, builder, log, Path(order.model), kind)
    require_interface(parsed.network, order.signature, kind)
    config, monitor = builder.create_builder_config(), watch(trt, progress)
    configure(trt, builder, config, parsed.network, order, options)
    set_precision(trt, config, order.recipe.precision, parsed.is_strongly_typed)
    target(trt, config, kind, order.capability)
    timings.attach(config)
    if monitor is not None:
        cast(MonitoredConfig, config).progress_monitor = monitor
    plan = _serialised(kind, builder, parsed, config, log)
    asked = of_network(parsed.network)
    if options.dla_core is not None:
        fallback = left_to_gpu(config, parsed.network, log, options.dla_core)
        asked = msgspec.structs.replace(asked, fallback=fallback)
    del monitor  # kept until here, because the builder uses it without a reference
    return plan, asked


def _serialised(kind: str, builder: Builder, parsed: Parsed, config: Config, log: Log) -> memoryview:
    try:
        plan = builder.build_serialized_network(parsed.network, config)
    except MemoryError:  # the child has reached its memory limit, and reports that itself
        raise
    except Exception as error:  # the runtime's errors have no common base
        raise EngineUnusable(f"{kind} cannot build the engine: {one_line(error)}") from error
    if plan is None:
        raise EngineUnusable(f"{kind} cannot build the engine: {explain(log.reason())}")
    return plan


def _inspected(trt: Trt, kind: str, order: Order, plan: memoryview, asked: Composition) -> Composition:
    """Return the composition of the built engine; `asked` if the engine is for another device or cannot be loaded."""
    if order.capability:
        return asked
    try:
        found = of_engine(trt, load.deserialise(trt, plan, kind, load.dla_core(order)).engine)
    except EdgedError as error:  # not fatal here: verification opens the engine next, and reports the error
        return msgspec.structs.replace(asked, notes=(*asked.notes, str(error)))
    return msgspec.structs.replace(found, fallback=asked.fallback)


@contextlib.contextmanager
def _device(trt: Trt, kind: str, order: Order) -> Iterator[None]:
    """A context in which the order's device is current in this thread. With a `capability` it does nothing."""
    if order.capability:
        yield
        return
    offered = capabilities(trt).values()
    try:
        device = load.open_device(order.recipe.device)
    except EngineUnusable as error:
        raise EngineUnusable(f"{kind} cannot build: {without_device(str(error), bool(offered))}") from error
    with contextlib.closing(device), device.current():
        capability = device.properties.compute_capability
        if offered and capability not in offered:
            choice = ", ".join(offered)
            raise Unsuitable(
                f"{kind} builds for compute capability {choice}, but this device has {capability}; use another backend"
            )
        yield


def _write(path: Path, plan: memoryview) -> None:
    try:
        path.write_bytes(plan)
    except OSError as error:
        if error.errno in _FULL:
            raise OutOfSpace(
                f"the disk has no room for an engine of {memoryview(plan).nbytes >> 20} MiB; free some space"
            ) from error
        raise


def configure(trt: Trt, builder: Builder, config: Config, network: Network, order: Order, options: Options) -> None:
    """Configure a build, except precision, target, monitor, timings. Raises Unsuitable if this runtime lacks an
    option."""
    config.set_memory_pool_limit(find(trt, "MemoryPoolType.WORKSPACE"), options.workspace_mb << 20)
    config.builder_optimization_level = options.builder_level
    # Only the inspector and profilers use the details. Plans were not larger with them.
    config.profiling_verbosity = find(trt, "ProfilingVerbosity.DETAILED")
    _add_profile(builder, config, network, order.recipe.profile)
    _set_compatibility(trt, config, options)
    if options.dla_core is not None:
        _use_dla(trt, builder, config, options.dla_core)


def set_precision(trt: Trt, config: Config, precision: str, is_strongly_typed: bool) -> None:
    """Set the builder's precision flags. Raises Unsuitable if this runtime lacks a necessary flag.

    TF32 rounds the factors of fp32 products, so its flag is set only for the precision tf32. All other precisions are
    datatypes in the graph. A strongly typed network needs no flag for these datatypes. In any other network, a flag
    must allow fp16 or int8.
    """
    tf32 = find(trt, "BuilderFlag.TF32")
    if tf32 is not None:
        (config.set_flag if precision == "tf32" else config.clear_flag)(tf32)
    elif precision == "tf32":
        raise Unsuitable("this TensorRT cannot build tf32 engines, because it has no flag for TF32; use fp32")
    if is_strongly_typed:
        return
    if precision in ("fp16", "int8"):
        flag = find(trt, f"BuilderFlag.{precision.upper()}")
        if flag is None:
            raise Unsuitable(f"this TensorRT can build neither strongly typed networks nor {precision}; use fp32")
        config.set_flag(flag)


def target(trt: Trt, config: Config, kind: str, capability: str) -> None:
    """Configure the build for the compute capability `capability` ("8.6"); if empty, for the device of this box. Raises
    Unsuitable or another EngineUnusable if the runtime cannot build for this capability."""
    if find(config, "set_compute_capability") is None:
        if capability:
            raise Unsuitable(f"{kind} builds only for the device that it runs on; build this engine on that device")
        return
    offered = capabilities(trt)
    name = "CURRENT" if not capability else next((n for n, number in offered.items() if number == capability), "")
    member = find(trt, f"ComputeCapability.{name}") if name else None
    if member is None:
        raise Unsuitable(
            f"{kind} builds for compute capability {', '.join(offered.values())}, not {capability or 'for this device'}"
        )
    chosen = cast(TargetConfig, config)
    chosen.num_compute_capabilities = 1
    if not chosen.set_compute_capability(member, 0):
        raise EngineUnusable(f"{kind} cannot build for the compute capability {capability or 'of this device'}")


def capabilities(trt: Trt) -> dict[str, str]:
    """Return the compute capabilities that the runtime can build for: a mapping from the runtime's name, such as
    "SM86", to the number, such as "8.6". Empty if the runtime builds only for the device that it runs on."""
    names = getattr(find(trt, "ComputeCapability"), "__members__", {})
    matches = {name: _CAPABILITY.fullmatch(name) for name in names}
    return {name: f"{match[1]}.{match[2]}" for name, match in matches.items() if match}


def _add_profile(builder: Builder, config: Config, network: Network, text: str) -> None:
    profile = Profile.parse(text)
    open_inputs = [tensor for tensor in inputs(network) if any(size < 0 for size in tensor.shape)]
    if not open_inputs:
        return
    shapes = builder.create_optimization_profile()
    for tensor in open_inputs:
        range_ = profile.range(tensor.name)
        if range_ is None:
            raise Unsuitable(f"the engine has no range of shapes for input {tensor.name}; set profile.{tensor.name}")
        shapes.set_shape(tensor.name, range_.minimum, range_.optimum, range_.maximum)
    if config.add_optimization_profile(shapes) < 0:
        raise Unsuitable(f"the model does not accept the range of shapes {text[:200]}; change the settings profile.*")


def _set_compatibility(trt: Trt, config: Config, options: Options) -> None:
    if options.version_compatible:
        flag = find(trt, "BuilderFlag.VERSION_COMPATIBLE")
        if flag is None:
            raise Unsuitable(
                "this TensorRT cannot build version compatible engines; remove setting tensorrt.version_compatible"
            )
        config.set_flag(flag)
        # Without this flag the plan contains a lean runtime, which is code, and edged does not run code in plans.
        lean = find(trt, "BuilderFlag.EXCLUDE_LEAN_RUNTIME")
        if lean is not None:
            config.set_flag(lean)
    if options.hardware_compatible:
        level = find(trt, "HardwareCompatibilityLevel.AMPERE_PLUS")
        if level is None:
            raise Unsuitable(
                "this TensorRT cannot build hardware compatible engines; remove setting tensorrt.hardware_compatible"
            )
        config.hardware_compatibility_level = level


def _use_dla(trt: Trt, builder: Builder, config: Config, core: int) -> None:
    if core >= builder.num_DLA_cores:
        cores = builder.num_DLA_cores
        choice = f"{cores} DLA cores; use 0 to {cores - 1}" if cores else "no DLA cores; remove the setting"
        raise Unsuitable(f"setting tensorrt.dla_core={core}: the device has {choice}")
    config.default_device_type = find(trt, "DeviceType.DLA")
    config.DLA_core = core
    config.set_flag(find(trt, "BuilderFlag.GPU_FALLBACK"))


# -- precisions of layers --------------------------------------------------------------------------------------------


class _End(msgspec.Struct, frozen=True):
    """One input or output of a layer in the inspector's JSON."""

    format: str = msgspec.field(name="Format/Datatype", default="")


class _Layer(msgspec.Struct, frozen=True):
    kind: str = msgspec.field(name="LayerType", default="")
    inputs: list[_End] = msgspec.field(name="Inputs", default_factory=list)
    outputs: list[_End] = msgspec.field(name="Outputs", default_factory=list)


class _Report(msgspec.Struct, frozen=True):
    """The inspector's JSON. Without detailed verbosity in the build, each layer is only a name."""

    layers: list[_Layer | str] = msgspec.field(name="Layers", default_factory=list)


def of_engine(trt: Trt, engine: Engine) -> Composition:
    """Return the number of a built engine's layers in each precision; only a note if the inspector's report has no
    precisions or cannot be read."""
    try:
        text = engine.create_engine_inspector().get_engine_information(find(trt, "LayerInformationFormat.JSON"))
        report = msgspec.json.decode(text, type=ready(_Report))
    except Exception as error:  # the runtime's errors have no common base, and nothing depends on the report
        return Composition(notes=(f"the precisions of the engine's layers are unknown: {error}",))
    detailed = [layer for layer in report.layers if isinstance(layer, _Layer)]
    if not detailed:
        return Composition(notes=(f"{engine.num_layers} layers after fusion, of unknown precisions",))
    counts = Counter(_precision(layer) for layer in detailed if not _MOVERS.search(layer.kind))
    movers = len(detailed) - counts.total()
    notes = (f"{len(detailed)} layers after fusion, {movers} of which only move or convert data",)
    return Composition(layers=dict(sorted(counts.items())), notes=notes)


def _precision(layer: _Layer) -> str:
    """Return the first known precision among a layer's inputs and then its outputs. Inputs come first because an int8
    convolution may write a wider type."""
    formats = (end.format for end in (*layer.inputs, *layer.outputs))
    return next((name for text in formats for name, words in _WORDS.items() if words.search(text)), "other")


def of_network(network: Network) -> Composition:
    """Return the composition of a network: the number of its layers in each precision. This composition is used if the
    built engine cannot be loaded here."""
    layers = list(_layers(network))
    makers = {tensor.name: layer.type.name for layer in layers for tensor in _outputs(layer)}
    counts = Counter(_asked(layer, makers) for layer in layers if not _MOVERS.search(layer.type.name))
    notes = (f"{network.num_layers} layers before fusion, with the graph's precisions; the engine was not loaded",)
    return Composition(layers=dict(sorted(counts.items())), notes=notes)


def _asked(layer: Layer, makers: dict[str, str]) -> str:
    inputs = [tensor for index in range(layer.num_inputs) if (tensor := layer.get_input(index)) is not None]
    if any(makers.get(tensor.name) == "DEQUANTIZE" for tensor in inputs):
        return "int8"
    kinds = (DATATYPES.get(t.dtype.name, t.dtype.name).lower() for t in (*inputs, *_outputs(layer)))
    return next(kinds, "other")


def _outputs(layer: Layer) -> list[Tensor]:
    return [tensor for index in range(layer.num_outputs) if (tensor := layer.get_output(index)) is not None]


def _layers(network: Network) -> Iterator[Layer]:
    return (network.get_layer(index) for index in range(network.num_layers))


def left_to_gpu(config: Config, network: Network, log: Log, core: int) -> tuple[str, ...]:
    """Return one line about the layers that a build for DLA leaves to the GPU; empty if there are no such layers."""
    # The builder's messages name the layers on the GPU. If there are no such messages, ask which layers DLA cannot run.
    left = list(log.on_gpu) or [layer.name for layer in _layers(network) if not config.can_run_on_DLA(layer)]
    if not left:
        return ()
    names = ", ".join(left[:_MOST_NAMES]) + (", …" if len(left) > _MOST_NAMES else "")
    return (f"{len(left)} of {network.num_layers} layers run on the GPU and not on DLA core {core}: {names}"[:300],)
