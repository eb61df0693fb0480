"""Writes a model's graph in the precision of an engine, for backends that must be told there. Runs in the child."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import msgspec

from edged.backends.contract import Composition, Order
from edged.errors import InvalidInput, Superseded, Unsuitable
from edged.ipc import job_messages as jobs
from edged.jobs.precision import Precision, convert
from edged.tensors import Array
from edged.verification import calibration
from edged.verification.pictures import TO_CALIBRATE
from edged.verification.questions import Pictures, Question

_GRAPH = "model.onnx"
_MOST_BYTES = 256 << 20  # of all inputs to calibrate with, which are held in memory meanwhile


def converted(job: jobs.Build, folder: Path) -> tuple[Order, Composition]:
    """The order with a converted graph, written into the empty `folder`, instead of the model; and what to say of it.

    Superseded when the pictures to calibrate with are not those that the engine's key is about; Unsuitable where no
    attempt would do better.
    """
    order, inputs = job.order, list[dict[str, Array]]()
    notes: list[str] = []
    if order.recipe.precision == "int8":
        inputs = _calibration(job, notes)
    precision = cast(Precision, order.recipe.precision)  # a backend has no others in `in_graph`
    made = convert(Path(order.model), precision, folder / _GRAPH, inputs)
    if made.path != order.model:
        external = tuple(path.name for path in sorted(folder.iterdir()) if path.name != _GRAPH)
        # The digest is of the model as it was given, which this file is not.
        order = msgspec.structs.replace(order, model=made.path, external=external, digest="")
    return order, Composition(kept=made.kept_fp32, notes=(*made.notes, *notes))


def _calibration(job: jobs.Build, notes: list[str]) -> list[dict[str, Array]]:
    """Inputs by name. The user's pictures come first: ranges are right for what they were measured on. Drawn ones are
    added so that a model without samples has some, and one with few is not blind to the rest; other drawn ones and some
    of the user's are held out to judge by."""
    if job.recognition.preprocess is None:
        raise Unsuitable(f"int8 is calibrated on pictures, and this model takes none: {job.recognition.picture}")
    found = calibration.chosen(job.samples)
    if calibration.name(job.recognition, found) != job.order.recipe.calibration:
        raise Superseded("the sample pictures were changed after the engine was planned")
    chosen: list[dict[str, Array]] = []
    size = 0
    for question in _pictures(Pictures(job.order.signature, job.recognition), found, notes):
        size += sum(array.nbytes for array in question.inputs.values())
        if chosen and size > _MOST_BYTES:
            notes.append(f"calibrated on {len(chosen)} pictures: more do not fit into {_MOST_BYTES >> 20} MiB")
            break
        chosen.append(question.inputs)
    return chosen


def _pictures(pictures: Pictures, samples: Mapping[str, str], notes: list[str]) -> Iterator[Question]:
    """Of the user's, paths by the digests of what they must hold; then drawn ones."""
    for digest, path in samples.items():
        try:
            yield pictures.sample(Path(path), digest)
        except InvalidInput as error:
            notes.append(f"not calibrated on {Path(path).name}: {error}")
    yield from pictures.drawn(TO_CALIBRATE)
