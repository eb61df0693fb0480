"""The control loop: looks at the repository, decides with `reconcile`, and does what was decided, each in its task."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from edged.backend import registry
from edged.build.builder import Builder
from edged.control.plan import PlannedEngine, PlannedModel
from edged.control.reconcile import Action, Make, Open, reconcile
from edged.control.states import EngineState
from edged.device.fingerprint import Change, Fingerprint, probe
from edged.device.nvidia import REBOOT_PENDING
from edged.device.watch import changes, library_folders, settled
from edged.errors import EdgedError, EngineDamaged, EngineUnusable, HostLost, NotFound, NotReady, Superseded
from edged.events import EventLog, Kind
from edged.model.identity import require_same
from edged.model.model import Model
from edged.model.repository import ModelEntry, Repository, plain_entry
from edged.serving.hosts import HostKind, Hosts
from edged.serving.link import HostLimits, HostLink
from edged.serving.slot import ServingSession, Slot
from edged.serving.work import EngineRef
from edged.store.store import Store

_LOG = logging.getLogger("edged.control")
_LOOK_SECONDS = 1.0  # how often the repository is looked at when nothing else happens
_REOPEN_SECONDS = 0.2  # after its host was lost
_RETRY_SECONDS = 10.0  # after an error that nobody expected
_READERS = 2  # children that inspect models at the same time


class Controller:
    """Owns the plan of every model. Everything runs on one event loop; nothing here blocks it."""

    def __init__(
        self,
        repository: Repository,
        named: Mapping[str, Path],
        store: Store,
        builder: Builder,
        fingerprint: Fingerprint,
        limits: HostLimits,
    ) -> None:
        self.repository, self.store, self.builder, self.fingerprint = repository, store, builder, fingerprint
        self.models: dict[str, PlannedModel] = {}
        self.events = EventLog()
        self.hosts = Hosts(limits, self._host_lost)
        self._named = dict(named)
        self._tasks: set[asyncio.Task[None]] = set()
        self._making: asyncio.Task[None] | None = None
        self._made_key = ""
        self._refreshing = asyncio.Lock()
        self._readers = asyncio.Semaphore(_READERS)
        self._wake = asyncio.Event()
        self._stopping = False

    async def run(self) -> None:
        """Reconciles until cancelled: at start, whenever something changed, and on a timer."""
        while True:
            self._wake.clear()
            self._look()
            self._act()
            try:
                await asyncio.wait_for(self._wake.wait(), _LOOK_SECONDS)
            except asyncio.TimeoutError:
                continue

    async def watch(self) -> None:
        """Refreshes whenever drivers or libraries may have changed on disk; until cancelled."""
        async for _ in changes(library_folders()):
            await self.refresh(patient=True)

    async def refresh(self, patient: bool = False) -> tuple[Change, ...]:
        """Reads the device's facts again; where they changed, engines are planned anew. Returns what changed.

        What serves goes on serving meanwhile. A patient refresh waits until an installation seems to be over: while it
        runs, packages vanish and come back.
        """
        async with self._refreshing:
            fingerprint = await settled(self.fingerprint) if patient else await asyncio.to_thread(probe)
            changed = self.fingerprint.diff(fingerprint)
            if not changed:
                return ()
            _LOG.warning("the device changed: %s", "; ".join(str(change) for change in changed))
            told = {change.name: f"{change.old or 'absent'} -> {change.new or 'absent'}" for change in changed}
            self.events.tell(Kind.DEVICE_CHANGED, **told)
            if fingerprint.facts.get("nvidia.state") == REBOOT_PENDING:
                _LOG.warning("a reboot is pending: what serves goes on, nothing is built until then")
                return changed
            self.fingerprint = fingerprint
            for planned in self.models.values():
                if planned.model is not None:
                    self._plan(planned, planned.model)
        self.wake()
        return changed

    def wake(self) -> None:
        """Something changed: look now instead of at the next tick."""
        self._wake.set()

    async def stop(self) -> None:
        """Ends builds and hosts."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.hosts.stop()

    def is_configured(self, name: str) -> bool:
        """Whether a model comes from the configuration instead of the repository."""
        return name in self._named

    def slot(self, name: str) -> Slot:
        """The slot of a model; with an empty name the only one there is. NotFound otherwise."""
        if not name and len(self.models) == 1:
            return next(iter(self.models.values())).slot
        return self.find(name).slot

    def find(self, name: str) -> PlannedModel:
        """The plan of a model, looked up anew in the repository if it is not known yet; NotFound."""
        if name not in self.models:
            self._look()
        try:
            return self.models[name]
        except KeyError:
            known = ", ".join(sorted(self.models)) or "none"
            raise NotFound(f"there is no model {name!r}; there are: {known}" if name else _which(known)) from None

    # -- looking ----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Compares the repository with what is planned."""
        entries = {**self.repository.entries(), **self._named_entries()}
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

    def _named_entries(self) -> dict[str, ModelEntry]:
        """The models that the configuration names, as their files are now."""
        return {name: plain_entry(name, path, {}) for name, path in self._named.items()}

    def _read_again(self, planned: PlannedModel) -> None:
        """What is on disk is not what was read; a reading that is under way already will see it."""
        if not planned.is_being_read:
            self._read(planned)

    def _read(self, planned: PlannedModel) -> None:
        if planned.reading is not None:
            planned.reading.cancel()
        planned.reading = self._spawn(self._inspect(planned))

    async def _inspect(self, planned: PlannedModel) -> None:
        entry = planned.entry
        try:
            async with self._readers:
                inspection = await self.builder.inspect(Path(entry.path))
            self._plan(planned, Model.of(entry, inspection))
            planned.weights_changed()  # from here on, changes of the external data count
            planned.slot.reopen()
            _LOG.info("model %s: read, digest %s", entry.name, inspection.digest[:12])
            self.events.tell(Kind.MODEL_READ, entry.name, digest=inspection.digest)
        except EdgedError as error:
            self._refuse(planned, error)
        except Exception as error:  # a bug, or a box in trouble: told, not left to wait for ever
            _LOG.exception("model %s could not be read", entry.name)
            self._refuse(planned, EngineUnusable(f"it could not be read ({type(error).__name__}); the log tells more"))

    def _plan(self, planned: PlannedModel, model: Model) -> None:
        planned.plan(model, self.fingerprint, self.store)
        for engine in planned.engines.values():
            engine.told = partial(self._engine_moved, model.name)

    def _engine_moved(self, model: str, engine: PlannedEngine) -> None:
        detail = {"state": engine.state.value, "backend": engine.recipe.backend, "reason": engine.reason}
        self.events.tell(Kind.ENGINE_STATE, model, engine.digest, **detail)

    def _refuse(self, planned: PlannedModel, error: EdgedError) -> None:
        """A model that cannot be served as it is on disk now. What serves from before its change goes on serving."""
        planned.problem, planned.engines = error, {}
        name = planned.entry.name
        self.events.tell(Kind.MODEL_REFUSED, name, reason=str(error))
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
        self._retire(planned.slot.refuse(NotFound(f"model {name!r} was removed")))
        _LOG.info("model %s: removed", name)
        self.events.tell(Kind.MODEL_REMOVED, name)

    # -- acting -----------------------------------------------------------------------------------------------------

    def _act(self) -> None:
        self._adopt()
        wanted = {key for planned in self.models.values() for key in planned.engines}
        if self._making is not None and self._made_key and self._made_key not in wanted:
            self._made_key = ""  # cancelled once: its child is being ended
            self._making.cancel()  # its model was removed or changed, and others wait for their turn
        # A model that is being read may be another one in a moment: nothing new is begun for it.
        views = [planned.view() for planned in self.models.values() if not planned.is_being_read]
        for action in reconcile(views, time.monotonic(), self._making is not None):
            self._start(action)
        for link in self.hosts.empty(self._wanted_hosts()):
            self._spawn(link.stop())
        for planned in self.models.values():
            if planned.is_hopeless():
                reference = next(e for e in planned.engines.values() if e.recipe.is_reference)
                self._refuse(planned, EngineUnusable(reference.reason))
            elif planned.problem is not None and not planned.serving and planned.model is not None:
                self._refuse(planned, planned.problem)  # its host is gone, and with it the last that could serve

    def _adopt(self) -> None:
        """Engines that were made for another model of the same content serve this one as well."""
        stored = self.store.records()
        for planned in self.models.values():
            for key, engine in planned.engines.items():
                if engine.state is EngineState.ABSENT and key in stored:
                    engine.adopt(stored[key])

    def _start(self, action: Action) -> None:
        planned = self.models[action.model]
        engine = planned.engines[action.key]
        if isinstance(action, Open):
            planned.opening = self._spawn(self._open(planned, engine))
        elif isinstance(action, Make):
            engine.move(EngineState.QUEUED)
            self._made_key = engine.digest
            self._making = self._spawn(self._make(planned, engine))

    async def _open(self, planned: PlannedModel, engine: PlannedEngine) -> None:
        model = planned.model
        assert model is not None
        # Until it is known how this ends: an error that nobody expected must not be tried again at once.
        engine.open_at = time.monotonic() + _RETRY_SECONDS
        try:
            session = await self._session(model, engine)
        except EngineDamaged as error:
            _LOG.warning("engine %s of %s: %s", engine.digest[:12], model.name, error)
            self.store.damaged(engine.digest)
            engine.lose()
            engine.open_at = 0.0
        except (HostLost, NotReady, Superseded) as error:
            engine.open_at = time.monotonic() + max(_REOPEN_SECONDS, self.hosts.retry_in(self._kind(engine)))
            if isinstance(error, Superseded):
                self._read_again(planned)
            _LOG.warning("engine %s of %s cannot be opened now: %s", engine.digest[:12], model.name, error)
        except EdgedError as error:
            self._cannot_open(model, engine, error)
        else:
            engine.opened()
            if planned.engines.get(engine.digest) is not engine:  # the model changed meanwhile
                await session.retire()
                return
            previous = planned.slot.install(session)
            _LOG.info("model %s: engine %s (%s) serves", model.name, engine.digest[:12], engine.recipe.backend)
            self.events.tell(Kind.ENGINE_SERVES, model.name, engine.digest, backend=engine.recipe.backend)
            self._retire(previous)
        finally:
            planned.opening = None

    async def _session(self, model: Model, engine: PlannedEngine) -> ServingSession:
        link = await self.hosts.get(self._kind(engine))
        try:
            artefact = None if engine.recipe.is_reference else self.store.artefact(engine.digest)
        except KeyError:  # another model of the same content found it damaged
            raise EngineDamaged("the engine is no longer in the store; it will be rebuilt") from None
        order = model.order(engine.recipe, artefact)
        number = await link.open(order, model.recognition)
        session = ServingSession(link, number, EngineRef(engine.digest, link.backend, model.digest, model.recognition))
        if engine.recipe.is_reference:  # it was opened from the model's file, whatever that is by now
            try:
                await asyncio.to_thread(require_same, order)
            except EdgedError:
                self._retire(session)
                raise
        return session

    def _wanted_hosts(self) -> set[HostKind]:
        """The hosts that engines of the device as it is now would be opened in."""
        return {self._kind(engine) for planned in self.models.values() for engine in planned.engines.values()}

    @staticmethod
    def _kind(engine: PlannedEngine) -> HostKind:
        backend = engine.recipe.backend
        return HostKind(backend, engine.key.generation, registry.version(backend, engine.key.parts) or "")

    def _cannot_open(self, model: Model, engine: PlannedEngine, error: EdgedError) -> None:
        """The runtime refuses it. A reference stays refused; a built engine is thrown away and made again later."""
        _LOG.warning("engine %s of %s cannot be opened: %s", engine.digest[:12], model.name, error)
        if engine.recipe.is_reference:
            engine.open_at, engine.reason = math.inf, str(error)
            return
        self.store.remove(engine.digest)
        engine.lose()
        engine.move(EngineState.QUEUED)
        engine.move(EngineState.BUILDING)
        engine.fail(error, time.monotonic())

    async def _make(self, planned: PlannedModel, engine: PlannedEngine) -> None:
        model = planned.model
        assert model is not None
        name, short = f"{engine.recipe.backend}/{engine.recipe.optimization}", engine.digest[:12]
        try:
            record = await self.builder.make(model, engine.recipe, engine.key, engine.phase)
            engine.finish(record)
            _LOG.info(
                "model %s: engine %s (%s) is %s: %s ms", model.name, short, name, engine.state.value, record.latency_ms
            )
        except Superseded as error:
            engine.move(EngineState.FAILED, str(error))
            engine.retry_at = time.monotonic() + _REOPEN_SECONDS
            _LOG.info("model %s: engine %s (%s) is void: %s", model.name, short, name, error)
            self._read_again(planned)
        except EdgedError as error:
            engine.fail(error, time.monotonic())
            _LOG.warning("model %s: engine %s (%s) failed: %s", model.name, short, name, error)
        except BaseException:  # cancelled, or an error that nobody expected: not to be tried again at once
            engine.state, engine.retry_at = EngineState.FAILED, time.monotonic() + _RETRY_SECONDS
            raise
        finally:
            self._making = None

    # -- what happens by itself -------------------------------------------------------------------------------------

    def _host_lost(self, link: HostLink, why: str) -> None:
        affected = [name for name, planned in self.models.items() if planned.slot.vacate(link)]
        if not link.stopping:
            self.events.tell(Kind.HOST_LOST, backend=link.backend, reason=why)
        if affected and not self._stopping:
            _LOG.warning("engine host %s (pid %d) %s; affected: %s", link.backend, link.pid, why, ", ".join(affected))
        self.wake()

    def _retire(self, session: ServingSession | None) -> None:
        if session is not None:
            self._spawn(session.retire())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("a control task ended with an error nobody expected", exc_info=error)
        self.wake()


def _which(known: str) -> str:
    return f"the request names no model, and there is not exactly one; there are: {known}"
