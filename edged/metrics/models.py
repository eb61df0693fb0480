"""Metrics of the models: whether they answer, what of, how fast."""

from __future__ import annotations

import re

from edged.engines.alarms import Alarm
from edged.engines.plan import PlannedModel
from edged.engines.readiness import Readiness, ReadyState
from edged.ipc.finite import watched
from edged.metrics import names
from edged.metrics.sheet import Sheet

_HUMP = re.compile(r"(?<!^)(?=[A-Z])")


def collect(sheet: Sheet, name: str, planned: PlannedModel, ready: Readiness, alarms: tuple[Alarm, ...]) -> None:
    """One model, with all alarms there are."""
    slot, statistics = planned.slot, planned.slot.statistics
    sheet.put(names.MODEL_READY, ready.is_ready, name)
    for state in ReadyState:
        sheet.put(names.MODEL_STATE, state is ready.state, name, state.value)
    for alarm in alarms:
        if alarm.model == name:
            sheet.put(names.MODEL_DEGRADED, 1, name, alarm.kind.value)
    sheet.put(names.MODEL_REQUESTS, statistics.success.count, name, "success")
    for error, count in statistics.failures.items():
        sheet.put(names.MODEL_REQUESTS, count, name, outcome(error))
    for output in _watched(planned):
        sheet.put(names.MODEL_NOT_FINITE, 0, name, output)
    for output, count in slot.finite.counts.items():
        sheet.put(names.MODEL_NOT_FINITE, count, name, output)
    sheet.put(names.MODEL_WAITING, slot.waiting, name)
    sheet.spread(names.MODEL_INFERENCE, statistics.infer_seconds, name)
    sheet.spread(names.MODEL_REQUEST, statistics.request_seconds, name)
    sheet.put(names.MODEL_LAST, statistics.last_inference_ms / 1e3, name)
    sheet.put(names.MODEL_SWAPS, slot.swaps, name)


def _watched(planned: PlannedModel) -> tuple[str, ...]:
    """Outputs that are looked at for NaN and infinity."""
    model = planned.answering
    return tuple(s.name for s in watched(model.limits, model.inspection.signature.outputs)) if model else ()


def outcome(error: str) -> str:
    """An error's class as a label's value: `EngineUnusable` is `engine_unusable`."""
    return _HUMP.sub("_", error).lower()
