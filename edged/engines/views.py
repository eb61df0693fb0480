"""Describes the actual state to `reconcile` as views: the planned engines, and the engines that serve in the slots."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from edged.backends.contract import ONE_INSTANCE, Parallelism, Recipe
from edged.config import Engines
from edged.device.load import was_loaded
from edged.engines import alarms
from edged.engines.engine import MAKING, EngineState, PlannedEngine
from edged.engines.plan import PlannedModel, is_lowering_due, is_of
from edged.engines.reconcile import EngineView, FallbackView, ModelView
from edged.models import settings as model_settings
from edged.serving.slot import outside
from edged.store.record import EngineRecord
from edged.store.store import Store

_DEFAULT = Engines()


def actual(
    store: Store, models: Iterable[PlannedModel], settings: Engines = _DEFAULT, now: float = 0.0
) -> list[ModelView]:
    """Return a view of every model, after adopting engines that other models or processes stored.

    While a model is being read, `reconcile` makes no engine for the model, and opens none if an engine serves. If the
    host was lost, `reconcile` may open an engine of the model's previous content, provided the engine's files have not
    changed.
    """
    stored = store.records()
    views = []
    for planned in models:
        for key, engine in planned.engines.items():
            record = stored.get(key)
            if record is not None and record != engine.record:
                _take_up(engine, record)
        views.append(_model(planned, alarms.slow_engine(planned, settings, now) is not None, planned.is_busy(now)))
    return views


def _take_up(engine: PlannedEngine, record: EngineRecord) -> None:
    """Apply a stored record to an engine. Models of the same content share engines, so the record may come from another
    model.

    The other model may have another standard for answers. If the engine was judged by the standard of its own model, a
    verdict by another standard is ignored. Otherwise the two models would have the engine made again forever. If the
    files of the engine are missing, the engine is made again. An engine that was given up accepts only a usable record.
    An engine that waits for its next attempt also accepts a rejection.
    """
    same_standard = record.standard == engine.standard or engine.recipe.is_reference
    if engine.is_judged and not same_standard:
        if engine.state is EngineState.READY and not record.files:
            engine.lose()
    elif (
        engine.state in (EngineState.ABSENT, EngineState.READY)
        or (engine.state not in MAKING and record.is_usable)
        or (engine.state is EngineState.FAILED and same_standard and not record.evicted)
    ):
        engine.adopt(record)


def _model(planned: PlannedModel, is_slow: bool, is_busy: bool) -> ModelView:
    fits, current, is_read = planned.fits(), planned.slot.current, planned.is_being_read or planned.is_superseded
    holds = is_read and current is not None
    serving = planned.engines.get(planned.serving or "") if fits else None
    return ModelView(
        name=planned.entry.name,
        engines=tuple(
            _engine(planned, each, is_busy)
            for each in planned.engines.values()
            if not is_read or holds or _has_its_files(planned, each)
        ),
        serving=planned.serving if fits else None,
        edition=current.engine.edition if current is not None and fits else "",
        apart=current.apart if current is not None and fits else "",
        parallelism=current.parallelism if current is not None else ONE_INSTANCE,
        cost=None if serving is None or current is None else cost(planned, serving, is_busy, current.parallelism),
        opening=planned.opening is not None,
        reading=is_read,
        holds=holds,
        superseded=planned.is_superseded,
        outdated=fits and planned.serving not in planned.engines,
        is_slow=is_slow,
        lowering=is_lowering_due(planned),
        is_hopeless=planned.is_hopeless(),
        fallback=_fallback(planned, fits),
    )


def _fallback(planned: PlannedModel, fits: bool) -> FallbackView:
    slot, serving, model = planned.fallback, planned.slot.current, planned.model
    current = slot.current
    return FallbackView(
        is_open=current is not None,
        is_stale=current is not None and (planned.served is None or not is_of(current.engine, planned.served)),
        answered_at=current.health.answered_at if current is not None else 0.0,
        waits=bool(slot.waiting or (current is not None and current.in_flight)),
        opening=planned.fallback_opening is not None,
        open_at=planned.fallback_open_at,
        why=planned.fallback_why,
        problem=str(planned.problem or ""),
        is_settled=model is not None and fits,
        has_defaults=model is not None and bool(model.defaults),
        outside=outside(serving.engine) if serving is not None else "",
    )


def _has_its_files(planned: PlannedModel, engine: PlannedEngine) -> bool:
    """Whether an engine can be opened while the model is being read. This is so if the engine is in the store. It is
    also so if the new version of the model has another path, so that the file of the previous version stays."""
    return engine.is_usable or (planned.model is not None and planned.model.entry.path != planned.entry.path)


def _engine(planned: PlannedModel, engine: PlannedEngine, is_busy: bool) -> EngineView:
    fastest = engine.record.fastest(is_busy=is_busy) if engine.record is not None else None
    return EngineView(
        key=engine.digest,
        recipe=engine.recipe,
        state=engine.state,
        lane=engine.lane,
        usable=engine.is_usable,
        edition=engine.edition,
        apart=engine.apart,
        is_doubted=is_doubted(engine, planned.engines.values()),
        is_outpaced=is_outpaced(engine, planned.engines.values(), is_busy),
        cost=cost(planned, engine, is_busy),
        parallelism=ONE_INSTANCE if fastest is None else fastest.parallelism,
        retry_at=engine.retry_at,
        open_at=math.inf if engine.quarantined else engine.open_at,
        request=engine.request.value,
        was_loaded=engine.record is not None and was_loaded(engine.record.load),
        reviewed_at=engine.reviewed_at,
        adoptable=engine.adoptable,
        failures=engine.failures,
    )


# An engine of a lower precision that the settings do not name must be this many times as fast as a float32 engine.
LEAST_GAIN = 1.3
EXACT = "fp32"


def cost(
    planned: PlannedModel, engine: PlannedEngine, is_busy: bool = False, parallelism: Parallelism | None = None
) -> float | None:
    """Return the time of one inference divided by the reference's, times `LEAST_GAIN` for a lower precision that the
    settings do not name. Use the timing with this `parallelism`. If `parallelism` is None, use the timing that is best
    for latency, or for throughput if the model is busy. Return None if there is no timing, but 1 for a reference, so
    that no slower engine replaces it. A reference may remain untimed, for example if its answers vary from run to
    run."""
    speeds = engine.record.speeds if engine.record is not None else ()
    if not speeds and engine.recipe.is_reference:
        return 1.0
    costs = [each.cost(is_busy=is_busy) for each in speeds if parallelism in (None, each.parallelism)]
    if not costs:
        return None
    return min(costs) * (LEAST_GAIN if _is_unasked(engine.recipe, planned.entry.settings) else 1.0)


def is_doubted(engine: PlannedEngine, engines: Collection[PlannedEngine]) -> bool:
    """Whether an engine of lower precision must not serve although its answers passed. This is so if a float32 engine
    of the same backend and device was rejected, and no other such float32 engine is usable. The reference does not
    count."""
    if engine.recipe.precision == EXACT:
        return False
    place = engine.recipe.backend, engine.recipe.device
    exact = [each for each in engines if (each.recipe.backend, each.recipe.device) == place and _is_exact(each.recipe)]
    return any(e.state is EngineState.REJECTED for e in exact) and not any(e.is_usable for e in exact)


def is_outpaced(engine: PlannedEngine, engines: Collection[PlannedEngine], is_busy: bool = False) -> bool:
    """Whether an engine of lower precision must not serve because it is not faster than the fastest float32 engine that
    can be opened. False if either was not timed."""
    gain = _gain(engine, engines, is_busy)
    return engine.recipe.precision != EXACT and gain is not None and gain <= 1.0


def may_serve(engine: PlannedEngine, engines: Collection[PlannedEngine]) -> bool:
    """Whether an engine may serve if its answers passed."""
    return not is_doubted(engine, engines) and not is_outpaced(engine, engines)


def precision_reason(planned: PlannedModel) -> str:
    """Return in a few words why the serving engine has its precision; empty if no engine serves."""
    serving = planned.engines.get(planned.serving or "")
    if serving is None:
        return ""
    if serving.recipe.precision != EXACT:
        gain = _gain(serving, planned.engines.values())
        asked = not _is_unasked(serving.recipe, planned.entry.settings)
        return "as set" if asked else "results agree" + (f", {gain:.1f}x as fast as fp32" if gain else "")
    reasons = dict[str, str]()
    # If a precision has several engines, the reason of the fastest one is kept, because it comes last.
    for each in sorted(planned.engines.values(), key=lambda each: _gain(each, planned.engines.values()) or 0.0):
        if why := why_not(each, planned):
            reasons[each.recipe.precision] = f"{each.recipe.precision} {why}"
    return "; ".join(["exact", *sorted(reasons.values())])


def why_not(engine: PlannedEngine, planned: PlannedModel) -> str:
    """Return in a few words why an engine of lower precision does not serve; empty for other engines, and if the reason
    is unknown."""
    engines = planned.engines.values()
    if engine.recipe.precision == EXACT or engine.digest == planned.serving:
        return ""
    if engine.state is EngineState.REJECTED:
        return "answers differ"
    if is_doubted(engine, engines):
        return f"not trusted, because {engine.recipe.backend} in fp32 gives wrong answers"
    gain = _gain(engine, engines) if engine.is_usable else None
    if gain is None:
        return ""
    return f"{gain:.1f}x as fast as fp32" + (", not used" if gain <= 1.0 else "")


def _gain(engine: PlannedEngine, engines: Collection[PlannedEngine], is_busy: bool = False) -> float | None:
    """Return how many times as fast an engine is as the fastest float32 engine that can be opened; None if either was
    not timed."""
    own = _fastest(engine, is_busy)
    exact = [_fastest(each, is_busy) for each in engines if each.recipe.precision == EXACT and each.may_open]
    known = [each for each in exact if each is not None]
    return min(known) / own if own and known else None


def _fastest(engine: PlannedEngine, is_busy: bool) -> float | None:
    speed = engine.record.fastest(is_busy=is_busy) if engine.record is not None else None
    return None if speed is None else speed.cost(is_busy=is_busy)


def _is_exact(recipe: Recipe) -> bool:
    return recipe.precision == EXACT and not recipe.is_reference


def _is_unasked(recipe: Recipe, settings: Mapping[str, str]) -> bool:
    return recipe.precision != EXACT and recipe.precision not in (model_settings.precisions(settings) or ())
