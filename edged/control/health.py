"""What is wrong with models and engines now. Looks, and changes nothing but the engines' own memory of their pace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from edged.config import Engines
from edged.control.alarms import Alarm, AlarmKind
from edged.control.plan import PlannedModel
from edged.control.states import EngineState
from edged.model import settings as model_settings

# Settings that may leave a box without a candidate.
_NARROWING = (model_settings.BACKENDS, model_settings.PRECISIONS)
_REBOOT = "the driver's libraries are new and its kernel module is old; nothing is built until the box is rebooted"


class Box(msgspec.Struct, frozen=True):
    """What is no model's affair: the share of the processors in use, why nothing is built, whether a driver waits for a
    reboot, why nothing is tracked. A text is empty where all is well."""

    busy: float = 0.0
    paused: str = ""
    is_reboot_pending: bool = False
    untracked: str = ""


def wrong(models: Iterable[PlannedModel], settings: Engines, now: float, box: Box) -> Iterator[Alarm]:
    """Everything that is wrong. `now` in monotonic seconds."""
    if box.paused:
        yield Alarm(AlarmKind.BUILDS_PAUSED, box.paused)
    if box.is_reboot_pending:
        yield Alarm(AlarmKind.REBOOT_PENDING, _REBOOT)
    if box.untracked:
        yield Alarm(AlarmKind.UNTRACKED, f"cameras that ask for it get no tracker ids: {box.untracked}")
    for planned in models:
        yield from _model(planned, settings, now, box.busy)


def slow_engine(planned: PlannedModel, settings: Engines, now: float) -> tuple[float, float] | None:
    """Milliseconds of inference now and when it was measured, where what serves has been too slow for long enough."""
    current = planned.slot.current
    engine = planned.engines.get(planned.serving or "")
    baseline = engine.record.baseline_ms if engine is not None and engine.record is not None else None
    if current is None or not baseline:
        return None
    lasted = current.pace.slow_for(now, baseline * settings.regression_factor)
    median = current.pace.median(now)
    return (median or 0.0, baseline) if lasted >= settings.regression_seconds else None


def _model(planned: PlannedModel, settings: Engines, now: float, busy: float) -> Iterator[Alarm]:
    name = planned.entry.name
    if planned.problem is not None:
        word = "is not what is served" if planned.serving else "cannot be served"
        yield Alarm(AlarmKind.UNSERVED, f"model {name} {word}: {planned.problem}", name)
    narrowing = [f"{name}={planned.entry.settings[name]}" for name in _NARROWING if name in planned.entry.settings]
    if narrowing and planned.engines and all(engine.recipe.is_reference for engine in planned.engines.values()):
        why = f"{', '.join(narrowing)} leaves nothing that this box can use; change it, or install what it names"
        yield Alarm(AlarmKind.NO_CANDIDATE, f"model {name} is served by the reference alone: {why}", name)
    for key, engine in planned.engines.items():
        if engine.state is EngineState.QUARANTINED and not engine.is_held:
            message = f"model {name}: engine {key[:12]} ({engine.recipe.backend}) is no longer tried: {engine.reason}"
            yield Alarm(AlarmKind.QUARANTINED, f"{message}; see: edged engines rebuild", name, key)
    serving = planned.engines.get(planned.serving or "")
    if serving is not None and serving.record is not None and serving.record.composition.fallback:
        where = f"does not run wholly on {serving.recipe.device}: {'; '.join(serving.record.composition.fallback)}"
        message = f"model {name}: engine {serving.digest[:12]} {where}; see: edged engines show {serving.digest[:12]}"
        yield Alarm(AlarmKind.FALLBACK, message, name, serving.digest)
    slow = slow_engine(planned, settings, now)
    if slow is not None and planned.serving is not None:
        median, baseline = slow
        now_ms = f"{median:.3g} ms" if median else "much longer"
        message = (
            f"model {name}: inference takes {now_ms} instead of {baseline:.3g} ms"
            f" ({median / baseline:.1f}x; the processors are {busy:.0%} busy)"
        )
        yield Alarm(AlarmKind.SLOW, message, name, planned.serving)
