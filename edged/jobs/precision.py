"""Converts a model to another precision by changing its graph: float16 with casts, int8 with Q/DQ pairs.

TensorRT 11 supports only precisions in the graph, and all other runtimes accept such a graph too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias, cast

import msgspec

from edged.backends.contract import INT8_ASYMMETRIC, Composition, Order
from edged.device import cpu
from edged.device.root import Root
from edged.ipc import job_messages as jobs
from edged.jobs import int8_pictures
from edged.jobs.int8_pictures import EIGHT_BITS, SEVEN_BITS, Way
from edged.tensors import Array

Precision: TypeAlias = Literal["fp32", "fp16", "int8"]
Calibration: TypeAlias = Iterable[Mapping[str, Array]]
Report: TypeAlias = Callable[[jobs.Progress], None]

_GRAPH = "model.onnx"
_PLAIN = Way()


class Converted(msgspec.Struct, frozen=True):
    """A converted model. `path` is the original model if no change was needed; then no file was written.

    `kept_fp32` has a line for each operator that still computes in float32, with the reason.
    """

    path: str
    kept_fp32: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def convert_order(job: jobs.Build, folder: Path, report: Report = lambda progress: None) -> tuple[Order, Composition]:
    """Convert a model into the empty `folder`. Return the `Order` to build an engine of the converted model, and a
    composition with the lines about operators that stay in float32, and notes.

    Raises Superseded if the digest of the calibration pictures is not the digest in the engine's key. Also raises the
    errors of `convert`.
    """
    order, way, notes = job.order, Way(), list[str]()
    inputs: Calibration = ()
    if order.recipe.precision == "int8":

        def notify(phase: str) -> None:
            report(jobs.Progress(phase))

        until = time.monotonic() + job.repairs_until_s
        inputs, comparison = int8_pictures.plan(job, notes)
        levels = SEVEN_BITS if order.recipe.device == "cpu" and cpu.saturates(cpu.probe(Root())) else EIGHT_BITS
        way = Way(order.recipe.options == INT8_ASYMMETRIC, comparison, job.repair_s, notify, until, levels)
        if levels == SEVEN_BITS:
            notes.append("weights have 7 bits, because sums of 8-bit products overflow on a processor without VNNI")
    precision = cast(Precision, order.recipe.precision)  # no backend has other precisions in `converted_in_graph`
    made = convert(Path(order.model), precision, folder / _GRAPH, inputs, way)
    if made.path != order.model:
        external = tuple(path.name for path in sorted(folder.iterdir()) if path.name != _GRAPH)
        # The order has no digest, because the digest of the original model is wrong for the new files.
        order = msgspec.structs.replace(order, model=made.path, external=external, digest="")
    return order, Composition(kept=made.kept_fp32, notes=(*made.notes, *notes))


def convert(
    model: Path, precision: Precision, out: Path, calibration: Calibration = (), way: Way = _PLAIN
) -> Converted:
    """Write the model in `precision` as `out`. Neither `out` nor `out`.data may exist.

    Inputs and outputs keep names, order, types and shapes. Weights are written to `out`.data if the model has external
    data or is very large. No file is written outside the folder of `out`. Only int8 needs `calibration` (inputs by
    name, with dtypes and shapes that the model accepts) and `way`.

    Raises Unsuitable if another attempt would fail too, EngineUnusable if the model cannot be read or a library fails,
    and OSError if a file cannot be written.
    """
    if precision == "fp16":
        from edged.jobs.onnx_half import to_half  # imports the onnx package

        changed, kept = to_half(model, out)
        return Converted(str(out if changed else model), kept)
    if precision == "int8":
        from edged.jobs.onnx_int8 import to_int8  # imports the onnx package and ONNX Runtime

        changed, kept, notes = to_int8(model, out, calibration, way)
        return Converted(str(out if changed else model), kept, notes)
    return Converted(str(model))
