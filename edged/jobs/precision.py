"""A model in another precision, said in its graph: float16 by casts, int8 by Q/DQ pairs.

TensorRT 11 has no other way, and every other runtime takes such a graph too. A build step: `convert` belongs in a child
of the daemon, because it parses the model. This module itself imports no parser and no runtime, so that everybody may
know its types.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import numpy as np

from edged.errors import Unsuitable
from edged.tensors import Array

Precision: TypeAlias = Literal["fp32", "fp16", "int8"]
Calibration: TypeAlias = Sequence[Mapping[str, Array]]

# Part of the digest below. To be raised with every change of what is made of calibration data.
_METHOD = 1


class Converted(msgspec.Struct, frozen=True):
    """A model in a precision. `path` is the given model where there was nothing to change, and no file was written.

    `kept_fp32` says in a line each which operators that use float32 still do, and why; `notes` what else a reader may
    want to know. `calibration_digest` is empty but for int8.
    """

    path: str
    precision: Precision
    kept_fp32: tuple[str, ...] = ()
    calibration_digest: str = ""
    notes: tuple[str, ...] = ()


def convert(model: Path, precision: Precision, out: Path, calibration: Calibration = ()) -> Converted:
    """Writes the model in `precision` as `out`, in a folder where neither it nor `out`.data are yet.

    Inputs and outputs keep names, order, types and shapes. Weights go into `out`.data where the model has some outside
    its graph or is very large; nothing is written outside the folder of `out`. `calibration` are inputs by name, of
    the model's own dtypes and of shapes that it takes; only int8 needs them.

    Raises Unsuitable where no attempt would do better, EngineUnusable where the model cannot be read or a library
    fails, OSError where nothing can be written.
    """
    if precision == "fp16":
        from edged.jobs.onnx_half import to_half  # brings the onnx package

        changed, kept = to_half(model, out)
        return Converted(str(out if changed else model), precision, kept)
    if precision == "int8":
        if not calibration:
            raise Unsuitable(f"{model.name} cannot become int8 without calibration data; give it sample pictures")
        from edged.jobs.onnx_int8 import to_int8  # brings the onnx package and ONNX Runtime

        changed, kept, notes = to_int8(model, out, calibration)
        return Converted(str(out if changed else model), precision, kept, calibration_digest(calibration), notes)
    return Converted(str(model), precision)


def calibration_digest(calibration: Calibration) -> str:
    """64 hexadecimal digits over all samples, in whatever order they come: part of the key of what they calibrate."""
    samples = sorted(_digest(sample) for sample in calibration)
    return hashlib.sha256("\n".join([f"calibration {_METHOD}", *samples]).encode()).hexdigest()


def _digest(sample: Mapping[str, Array]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(sample.items()):
        digest.update(msgspec.json.encode([name, array.dtype.str, array.shape]))
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
