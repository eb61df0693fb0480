"""One model: whether it is admitted, whether its file is whole, what its shapes and batch mean to its clients. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from edged.api_types import AlarmInfo, EngineInfo
from edged.backends.contract import REFERENCE, UNOPTIMISED
from edged.config.limits import Limits
from edged.doctor.check import Check, Name, ok, unknown, warning, wrong
from edged.engines.admission import Admission
from edged.engines.child import run
from edged.errors import Unsuitable
from edged.ipc import job_messages as jobs
from edged.models.inspection import Inspection
from edged.models.model import Model
from edged.models.settings import FIGURES
from edged.store.record import Verdict
from edged.verification.shape_range import ShapeRange
from edged.verification.standard import TOLERANCES, Standard, Tolerance, tolerance
from edged.verification.verify import FLOORS


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


_NEAR = 0.8  # of what a figure may be off
# The one is a measure and no figure; the other is kept also of models where it says nothing and decided nothing.
_NOT_JUDGED = ("element", "top1")
# What an engine that serves or could is called.
_GOOD = ("serving", "ready")
_MAKING = ("queued", "building", "verifying")
_REMEDIES = {
    "rejected": "see: edged engines show {key}; loosen verify.* where that is meant, or leave the precision out",
    "quarantined": "edged engines rebuild --engine {key}, once the reason is gone",
    "failed": "it is tried again by itself; or: edged engines rebuild --engine {key}",
    "unsuitable": "change the model's settings, or leave that backend out: backends=…",
    "stale": "none is needed: it gives way when room is; or: edged engines evict --engine {key}",
    "evicted": "edged engines rebuild --engine {key}, or raise engines.budget_mb",
    "absent": "start the daemon, which builds it",
}


def standing(model: str, engines: Collection[EngineInfo], *, by_daemon: bool) -> Iterator[Check]:
    """Judges whether each engine that the model should have is there; those that are not, a line each and why.

    `by_daemon`: a daemon that answers says so, which makes what is missing when it is its turn.
    """
    built = [engine for engine in engines if not _is_reference(engine)]
    good = [engine for engine in built if engine.state in _GOOD]
    coming = [e for e in built if e.state in _MAKING or (by_daemon and e.state == "absent" and not e.reason)]
    for engine in built:
        if engine in good or engine in coming:
            continue
        why = f": {engine.reason}" if engine.reason else ""
        remedies = _REMEDIES | ({"absent": "edged engines rebuild --engine {key}"} if by_daemon else {})
        remedy = remedies.get(engine.state, "see: edged engines show {key}").format(key=engine.key[:12])
        said = f"{_named(engine)} is {engine.state}{why}"
        is_spare = engine.state == "rejected" and engine.precision != "fp32"
        if (is_spare or engine.state in ("stale", "absent", "evicted")) and good:
            yield ok(Name.ENGINE, f"{said}; another engine is there", model)
        else:
            yield warning(Name.ENGINE, said, remedy, model)
    if good:
        best = min(good, key=_rank)
        yield ok(Name.ENGINE, f"{_named(best)} is {best.state} and up to date", model)
    elif not built:
        said = "no engine can be made here, so it is served unoptimised"
        yield warning(Name.ENGINE, said, "see its settings backends and precisions, and what edged device shows", model)
    elif coming:
        said = (
            f"no engine of it is ready yet, so it is served unoptimised; {len(coming)} are made or wait for their turn"
        )
        yield unknown(Name.ENGINE, said, model, "wait; see: edged engines list")
    else:
        yield warning(
            Name.ENGINE,
            "no engine of it is ready, so it is served unoptimised",
            "edged engines rebuild, once what is said above is gone; see: edged engines list",
            model,
        )


def placement(model: str, engines: Iterable[EngineInfo]) -> Check:
    """Judges where the nodes of the engine that serves run, or of the best where none serves."""
    engine = _best(engines)
    if engine is None:
        return unknown(Name.PLACEMENT, "there is no engine to ask", model)
    made = engine.composition
    named = _named(engine)
    if made.fallback:
        said = f"{named} does not run wholly on {engine.device}: {'; '.join(made.fallback)}"
        return warning(
            Name.PLACEMENT, said, f"see: edged engines show {engine.key[:12]}; a newer opset may help", model
        )
    if made.nodes:
        counts = ", ".join(f"{sum(nodes.values())} by {provider}" for provider, nodes in made.nodes.items())
        return ok(Name.PLACEMENT, f"{named} runs its nodes on {engine.device}: {counts}", model)
    return ok(Name.PLACEMENT, f"{named} runs on {engine.device}, and nothing of it elsewhere", model)


def latency(model: str, engines: Iterable[EngineInfo], alarms: Iterable[AlarmInfo]) -> Check:
    """Judges how fast inference is against the reference, and whether it has become slow while serving."""
    slow = next((alarm for alarm in alarms if alarm.kind == "slow" and alarm.model == model), None)
    engine = _best(engines)
    if slow is not None:
        cool = "see the checks of temperature, throttling and power mode, and what else uses the processors"
        return wrong(Name.LATENCY, slow.message, cool, model)
    if engine is None or engine.speed is None:
        return unknown(Name.LATENCY, "no engine of it was timed", model)
    named = _named(engine)
    if _is_reference(engine):
        return ok(Name.LATENCY, f"{named} serves, and nothing faster is there", model)
    said = f"{named} is {engine.speed:.2g} times as fast as the unoptimised model"
    if engine.speed < 1:
        return warning(Name.LATENCY, said, "none is needed: the daemon serves the faster one", model)
    return ok(Name.LATENCY, said, model)


def drift(model: str, engines: Iterable[EngineInfo], settings: Mapping[str, str]) -> Iterator[Check]:
    """Judges how near the figures of accepted engines are to what is allowed: the next driver may push them over."""
    judged = near = 0
    for engine in engines:
        if engine.verdict is None or not engine.verdict.accepted or engine.precision not in TOLERANCES:
            continue
        if _is_reference(engine):
            continue
        judged += 1
        for figure, value, bound in close(engine.verdict.figures, tolerance(settings, engine.precision)):
            near += 1
            said = f"{_named(engine)}: {figure} is {value:.6g} and may be {bound:g}"
            remedy = f"give pictures of your own to judge by (--samples), or leave {engine.precision} out"
            yield warning(Name.DRIFT, said, remedy, model)
    if not judged:
        yield unknown(Name.DRIFT, "no engine of it was accepted yet", model)
    elif not near:
        yield ok(Name.DRIFT, f"all figures of {judged} accepted engines are well within their bounds", model)


def close(figures: Mapping[str, float], held: Tolerance) -> Iterator[tuple[str, float, float]]:
    """The figures that use up most of what their bounds leave, each with its value and its bound."""
    for figure in FIGURES:
        if figure not in figures or figure in _NOT_JUDGED:
            continue
        value, bound = figures[figure], getattr(held, figure)
        off, allowed = (1 - value, 1 - bound) if figure in FLOORS else (value, bound)
        if off > 0 and _NEAR * allowed < off <= allowed:
            yield figure, value, bound


def _best(engines: Iterable[EngineInfo]) -> EngineInfo | None:
    good = [engine for engine in engines if engine.state in _GOOD]
    return min(good, key=_rank, default=None)


def _rank(engine: EngineInfo) -> tuple[bool, float]:
    """What serves before all others, then the fastest against the reference."""
    return engine.state != "serving", -(engine.speed or 0.0)


def _is_reference(engine: EngineInfo) -> bool:
    return engine.parts.get("recipe.optimization") == UNOPTIMISED


def _named(engine: EngineInfo) -> str:
    level = engine.parts.get("recipe.optimization", "")
    made = f"{engine.backend} {engine.precision}" + (f" at level {level}" if engine.backend == "onnxruntime" else "")
    return f"engine {engine.key[:12]} ({made} on {engine.device})"


_PRECISION = "fp32"  # what is rounded on purpose has wider bounds; the optimiser may only reorder sums
_PERFECT = {figure: 1.0 if figure in FLOORS else 0.0 for figure in FIGURES}
_TOLD = ("finite", "relative_l2", "cosine", "unequal")


async def compare_levels(model: Model, limits: Limits) -> jobs.ComparedLevels:
    """Asks every level in one child. EdgedError where the model itself does not answer."""
    job = jobs.CompareLevels(
        model.order(REFERENCE),
        model.recognition,
        Standard.of(model, _PRECISION).tolerance,
        model.samples,
        ShapeRange.of(model),
    )
    return await run(job, jobs.ComparedLevels, limits)


def judge_levels(name: str, found: jobs.ComparedLevels) -> Iterator[Check]:
    """Judges all levels: a line with the figures of each, and the first that changes the answer is the warning."""
    first = next((each for each in found.levels if not each.verdict.accepted), None)
    figures = "; ".join(f"{each.level}: {_figures(each.verdict)}" for each in found.levels)
    if first is None:
        yield ok(Name.LEVELS, f"no level of optimisation changes its answers ({figures})", name)
        return
    said = f"from level {first.level} on the optimiser changes its answers: {first.verdict.reason} ({figures})"
    remedy = (
        "none is needed to serve it: an engine that answers wrongly is rejected and one of a lower level is tried;"
        " export it differently, or loosen verify.* where the difference is meant"
    )
    yield warning(Name.LEVELS, said, remedy, name)


def _figures(verdict: Verdict) -> str:
    known = verdict.figures
    told = [
        f"{figure} {known[figure]:.3g}" for figure in _TOLD if known.get(figure, _PERFECT[figure]) != _PERFECT[figure]
    ]
    return ", ".join(told) or ("equal" if known else "no answer to compare")
