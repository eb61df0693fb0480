"""Decides which models are ready, and probes engines to find whether they still answer. If one no longer does, its
host is replaced."""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Iterable

import msgspec

from edged.config import Health
from edged.engines.plan import PlannedModel
from edged.engines.probe import SessionProbe
from edged.errors import EdgedError, HostLost, NotReady, OutOfMemory
from edged.serving.host_process import End
from edged.serving.session import ServingSession
from edged.tasks import TaskGroup

_LOG = logging.getLogger("edged.engines")
_SUSPECT_SECONDS = 2.0  # between two probes of an engine that may be at fault


class ReadyState(str, enum.Enum):
    """Whether a model can be sent requests."""

    READY = "ready"
    LOADING = "loading"  # requests wait until an engine answers
    UNPROVEN = "unproven"  # an engine is open but refuses every probe; requests may be answered
    FAILING = "failing"  # an engine is open but no longer answers
    REFUSED = "refused"  # it cannot be served


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
        what = "no engine is open yet" if planned.model is not None else "it is being read"
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


def next_probe(models: Iterable[PlannedModel], settings: Health, now: float) -> PlannedModel | None:
    """Return the model to probe now: among the models that are due, the one whose last answer or probe is the oldest.
    Return None if no model is due. `now` is in monotonic seconds.

    Only idle engines are probed, because requests prove more than probes and must not wait for a probe; an engine that
    fails its requests is probed even if it is busy. Engines that are about to be replaced are not probed, so that their
    host's swapped memory is not read back.
    """
    due = [planned for planned in models if _is_due(planned, settings, now)]
    return min(due, key=_last, default=None)


def _is_due(planned: PlannedModel, settings: Health, now: float) -> bool:
    current = planned.slot.current
    if current is None or planned.opening is not None or planned.serving not in planned.engines:
        return False
    if current.link.lost or current.link.stopping:
        return False
    if current.health.is_suspect:
        return now - current.health.probed_at >= min(_SUSPECT_SECONDS, settings.probe_seconds or _SUSPECT_SECONDS)
    is_idle = not current.in_flight and not planned.slot.waiting
    return is_idle and 0 < settings.probe_seconds <= now - _last(planned)


def _last(planned: PlannedModel) -> float:
    current = planned.slot.current
    return max(current.health.answered_at, current.health.probed_at) if current is not None else 0.0


class Prober:
    """Probes engines, one at a time, and notes the result in their sessions.

    It kills the host of an engine that no longer answers: some faults last as long as the process, such as an error of
    a CUDA context. The quarantine counts these deaths, so that another engine serves if a new host does not help.
    """

    def __init__(self, session_probe: SessionProbe, settings: Health, tasks: TaskGroup) -> None:
        self._session_probe, self._settings, self._tasks = session_probe, settings, tasks
        self._is_asking = False

    def reconfigure(self, settings: Health) -> None:
        """Apply new settings."""
        self._settings = settings

    def look(self, models: Iterable[PlannedModel], now: float) -> None:
        """Start the probe that is due, if any. `now` in monotonic seconds."""
        if self._is_asking:
            return
        planned = next_probe(models, self._settings, now)
        if planned is not None and planned.slot.current is not None:
            self._is_asking = True
            self._tasks.start(self._probe(planned, planned.slot.current))

    async def _probe(self, planned: PlannedModel, session: ServingSession) -> None:
        health = session.health
        try:
            await self._ask(planned, session)
        except (HostLost, NotReady):  # the link reports a lost host
            pass
        except EdgedError as error:
            if not health.unproven:  # an unproven engine refuses every probe anyway
                health.missed(error)
                _LOG.warning("model %s: a probe of its engine failed: %s", planned.entry.name, error)
            if health.is_failing(self._settings.probe_failures):
                end = End.OUTSIDE if isinstance(error, OutOfMemory) else End.WORK
                session.link.kill(f"had an engine that no longer answered: {error}", (session.number,), end)
        else:
            health.answered(time.monotonic())
        finally:
            health.probed_at = time.monotonic()
            self._is_asking = False

    async def _ask(self, planned: PlannedModel, session: ServingSession) -> None:
        engine = planned.engines.get(session.engine.key)
        if engine is None or planned.model is None:
            raise NotReady("the model was planned again, and another engine is about to serve")
        known = planned.known_answers()
        await self._session_probe.ask(known, session.link, session.number, is_reference=engine.recipe.is_reference)
