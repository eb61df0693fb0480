"""Admission: finds whether and with which backends this box can serve a model file, or why the box cannot serve it.

    file -> parse -> graph -> opset -> operators -> external data -> memory -> session -> inference

The stages run in this order. The finding (problem) of the earliest stage is reported. One child reads the file
(`jobs/inspect.py`). Each runtime is tried in a separate child (`jobs/trial.py`), with at most two children at a time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edged.api_types import RuntimeSupport
from edged.backends.contract import REFERENCE, Order, Recipe
from edged.config.child_limits import Limits, box_mb
from edged.engines import trials
from edged.engines.child import run
from edged.errors import BuildFailed, EdgedError, InvalidInput
from edged.ipc import job_messages as jobs
from edged.models import samples as model_samples
from edged.models import settings as model_settings
from edged.models.entries import plain_entry
from edged.models.finding import Category, Finding, Stage
from edged.models.inspection import Inspection
from edged.models.model import Model
from edged.verification.shape_range import ShapeRange
from edged.vision.candidates import candidates

if TYPE_CHECKING:
    from edged.engines.builder import Builder

_LIMITS = Limits(seconds=120.0, memory_mb=4096)
_EVERY_TIME = sys.maxsize  # a command tries the model again even if earlier attempts exceeded the limits
_AT_ONCE = 2  # children that try runtimes at the same time
_SETTLED = (Stage.FILE, Stage.PARSE, Stage.GRAPH)  # after a finding of these stages no runtime is tried


class Admission(msgspec.Struct, frozen=True):
    """The outcome of admission.

    model: the model; None if the checks of the file or of the memory refuse the model. backends: a mapping from each
    backend to the reason why the backend cannot run the model; the reason is empty if it can. finding: why the model is
    refused; None if the model can be served. warnings: findings about a model that can be served.
    """

    inspection: Inspection
    model: Model | None
    backends: dict[str, str]
    finding: Finding | None = None
    warnings: tuple[Finding, ...] = ()

    @property
    def refusal(self) -> str:
        """Why the model cannot be served, in one line; empty if it can."""
        return self.finding.line() if self.finding is not None else ""


class FamilyComparison(msgspec.Struct, frozen=True):
    """The families (decoders of outputs) that accept a model, the likeliest first. `families` has, for each family, the
    settings that select the family, and the family's result for a picture. `picture` is a JPEG with a tile for each
    family. Both fields are empty if no family accepts the model with the given settings."""

    families: tuple[tuple[dict[str, str], jobs.TriedFamily], ...] = ()
    picture: bytes = b""


async def examine(
    builder: Builder,
    path: Path,
    settings: Mapping[str, str],
    installed: Iterable[str],
    samples: Sequence[Path] = (),
) -> Admission:
    """Inspect a model and try it on every installed backend. The trials run the user's `samples` first.

    Raises ModelRefused with a finding if the file cannot be read, and ConfigError if the settings do not fit the model.
    Raises InvalidInput if the model can be served, but the samples cannot be used. Any other error is a fault of edged
    or of the box.
    """
    model_settings.validate(settings)
    inspection, names = await builder.inspect(path, _EVERY_TIME), tuple(installed)
    held = inspection.finding
    if held is not None and held.stage in _SETTLED:
        return Admission(inspection, None, dict.fromkeys(names, held.line()), held)
    size_mb = _size_mb(inspection)
    held = trials.first(held, trials.memory(inspection.footprint, builder.admission, size_mb, box_mb()))
    model = None
    if inspection.finding is None:
        own = tuple(str(sample.absolute()) for sample in samples)
        plain = await asyncio.to_thread(plain_entry, path.stem, path, settings)
        entry = msgspec.structs.replace(plain, samples=own)
        model = await builder.model(entry, inspection)
        model = await asyncio.to_thread(model.with_contents)
    gate = asyncio.Semaphore(_AT_ONCE)

    async def ask(backend: str) -> jobs.Checked | str:
        async with gate:
            job = _job(path, inspection, model, backend, is_whole=held is None)
            return await builder.check(job, size_mb, _EVERY_TIME)

    answers = dict(zip(names, await asyncio.gather(*map(ask, names)), strict=True))
    admission = _judged(inspection, model, answers, held)
    if samples and model is not None and admission.finding is None:
        await _check_samples(model, samples)
    return admission


async def admit(
    builder: Builder,
    path: Path,
    settings: Mapping[str, str],
    installed: Iterable[str],
    samples: Sequence[Path] = (),
) -> Admission:
    """Examine a model on the reference's backend (ONNX Runtime) only, because this backend decides whether the model
    can be served. Other backends are tried when their engines are built.

    Raises ModelRefused if the model cannot be served here, and the errors of `examine`.
    """
    backends = [name for name in installed if name == REFERENCE.backend]
    admission = await examine(builder, path, settings, backends, samples)
    if admission.finding is not None:
        raise admission.finding.refusal(f"{path.name} cannot be served here: ")
    return admission


async def ask_picture(builder: Builder, admission: Admission, path: Path, picture: Path | None) -> jobs.AskedPicture:
    """Run an examined model of a known family on a picture. If `picture` is None, edged draws the picture.

    Raises InvalidInput if the picture cannot be read, and BuildFailed if the child ends without an answer.
    """
    assert admission.model is not None
    job = _job(path, admission.inspection, admission.model, REFERENCE.backend, is_whole=True)
    asked = jobs.AskPicture(job.order, admission.model.recognition, str(picture.absolute()) if picture else "")
    return await run(asked, jobs.AskedPicture, builder.admission.of_runtime(_size_mb(admission.inspection)))


async def try_families(
    builder: Builder, admission: Admission, path: Path, settings: Mapping[str, str], picture: Path
) -> FamilyComparison:
    """Run an examined model on a picture, and decode its outputs with each family that accepts its tensors.

    Raises InvalidInput if the picture cannot be read, and BuildFailed if the child ends without an answer.
    """
    assert admission.model is not None
    inspection, signature = admission.inspection, admission.inspection.signature
    about = inspection.metadata, settings, inspection.operators, inspection.heads
    found = candidates(signature.inputs, signature.outputs, *about)
    if not found:
        return FamilyComparison()
    order = _job(path, inspection, admission.model, REFERENCE.backend, is_whole=True).order
    titles = tuple(" ".join(f"{key}={value}" for key, value in each.settings.items()) for each in found)
    job = jobs.TryFamilies(order, tuple(each.recognition for each in found), titles, str(picture.absolute()))
    limits = builder.admission.of_runtime(_size_mb(inspection))
    feeds = len({each.recognition.preprocess for each in found})
    limits = msgspec.structs.replace(limits, seconds=limits.seconds * feeds)  # one inference for each preprocessing
    answer = await run(job, jobs.TriedFamilies, limits)
    if len(answer.families) != len(found):  # a hostile model may have taken over the child
        raise BuildFailed(
            f"cannot try the families: the process that runs the model answered for {len(answer.families)} families"
            f" instead of {len(found)}; do not trust this model"
        )
    settings_of = (each.settings for each in found)
    return FamilyComparison(tuple(zip(settings_of, answer.families, strict=True)), answer.picture)


class Proven(msgspec.Struct, frozen=True):
    """The outcome of a successful trial: the warnings, and `Model.batch_gain`, the speed of rows in a batch as a
    multiple of the speed of single rows (0: not measured, or rows are not independent)."""

    warnings: tuple[Finding, ...] = ()
    batch_gain: float = 0.0


async def prove(builder: Builder, model: Model, tries: int = 1) -> Proven:
    """Try an inspected model on the reference, unless the outcome is cached.

    If the model exceeds the limits, it is tried at most `tries` times in a row. Raises ModelRefused if the trial fails,
    so that no host opens the model.
    """
    inspection = model.inspection
    size_mb = _size_mb(inspection)
    held = trials.memory(inspection.footprint, builder.admission, size_mb, box_mb())
    if held is None:
        job = _job(Path(model.entry.path), inspection, model, REFERENCE.backend, is_whole=True)
        answer = await builder.check(job, size_mb, tries)
        admission = _judged(inspection, model, {REFERENCE.backend: answer}, None)
        if admission.finding is None:
            return Proven(admission.warnings, answer.batch_gain if isinstance(answer, jobs.Checked) else 0.0)
        held = admission.finding
    raise held.refusal()


def _job(path: Path, inspection: Inspection, model: Model | None, backend: str, *, is_whole: bool) -> jobs.Check:
    recipe = msgspec.structs.replace(REFERENCE, threads=1) if backend == REFERENCE.backend else Recipe(backend)
    through = Stage.OPERATORS if not is_whole or model is None else Stage.INFERENCE
    external = tuple(file.path for file in inspection.external)
    order = Order(str(path.absolute()), inspection.signature, recipe, None, external, inspection.digest)
    return jobs.Check(
        order,
        inspection.opsets,
        inspection.ir_version,
        inspection.nodes,
        model.recognition if model is not None else None,
        ShapeRange.of(model) if model is not None else ShapeRange(),
        through=through,
        given=model_samples.by_content(model.samples, model.content) if model is not None else {},
        batches=model is not None and backend == REFERENCE.backend and model.may_complete_batch,
    )


def _judged(
    inspection: Inspection, model: Model | None, answers: Mapping[str, jobs.Checked | str], held: Finding | None
) -> Admission:
    """Combine the findings of runtimes with `held`, the finding about the file (None if the file has no finding). The
    finding of the earliest stage is reported."""
    backends = {}
    for name, answer in answers.items():
        found = answer if isinstance(answer, str) else trials.first(answer.finding, held)
        backends[name] = found if isinstance(found, str) else found.line() if found is not None else ""
    reference = answers.get(REFERENCE.backend)
    if not isinstance(reference, jobs.Checked):
        why = f": {reference}" if reference else ""
        message = f"ONNX Runtime is missing{why}; every engine is compared with ONNX Runtime"
        missing = Finding(Stage.OPSET, Category.NO_RUNTIME, message, "install onnxruntime")
        return Admission(inspection, model, backends, trials.first(held, missing))
    finding, warnings = trials.decided(reference, inspection.suspicion)
    finding = trials.first(finding, held)
    if finding is not None:
        backends[REFERENCE.backend] = finding.line()
    return Admission(inspection, None if held is not None else model, backends, finding, warnings)


def _size_mb(inspection: Inspection) -> float:
    return (inspection.size + sum(file.size for file in inspection.external)) / (1 << 20)


async def _check_samples(model: Model, samples: Sequence[Path]) -> None:
    """Check samples in a child, because decoders are written in C and pictures may be malicious."""
    recognition = model.recognition
    if recognition.preprocess is None and not all(model_samples.is_tensors(sample.name) for sample in samples):
        raise InvalidInput(
            f"this model takes no pictures ({recognition.picture}); give its samples as .npz files, or give no samples"
        )
    paths = tuple(str(sample.absolute()) for sample in samples)
    await run(jobs.CheckSamples(paths, model.inspection.signature), jobs.Done, _LIMITS)


async def supports(backends: Iterable[str]) -> tuple[RuntimeSupport, ...]:
    """Return the newest opset and IR version that each backend's runtime supports, or why the runtime cannot be loaded.
    Children test the runtimes one after the other."""
    found: list[RuntimeSupport] = []
    for backend in backends:
        try:
            loaded = await run(jobs.LoadRuntime(backend), jobs.LoadedRuntime, _LIMITS)
        except EdgedError as error:
            found.append(RuntimeSupport(backend, problem=str(error)))
            continue
        problem = "" if loaded.opset and loaded.ir_version else "the runtime rejects models of every ONNX version"
        found.append(RuntimeSupport(backend, loaded.version, loaded.opset, loaded.ir_version, problem))
    return tuple(found)
