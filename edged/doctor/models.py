"""One model: whether it is admitted, whether its file is whole, what its shapes and batch mean to its clients. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from edged.doctor.check import Check, Name, ok, unknown, warning, wrong
from edged.engines.admission.examination import Admission
from edged.errors import Unsuitable
from edged.models.inspection import Inspection
from edged.models.model import Model


def admission(name: str, path: str, found: Admission) -> Iterator[Check]:
    """A line for the model, one for each warning, and one for each backend that does not take it."""
    if found.refusal:
        yield wrong(Name.ADMISSION, f"it cannot be served here: {found.refusal}", inspect(path), name)
        return
    taking = [backend for backend, why in found.backends.items() if not why]
    yield ok(Name.ADMISSION, f"it can be served here by {', '.join(taking)}", name)
    for each in found.warnings:
        yield warning(Name.ADMISSION, each.message, each.remedy or inspect(path), name)
    for backend, why in found.backends.items():
        if why:
            yield unknown(Name.ADMISSION, f"not applicable: {backend} does not take it: {why}", name)


def inspect(path: str) -> str:
    """The command that tells more of a model's file."""
    return f"see: edged inspect {path}"


def external_data(name: str, inspection: Inspection) -> Iterator[Check]:
    """Judges the files beside the model that hold some of its weights."""
    files = inspection.external
    bad = [file for file in files if file.problem]
    for file in bad:
        remedy = "export the model again and copy it with all its files, or save it in one file"
        yield wrong(Name.EXTERNAL_DATA, file.problem, remedy, name)
    if not files:
        yield ok(Name.EXTERNAL_DATA, "it has none: all is in one file", name)
    elif not bad:
        size = sum(file.size for file in files) / 1e6
        yield ok(Name.EXTERNAL_DATA, f"{len(files)} files with {size:.1f} MB are whole and beside the model", name)


def shapes(model: Model) -> Check:
    """Judges whether engines that need a range of shapes can be built."""
    dynamic = [spec for spec in model.inspection.signature.inputs if not spec.is_static]
    if not dynamic:
        return ok(Name.SHAPES, "every input has one size", model.name)
    named = ", ".join(f"{spec.name}[{','.join(map(str, spec.shape))}]" for spec in dynamic)
    try:
        profile = model.profile
    except Unsuitable as error:
        inputs = " ".join(f"--set 'profile.{spec.name}=SMALLEST USUAL LARGEST'" for spec in dynamic)
        said = f"{named} may have any size and nothing says which: {error}"
        remedy = f"say which sizes come, such as 1x3x320x320: edged models add … {inputs}"
        return warning(Name.SHAPES, said, remedy, model.name)
    return ok(Name.SHAPES, f"{named}: engines are built for {profile}", model.name)


def batch(model: Model) -> Check:
    """Judges how many pictures go in at once."""
    inputs = model.inspection.signature.inputs
    if model.max_batch_size:
        return ok(Name.BATCH, f"up to {model.max_batch_size} rows go in together", model.name)
    pictures = [spec for spec in inputs if len(spec.shape) == 4]
    fixed = [spec.shape[0] for spec in pictures if isinstance(spec.shape[0], int) and spec.shape[0] > 1]
    if fixed:
        said = f"it takes {fixed[0]} pictures at once, never fewer: each frame costs as much as {fixed[0]}"
        return warning(Name.BATCH, said, "export it with a batch of 1 or a dynamic one", model.name)
    if pictures:
        return ok(Name.BATCH, "one picture goes in at a time", model.name)
    return unknown(Name.BATCH, "not applicable: it takes no batches", model.name)
