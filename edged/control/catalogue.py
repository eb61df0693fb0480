"""The models: what the repository and the configuration name, read by children, and planned for the device."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from edged.build.builder import Builder
from edged.control.chores import Chores
from edged.control.plan import PlannedEngine, PlannedModel
from edged.control.planner import Planner
from edged.errors import EdgedError, EngineUnusable, NotFound, NotReady
from edged.events import EngineMoved, EventLog, ModelRead, ModelRefused, ModelRemoved
from edged.model.model import Model
from edged.model.repository import ModelEntry, Repository, plain_entry
from edged.serving.slot import ServingSession, Slot

_LOG = logging.getLogger("edged.control")
_READERS = 2  # children that inspect models at the same time


class Catalogue:
    """Keeps `models` equal to what is on disk. `retire` is given the session of a model that has gone."""

    def __init__(
        self,
        repository: Repository,
        named: Mapping[str, Path],
        builder: Builder,
        planner: Planner,
        events: EventLog,
        chores: Chores,
        retire: Callable[[ServingSession | None], None],
    ) -> None:
        self.models: dict[str, PlannedModel] = {}
        self._repository, self._named, self._builder = repository, dict(named), builder
        self._planner, self._events, self._chores, self._retire = planner, events, chores, retire
        self._readers = asyncio.Semaphore(_READERS)

    def is_configured(self, name: str) -> bool:
        """Whether a model comes from the configuration instead of the repository."""
        return name in self._named

    def find(self, name: str) -> PlannedModel:
        """The plan of a model, looked up anew in the repository if it is not known yet; NotFound."""
        if name not in self.models:
            self.look()
        try:
            return self.models[name]
        except KeyError:
            known = ", ".join(sorted(self.models)) or "none"
            raise NotFound(f"there is no model {name!r}; there are: {known}" if name else _which(known)) from None

    def look(self) -> None:
        """Compares the repository with what is planned."""
        entries = {**self._repository.entries(), **self._named_entries()}
        for name in [name for name in self.models if name not in entries]:
            self._drop(name)
        for name, entry in entries.items():
            planned = self.models.get(name)
            if planned is None:
                planned = self.models[name] = PlannedModel(entry, Slot(name))
                self._read(planned)
            elif planned.entry != entry or planned.weights_changed():
                planned.entry = entry
                self._read(planned)

    def read_again(self, planned: PlannedModel) -> None:
        """What is on disk is not what was read; a reading that is under way already will see it."""
        if not planned.is_being_read:
            self._read(planned)

    def plan_all(self) -> None:
        """The device is not what it was: every model is planned anew, and one that no runtime took is read again."""
        for planned in self.models.values():
            if planned.model is not None and planned.problem is None:
                self._plan(planned, planned.model)
            else:
                self.read_again(planned)

    def refuse_hopeless(self) -> None:
        """Models that nothing can serve: those who wait are told so."""
        for planned in self.models.values():
            reference = planned.reference
            if planned.is_hopeless() and reference is not None:
                self._refuse(planned, EngineUnusable(reference.reason))
            elif planned.problem is not None and not planned.serving and planned.model is not None:
                self._refuse(planned, planned.problem)  # its host is gone, and with it the last that could serve

    def _named_entries(self) -> dict[str, ModelEntry]:
        """The models that the configuration names, as their files are now."""
        return {name: plain_entry(name, path, {}) for name, path in self._named.items()}

    def _read(self, planned: PlannedModel) -> None:
        if planned.reading is not None:
            planned.reading.cancel()
        planned.reading = self._chores.start(self._inspect(planned))

    async def _inspect(self, planned: PlannedModel) -> None:
        entry = planned.entry
        try:
            async with self._readers:
                inspection = await self._builder.inspect(Path(entry.path))
            self._plan(planned, Model.of(entry, inspection))
            planned.weights_changed()  # from here on, changes of the external data count
            planned.slot.reopen()
            _LOG.info("model %s: read, digest %s", entry.name, inspection.digest[:12])
            self._events.tell(ModelRead(inspection.digest), entry.name)
        except EdgedError as error:
            self._refuse(planned, error)
        except Exception as error:  # a bug, or a box in trouble: told, not left to wait for ever
            _LOG.exception("model %s could not be read", entry.name)
            self._refuse(planned, EngineUnusable(f"it could not be read ({type(error).__name__}); the log tells more"))

    def _plan(self, planned: PlannedModel, model: Model) -> None:
        self._planner.plan(planned, model, partial(self._moved, model.name))

    def _moved(self, model: str, engine: PlannedEngine) -> None:
        self._events.tell(EngineMoved(engine.state.value, engine.recipe.backend, engine.reason), model, engine.digest)

    def _refuse(self, planned: PlannedModel, error: EdgedError) -> None:
        """A model that cannot be served as it is on disk now. What serves from before its change goes on serving."""
        planned.problem, planned.engines = error, {}
        name = planned.entry.name
        self._events.tell(ModelRefused(str(error)), name)
        if planned.serving:
            _LOG.warning("model %s was changed and cannot be served: %s; the one before it goes on", name, error)
            return
        _LOG.warning("model %s cannot be served: %s", name, error)
        planned.model = None
        planned.slot.refuse(NotReady(f"model {name!r} cannot be served: {error}"))

    def _drop(self, name: str) -> None:
        planned = self.models.pop(name)
        if planned.reading is not None:
            planned.reading.cancel()
        planned.engines = {}
        digest = planned.model.digest if planned.model is not None else ""
        if digest and all(other.model is None or other.model.digest != digest for other in self.models.values()):
            self._builder.forget(digest)
        self._retire(planned.slot.refuse(NotFound(f"model {name!r} was removed")))
        _LOG.info("model %s: removed", name)
        self._events.tell(ModelRemoved(), name)


def _which(known: str) -> str:
    return f"the request names no model, and there is not exactly one; there are: {known}"
