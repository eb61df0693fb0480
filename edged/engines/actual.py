"""The actual state, as views for `reconcile`: engines in the store and in the making, and what the slots serve."""

from __future__ import annotations

import math
from collections.abc import Iterable

from edged.config import Engines
from edged.device.load import was_loaded
from edged.engines import alarms, preference
from edged.engines.plan import PlannedEngine, PlannedModel
from edged.engines.planner import is_lowering_due
from edged.engines.reconcile import EngineView, ModelView
from edged.engines.states import MAKING, EngineState
from edged.store.record import EngineRecord
from edged.store.store import Store

_DEFAULT = Engines()


def actual(
    store: Store, models: Iterable[PlannedModel], settings: Engines = _DEFAULT, now: float = 0.0
) -> list[ModelView]:
    """Return a view of every model, after taking in engines that others brought into the store.

    For a model that is being read nothing is made, and nothing is opened while it is served. If its host was lost, the
    previous model answers again, from files that have not changed.
    """
    stored = store.records()
    views = []
    for planned in models:
        for key, engine in planned.engines.items():
            record = stored.get(key)
            if record is not None and record != engine.record:
                _take_up(engine, record)
        if not planned.is_being_read or planned.slot.current is None:
            views.append(_model(planned, alarms.slow_engine(planned, settings, now) is not None))
    return views


def _take_up(engine: PlannedEngine, record: EngineRecord) -> None:
    """Take in what the store holds: models of the same content share engines, made for any of them.

    An engine judged by the model's own standard ignores verdicts by another model's, otherwise the two would have it
    made again in turns; but without files it has to be made again. An engine that is given up takes only a usable
    record, one that waits for its next attempt also a rejection.
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


def _model(planned: PlannedModel, is_slow: bool) -> ModelView:
    fits, current, is_read = planned.fits(), planned.slot.current, planned.is_being_read
    return ModelView(
        name=planned.entry.name,
        engines=tuple(
            _engine(planned, each) for each in planned.engines.values() if not is_read or _has_its_files(planned, each)
        ),
        serving=planned.serving if fits else None,
        edition=current.edition if current is not None and fits else "",
        apart=current.apart if current is not None and fits else "",
        opening=planned.opening is not None,
        reading=is_read,
        outdated=fits and planned.serving not in planned.engines,
        is_slow=is_slow,
        lowering=is_lowering_due(planned),
    )


def _has_its_files(planned: PlannedModel, engine: PlannedEngine) -> bool:
    """Whether an engine can be opened while another model is being read: it is in the store, or another version, in
    another file, is being read."""
    return engine.is_usable or (planned.model is not None and planned.model.entry.path != planned.entry.path)


def _engine(planned: PlannedModel, engine: PlannedEngine) -> EngineView:
    return EngineView(
        key=engine.digest,
        recipe=engine.recipe,
        state=engine.state,
        lane=engine.lane,
        usable=engine.is_usable,
        edition=engine.edition,
        apart=engine.apart,
        is_doubted=preference.is_doubted(engine, planned.engines.values()),
        cost=preference.cost(engine, planned.entry.settings),
        retry_at=engine.retry_at,
        open_at=math.inf if engine.quarantined else engine.open_at,
        request=engine.request.value,
        was_loaded=engine.record is not None and was_loaded(engine.record.load),
        reviewed_at=engine.reviewed_at,
        trial=engine.trial,
        failures=engine.failures,
    )
