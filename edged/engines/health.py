"""What is wrong with models and engines now. Looks, and changes nothing but the engines' own memory of their pace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from edged.config import Engines, Health
from edged.engines.alarms import Alarm, AlarmKind
from edged.engines.plan import PlannedModel
from edged.engines.readiness import ReadyState, readiness
from edged.engines.states import EngineState
from edged.models import settings as model_settings

# Settings that may leave a box without a candidate.
_NARROWING = (model_settings.BACKENDS, model_settings.PRECISIONS)
_NOTICEABLE_MS = 1.0  # microseconds more are what a busy box costs, whatever multiple of the engine's own they are
_REPEATED = 2  # errors of a disk in a row: one may pass
_REBOOT = "the driver's libraries are new and its kernel module is old; nothing is built until the box is rebooted"


class Box(msgspec.Struct, frozen=True):
    """What is no model's affair: the share of the processors in use, why nothing is built, whether a driver waits for a
    reboot, why nothing is tracked, why the state folder cannot be written. A text is empty where all is well."""

    busy: float = 0.0
    paused: str = ""
    is_reboot_pending: bool = False
    untracked: str = ""
    state: str = ""


def wrong(
    models: Iterable[PlannedModel], settings: Engines, now: float, box: Box, asking: Health | None = None
) -> Iterator[Alarm]:
    """Everything that is wrong. `now` in monotonic seconds; `asking` says how many probes must fail."""
    if box.paused:
        yield Alarm(AlarmKind.BUILDS_PAUSED, box.paused)
    if box.state:
        what = "models cannot be added or removed, and what operators do is not recorded; what is there is served"
        yield Alarm(AlarmKind.STATE_UNWRITABLE, f"{box.state}: {what}; mount it read-write, or name another --state")
    if box.is_reboot_pending:
        yield Alarm(AlarmKind.REBOOT_PENDING, _REBOOT)
    if box.untracked:
        yield Alarm(AlarmKind.UNTRACKED, f"cameras that ask for it get no tracker ids: {box.untracked}")
    models = tuple(models)
    met = (engine for planned in models for engine in planned.engines.values())
    if failing := next((engine.disk for engine in met if engine.disk_failures >= _REPEATED), ""):
        yield Alarm(AlarmKind.DISK_FAILING, f"engines cannot be made or opened: {failing}")
    for planned in models:
        yield from _model(planned, settings, now, box.busy)
        yield from _placement(planned)
        ready = readiness(planned, asking or Health())
        if ready.state is ReadyState.FAILING:
            message = f"model {planned.entry.name} is not ready: {ready.reason}; see: edged events"
            yield Alarm(AlarmKind.FAILING, message, planned.entry.name, planned.serving or "")


def slow_engine(planned: PlannedModel, settings: Engines, now: float) -> tuple[float, float] | None:
    """Milliseconds of inference now and at its best while serving, where what serves has been too slow for long enough.

    What was measured of it when it was built is no measure: then it ran in a child of low priority.
    """
    current = planned.slot.current
    engine = planned.engines.get(planned.serving or "")
    if current is None or engine is None:
        return None
    median = current.pace.median(now)
    if median is not None:
        engine.paced(median)
    baseline = engine.usual_ms
    if not baseline:
        return None
    lasted = current.pace.slow_for(now, max(baseline * settings.regression_factor, baseline + _NOTICEABLE_MS))
    return (median or 0.0, baseline) if lasted >= settings.regression_seconds else None


def _model(planned: PlannedModel, settings: Engines, now: float, busy: float) -> Iterator[Alarm]:
    name = planned.entry.name
    if planned.problem is not None:
        word = "is not what is served" if planned.serving else "cannot be served"
        yield Alarm(AlarmKind.UNSERVED, f"model {name} {word}: {planned.problem}", name)
    narrowing = [f"{name}={planned.entry.settings[name]}" for name in _NARROWING if name in planned.entry.settings]
    if narrowing and planned.engines and all(engine.recipe.is_reference for engine in planned.engines.values()):
        why = f"{', '.join(narrowing)} names nothing that this box can use; change it, or install what it names"
        yield Alarm(AlarmKind.NO_CANDIDATE, f"model {name} is served by the unoptimised engine only: {why}", name)
    for key, engine in planned.engines.items():
        if engine.state is EngineState.QUARANTINED and not engine.is_held:
            message = f"model {name}: engine {key[:12]} ({engine.recipe.backend}) is no longer tried: {engine.reason}"
            yield Alarm(AlarmKind.QUARANTINED, f"{message}; see: edged engines rebuild", name, key)
        if engine.mismatch:
            told = f"model {name}: engine {key[:12]} ({engine.recipe.backend}) of the store is not this model's"
            how = f"{engine.mismatch}; it does not serve and is to be built again; see who may write the cache folder"
            yield Alarm(AlarmKind.ENGINE_MISMATCH, f"{told}: {how}", name, key)
        if engine.barred:
            message = (
                f"model {name}: engine {key[:12]} ({engine.recipe.backend}) is not opened any more: {engine.barred}"
            )
            yield Alarm(AlarmKind.QUARANTINED, f"{message}; see: edged engines rebuild", name, key)
    if planned.quarantine:
        yield Alarm(AlarmKind.QUARANTINED, f"model {name} is not served: none of its engines is opened any more", name)
    spells = planned.slot.finite.spells(now)
    if spells:
        told = "; ".join(
            f"output {each.output!r} in {each.bad} of {each.answers} answers, first {now - each.began:.0f} s ago and"
            f" last {now - each.last:.0f} s ago"
            for each in spells
        )
        yield Alarm(AlarmKind.NOT_FINITE, f"model {name} answers with NaN or infinity: {told}", name)
    slow = slow_engine(planned, settings, now)
    if slow is not None and planned.serving is not None:
        median, baseline = slow
        told = f"took much longer than {baseline:.3g} ms, and there was none for a while"
        if median:
            times = f"{median / baseline:.1f}x; the processors are {busy:.0%} busy"
            told = f"takes {median:.3g} ms instead of {baseline:.3g} ms ({times})"
        yield Alarm(AlarmKind.SLOW, f"model {name}: inference {told}", name, planned.serving)


def _placement(planned: PlannedModel) -> Iterator[Alarm]:
    """Engines of which not all runs where it should: what serves, as it was built; any, as it came up when opened."""
    for key, engine in planned.engines.items():
        is_serving = key == planned.serving
        built = engine.record.composition.fallback if engine.record is not None and is_serving else ()
        if not built and not engine.astray:
            continue
        where = f"does not run wholly on {engine.recipe.device}: {'; '.join((*built, *engine.astray))}"
        unused = "" if is_serving else "; it does not serve"
        message = f"model {planned.entry.name}: engine {key[:12]} {where}{unused}; see: edged engines show {key[:12]}"
        yield Alarm(AlarmKind.FALLBACK, message, planned.entry.name, key)
