"""`edged self-check`: every installed runtime makes an engine (a compiled model) of the embedded detector, as in a
daemon.

Each step runs in child processes, which are confined like all jobs. First the reference, ONNX Runtime without
optimisation, must find the shapes in a synthetic picture. Then an engine for each runtime and device must return the
same answers as the reference.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeGuard

import msgspec

from edged import packages
from edged.backends import registry
from edged.backends.contract import REFERENCE
from edged.config.child_limits import AdmissionLimits, Limits
from edged.device.fingerprint import Fingerprint, devices
from edged.doctor.check import Check, Examination, Name, Report, Result, Step, Tell, ok, unknown, warning, wrong
from edged.doctor.runtimes import broken_runtime, missing_code
from edged.engines.builder import Builder, Task, no_limit
from edged.engines.child import ChildLost, run
from edged.engines.desired import DesiredEngine, desired
from edged.errors import EdgedError, Unsuitable
from edged.ipc import job_messages as jobs
from edged.models.entries import plain_entry
from edged.models.model import Model
from edged.shapes import CLASSES, MODEL_PATH, SAMPLE_SEED, Prediction, Scene, match
from edged.store.judgement import Box
from edged.store.record import EngineRecord
from edged.store.store import Store

_SUBJECT = "reference"
_ALL_SECONDS = 1800.0  # for all runtimes together
_LIMITS = Limits(seconds=300.0, memory_mb=4096)
_ADMISSION = AdmissionLimits(seconds=_LIMITS.seconds)  # the model is known to be good, and a box may be slow
_SECONDS = 600.0  # for one runtime: TensorRT builds for minutes on a small box
_SURE = 0.5  # least score of a detection
_REPORT = "and report the problem: edged report"


class Tried(msgspec.Struct, frozen=True):
    """An engine that was made and compared with the reference.

    Frames per second count inference alone, with as many simultaneous inferences as give the highest rate. `speed` is a
    multiple of the reference's speed for one inference at a time. `throughput` is this multiple for many inferences at
    once. Engine and reference were timed alternately. The last four fields are None if the engine was not timed.
    """

    runtime: str
    version: str
    device: str
    description: str  # of the device
    precision: str
    accepted: bool
    frames_per_s: float | None = None
    reference_frames_per_s: float | None = None
    speed: float | None = None
    throughput: float | None = None


class Outcome(msgspec.Struct, frozen=True):
    """The checks, and the engines that the checks made."""

    report: Report
    tried: tuple[Tried, ...]


async def run_self_check(fingerprint: Fingerprint, tell: Tell, *, is_quick: bool) -> Outcome:
    """Check every runtime, for at most half an hour. `tell` is called with each step when it begins.

    With `is_quick`, nothing is timed, and two runtimes are checked at a time. Runtimes for devices other than the CPU
    are then only loaded, because building for a GPU takes long.
    """
    examination = Examination(asyncio.get_running_loop().time() + _ALL_SECONDS, tell)
    with tempfile.TemporaryDirectory(prefix="edged-self-check-") as folder:
        runtimes = _Runtimes(fingerprint, Path(folder), is_quick)
        checks = await examination.run([runtimes.reference_step()])
        steps = runtimes.steps()
        # Without is_quick, engines are timed. So only one step runs at a time.
        for group in [steps] if is_quick else [[step] for step in steps]:
            checks += await examination.run(group)
    checks = [*unanswered(checks, runtimes.only_loaded), *missing_code(fingerprint.facts)]
    return Outcome(Report(tuple(checks), tuple(examination.left_out)), tuple(runtimes.tried))


class _Runtimes:
    """Makes the steps. When the steps have run, `tried` has the engines that were made. `only_loaded` has the checks of
    runtimes that were loaded but not meant to make an engine."""

    def __init__(self, fingerprint: Fingerprint, folder: Path, is_quick: bool) -> None:
        self._fingerprint, self._is_quick = fingerprint, is_quick
        self._facts = fingerprint.facts
        self._builder = Builder(Store(folder), folder, _LIMITS, _ADMISSION, facts=lambda: fingerprint.facts)
        self._model: Model | None = None
        self.tried: list[Tried] = []
        self.only_loaded: list[Check] = []

    def reference_step(self) -> Step:
        return Step(Name.SELF_CHECK, _SUBJECT, self._ask_reference, _SECONDS, is_heavy=True)

    def steps(self) -> list[Step]:
        """Return a step for each runtime and device for which an engine is made, and for each other installed runtime.
        If the reference has not answered, no engine is made."""
        engines = chosen(desired(self._fingerprint, self._model)) if self._model is not None else ()
        tried = {REFERENCE.backend, *(engine.recipe.backend for engine in engines)}
        spare = [name for name in registry.installed(self._facts) if name not in tried]
        return [*map(self._engine_step, engines), *map(self._spare_step, spare)]

    async def _ask_reference(self) -> list[Check]:
        model = Model.of(plain_entry("shapes", MODEL_PATH, {}), await self._builder.inspect(MODEL_PATH))
        question = jobs.AskPicture(model.order(REFERENCE), model.recognition)
        asked, golden = await asyncio.gather(
            run(question, jobs.AskedPicture, _LIMITS), self._builder.ask_reference(model), return_exceptions=True
        )
        for failure in (asked, golden):
            if _is_late(failure):
                return [late(REFERENCE.backend, failure)]
            if isinstance(failure, EdgedError):
                version = registry.version(REFERENCE.backend, self._facts)
                return [broken_runtime(REFERENCE.backend, version, str(failure), self._facts)]
            if isinstance(failure, BaseException):
                raise failure
        assert isinstance(asked, jobs.AskedPicture)
        self._model = model
        return [reference(registry.version(REFERENCE.backend, self._facts) or "", asked.boxes)]

    def _engine_step(self, engine: DesiredEngine) -> Step:
        backend, device = engine.recipe.backend, engine.recipe.device
        is_loaded_only = self._is_quick and device != "cpu"

        async def ask() -> list[Check]:
            return [await (self._load(backend, device) if is_loaded_only else self._make(engine))]

        return Step(Name.SELF_CHECK, f"{backend} on {device}", ask, _SECONDS, is_heavy=True)

    def _spare_step(self, backend: str) -> Step:
        async def ask() -> list[Check]:
            return [await self._load(backend, "")]

        return Step(Name.SELF_CHECK, backend, ask, _SECONDS, is_heavy=True)

    async def _load(self, backend: str, device: str) -> Check:
        """Check only that a runtime loads. `device` is the device for which an engine would be made without --quick; it
        is empty if no engine would be made for this runtime."""
        version = registry.version(backend, self._facts) or ""
        try:
            loaded = await run(jobs.LoadRuntime(backend), jobs.LoadedRuntime, _LIMITS)
        except EdgedError as error:
            if _is_late(error):
                return late(backend, error)
            return broken_runtime(backend, version, str(error), self._facts)
        if device:
            why = f"to compare its answers on {device}, leave out --quick"
        elif self._model is None:
            why = "the reference gave no answers to compare with"
        else:
            why = "this box has no device for the runtime"
        subject = f"{backend} on {device}" if device else backend
        self.only_loaded.append(unknown(Name.SELF_CHECK, f"version {loaded.version} loads; {why}", subject))
        return self.only_loaded[-1]

    async def _make(self, engine: DesiredEngine) -> Check:
        assert self._model is not None
        recipe, version = engine.recipe, registry.version(engine.recipe.backend, self._facts) or ""
        task = Task(self._model, recipe, engine.key, is_timed=not self._is_quick)
        try:
            if engine.problem:
                raise Unsuitable(engine.problem)
            record = await self._builder.make(task, lambda progress: None, no_limit)
        except EdgedError as error:
            return failed(recipe.backend, recipe.device, version, error)
        found = tried(record, version, self._fingerprint)
        self.tried.append(found)
        return judged(found, record.verdict.reason)


def chosen(wanted: Iterable[DesiredEngine]) -> tuple[DesiredEngine, ...]:
    """Return one engine for each runtime and device. Its precision is fp32 if possible, because differences are then
    the runtime's fault. Otherwise it is the first precision that suits the device."""
    found: dict[tuple[str, str], DesiredEngine] = {}
    for engine in wanted:
        place = engine.recipe.backend, engine.recipe.device
        if not engine.recipe.is_reference and (place not in found or engine.recipe.precision == "fp32"):
            found[place] = engine
    return tuple(found.values())


def reference(version: str, boxes: Sequence[Box]) -> Check:
    """Check that the reference finds all shapes in the drawn picture and no others."""
    names = {name: number for number, name in enumerate(CLASSES)}
    sure = [box for box in boxes if box.score >= _SURE]
    found = [Prediction(names.get(b.label, -1), b.score, b.x1, b.y1, b.x2, b.y2) for b in sure]
    truths = Scene(SAMPLE_SEED).frame(0)[1]
    counts = match(found, truths)
    shapes = f"{len(truths)} shapes in the test picture"
    if counts.fn or counts.fp:
        message = f"onnxruntime {version} finds {counts.tp} of {shapes}, and {counts.fp} shapes that are not in it"
        remedy = f"ONNX Runtime gives wrong results here: {packages.reinstall_runtime(REFERENCE.backend)}, {_REPORT}"
        return wrong(Name.SELF_CHECK, message, remedy, _SUBJECT)
    return ok(Name.SELF_CHECK, f"onnxruntime {version}, unoptimised, finds all {shapes}", _SUBJECT)


def tried(record: EngineRecord, version: str, fingerprint: Fingerprint) -> Tried:
    """Return the description of an engine from the record in the store."""
    recipe = record.recipe
    description = next((d.description for d in devices(fingerprint) if d.name == recipe.device), recipe.device)
    plain = Tried(recipe.backend, version, recipe.device, description, recipe.precision, record.verdict.accepted)
    one, many = record.fastest(), record.fastest(is_busy=True)
    if one is None or many is None:
        return plain
    return msgspec.structs.replace(
        plain,
        frames_per_s=round(1000 / many.interval_ms, 1),
        reference_frames_per_s=round(1000 / many.reference_ms, 1),
        speed=round(one.reference_ms / one.latency_ms, 2),
        throughput=round(many.reference_ms / many.interval_ms, 2),
    )


def unanswered(checks: Iterable[Check], only_loaded: Sequence[Check]) -> list[Check]:
    """Return the checks, with each result `unknown` changed to `wrong`, because the check of that runtime hung or
    failed. The checks in `only_loaded`, of runtimes that were loaded but not run, stay unchanged."""
    remedy = f"see: journalctl -k (perhaps a driver hangs) and edged doctor; {_REPORT}"
    return [
        wrong(check.name, check.message, remedy, check.subject)
        if check.result is Result.UNKNOWN and check not in only_loaded
        else check
        for check in checks
    ]


def judged(found: Tried, reason: str) -> Check:
    """Return the check of an engine that was compared with the reference. `reason` says why an engine was rejected."""
    subject = f"{found.runtime} on {found.device}"
    if not found.accepted:
        driver = "" if found.device == "cpu" else "update the driver of the device, or "
        reinstall = packages.reinstall_runtime(found.runtime)
        remedy = f"edged does not serve with this engine; {driver}reinstall: {reinstall}, {_REPORT}"
        return wrong(
            Name.SELF_CHECK,
            f"version {found.version} gives wrong answers in {found.precision}: {reason}",
            remedy,
            subject,
        )
    message = f"version {found.version} gives the same answers as the reference in {found.precision}"
    if found.speed is not None and found.throughput is not None:
        message += f", {found.speed:g} times as fast for one frame and {found.throughput:g} times as fast for many"
    return ok(Name.SELF_CHECK, message, subject)


def failed(backend: str, device: str, version: str, error: EdgedError) -> Check:
    """Check an engine that could not be made or compared.

    If OpenVINO cannot use an Intel GPU or NPU, the result is a warning. Every OpenVINO wheel contains the code for
    these devices, so a missing driver does not mean that the installation is wrong.
    """
    message, subject = f"version {version} is installed but does not work: {error}", f"{backend} on {device}"
    if _is_late(error):
        return late(subject, error)
    if isinstance(error, Unsuitable) and device.startswith("intel-"):
        remedy = f"install the driver for {device}, or leave this device unused"
        return warning(Name.SELF_CHECK, f"version {version} cannot use {device}: {error}", remedy, subject)
    return wrong(
        Name.SELF_CHECK, message, f"{packages.reinstall_runtime(backend)}, or uninstall it; see: edged doctor", subject
    )


def late(subject: str, error: ChildLost) -> Check:
    """Check a runtime that did not answer within its time limit. This does not show that the installation is wrong,
    because the box may be too busy."""
    return wrong(Name.SELF_CHECK, f"no answer in time: {error}", "run the check again on an idle box", subject)


def _is_late(error: object) -> TypeGuard[ChildLost]:
    return isinstance(error, ChildLost) and error.how == "late"
