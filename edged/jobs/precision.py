"""Converts a model to another precision by changing its graph: float16 with casts, int8 with Q/DQ pairs.

TensorRT 11 supports only this way, and all other runtimes accept such a graph too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, cast

import msgspec

from edged.backends.contract import Composition, Order
from edged.errors import InvalidInput, Superseded, Unsuitable
from edged.ipc import job_messages as jobs
from edged.tensors import Array
from edged.verification import user_samples
from edged.verification.pictures import TO_CALIBRATE
from edged.verification.probes import Pictures, Probe

Precision: TypeAlias = Literal["fp32", "fp16", "int8"]
Calibration: TypeAlias = Sequence[Mapping[str, Array]]

_GRAPH = "model.onnx"
_MOST_BYTES = 256 << 20  # of all inputs to calibrate with, which are held in memory meanwhile


class Converted(msgspec.Struct, frozen=True):
    """A model in a precision. `path` is the original model if no change was needed, so that no file was written.

    `kept_fp32` has one line for each operator that still computes in float32, with the reason.
    """

    path: str
    precision: Precision
    kept_fp32: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def convert_order(job: jobs.Build, folder: Path) -> tuple[Order, Composition]:
    """Convert a model into the empty `folder`. Return the order for it, and the layers that stay in float32.

    Raises Superseded if the calibration pictures are not those of the engine's key, and otherwise as `convert`.
    """
    order, inputs = job.order, list[dict[str, Array]]()
    notes: list[str] = []
    if order.recipe.precision == "int8":
        inputs = _calibration(job, notes)
    precision = cast(Precision, order.recipe.precision)  # a backend has no others in `in_graph`
    made = convert(Path(order.model), precision, folder / _GRAPH, inputs)
    if made.path != order.model:
        external = tuple(path.name for path in sorted(folder.iterdir()) if path.name != _GRAPH)
        # The digest is left out, because it is that of the original model.
        order = msgspec.structs.replace(order, model=made.path, external=external, digest="")
    return order, Composition(kept=made.kept_fp32, notes=(*made.notes, *notes))


def _calibration(job: jobs.Build, notes: list[str]) -> list[dict[str, Array]]:
    """Return the calibration inputs by name. The user's pictures come first, because they give the best ranges.

    Drawn pictures are added, for models with few samples or none. Other drawn pictures, and some of the user's, are
    reserved for verification.
    """
    if job.recognition.preprocess is None:
        raise Unsuitable(f"int8 is calibrated on pictures, and this model takes none: {job.recognition.picture}")
    found = user_samples.calibration_pictures(job.samples)
    if user_samples.calibration_name(job.recognition, found) != job.order.recipe.calibration:
        raise Superseded("the sample pictures were changed after the engine was planned")
    chosen: list[dict[str, Array]] = []
    size = 0
    for probe in _pictures(Pictures(job.order.signature, job.recognition), found, notes):
        size += sum(array.nbytes for array in probe.inputs.values())
        if chosen and size > _MOST_BYTES:
            notes.append(f"calibrated on {len(chosen)} pictures: more do not fit into {_MOST_BYTES >> 20} MiB")
            break
        chosen.append(probe.inputs)
    return chosen


def _pictures(pictures: Pictures, samples: Mapping[str, str], notes: list[str]) -> Iterator[Probe]:
    """Yield the user's pictures, then drawn ones. `samples`: paths by the SHA-256 of their content."""
    for digest, path in samples.items():
        try:
            yield pictures.sample(Path(path), digest)
        except InvalidInput as error:
            notes.append(f"not calibrated on {Path(path).name}: {error}")
    yield from pictures.drawn(TO_CALIBRATE)


def convert(model: Path, precision: Precision, out: Path, calibration: Calibration = ()) -> Converted:
    """Write the model in `precision` as `out`. Neither `out` nor `out`.data may exist.

    Inputs and outputs keep names, order, types and shapes. Weights are written to `out`.data if the model has external
    data or is very large. No file is written outside the folder of `out`. `calibration`: inputs by name, with dtypes
    and shapes that the model accepts; only int8 needs them.

    Raises Unsuitable if another attempt would fail too, EngineUnusable if the model cannot be read or a library fails,
    and OSError if a file cannot be written.
    """
    if precision == "fp16":
        from edged.jobs.onnx_half import to_half  # imports the onnx package

        changed, kept = to_half(model, out)
        return Converted(str(out if changed else model), precision, kept)
    if precision == "int8":
        if not calibration:
            raise Unsuitable(f"{model.name} needs calibration data for int8; give it sample pictures")
        from edged.jobs.onnx_int8 import to_int8  # imports the onnx package and ONNX Runtime

        changed, kept, notes = to_int8(model, out, calibration)
        return Converted(str(out if changed else model), precision, kept, notes)
    return Converted(str(model), precision)
