"""From the bytes of a built engine to an engine of the runtime, with everything looked at that can be before."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import msgspec

from edged.backends.contract import Order, one_line
from edged.backends.cuda.contract import Device
from edged.backends.trt import plan
from edged.backends.trt.api import Engine, Named, Trt, find
from edged.backends.trt.failure import explain
from edged.backends.trt.log import Log, listen
from edged.backends.trt.options import Options
from edged.errors import EngineUnusable, Unsupported

BLOB = "engine.plan"

# What TensorRT-RTX finds wrong with an engine, in words; it answers any number of these at once.
_DIAGNOSTICS = {
    "VERSION_MISMATCH": "another version built it",
    "UNSUPPORTED_CC": "it is for another GPU",
    "OLD_CUDA_DRIVER": "the driver is too old for it",
    "OLD_CUDA_RUNTIME": "the CUDA runtime is too old for it",
    "INSUFFICIENT_GPU_MEMORY": "the GPU has too little memory for it",
    "CUDA_ERROR": "CUDA failed",
    "MALFORMED_ENGINE": "it is damaged",
}


class Loaded(msgspec.Struct, frozen=True):
    """An engine, and what has to live as long as it."""

    engine: Engine
    log: Log
    owners: tuple[object, ...]


def dla_core(order: Order) -> int | None:
    """The deep learning accelerator that an engine is for; None for the GPU."""
    return Options.parse(order.recipe.optimization, order.recipe.options).dla_core


def read(order: Order, kind: str, version: str) -> bytes:
    """The plan of a built engine, of this kind and version of runtime; EngineUnusable or EngineDamaged."""
    if order.artefact is None:
        raise EngineUnusable("this engine has not been built yet")
    data = order.artefact.load(BLOB)
    header = plan.read(data)
    options = Options.parse(order.recipe.optimization, order.recipe.options)
    plan.require(header, kind, version, any_minor=options.version_compatible)
    return data[header.offset :] if header.offset else data


def deserialise(trt: Trt, data: bytes | memoryview, kind: str, dla_core: int | None = None) -> Loaded:
    """The engine in a plan, on the calling thread's current device; EngineUnusable with the runtime's reason.

    `dla_core` is the accelerator that an engine for one runs on: a plan says what for, and not where.

    Code in a plan is never run, so neither are plugins that somebody put there.
    """
    log = Log()
    logger = listen(trt, log)
    plugins = find(trt, "init_libnvinfer_plugins")
    if callable(plugins):
        plugins(logger, "")  # the runtime's own
    try:
        runtime = trt.Runtime(logger)
        runtime.engine_host_code_allowed = False
        if dla_core is not None:
            runtime.DLA_core = dla_core
        problem = _validity(trt, runtime, data)
        engine = None if problem else runtime.deserialize_cuda_engine(data)
    except Exception as error:  # the runtime's errors have no common base
        reason = explain(log.reason() or one_line(error))
        raise EngineUnusable(f"{kind} cannot load the engine: {reason}") from error
    if engine is None:
        said = "; ".join(word for word in (problem, log.reason()) if word)
        raise EngineUnusable(f"{kind} cannot load the engine: {explain(said)}")
    return Loaded(engine, log, (runtime, logger))


def open_device(name: str) -> Device:
    """The device of a recipe ("cuda:0"); EngineUnusable where it cannot be had."""
    from edged.backends import cuda  # brings the package that reaches CUDA

    try:
        return cuda.open_device(device_index(name))
    except Unsupported as error:
        raise EngineUnusable(str(error)) from error


def device_index(name: str) -> int:
    kind, _, index = name.partition(":")
    if kind != "cuda" or not (index or "0").isdecimal():
        raise EngineUnusable(f"TensorRT has engines for CUDA devices, not for {name}")
    return int(index or 0)


def _validity(trt: Trt, runtime: object, data: bytes | memoryview) -> str:
    """What a runtime that can tell beforehand has against an engine; empty where it has nothing, or cannot tell."""
    ask = find(runtime, "get_engine_validity")
    if not callable(ask):
        return ""
    verdict, diagnostics = cast(Callable[[object], tuple[Named, int]], ask)(data)
    if verdict.name != "INVALID":
        return ""
    members = getattr(find(trt, "EngineInvalidityDiagnostics"), "__members__", {})
    found = [_DIAGNOSTICS.get(name, name) for name, bit in members.items() if int(bit) & int(diagnostics)]
    return ", ".join(found) or "it cannot be used here"
