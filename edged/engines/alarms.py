"""Alarms: current problems that are reported to operators. Alarms are level-triggered: each turn of the control loop
finds all problems. The turn raises an alarm for each new problem, and clears the alarm of each problem that is over."""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec

from edged.config import Engines, Health
from edged.engines.engine import EngineState
from edged.engines.ensembles import PlannedEnsemble, ensemble_readiness
from edged.engines.plan import PlannedModel
from edged.engines.readiness import ReadyState, readiness
from edged.events import AlarmCleared, AlarmRaised, EventLog
from edged.fleet.sharing import EngineSharing
from edged.language.describe import Describer
from edged.language.models import LanguageModels
from edged.models import settings as model_settings

_LOG = logging.getLogger("edged.alarms")
# Settings that may exclude every engine that the box could build.
_NARROWING = (model_settings.BACKENDS, model_settings.PRECISIONS)
_NOTICEABLE_MS = 1.0  # a smaller difference is noise, even if it is a large multiple of a short inference time
_REPEATED = 2  # disk errors in a row; a single error may be temporary
_REBOOT = "the NVIDIA driver's libraries do not match its loaded kernel module; no engine is built until a reboot"


class AlarmKind(str, enum.Enum):
    """The kinds of alarms. The value names the kind in events, logs and reports."""

    SLOW = "slow"  # an engine takes much longer than when it was measured
    QUARANTINED = "quarantined"  # an engine failed too often, or killed its host too often, and is no longer tried
    ENGINE_MISMATCH = "engine_mismatch"  # an engine of the store did not answer as its model's reference did
    NOT_FINITE = "not_finite"  # an output of a model held NaN or infinity
    BUILDS_PAUSED = "builds_paused"  # no engine can be made: the store cannot be written, or too little disk is free
    DISK_FAILING = "disk_failing"  # repeated disk errors while engines are made or opened
    STATE_UNWRITABLE = "state_unwritable"  # the folder of models and settings cannot be written
    REBOOT_PENDING = "reboot_pending"  # the driver's libraries and its kernel module have different versions
    UNSERVED = "unserved"  # a model cannot be served, or a rule `describe.NAME` gives no description
    NO_CANDIDATE = "no_candidate"  # a model's settings allow only its reference here, or name precisions that none has
    UNTRACKED = "untracked"  # cameras request tracking, and the tracker does not work
    FAILING = "failing"  # a serving engine no longer answers
    CERTIFICATE = "certificate"  # the daemon's certificate is invalid or expires soon
    TOKENS = "tokens"  # the token file cannot be used
    AUDIT = "audit"  # the audit log cannot be written, or its files cannot be rotated
    CAMERA_LOST = "camera_lost"  # a configured camera gives no frames
    CAMERA_DARK = "camera_dark"  # the picture of a configured camera is black
    CAMERA_FROZEN = "camera_frozen"  # the picture of a configured camera does not change
    ANSWERS_DRIFT = "answers_drift"  # answers differ from the reference's, or a camera's pictures from the usual ones
    FALLBACK = "fallback"  # nodes of an engine, or a language model, run on another device than intended
    FLEET = "fleet"  # the shared store of engines, or an engine in it, cannot be used


Subject: TypeAlias = tuple[AlarmKind, str, str, str]


class Alarm(msgspec.Struct, frozen=True):
    """One alarm, with the model, the engine's key and the camera that it concerns, if any."""

    kind: AlarmKind
    message: str
    model: str = ""
    engine: str = ""
    since_unix_s: float = 0.0
    camera: str = ""

    @property
    def subject(self) -> Subject:
        """The fields that identify the alarm. They do not include the message, because the message may change while the
        alarm lasts."""
        return self.kind, self.model, self.engine, self.camera


class Alarms:
    """The alarms that are raised now."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._active: dict[Subject, Alarm] = {}

    def active(self) -> tuple[Alarm, ...]:
        """Return the alarms that are raised, the oldest first."""
        return tuple(self._active.values())

    def update(self, wrong: Iterable[Alarm]) -> None:
        """Raise the alarms in `wrong`, and clear all others."""
        now = {alarm.subject: alarm for alarm in wrong}
        for subject in [subject for subject in self._active if subject not in now]:
            alarm = self._active.pop(subject)
            _LOG.info("cleared: %s", alarm.message, extra=_about(alarm, AlarmCleared))
            self._events.emit(AlarmCleared(alarm.kind.value, alarm.message), alarm.model, alarm.engine)
        for subject, alarm in now.items():
            known = self._active.get(subject)
            since = known.since_unix_s if known else time.time()
            self._active[subject] = msgspec.structs.replace(alarm, since_unix_s=since)
            if known is None:
                _LOG.warning("%s", alarm.message, extra=_about(alarm, AlarmRaised))
                self._events.emit(AlarmRaised(alarm.kind.value, alarm.message), alarm.model, alarm.engine)


def _about(alarm: Alarm, event: type[AlarmRaised | AlarmCleared]) -> dict[str, str]:
    """Return the structured fields of a log line about an alarm. The field `event` has the name of the event type in
    the event stream."""
    named = {"event": str(event.__struct_config__.tag), "alarm": alarm.kind.value}
    return {**named, "model": alarm.model, "engine": alarm.engine[:12]}


class Box(msgspec.Struct, frozen=True):
    """The state of the whole box.

    busy: the share of the processors in use, 0 to 1. paused: why nothing is built. is_reboot_pending: a new driver
    needs a reboot. untracked: why the tracker of objects does not work. state: why the state folder cannot be written.
    The texts `paused`, `untracked` and `state` are empty if there is no such problem.
    """

    busy: float = 0.0
    paused: str = ""
    is_reboot_pending: bool = False
    untracked: str = ""
    state: str = ""


def of_sharing(sharing: EngineSharing) -> Iterator[Alarm]:
    """Yield an alarm for each problem of the shared store."""
    for trouble in sharing.troubles():
        yield Alarm(AlarmKind.FLEET, trouble.message, engine=trouble.engine)


def of_language(models: LanguageModels, describer: Describer) -> Iterator[Alarm]:
    """Yield an alarm for each language model that cannot be served, or that runs on the CPU instead of its device.
    Yield an alarm for each rule `describe.NAME` whose last description failed."""
    for name, message in models.troubles():
        yield Alarm(AlarmKind.UNSERVED, message, name)
    for name, message in models.fallbacks():
        yield Alarm(AlarmKind.FALLBACK, message, name)
    for camera, message in describer.troubles():
        yield Alarm(AlarmKind.UNSERVED, message, camera=camera)


def wrong(
    models: Iterable[PlannedModel], settings: Engines, now: float, box: Box, health: Health | None = None
) -> Iterator[Alarm]:
    """Yield an alarm for each problem. `now` is in monotonic seconds; `health` says how many probes of an engine must
    fail before the engine counts as failing."""
    if box.paused:
        yield Alarm(AlarmKind.BUILDS_PAUSED, box.paused)
    if box.state:
        what = "models cannot be added or removed, and commands are not recorded; existing models are served"
        yield Alarm(AlarmKind.STATE_UNWRITABLE, f"{box.state}: {what}; make the folder writable, or change --state")
    if box.is_reboot_pending:
        yield Alarm(AlarmKind.REBOOT_PENDING, _REBOOT)
    if box.untracked:
        yield Alarm(AlarmKind.UNTRACKED, f"cameras with tracking get no tracker ids: {box.untracked}")
    models = tuple(models)
    met = (engine for planned in models for engine in planned.engines.values())
    if failing := next((engine.disk for engine in met if engine.disk_failures >= _REPEATED), ""):
        yield Alarm(AlarmKind.DISK_FAILING, f"engines cannot be made or opened: {failing}")
    for planned in models:
        yield from _model(planned, settings, now, box.busy)
        yield from _placement(planned)
        ready = readiness(planned, health or Health())
        if ready.state is ReadyState.FAILING:
            message = f"model {planned.entry.name} is not ready: {ready.reason}; see: edged events"
            yield Alarm(AlarmKind.FAILING, message, planned.entry.name, planned.serving or "")


def wrong_ensembles(ensembles: Iterable[PlannedEnsemble], health: Health) -> Iterator[Alarm]:
    """Yield an alarm for each ensemble that cannot be served."""
    for planned in ensembles:
        found, name = ensemble_readiness(planned, health), planned.entry.name
        if found.state is ReadyState.REFUSED:
            yield Alarm(AlarmKind.UNSERVED, f"ensemble {name} cannot be served: {found.reason}", name)


def slow_engine(planned: PlannedModel, settings: Engines, now: float) -> tuple[float, float] | None:
    """Return the current and the usual inference time of the serving engine, in ms, if the engine has been slow for too
    long; otherwise None. The current time is 0 if too few inferences ended recently to compute it.

    The timings of the build are not compared, because the child that measured them had a low priority.
    """
    current = planned.slot.current
    engine = planned.engines.get(planned.serving or "")
    if current is None or engine is None:
        return None
    median = current.latency.median(now)
    if median is not None:
        engine.paced(median)
    baseline = engine.usual_ms
    if not baseline:
        return None
    lasted = current.latency.slow_for(now, max(baseline * settings.regression_factor, baseline + _NOTICEABLE_MS))
    return (median or 0.0, baseline) if lasted >= settings.regression_seconds else None


def _model(planned: PlannedModel, settings: Engines, now: float, busy: float) -> Iterator[Alarm]:
    name = planned.entry.name
    if planned.problem is not None:
        word = (
            "changed on disk; its previous version serves, because the new version cannot be served"
            if planned.serving
            else "cannot be served"
        )
        yield Alarm(AlarmKind.UNSERVED, f"model {name} {word}: {planned.problem}", name)
    if why := _without_candidate(planned):
        yield Alarm(AlarmKind.NO_CANDIDATE, f"model {name} {why}", name)
    for key, engine in planned.engines.items():
        if engine.state is EngineState.QUARANTINED and not engine.is_held:
            message = f"model {name}: engine {key[:12]} ({engine.recipe.backend}) is no longer tried: {engine.reason}"
            message = f"{message}; to try it again: edged engines rebuild --engine {key[:12]}"
            yield Alarm(AlarmKind.QUARANTINED, message, name, key)
        if engine.mismatch:
            what = f"model {name}: stored engine {key[:12]} ({engine.recipe.backend}) does not answer as the reference"
            how = f"{engine.mismatch}; the engine is not used and is built again; check the cache folder's permissions"
            yield Alarm(AlarmKind.ENGINE_MISMATCH, f"{what}: {how}", name, key)
        if engine.quarantined:
            message = f"model {name}: engine {key[:12]} ({engine.recipe.backend}) is quarantined: {engine.quarantined}"
            message = f"{message}; to try it again: edged engines rebuild --engine {key[:12]}"
            yield Alarm(AlarmKind.QUARANTINED, message, name, key)
    if planned.quarantine:
        message = f"model {name} is not served: its engines are quarantined or refused; see: edged engines list {name}"
        yield Alarm(AlarmKind.QUARANTINED, message, name)
    spells = planned.slot.finite.spells(now)
    if spells:
        detail = "; ".join(
            f"output {each.output!r} in {each.bad} of {each.answers} answers, first {now - each.began:.0f} s ago and"
            f" last {now - each.last:.0f} s ago"
            for each in spells
        )
        yield Alarm(AlarmKind.NOT_FINITE, f"model {name} answers with NaN or infinity: {detail}", name)
    slow = slow_engine(planned, settings, now)
    if slow is not None and planned.serving is not None:
        median, baseline = slow
        detail = f"took much longer than {baseline:.3g} ms, then no inference finished for a while"
        if median:
            times = f"{median / baseline:.1f}x; the processors are {busy:.0%} busy"
            detail = f"takes {median:.3g} ms instead of {baseline:.3g} ms ({times})"
        yield Alarm(AlarmKind.SLOW, f"model {name}: inference {detail}", name, planned.serving)


def _without_candidate(planned: PlannedModel) -> str:
    """Return how the settings exclude all engines that they ask for; empty if they do not."""
    settings, recipes = planned.entry.settings, [engine.recipe for engine in planned.engines.values()]
    narrowing = [f"{name}={settings[name]}" for name in _NARROWING if name in settings]
    if not narrowing or not recipes:
        return ""
    if all(recipe.is_reference for recipe in recipes):
        why = f"its settings {', '.join(narrowing)} allow no other engine here; change them, or install the backend"
        return f"is served by the reference engine only: {why}"
    named = model_settings.precisions(settings)
    if named is None or any(recipe.precision in named for recipe in recipes):
        return ""
    return f"has only fp32 engines: no backend of this box can build precisions={','.join(named)}; change the setting"


def _placement(planned: PlannedModel) -> Iterator[Alarm]:
    """Yield an alarm for each engine that had nodes on the wrong device when it was last opened. The serving engine
    also gets an alarm if it had such nodes when it was built."""
    for key, engine in planned.engines.items():
        is_serving = key == planned.serving
        built = engine.record.composition.fallback if engine.record is not None and is_serving else ()
        if not built and not engine.misplaced:
            continue
        where = f"does not run entirely on {engine.recipe.device}: {'; '.join((*built, *engine.misplaced))}"
        unused = "" if is_serving else "; this engine does not serve"
        message = f"model {planned.entry.name}: engine {key[:12]} {where}{unused}; see: edged engines show {key[:12]}"
        yield Alarm(AlarmKind.FALLBACK, message, planned.entry.name, key)
