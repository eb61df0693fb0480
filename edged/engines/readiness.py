"""Decides which models are ready, and probes engines to find whether they still answer. If an engine no longer answers,
its host is replaced."""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Iterable

import msgspec

from edged.config import Health
from edged.engines.plan import PlannedModel
from edged.engines.probe import SessionProbe
from edged.errors import EdgedError, EngineUnusable, HostLost, NotReady, OutOfMemory
from edged.serving.session import ServingSession, SessionHealth
from edged.serving.slot import Slot
from edged.tasks import TaskGroup

_LOG = logging.getLogger("edged.engines")
_SUSPECT_SECONDS = 2.0  # between two probes of an engine that may be at fault


class ReadyState(str, enum.Enum):
    """Whether a model can be sent requests."""

    READY = "ready"
    LOADING = "loading"  # requests wait until an engine answers
    UNPROVEN = "unproven"  # an engine is open but refuses every probe; requests may be answered
    FAILING = "failing"  # an engine is open but no longer answers
    REFUSED = "refused"  # the model cannot be served


class Readiness(msgspec.Struct, frozen=True):
    """Readiness of one model; `reason` is one line, empty if it is ready."""

    state: ReadyState
    reason: str = ""

    @property
    def is_ready(self) -> bool:
        return self.state is ReadyState.READY

    @property
    def can_serve(self) -> bool:
        """Whether requests are answered, now or once an engine is open."""
        return self.state in (ReadyState.READY, ReadyState.LOADING, ReadyState.UNPROVEN)


_READY = Readiness(ReadyState.READY)


def readiness(planned: PlannedModel, settings: Health) -> Readiness:
    """Return the readiness of a model. If the model on disk changed and cannot be served, the model is ready while the
    previous content answers."""
    current = planned.slot.current
    if current is None:
        if planned.problem is not None:
            return Readiness(ReadyState.REFUSED, f"it cannot be served: {planned.problem}")
        if planned.quarantine:
            return Readiness(ReadyState.REFUSED, f"it is quarantined: {planned.quarantine}")
        what = "no engine is open yet" if planned.model is not None else "the model is being read"
        return Readiness(ReadyState.LOADING, held_up(planned) or what)
    if current.health.is_failing(settings.probe_failures):
        return Readiness(ReadyState.FAILING, f"its engine no longer answers: {current.health.reason}")
    if current.health.unproven:
        return Readiness(ReadyState.UNPROVEN, current.health.unproven)
    return _READY


def held_up(planned: PlannedModel) -> str:
    """Return why the last attempt to open the reference was refused; empty if it was not."""
    reference = planned.reference
    return reference.reason if reference is not None and reference.refusals else ""


def all_ready(models: Iterable[PlannedModel], settings: Health) -> bool:
    """Whether every model except the refused ones is ready. Always true without `strict_readiness`."""
    found = (readiness(planned, settings) for planned in models)
    return not settings.strict_readiness or all(each.is_ready or each.state is ReadyState.REFUSED for each in found)


def next_probe(models: Iterable[PlannedModel], settings: Health, now: float) -> tuple[PlannedModel, Slot] | None:
    """Return the model to probe now, and which of its slots. Of the slots that are due, choose the slot whose last
    answer or probe is the oldest. Return None if no slot is due. `now` is in monotonic seconds.

    Only idle engines are probed, because requests prove more than probes and must not wait for a probe. But an engine
    that fails its requests is probed even if it is busy. Engines that are about to be replaced are not probed. The
    memory of their host may be swapped out, and a probe would make the box read it from the disk again. A fallback
    engine is probed only if it fails its requests.
    """
    every = ((planned, slot) for planned in models for slot in (planned.slot, planned.fallback))
    due = [(planned, slot) for planned, slot in every if _is_due(planned, slot, settings, now)]
    return min(due, key=lambda each: _last(each[1]), default=None)


def _is_due(planned: PlannedModel, slot: Slot, settings: Health, now: float) -> bool:
    current = slot.current
    if current is None or planned.opening is not None or current.engine.key not in planned.engines:
        return False
    if current.link.lost or current.link.stopping:
        return False
    is_idle = slot is planned.slot and not current.in_flight and not slot.waiting
    if current.health.is_suspect and (is_idle or _has_answered(planned, current.health)):
        return now - current.health.probed_at >= min(_SUSPECT_SECONDS, settings.probe_seconds or _SUSPECT_SECONDS)
    return is_idle and 0 < settings.probe_seconds <= now - _last(slot)


def _has_answered(planned: PlannedModel, health: SessionHealth) -> bool:
    """Whether an engine has answered the probe that it would get now."""
    return planned.model is not None and health.known is planned.known_answers()


def _last(slot: Slot) -> float:
    current = slot.current
    return max(current.health.answered_at, current.health.probed_at) if current is not None else 0.0


class Prober:
    """Probes engines, one at a time, and records the results in their sessions.

    The prober kills the host of an engine that answers only with errors. Some faults, such as an error of a CUDA
    context, last until the process ends. Each engine of the host may have caused the fault, so all are reported to the
    quarantine as suspects. If the fault occurs again, the quarantine finds the engine that causes it. If an engine is
    out of memory or out of time, its host is not killed, because more memory or time may be available later.
    """

    def __init__(self, session_probe: SessionProbe, settings: Health, tasks: TaskGroup) -> None:
        self._session_probe, self._settings, self._tasks = session_probe, settings, tasks
        self._is_asking = False

    def reconfigure(self, settings: Health) -> None:
        """Apply new settings."""
        self._settings = settings

    def look(self, models: Iterable[PlannedModel], now: float) -> None:
        """Start the probe that is due, if any. `now` is in monotonic seconds."""
        if self._is_asking:
            return
        if (due := next_probe(models, self._settings, now)) is not None and due[1].current is not None:
            self._is_asking = True
            self._tasks.start(self._probe(*due, due[1].current))

    async def _probe(self, planned: PlannedModel, slot: Slot, session: ServingSession) -> None:
        health = session.health
        try:
            await self._ask(planned, session)
        except (HostLost, NotReady):  # the link reports a lost host
            pass
        except EdgedError as error:
            # An engine that has never answered this probe may refuse it although it works.
            if slot.current is session and _has_answered(planned, health):
                self._missed(planned, session, error)
        else:
            health.answered(time.monotonic())
        finally:
            health.probed_at = time.monotonic()
            self._is_asking = False

    def _missed(self, planned: PlannedModel, session: ServingSession, error: EdgedError) -> None:
        session.health.missed(error)
        _LOG.warning("model %s: a probe of its engine failed: %s", planned.entry.name, error)
        is_faulty = isinstance(error, EngineUnusable) and not isinstance(error, OutOfMemory)
        if is_faulty and session.health.is_failing(self._settings.probe_failures):
            why = f"had an engine that no longer answered: {error}"
            session.link.kill(why, tuple(session.link.sessions))

    async def _ask(self, planned: PlannedModel, session: ServingSession) -> None:
        engine = planned.engines.get(session.engine.key)
        if engine is None or planned.model is None:
            raise NotReady("the serving engine is about to be replaced, so it is not probed")
        known = planned.known_answers()
        await self._session_probe.ask(known, session.link, session.number, is_reference=engine.recipe.is_reference)
        session.health.known = known
