"""The control loop: compares the actual with the desired state, and carries out the actions that `reconcile`
returns."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from edged.backends import registry
from edged.backends.contract import REFERENCE
from edged.config import Engines, Health
from edged.config.child_limits import HostLimits
from edged.confinement import rules as confinement
from edged.device.fingerprint import Change, Fingerprint
from edged.device.load import LoadMonitor
from edged.engines import alarms
from edged.engines.admission import Proven, prove
from edged.engines.alarms import Alarm, Alarms
from edged.engines.builder import Builder
from edged.engines.catalogue import Catalogue
from edged.engines.commands import Commands
from edged.engines.drift import DriftMonitor
from edged.engines.drift_files import DRIFT_FOLDER, DriftFiles
from edged.engines.engine import Request
from edged.engines.ensembles import PlannedEnsemble, ensemble_readiness
from edged.engines.learning import Learning
from edged.engines.loader import Loader, ModelSelection
from edged.engines.maker import Maker
from edged.engines.opener import Opener
from edged.engines.pipelines import Pipelines
from edged.engines.plan import PlannedModel, Planner
from edged.engines.probe import SessionProbe
from edged.engines.quarantine import Quarantine
from edged.engines.readiness import Prober, Readiness, all_ready, readiness
from edged.engines.reconcile import (
    Action,
    CloseFallback,
    Open,
    OpenFallback,
    Read,
    Refuse,
    RefuseFallback,
    Replan,
    Review,
    reconcile,
)
from edged.engines.sifting import sift
from edged.engines.surveyor import Surveyor
from edged.engines.views import actual
from edged.events import EventLog, HostLost
from edged.files import NO_DESCRIPTORS, reading, unwritable
from edged.fleet.sharing import EngineSharing
from edged.language.describe import Describer
from edged.language.model import Box as LanguageBox
from edged.language.model import PlannedLanguageModel
from edged.language.models import LanguageModels
from edged.language.proof import Proofs
from edged.models.collected import FOLDER
from edged.models.model import Model
from edged.models.repository import Overrides, Repository
from edged.references.kept import FOLDER as REFERENCES
from edged.serving import memory
from edged.serving.collector import Collector
from edged.serving.frame_files import FrameFiles
from edged.serving.galleries import Galleries
from edged.serving.hosts import Hosts
from edged.serving.link import HostLink
from edged.serving.pipeline_slot import FrameSlot
from edged.serving.tracking import Tracking
from edged.store.attempts import AttemptLog
from edged.store.sealed import Background
from edged.store.store import Store
from edged.tasks import TaskGroup, keep, until_set

_LOG = logging.getLogger("edged.engines")
_LOOK_SECONDS = 1.0  # between two turns if nothing happens
_IDLE_SECONDS = 4.0  # between two turns if the box is idle and every model is served
_START_SECONDS = 120.0  # builds wait at most this long until the first models are examined
_FLUSH_SECONDS = 5.0  # for pending writes when the daemon ends


class Liveness(msgspec.Struct, frozen=True):
    """Figures that show the watchdog whether the control loop and the hosts make progress.

    idle_s: seconds since the last successful turn of the control loop. A turn starts at least every 4 s, also during
    long builds. overdue_s: a mapping from a backend to the seconds by which a host of the backend has exceeded its time
    limit; 0 if no host has.
    """

    idle_s: float
    overdue_s: Mapping[str, float] = {}


class Start:
    """The time after the daemon's start in which the first models are examined. Builds wait until this time is over, so
    that the examinations have the processors.

    The start ends once all models are examined, but after two minutes at the latest. So a model that keeps changing
    does not stop the builds of other models.
    """

    def __init__(self, began: float) -> None:
        self._began, self._is_over = began, False

    def is_going_on(self, models: Collection[PlannedModel], now: float) -> bool:
        """Whether the start is not over yet. `now` is in seconds of the same clock as `began`."""
        are_read = bool(models) and not any(planned.is_being_read for planned in models)
        self._is_over = self._is_over or are_read or now - self._began >= _START_SECONDS
        return not self._is_over


class Controller:
    """The control loop, and the plans, engines and hosts that it manages. Never blocks its event loop."""

    def __init__(
        self,
        repository: Repository,
        named: Mapping[str, Path],
        store: Store,
        builder: Builder,
        fingerprint: Fingerprint,
        limits: HostLimits,
        settings: Engines,
        selection: ModelSelection | None = None,
        health_settings: Health | None = None,
        disk: Background | None = None,
    ) -> None:
        """`selection` says which of the repository's models are served; None means all."""
        self.repository, self.store, self.builder, self.settings = repository, store, builder, settings
        builder.facts = lambda: self.fingerprint.facts
        self.events = EventLog()
        self.alarms = Alarms(self.events)
        self.load = LoadMonitor()
        self._wake = asyncio.Event()
        self._disk = disk or Background()
        self._tasks = TaskGroup(self.wake)
        self._hosts = Hosts(limits, self._host_lost, reads=self._readable)
        self.tracking = Tracking()
        self._stopping = False
        self.started = self._turned = time.monotonic()
        attempts = AttemptLog(store.root, self._disk.put)
        self.frames = Collector(FrameFiles(repository.root.parent / FOLDER), sift, self.events.emit)
        self.frames.kept.on_change, self.frames.keep_free_mb = self._frames_changed, settings.keep_free_mb
        self._planner = Planner(store, fingerprint, settings, attempts, self.frames.kept.collected)
        self.health = health_settings or Health()
        self.observers: list[Callable[[], None]] = []  # called after every turn
        self.concerns: list[Callable[[], Iterable[Alarm]]] = []  # sources of further alarms
        probe = SessionProbe(builder.recorded)
        self.prober = Prober(probe, self.health, self._tasks)
        self._quarantine = Quarantine(store.root, self._disk.put)
        self.opener = Opener(
            self._hosts,
            store,
            settings.attempts,
            attempts,
            self.events,
            self._tasks,
            probe,
        )
        self.selection = selection or ModelSelection(repository)
        self.galleries = Galleries(repository.root.parent / "gallery")
        proofs = Proofs(store.root, self._disk.put)
        self.language = LanguageModels(
            LanguageBox(
                lambda: self.fingerprint.facts, proofs, self.events, memory.available_mb, self.wake, asyncio.Lock()
            )
        )
        self.describer = Describer(self.language.require, self.events.emit, self._tasks)
        self.catalogue = Catalogue(
            *(self.selection, named, builder, self._planner, self.events, self._tasks, self.opener.retire),
            *(self._prove, self.galleries, self.language),
        )
        self.models, self.ensembles = self.catalogue.models, self.catalogue.ensembles
        self.pipelines = Pipelines(self.models, self.catalogue.find, self.ensembles)
        self.sharing = EngineSharing(store, repository.root.parent)
        self.maker = Maker(builder, store, self.models, settings, self.events, self._tasks, attempts, self.sharing)
        self.drift = DriftMonitor(
            self.models,
            repository.entries,
            lambda: builder.admission,
            DriftFiles(repository.root.parent / DRIFT_FOLDER),
            self.load,
            self.maker,
            self.events,
            self._tasks,
            self._disk,
        )
        self.observers.append(self.drift.look)
        self.concerns.append(self.drift.alarms)
        self.concerns.append(partial(alarms.of_sharing, self.sharing))
        self.concerns.append(partial(alarms.of_language, self.language, self.describer))
        self.learning = Learning(self._planner.book, self._tasks)
        self.surveyor = Surveyor(fingerprint, self.events, self._device_changed, self.look_at_families)
        self.commands = Commands(self.catalogue, store, self.maker, self.events, self.wake, self._quarantine.forgive)
        self.overrides = Overrides(repository.root.parent / "overrides", repository)
        self.loader = Loader(
            self.selection, self.catalogue, self.overrides, builder, self._installed, self.wake, self.readiness
        )
        self._start = Start(self.started)
        self._state = ""  # why the state folder cannot be written; empty if it can

    def _readable(self) -> tuple[str, ...]:
        """Return the paths of models and engines that a host may read. Reads the disk, so call this in a thread."""
        found = []
        fetched = self.repository.root.parent / REFERENCES
        for root in (self.repository.root, self.overrides.root, self.store.engines, fetched):
            with contextlib.suppress(OSError):  # a folder that cannot be created cannot be read either
                root.mkdir(parents=True, exist_ok=True, mode=0o750)
                found.append(str(root))
        for planned in tuple(self.catalogue.models.values()):
            found += confinement.around(planned.entry.path)
        return (*found, *self.builder.families.folders())

    async def run(self) -> None:
        """Reconcile until cancelled: at start, after every change, and on a timer."""
        watching = keep("watch of models", self._watch_disk)
        try:
            await self._reconcile()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch_disk(self) -> None:
        """Scan the disk periodically. A slow disk delays only this task, not the control loop."""
        while True:
            try:
                await asyncio.to_thread(self.maker.eviction.look)
                self._state = await asyncio.to_thread(unwritable, self.repository.root.parent)
                if await self.catalogue.look_aside():
                    self.wake()  # the next turn acts on the changes
            except OSError as error:  # the next scan finds the same changes
                _LOG.error("cannot scan the models: %s; trying again", error.strerror or error)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _reconcile(self) -> None:
        while True:
            self._wake.clear()
            try:
                self._act()
                self._turned = time.monotonic()  # only after success: the watchdog must notice a loop that always fails
            except OSError as error:  # the next turn reads the whole state again
                if error.errno not in NO_DESCRIPTORS:
                    raise
                _LOG.error(
                    "models and engines cannot be updated now: %s; open engines continue to serve; trying again; close"
                    " connections, or raise LimitNOFILE",
                    error.strerror or error,
                )
            await until_set(self._wake, self._pause(time.monotonic()))

    def _pause(self, now: float) -> float:
        """Return the seconds until the next turn. The turn comes earlier than usual if an engine of an unserved model
        can be opened earlier."""
        waiting = [planned for planned in self.models.values() if planned.slot.current is None]
        is_idle = not waiting and not self.maker.busy and self.load.is_low(now)
        due = (engine.open_at - now for planned in waiting for engine in planned.engines.values())
        return min((_IDLE_SECONDS if is_idle else _LOOK_SECONDS, *(seconds for seconds in due if seconds > 0)))

    async def watch(self) -> None:
        """Call `refresh` whenever drivers or libraries may have changed on disk. Runs until cancelled."""
        await self.look_at_families()
        await self.surveyor.watch()

    async def refresh(self) -> tuple[Change, ...]:
        """Read the device's facts again and, if they changed, plan all engines again. Returns the changes."""
        await self.look_at_families()
        return await self.surveyor.refresh()

    async def look_at_families(self) -> None:
        """Recognise models again if families of other packages were allowed, installed, changed or removed."""
        if await self.builder.families.look():
            self.catalogue.recognise_again()
            self.wake()

    @property
    def fingerprint(self) -> Fingerprint:
        """The facts about the device for which engines were last planned."""
        return self.surveyor.fingerprint

    def wake(self) -> None:
        """Start the next turn now."""
        self._wake.set()

    def links(self) -> list[HostLink]:
        """Return the links to the running hosts."""
        return self._hosts.links()

    @property
    def misses(self) -> Mapping[str, int]:
        """The number of planned engines that the store did not have, for each reason that `plan.missing` returns."""
        return self._planner.misses

    def liveness(self) -> Liveness:
        """Return the times from which the watchdog decides whether the daemon makes progress."""
        hosts: dict[str, float] = {}
        for link in self._hosts.links():  # a backend may have several hosts
            hosts[link.backend] = max(link.overdue, hosts.get(link.backend, 0.0))
        return Liveness(time.monotonic() - self._turned, hosts)

    def reconfigure(self, engines: Engines, hosts: HostLimits, health: Health) -> None:
        """Apply new settings. Running hosts keep their limits."""
        self.settings, self.frames.keep_free_mb = engines, engines.keep_free_mb
        self._planner.reconfigure(engines)
        self.opener.reconfigure(engines.attempts)
        self.maker.reconfigure(engines)
        self._hosts.reconfigure(hosts)
        self.health = health
        self.prober.reconfigure(health)
        self.wake()

    def accept_foreign(self, accepted: bool) -> None:
        """Set whether edged uses files that other users may have written. This applies to all models, and to engines
        that the store finds from now on."""
        self.repository.accepts_foreign = self.store.accepts_foreign = accepted
        self.wake()

    async def stop(self) -> None:
        """Stop builds, hosts and the tracker, and write pending state to disk."""
        self._stopping = True
        await self.loader.stop()
        await self.learning.stop()
        await self._tasks.stop()
        self.drift.stop()
        await asyncio.gather(self._hosts.stop(), self.tracking.close(), self.language.stop())
        await asyncio.to_thread(self._disk.flush, _FLUSH_SECONDS)

    def find(self, name: str) -> PlannedModel:
        """Return the plan of a model. Raises the errors of `Catalogue.find`."""
        return self.catalogue.find(name)

    def find_any(self, name: str, version: str = "") -> PlannedModel | PlannedEnsemble:
        """Return the plan of a model or ensemble, or of one version of it. See `Catalogue.find_any` for the errors."""
        return self.catalogue.find_any(name, version)

    async def added(self, name: str) -> PlannedModel | PlannedLanguageModel:
        """Return the plan of a model that a command just added to the repository. Works in every mode of model control.
        Raises the errors of `files.reading` if the repository cannot be read."""
        with reading(f"model {name!r} is stored, but the models folder"):
            await asyncio.to_thread(self.selection.take, name)
            await self.catalogue.look_aside()
        return self.language.find(name) or self.catalogue.find(name)

    async def removed(self, name: str) -> None:
        """Remove the plan of a model that a command just removed, even if a scan that began before the removal still
        found the model."""
        loaded = self.selection.held(name)
        self.selection.drop(name)
        self._disk.put(partial(self.overrides.discard, loaded))
        self._quarantine.forgive(name)
        with contextlib.suppress(OSError):  # the next scan finds the removal as well
            await self.catalogue.look_aside()

    def served(self) -> list[PlannedModel | PlannedEnsemble]:
        """Return the plans of all models and ensembles, sorted by name."""
        found: list[PlannedModel | PlannedEnsemble] = [*self.models.values(), *self.ensembles.values()]
        return sorted(found, key=lambda planned: planned.entry.name)

    def is_configured(self, name: str) -> bool:
        """Whether a model comes from the configuration instead of the repository."""
        return self.catalogue.is_configured(name)

    def slot(self, name: str) -> FrameSlot:
        """Return the slot of a model or pipeline, or of the only model if the name is empty. Raises the errors of
        `Catalogue.find`."""
        if not name:
            named = {planned.entry.model for planned in self.models.values()}
            name = named.pop() if len(named) == 1 else name
        return self.pipelines.find(name) or self.catalogue.find(name).slot

    async def _prove(self, model: Model, tries: int) -> Proven:
        """Try a model in a child before a host opens it. Skip the trial if the reference's runtime is not installed."""
        return await prove(self.builder, model, tries) if REFERENCE.backend in self._installed() else Proven()

    def _installed(self) -> tuple[str, ...]:
        return registry.usable(self.fingerprint.facts)

    def _act(self) -> None:
        now = time.monotonic()
        self.load.sample(now)
        paused = self.maker.eviction.paused
        is_reboot_pending = self.surveyor.is_reboot_pending
        self.maker.abandon()
        for replan in self.learning.look(self.models.values(), now):
            carry_out(replan, now, self.catalogue, self.opener, self.maker)
        self._quarantine.mark(self.models.values())
        for planned in self.models.values():
            planned.refuse_or_accept()
            planned.fallback.on_waiting = self.wake
        for action in reconcile(
            actual(self.store, self.models.values(), self.settings, now),
            now,
            self.maker.busy,
            slow=self.maker.slow(memory.available_mb),
            paused=bool(paused) or is_reboot_pending,
            by_command=self.settings.build == "command",
            is_idle=self.load.is_low(now),
            is_starting=self._start.is_going_on(self.models.values(), now),
        ):
            if carry_out(action, now, self.catalogue, self.opener, self.maker):
                self.wake()
        self.opener.tidy(self.models)
        models = self.models.values()
        self.prober.look(models, now)
        box = alarms.Box(self.load.busy, paused, is_reboot_pending, self.tracking.problem, self._state)
        wrong = alarms.wrong(models, self.settings, now, box, self.health)
        unserved = alarms.wrong_ensembles(self.ensembles.values(), self.health)
        self.alarms.update([*wrong, *unserved, *(alarm for concern in self.concerns for alarm in concern())])
        for observe in self.observers:
            observe()

    @property
    def is_ready(self) -> bool:
        """Whether every model that can be served is ready. Always true without `strict_readiness`."""
        language = self.language.are_ready or not self.health.strict_readiness
        return language and all_ready(self.models.values(), self.health)

    def readiness(self, planned: PlannedModel | PlannedEnsemble) -> Readiness:
        """Return the readiness of a model or ensemble."""
        if isinstance(planned, PlannedEnsemble):
            return ensemble_readiness(planned, self.health)
        return readiness(planned, self.health)

    def _device_changed(self, fingerprint: Fingerprint) -> None:
        self._planner.fingerprint = fingerprint
        self.catalogue.plan_all()
        self.language.device_changed()
        self.wake()

    def _frames_changed(self, model: str) -> None:
        """Plan a model again, because its collected frames changed."""
        planned = self.models.get(model)
        if planned is not None and planned.problem is None:
            self.catalogue.replan(planned)
        self.wake()

    def _host_lost(self, link: HostLink, why: str) -> None:
        for planned in self.models.values():
            planned.fallback.vacate(link)
        affected = [name for name, planned in self.models.items() if planned.slot.vacate(link)]
        if not link.stopping:
            self.events.emit(HostLost(link.backend, why))
            self._quarantine.lost(link.loss)
        if affected and not self._stopping:
            message = "engine host %s (pid %d) %s; affected models: %s"
            about = {"event": "host_lost", "backend": link.backend}
            _LOG.warning(message, link.backend, link.pid, why, ", ".join(affected), extra=about)
        self.wake()


def carry_out(action: Action, now: float, catalogue: Catalogue, opener: Opener, maker: Maker) -> bool:
    """Carry out an action of `reconcile`. Return whether the next turn should start at once."""
    planned = catalogue.models[action.model]
    match action:
        case Open():
            opener.start(planned, action.key, action.parallelism)
        case OpenFallback():
            opener.start_fallback(planned, action.key)
        case CloseFallback():
            opener.close_fallback(planned)
        case RefuseFallback():
            planned.refuse_fallback(action.why)
        case Read():
            catalogue.read_again(planned)
        case Refuse():
            catalogue.refuse(planned)
        case Replan():
            before = planned.engines
            catalogue.replan(planned)
            return planned.engines.keys() != before.keys()
        case Review():
            planned.engines[action.key].request = Request.REVIEW
            # Models of the same content share the engine, so one review is enough.
            for other in catalogue.models.values():
                if action.key in other.engines:
                    other.engines[action.key].reviewed_at = now
            return True
        case _:
            maker.start(planned, action)
    return False
