"""Builds an engine: parse, configure, build, write, look at what came out."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import msgspec

from edged.backends.contract import Composition, Order, one_line
from edged.backends.trt import load, summary
from edged.backends.trt.api import Builder, Config, MonitoredConfig, Trt
from edged.backends.trt.config import capabilities, configure, set_precision, target
from edged.backends.trt.failure import explain, without_device
from edged.backends.trt.log import Log
from edged.backends.trt.network import Parsed, create_builder, parse, require_datatypes, require_interface
from edged.backends.trt.options import Options
from edged.backends.trt.progress import Progress, watch
from edged.backends.trt.timings import Timings
from edged.errors import EdgedError, EngineUnusable, OutOfSpace, Unsuitable

_FULL = (errno.ENOSPC, errno.EDQUOT)
_MOST_WARNINGS = 5


def build(trt: Trt, kind: str, version: str, order: Order, out: Path, tell: Callable[[float], None]) -> Composition:
    """Writes the plan of an order into `out`, and says what became of the model. As `Backend.build`."""
    with _device(trt, kind, order):
        log, progress, timings = Log(), Progress(tell), Timings(trt, order.timings, version)
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
    """The plan, and what the network asked for. Everything else that a build holds is free afterwards."""
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
    plan = _serialised(trt, kind, builder, parsed, config, log)
    asked = summary.of_network(parsed.network)
    if options.dla_core is not None:
        fallback = summary.left_to_gpu(config, parsed.network, log, options.dla_core)
        asked = msgspec.structs.replace(asked, fallback=fallback)
    del monitor  # the builder was told of it and does not keep it alive
    return plan, asked


def _serialised(trt: Trt, kind: str, builder: Builder, parsed: Parsed, config: Config, log: Log) -> memoryview:
    try:
        plan = builder.build_serialized_network(parsed.network, config)
    except MemoryError:  # the child's own limit, which has words of its own
        raise
    except Exception as error:  # the runtime's errors have no common base
        raise EngineUnusable(f"{kind} cannot build the engine: {one_line(error)}") from error
    if plan is None:
        raise EngineUnusable(f"{kind} cannot build the engine: {explain(log.reason())}")
    return plan


def _inspected(trt: Trt, kind: str, order: Order, plan: memoryview, asked: Composition) -> Composition:
    """What the engine itself tells, where there is a device to load it on."""
    if order.capability:
        return asked
    try:
        found = summary.of_engine(trt, load.deserialise(trt, plan, kind, load.dla_core(order)).engine)
    except EdgedError as error:  # opening it, which comes next, has the last word
        return msgspec.structs.replace(asked, notes=(*asked.notes, str(error)))
    return msgspec.structs.replace(found, fallback=asked.fallback)


@contextlib.contextmanager
def _device(trt: Trt, kind: str, order: Order) -> Iterator[None]:
    """The device to build on and for, made the thread's own; nothing where the order is for another one."""
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
            raise Unsuitable(f"{kind} builds for compute capability {choice}, and this device has {capability}")
        yield


def _write(path: Path, plan: memoryview) -> None:
    try:
        path.write_bytes(plan)
    except OSError as error:
        if error.errno in _FULL:
            raise OutOfSpace(f"an engine of {memoryview(plan).nbytes >> 20} MiB does not fit on the disk") from error
        raise
