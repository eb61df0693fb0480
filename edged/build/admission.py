"""Whether a model file can be served on this box, by which backends, and why not: asked before it is taken in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from edged.build import jobs
from edged.build.builder import REFERENCE, Builder
from edged.build.child import Limits, run
from edged.errors import InvalidInput, ModelRefused
from edged.model import settings as model_settings
from edged.model.inspection import Inspection
from edged.model.model import Model
from edged.model.repository import plain_entry

_PICTURES = Limits(seconds=120.0, memory_mb=4096)


class Admission(msgspec.Struct, frozen=True):
    """What was found: the facts, the model where there can be one, and for each backend why it does not take it (empty
    when it does)."""

    inspection: Inspection
    model: Model | None
    backends: dict[str, str]

    @property
    def refusal(self) -> str:
        """Why the model cannot be served; empty when it can. Without the reference nothing could be verified."""
        missing = "ONNX Runtime, which every engine is compared with, is missing"
        return self.inspection.refusal or self.backends.get(REFERENCE.backend, missing)


async def examine(builder: Builder, path: Path, settings: Mapping[str, str], installed: Iterable[str]) -> Admission:
    """Reads a model and asks every installed backend. ModelRefused when it cannot even be read, ConfigError when the
    settings do not fit it."""
    model_settings.validate(settings)
    inspection = await builder.inspect(path)
    if inspection.refusal:
        return Admission(inspection, None, dict.fromkeys(installed, inspection.refusal))
    model = Model.of(plain_entry(path.stem, path, settings), inspection)
    return Admission(inspection, model, {name: await builder.check(name, path) for name in installed})


async def admit(
    builder: Builder,
    path: Path,
    settings: Mapping[str, str],
    installed: Iterable[str],
    samples: Sequence[Path] = (),
) -> Admission:
    """As `examine`; ModelRefused when the model cannot be served here, InvalidInput for samples that cannot be used."""
    admission = await examine(builder, path, settings, installed)
    if admission.refusal:
        raise ModelRefused(f"{path.name} cannot be served here: {admission.refusal}")
    if samples and admission.model is not None:
        await _check_samples(admission.model, samples)
    return admission


async def _check_samples(model: Model, samples: Sequence[Path]) -> None:
    """In a child, because decoders are made of C and whoever sends pictures may mean harm."""
    recognition = model.recognition
    if recognition.preprocess is None:
        raise InvalidInput(f"this model takes no pictures ({recognition.picture}); add it without samples")
    await run(jobs.CheckSamples(tuple(str(sample.absolute()) for sample in samples)), jobs.Done, _PICTURES)
