"""The engines of one model: is the best one there, does it run where it should, how fast, and how far from the edge of
what its answers may be. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from edged.api_types import AlarmInfo, EngineInfo
from edged.backends.contract import UNOPTIMISED
from edged.doctor.check import Check, Name, ok, unknown, warning, wrong
from edged.models.settings import FIGURES
from edged.verification.standard import TOLERANCES, Tolerance, tolerance
from edged.verification.verify import FLOORS

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
