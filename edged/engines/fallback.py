"""Engines that answer requests that the serving engine was not built for.

Beside an engine with a range of shapes, one that takes any shape is opened when a request outside the range waits; the
reference is opened when a request gives an input that has a default. It is closed when no such request has come for a
while: on a small box the memory is worth more than the second that the next one waits.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from edged.engines import views
from edged.engines.engine import MAKING, PlannedEngine
from edged.engines.opener import Opener
from edged.engines.plan import PlannedModel, is_of
from edged.errors import EdgedError, HostLost, NotReady, Superseded
from edged.models.model import Model
from edged.serving.link import HostLink
from edged.serving.slot import outside
from edged.tasks import TaskGroup

_LOG = logging.getLogger("edged.engines")
_IDLE_SECONDS = 120.0  # without requests until it is closed
_AGAIN_SECONDS = 1.0  # after a temporary failure to open it
_REFUSED_SECONDS = 30.0  # after the runtime refused it


@dataclass
class _FallbackSlot:
    """The fallback slot of one model. Times in monotonic seconds."""

    planned: PlannedModel
    opening: asyncio.Task[None] | None = None
    open_at: float = 0.0  # when opening may be tried again
    why: str = ""  # it was not opened the last time
    answered: int = 0
    busy: float = 0.0  # when it last had work


class FallbackSlots:
    """Opens and closes the fallback slot of every model. `wake` starts the next turn of the control loop."""

    def __init__(self, opener: Opener, tasks: TaskGroup, wake: Callable[[], None]) -> None:
        self._opener, self._tasks, self._wake = opener, tasks, wake
        self._slots: dict[int, _FallbackSlot] = {}

    def look(self, models: Iterable[PlannedModel], now: float) -> None:
        """Open, close or refuse as needed; after it was decided what serves."""
        known, self._slots = self._slots, {}
        for planned in models:
            fallback = known.pop(id(planned), None) or _FallbackSlot(planned)
            self._slots[id(planned)] = fallback
            planned.fallback.awaited = self._wake
            self._update(fallback, now)
        for fallback in known.values():  # of removed models; one that is being opened is closed once it is open
            self._opener.retire(
                fallback.planned.fallback.refuse(NotReady(f"model {fallback.planned.entry.name!r} was removed"))
            )

    def host_lost(self, link: HostLink) -> None:
        """Requeue what was in flight in a lost host."""
        for fallback in self._slots.values():
            fallback.planned.fallback.vacate(link)

    def _update(self, fallback: _FallbackSlot, now: float) -> None:
        planned, slot = fallback.planned, fallback.planned.fallback
        current = slot.current
        if current is not None:
            if slot.waiting or current.in_flight or slot.answered != fallback.answered:
                fallback.answered, fallback.busy = slot.answered, now
            is_stale = planned.served is None or not is_of(current.engine, planned.served)
            if is_stale or now - fallback.busy >= _IDLE_SECONDS:
                slot.current = None
                self._opener.retire(current)
        elif slot.waiting and fallback.opening is None:
            self._open_or_refuse(fallback, now)

    def _open_or_refuse(self, fallback: _FallbackSlot, now: float) -> None:
        planned = fallback.planned
        serving = planned.slot.current
        if planned.model is None or not planned.fits():
            if planned.problem is not None:  # what serves is of a file that no longer exists
                self._refuse(planned, f"the model on disk cannot be opened: {planned.problem}")
            return  # until the change is complete
        if now < fallback.open_at:
            if fallback.why:
                self._refuse(planned, fallback.why)
            return
        engine = _choice(planned, now)
        if engine is not None:
            fallback.opening = self._tasks.start(self._open(fallback, planned.model, engine))
        elif not any(each.recipe.is_reference and each.may_open for each in planned.engines.values()):
            self._refuse(planned, outside(serving.engine) if serving is not None else "")

    async def _open(self, fallback: _FallbackSlot, model: Model, engine: PlannedEngine) -> None:
        planned = fallback.planned
        fallback.open_at = time.monotonic() + _REFUSED_SECONDS
        fallback.why = "the engine for other shapes could not be opened"  # until the outcome is known
        try:
            session = await self._opener.open_session(planned, model, engine)
        except (HostLost, NotReady, Superseded) as error:
            fallback.open_at, fallback.why = time.monotonic() + _AGAIN_SECONDS, ""
            _LOG.warning("model %s: engine %s for other shapes: %s", model.name, engine.digest[:12], error)
        except EdgedError as error:
            fallback.why = f"the engine for other shapes cannot be opened: {error}"
            _LOG.warning("model %s: %s", model.name, fallback.why)
        else:
            fallback.open_at, fallback.why, fallback.busy = 0.0, "", time.monotonic()
            if self._slots.get(id(planned)) is not fallback or planned.model is not model:
                await session.retire()
                return
            _LOG.info("model %s: engine %s opened for other shapes", model.name, engine.digest[:12])
            self._opener.retire(planned.fallback.install(session))
        finally:
            fallback.opening = None

    @staticmethod
    def _refuse(planned: PlannedModel, why: str) -> None:
        """Refuse the requests that wait; later ones are accepted and judged again."""
        builds = any(engine.recipe.profile and engine.state in MAKING for engine in planned.engines.values())
        more = "; an engine of a wider range is being built, try again later" if builds else ""
        planned.fallback.refuse(NotReady(f"model {planned.entry.name!r}: {why}{more}"))
        planned.fallback.hold(None)


def _choice(planned: PlannedModel, now: float) -> PlannedEngine | None:
    """Return the fastest engine that takes any shape; the reference if it is the only one, or if requests may give
    inputs that other engines have built in."""
    has_defaults = planned.model is not None and bool(planned.model.defaults)
    able = [
        engine
        for engine in planned.engines.values()
        if not engine.recipe.profile
        and (engine.recipe.is_reference or not has_defaults)
        and engine.may_open
        and engine.open_at <= now
        and not views.is_doubted(engine, planned.engines.values())
    ]
    costs = {id(e): views.cost(e, planned.entry.settings) for e in able}
    return min(able, key=lambda e: math.inf if costs[id(e)] is None else costs[id(e)] or 0.0, default=None)
