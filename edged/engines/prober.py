"""Asks engines that have nothing to do whether they still answer, one at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from edged.config import Health
from edged.engines.plan import PlannedModel
from edged.engines.questioning import Questioner
from edged.engines.readiness import next_probe
from edged.errors import EdgedError, HostLost, NotReady
from edged.serving.session import ServingSession
from edged.tasks import TaskGroup

_LOG = logging.getLogger("edged.engines")


class Prober:
    """What it finds goes into the vitals of the sessions."""

    def __init__(self, questioner: Questioner, settings: Health, tasks: TaskGroup) -> None:
        self._questioner, self._settings, self._tasks = questioner, settings, tasks
        self._is_asking = False

    def heed(self, settings: Health) -> None:
        """Other settings, from now on."""
        self._settings = settings

    def look(self, models: Iterable[PlannedModel], now: float) -> None:
        """Begins the probe that is due, if one is. `now` in monotonic seconds."""
        if self._is_asking:
            return
        planned = next_probe(models, self._settings, now)
        if planned is not None and planned.slot.current is not None:
            self._is_asking = True
            self._tasks.start(self._probe(planned, planned.slot.current))

    async def _probe(self, planned: PlannedModel, session: ServingSession) -> None:
        """A host that is lost over it is told of by its link, and takes its sessions along."""
        vitals = session.vitals
        try:
            await self._ask(planned, session)
        except (HostLost, NotReady):
            pass
        except EdgedError as error:
            if not vitals.unproven:  # then that is nothing new
                vitals.missed(error)
                _LOG.warning("model %s: a probe of its engine failed: %s", planned.entry.name, error)
        else:
            vitals.answered(time.monotonic())
        finally:
            vitals.asked = time.monotonic()
            self._is_asking = False

    async def _ask(self, planned: PlannedModel, session: ServingSession) -> None:
        engine = planned.engines.get(session.engine.key)
        if engine is None or planned.model is None:
            raise NotReady("the model was planned again since: another engine is about to serve")
        known = planned.acquainted()
        await self._questioner.ask(known, session.link, session.number, is_reference=engine.recipe.is_reference)
