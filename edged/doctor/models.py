"""Checks the models' files. If a daemon answers, also checks what the daemon reports about the models."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from edged.api_types import AlarmInfo, EngineInfo, ModelInfo
from edged.backends import registry
from edged.backends.contract import REFERENCE
from edged.config import Engines
from edged.config.child_limits import Limits
from edged.device.fingerprint import Fingerprint
from edged.doctor.check import Check, Name, Step, ok, unknown, warning, wrong
from edged.doctor.daemon import DaemonState
from edged.doctor.runtimes import Runtimes, model_opset
from edged.engines import report
from edged.engines.admission import Admission, examine
from edged.engines.builder import Builder
from edged.engines.child import run
from edged.engines.plan import PlannedModel, Planner
from edged.engines.report import LANGUAGE
from edged.errors import EdgedError, Unsuitable
from edged.formatting import many
from edged.ipc import job_messages as jobs
from edged.models import collected, language
from edged.models.entries import ModelEntry, outside_entries, plain_entry
from edged.models.inspection import Inspection
from edged.models.model import Model
from edged.models.repository import Repository
from edged.models.settings import FIGURES
from edged.serving.slot import Slot
from edged.store.attempts import AttemptLog
from edged.store.record import Verdict
from edged.store.store import Store
from edged.verification.shape_range import ShapeRange
from edged.verification.standard import TOLERANCES, Tolerance, tolerance, tolerance_of
from edged.verification.verify import FLOORS, NO_VALUES

_ONNX = "ai.onnx"  # the domain of ONNX's own operators
_SECONDS = 240.0
_LIMITS = Limits(seconds=_SECONDS)


class StoreView:
    """The models in a state folder and the engines in a cache folder. Neither folder is changed."""

    def __init__(
        self,
        state: Path,
        cache: Path,
        fingerprint: Fingerprint,
        settings: Engines,
        named: Mapping[str, Path],
    ) -> None:
        """`named` maps the names of models outside the state folder to their paths."""
        self.repository = Repository(state / "models")
        self._named = named
        self.store = Store(cache, is_read_only=True)
        attempts = AttemptLog(cache, is_read_only=True)
        self._planner = Planner(self.store, fingerprint, settings, attempts, partial(collected.find, state))

    def entries(self) -> dict[str, ModelEntry]:
        """Return all models by name."""
        elsewhere = {each.name: each for name, path in self._named.items() for each in outside_entries(name, path)}
        return {**self.repository.entries(), **elsewhere}

    async def plan(self, builder: Builder, entry: ModelEntry) -> PlannedModel:
        """Plan the engines of a model. Raises EdgedError if the model cannot be served."""
        planned = PlannedModel(entry, Slot(entry.name))
        self._planner.plan(planned, await builder.model(entry, await builder.inspect(Path(entry.path))))
        return planned

    def engines(self, planned: PlannedModel) -> tuple[EngineInfo, ...]:
        """Return the engines of a model as a daemon would report them, including stale engines."""
        return tuple(report.engines({planned.entry.name: planned}, self.store, planned.entry.name))

    def latest_time(self) -> float:
        """Return the last time when an engine was built or used, in seconds since the epoch; 0 if never."""
        records = self.store.records()
        made = [record.build.created_unix_s for record in records.values()]
        return max([*made, *(self.store.used(key) for key in records)], default=0.0)


class ModelChecks:
    """Makes the steps that check models. `only` selects one model by its name or file; an empty text selects all.
    `daemon` is a daemon's report; None if no daemon answers."""

    def __init__(
        self,
        view: StoreView,
        daemon: DaemonState | None,
        runtimes: Runtimes,
        fingerprint: Fingerprint,
        scratch: Path,
        only: str = "",
        families: tuple[str, ...] = (),
    ) -> None:
        self._view, self._daemon, self._runtimes, self._only = view, daemon, runtimes, only
        self._installed = registry.usable(fingerprint.facts)
        self._builder = Builder(Store(scratch / "store"), scratch, _LIMITS, families=families)
        self.left_out: list[str] = []
        entries = view.entries()
        reported = {model.name: model for model in daemon.models} if daemon is not None else {}
        if only and only not in entries and only not in reported and Path(only).is_file():
            entries = {only: plain_entry(Path(only).stem, Path(only).absolute(), {})}
        self.names = tuple(name for name in sorted({*entries, *reported}) if only in ("", name))
        self._entries = {name: entries[name] for name in self.names if name in entries}
        self._reported = {name: reported[name] for name in self.names if name in reported}

    def steps(self) -> list[Step]:
        """Return the steps. For each model, one step checks the daemon's report, and another step examines the model's
        file. For a selected model, a third step compares its optimisation levels."""
        steps = []
        for name in self.names:
            if name in self._reported:
                steps.append(_step(Name.MODEL, name, self._examine_reported))
            if name not in self._entries:
                self.left_out.append(
                    f"the file of {name}, and how close its engines are to their bounds of verification:"
                    f" {self._view.repository.root} does not have the file; give --state"
                )
                continue
            if self._entries[name].is_ensemble:
                steps.append(_step(Name.ADMISSION, name, self._examine_ensemble))
                continue
            steps.append(_step(Name.ADMISSION, name, self._examine_file, heavy=True))
            if self._only and not self._entries[name].is_language:
                steps.append(_step(Name.LEVELS, name, self._compare_levels, heavy=True))
        if self._entries and not self._only:
            self.left_out.append("optimisation levels: compared only for a selected model: edged doctor MODEL")
        return steps

    async def _examine_reported(self, name: str) -> list[Check]:
        reported = self._reported[name]
        if reported.parts or reported.family.startswith(LANGUAGE):
            return [state(reported)]
        return [state(reported), *self._engine_checks(name, self._reported_engines(name), reported.alarms)]

    def _reported_engines(self, name: str) -> list[EngineInfo]:
        return [engine for engine in self._daemon.engines if engine.model == name] if self._daemon is not None else []

    async def _examine_ensemble(self, name: str) -> list[Check]:
        """Check that the configuration of an ensemble is valid, and that its models exist."""
        entry, known = self._entries[name], {each.model for each in self._view.entries().values()}
        missing = [step.model for step in entry.steps if step.model not in known]
        problem = entry.problem or (f"it needs model {missing[0]!r}, which does not exist" if missing else "")
        if problem:
            return [wrong(Name.ADMISSION, f"the model cannot be served here: {problem}", _inspect(entry.folder), name)]
        names = ", ".join(dict.fromkeys(step.model for step in entry.steps))
        return [ok(Name.ADMISSION, f"the model is an ensemble of {names}", name)]

    async def _examine_file(self, name: str) -> list[Check]:
        """Check a model's file. If no daemon reports the model, check its engines too."""
        entry = self._entries[name]
        if entry.problem:
            return [
                wrong(Name.ADMISSION, f"the model cannot be served here: {entry.problem}", "change its files", name)
            ]
        if entry.is_language:
            return [await asyncio.to_thread(language_files, name, entry)]
        try:
            found = await examine(self._builder, Path(entry.path), entry.settings, self._installed)
        except EdgedError as error:
            return [wrong(Name.ADMISSION, f"the model cannot be served here: {error}", _inspect(entry.path), name)]
        inspection = found.inspection
        checks = [*admission(name, entry.path, found), *external_data(name, inspection)]
        opset = inspection.opsets.get(_ONNX)
        if opset is not None:
            checks += model_opset(name, opset, inspection.ir_version, self._runtimes.loaded)
        if found.refusal:
            return checks
        planned = await self._view.plan(self._builder, entry)
        if planned.model is not None:
            checks += [shapes(planned.model, is_file=name != entry.name), batch(planned.model)]
            reported = self._reported.get(name)
            engines = self._reported_engines(name) if reported is not None else self._view.engines(planned)
            if reported is None:
                checks += self._engine_checks(name, engines, ())
            settings = reported.settings if reported is not None else entry.settings
            checks += drift(name, engines, settings, inspection.arithmetic)
        return checks

    def _engine_checks(self, name: str, engines: Sequence[EngineInfo], alarms: Sequence[AlarmInfo]) -> Iterator[Check]:
        yield from engine_states(name, engines, by_daemon=name in self._reported)
        yield placement(name, engines)
        yield latency(name, engines, alarms)

    async def _compare_levels(self, name: str) -> list[Check]:
        """Compare all optimisation levels of ONNX Runtime in one child process. Raises EdgedError if the unoptimised
        model does not answer."""
        entry = self._entries[name]
        model = await self._builder.model(entry, await self._builder.inspect(Path(entry.path)))
        job = jobs.CompareLevels(
            model.order(REFERENCE),
            model.recognition,
            tolerance_of(model, _PRECISION),
            model.samples,
            ShapeRange.of(model),
        )
        return list(levels(name, await run(job, jobs.ComparedLevels, _LIMITS)))


def _step(name: Name, model: str, ask: Callable[[str], Awaitable[Sequence[Check]]], *, heavy: bool = False) -> Step:
    return Step(name, model, lambda: ask(model), _SECONDS, is_heavy=heavy)


def _inspect(path: str) -> str:
    """Return a remedy that names the command which shows more about a model's file."""
    return f"see: edged inspect {path}"


def state(reported: ModelInfo) -> Check:
    """Check the state of a model that a daemon reports."""
    by = f" (engine: {reported.backend} {reported.engine[:12]})" if reported.engine else ""
    message = f"the model is {reported.state}{by}" + (f": {reported.reason}" if reported.reason else "")
    if reported.state in ("refused", "failed"):
        return wrong(Name.MODEL, message, f"see: edged models show {reported.name}", reported.name)
    return (ok if reported.state == "ready" else unknown)(Name.MODEL, message, reported.name)


def admission(name: str, path: str, found: Admission) -> Iterator[Check]:
    """Check a model's admission: one line for the result, one for each warning, and one for each backend that cannot
    run the model."""
    if found.refusal:
        yield wrong(Name.ADMISSION, f"the model cannot be served here: {found.refusal}", _inspect(path), name)
        return
    taking = [backend for backend, why in found.backends.items() if not why]
    yield ok(Name.ADMISSION, f"the model can be served here by {', '.join(taking)}", name)
    for each in found.warnings:
        yield warning(Name.ADMISSION, each.message, each.remedy or _inspect(path), name)
    for backend, why in found.backends.items():
        if why:
            yield unknown(Name.ADMISSION, f"not applicable: {backend} cannot run the model: {why}", name)


def language_files(name: str, entry: ModelEntry) -> Check:
    """Check the files and settings of a language model."""
    try:
        files = language.check(Path(entry.path), entry.settings)
    except EdgedError as error:
        return wrong(Name.ADMISSION, f"the model cannot be served here: {error}", "see docs/language.md", name)
    runtimes = " or ".join(form.runtime for form in files.forms)
    return ok(Name.ADMISSION, f"the model is a language model ({files.kind}) for {runtimes}", name)


def external_data(name: str, inspection: Inspection) -> Iterator[Check]:
    """Check the files with a model's external data."""
    files = inspection.external
    bad = [file.problem for file in files if file.problem]
    for problem in bad:
        remedy = "export the model again and copy it with all its files, or save it in one file"
        yield wrong(Name.EXTERNAL_DATA, problem, remedy, name)
    if not files:
        yield ok(Name.EXTERNAL_DATA, "the model has no external data: it is one file", name)
    elif not bad:
        size = sum(file.size for file in files) / 1e6
        yield ok(Name.EXTERNAL_DATA, f"external data is complete: {many(len(files), 'file')} with {size:.1f} MB", name)


def shapes(model: Model, *, is_file: bool = False) -> Check:
    """Check whether a range of shapes is known for a model with open dimensions, since some engines are built for a
    range. `is_file`: the model is a file that was not added yet."""
    dynamic = [spec for spec in model.inspection.signature.inputs if not spec.is_static]
    if not dynamic:
        return ok(Name.SHAPES, "every input has a fixed size", model.name)
    named = ", ".join(f"{spec.name}[{','.join(map(str, spec.shape))}]" for spec in dynamic)
    try:
        profile = model.profile
    except Unsuitable as error:
        ranges = [f"'profile.{spec.name}=SMALLEST USUAL LARGEST'" for spec in dynamic]
        words = f"add NAME FILE --set {' --set '.join(ranges)}" if is_file else f"set {model.name} {' '.join(ranges)}"
        message = f"{named} has no fixed size, and no range of sizes is set: {error}"
        remedy = f"set the range, with sizes such as 1x3x320x320: edged models {words}"
        return warning(Name.SHAPES, message, remedy, model.name)
    return ok(Name.SHAPES, f"{named}: engines are built for {profile}", model.name)


def batch(model: Model) -> Check:
    """Check how many pictures the model accepts at once."""
    if model.max_batch_size:
        return ok(Name.BATCH, f"the model takes batches of up to {model.max_batch_size}", model.name)
    sizes = [spec.shape[0] for spec in model.inspection.signature.inputs if len(spec.shape) == 4]
    fixed = [size for size in sizes if isinstance(size, int) and size > 1]
    if fixed:
        message = f"the model always takes {fixed[0]} pictures, so a single frame costs as much as {fixed[0]} frames"
        return warning(Name.BATCH, message, "export the model with batch size 1 or a dynamic batch size", model.name)
    if sizes:
        return ok(Name.BATCH, "the model takes one picture at a time", model.name)
    return unknown(Name.BATCH, "not applicable: the model takes no batches", model.name)


_NEAR = 0.8  # share of the allowed difference from the perfect value; a figure above it is near its bound
# `element` is a setting for other figures, not a bound; `top1` is recorded even for models that are not judged by it.
_NOT_JUDGED = ("element", "top1")
_GOOD = ("serving", "ready")  # states of engines that answer
_MAKING = ("queued", "building", "verifying")
_REMEDIES = {
    "rejected": "see: edged engines show {key}; loosen verify.* if its answers are acceptable, or leave out the"
    " precision",
    "quarantined": "remove the cause, then: edged engines rebuild --engine {key}",
    "failed": "wait for the next attempt, or: edged engines rebuild --engine {key}",
    "unsuitable": "change the model's settings, or leave out this backend: backends=…",
    "stale": "do nothing: edged evicts the engine when space is needed; or: edged engines evict --engine {key}",
    "evicted": "edged engines rebuild --engine {key}, or raise engines.budget_mb",
    "absent": "start the daemon, which builds the engine",
}


def engine_states(model: str, engines: Collection[EngineInfo], *, by_daemon: bool) -> Iterator[Check]:
    """Check that the model's engines can serve. Yield a check with the reason for each engine that cannot.

    `by_daemon` means that a running daemon reports the engines; the daemon builds missing engines later.
    """
    built = [engine for engine in engines if not engine.is_reference]
    good = [engine for engine in built if engine.state in _GOOD]
    coming = [e for e in built if e.state in _MAKING or (by_daemon and e.state == "absent" and not e.reason)]
    remedies = _REMEDIES | ({"absent": "edged engines rebuild --engine {key}"} if by_daemon else {})
    for engine in built:
        if engine in good or engine in coming:
            continue
        message = f"{_named(engine)} is {engine.state}" + (f": {engine.reason}" if engine.reason else "")
        is_spare = engine.state == "rejected" and engine.precision != "fp32"
        if good and (is_spare or engine.state in ("stale", "absent", "evicted")):
            yield ok(Name.ENGINE, f"{message}; another engine is available", model)
        else:
            remedy = remedies.get(engine.state, "see: edged engines show {key}").format(key=engine.key[:12])
            yield warning(Name.ENGINE, message, remedy, model)
    if good:
        best = min(good, key=_rank)
        yield ok(Name.ENGINE, f"{_named(best)} is {best.state} and up to date", model)
    elif not built:
        message = "no engine can be built here, so the model is served unoptimised"
        remedy = "see the model's settings 'backends' and 'precisions', and the output of: edged device"
        yield warning(Name.ENGINE, message, remedy, model)
    elif coming:
        making = f"{many(len(coming), 'engine')} {'is' if len(coming) == 1 else 'are'} being built or queued"
        message = f"no engine is ready yet, so the model is served unoptimised; {making}"
        remedy = "wait until an engine is ready; to see the progress: edged engines list"
        yield unknown(Name.ENGINE, message, model, remedy)
    else:
        message = "no engine is ready, so the model is served unoptimised"
        remedy = f"remove the causes above, then: edged engines rebuild {model}"
        yield warning(Name.ENGINE, message, remedy, model)


def placement(model: str, engines: Iterable[EngineInfo]) -> Check:
    """Check which devices run the nodes of the serving engine. If no engine serves, check the fastest ready engine."""
    engine = _best(engines)
    if engine is None:
        return unknown(Name.PLACEMENT, "the model has no engine to check", model)
    made, named = engine.composition, _named(engine)
    if made.fallback:
        message = f"{named} runs only partly on {engine.device}: {'; '.join(made.fallback)}"
        remedy = f"see: edged engines show {engine.key[:12]}; a newer opset may help"
        return warning(Name.PLACEMENT, message, remedy, model)
    if made.nodes:
        counts = ", ".join(f"{sum(nodes.values())} by {provider}" for provider, nodes in made.nodes.items())
        return ok(Name.PLACEMENT, f"{named} runs its nodes on {engine.device}: {counts}", model)
    return ok(Name.PLACEMENT, f"{named} runs entirely on {engine.device}", model)


def latency(model: str, engines: Iterable[EngineInfo], alarms: Iterable[AlarmInfo]) -> Check:
    """Check how fast the serving engine is relative to the reference, and whether the engine became slow while serving.
    If no engine serves, check the fastest ready engine."""
    slow = next((alarm for alarm in alarms if alarm.kind == "slow" and alarm.model == model), None)
    if slow is not None:
        remedy = "see the checks temperature, throttling and power_mode, and other programs that use the processors"
        return wrong(Name.LATENCY, slow.message, remedy, model)
    engine = _best(engines)
    if engine is None or engine.speed is None:
        return unknown(Name.LATENCY, "no engine of the model was timed", model)
    if engine.is_reference:
        return ok(Name.LATENCY, f"{_named(engine)} is the fastest engine", model)
    message = f"{_named(engine)} is {engine.speed:.2g} times as fast as the unoptimised model"
    if engine.speed < 1:
        return warning(Name.LATENCY, message, "do nothing: the daemon serves the faster of the two", model)
    return ok(Name.LATENCY, message, model)


def drift(model: str, engines: Iterable[EngineInfo], settings: Mapping[str, str], arithmetic: str) -> Iterator[Check]:
    """Check how close the verification figures of accepted engines are to their bounds, since an update may push a
    figure over its bound. Warn of engines whose answers could not be compared."""
    judged = near = 0
    for engine in engines:
        if engine.verdict is None or not engine.verdict.accepted or engine.precision not in TOLERANCES:
            continue
        if engine.is_reference:
            continue
        judged += 1
        if NO_VALUES in engine.verdict.figures:
            near += 1
            message = f"{_named(engine)} was not compared: the reference's answers to all probes are empty or NaN"
            remedy = f"add samples on which the model finds something: {_add_samples(model)}"
            yield warning(Name.DRIFT, message, remedy, model)
            continue
        held = tolerance(settings, engine.precision, arithmetic, judged_on_frames=engine.judgement is not None)
        for figure, value, bound in close_figures(engine.verdict.figures, held):
            near += 1
            message = f"{_named(engine)}: figure {figure} is {value:.6g}, close to its bound {bound:g}"
            remedy = f"add your own pictures: {_add_samples(model)}; or leave out the precision {engine.precision}"
            yield warning(Name.DRIFT, message, remedy, model)
    if not judged:
        yield unknown(Name.DRIFT, "no engine of the model has passed its verification yet", model)
    elif not near:
        known = many(judged, "accepted engine")
        message = f"the answers of {known} differ from the reference's by at most {_NEAR:.0%} of what is allowed"
        yield ok(Name.DRIFT, message, model)


def _add_samples(model: str) -> str:
    return f"edged models add {model} FILE --replace --samples PICTURES"


def close_figures(figures: Mapping[str, float], held: Tolerance) -> Iterator[tuple[str, float, float]]:
    """Yield the verification figures that are within their bound but close to it: name, value and bound."""
    for figure in FIGURES:
        if figure not in figures or figure in _NOT_JUDGED:
            continue
        value, bound = figures[figure], getattr(held, figure)
        off, allowed = (1 - value, 1 - bound) if figure in FLOORS else (value, bound)
        if off > 0 and _NEAR * allowed < off <= allowed:
            yield figure, value, bound


def _best(engines: Iterable[EngineInfo]) -> EngineInfo | None:
    return min((engine for engine in engines if engine.state in _GOOD), key=_rank, default=None)


def _rank(engine: EngineInfo) -> tuple[bool, float]:
    """Return a sort key that puts serving engines first, and faster engines before slower ones."""
    return engine.state != "serving", -(engine.speed or 0.0)


def _named(engine: EngineInfo) -> str:
    level = engine.parts.get("recipe.optimization", "")
    made = f"{engine.backend} {engine.precision}" + (f" at level {level}" if engine.backend == "onnxruntime" else "")
    return f"engine {engine.key[:12]} ({made} on {engine.device})"


_PRECISION = "fp32"  # the optimiser may only reorder sums; lower precisions have wider bounds
_PERFECT = {figure: 1.0 if figure in FLOORS else 0.0 for figure in FIGURES}
_SHOWN = ("finite", "relative_l2", "cosine", "unequal")


def levels(name: str, found: jobs.ComparedLevels) -> Iterator[Check]:
    """Yield one check with the verification figures of all optimisation levels. The check is a warning if a level
    changes the answers."""
    first = next((each for each in found.levels if not each.verdict.accepted), None)
    figures = "; ".join(f"{each.level}: {_figures(each.verdict)}" for each in found.levels)
    if first is None:
        yield ok(Name.LEVELS, f"no optimisation level changes the answers ({figures})", name)
        return
    message = f"from level {first.level}, the optimiser changes the answers: {first.verdict.reason} ({figures})"
    remedy = (
        "do nothing: edged rejects an engine with wrong answers and tries a lower level; for the higher level,"
        " export the model differently, or loosen verify.* if the difference is acceptable"
    )
    yield warning(Name.LEVELS, message, remedy, name)


def _figures(verdict: Verdict) -> str:
    known = verdict.figures
    shown = [f"{name} {known[name]:.3g}" for name in _SHOWN if known.get(name, _PERFECT[name]) != _PERFECT[name]]
    return ", ".join(shown) or ("equal" if known else "no answer to compare")
