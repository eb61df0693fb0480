"""Metrics of the engines that the models should have."""

from __future__ import annotations

from edged.engines.plan import PlannedModel
from edged.metrics import names
from edged.metrics.sheet import Sheet

_SHORT = 12  # characters of a key, as everywhere where people read it


def collect(sheet: Sheet, name: str, planned: PlannedModel) -> None:
    """One model's. An engine of the device as it was serves under its key, too, and is in no plan."""
    for key, engine in planned.engines.items():
        who = (name, key[:_SHORT], engine.recipe.backend)
        sheet.put(names.ENGINE_STATE, 1, *who, engine.state.value)
        sheet.put(names.ENGINE_SERVING, key == planned.serving, *who)
        record = engine.record
        if record is not None:
            sheet.put(names.ENGINE_ACCEPTED, record.verdict.accepted, *who)
            if record.cost is not None:
                sheet.put(names.ENGINE_COST, record.cost, *who)
        if engine.usual_ms:
            sheet.put(names.ENGINE_BASELINE, engine.usual_ms / 1e3, *who)
        built = record.composition.fallback if record is not None else ()
        sheet.put(names.ENGINE_FALLBACK, len(built) + len(engine.misplaced), *who)
    current = planned.slot.current
    if current is not None and current.engine.key not in planned.engines:
        sheet.put(names.ENGINE_SERVING, 1, name, current.engine.key[:_SHORT], current.engine.backend)
