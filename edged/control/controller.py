"""The control loop: sees what there is and what there should be, decides with `reconcile`, and has it done."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from pathlib import Path

from edged.backend import registry
from edged.build.builder import Builder
from edged.config import Engines
from edged.control import health
from edged.control.actual import actual
from edged.control.alarms import Alarms
from edged.control.calm import Calm, was_loaded
from edged.control.catalogue import Catalogue
from edged.control.chores import Chores
from edged.control.commands import Commands
from edged.control.loader import Loader
from edged.control.maker import Maker
from edged.control.opener import Opener
from edged.control.plan import PlannedModel, Wish
from edged.control.planner import Planner
from edged.control.reconcile import Open, reconcile
from edged.control.shelf import Shelf
from edged.control.surveyor import Surveyor
from edged.device.fingerprint import Change, Fingerprint
from edged.events import EventLog, HostLost
from edged.model.overrides import Overrides
from edged.model.repository import Repository
from edged.serving.hosts import Hosts
from edged.serving.link import HostLimits, HostLink
from edged.serving.slot import Slot
from edged.serving.tracking import Tracking
from edged.store.attempts import AttemptLog
from edged.store.store import Store

_LOG = logging.getLogger("edged.control")
_LOOK_SECONDS = 1.0  # how often everything is looked at when nothing else happens
_REVIEW_SECONDS = 600.0  # between two verifications of one engine of the daemon's own accord


class Controller:
    """Owns everything that is planned, made and opened. It runs on one event loop; nothing here blocks it."""

    def __init__(
        self,
        repository: Repository,
        named: Mapping[str, Path],
        store: Store,
        builder: Builder,
        fingerprint: Fingerprint,
        limits: HostLimits,
        settings: Engines,
        shelf: Shelf | None = None,
    ) -> None:
        """`shelf` says which of the repository's models there are to be; all of them where there is none."""
        self.repository, self.store, self.builder, self.settings = repository, store, builder, settings
        self.events = EventLog()
        self.alarms = Alarms(self.events)
        self.calm = Calm()
        self._wake = asyncio.Event()
        self._chores = Chores(self.wake)
        self._hosts = Hosts(limits, self._host_lost)
        self.tracking = Tracking()
        self._stopping = False
        self.started = time.monotonic()
        self._planner = Planner.of(store, fingerprint, settings)
        self.opener = Opener(self._hosts, store, settings.attempts, self.events, self._chores, self._read_again)
        self.shelf = shelf or Shelf(repository)
        self.catalogue = Catalogue(
            self.shelf, named, builder, self._planner, self.events, self._chores, self.opener.retire
        )
        self.models = self.catalogue.models
        self.maker = Maker(
            builder, store, self.models, settings, self.events, self._chores, AttemptLog(store.root), self._read_again
        )
        self.surveyor = Surveyor(fingerprint, self.events, self._device_changed)
        self.commands = Commands(self.catalogue, store, self.maker, self.events, self.wake)
        self.overrides = Overrides(repository.root.parent / "overrides", repository)
        self.loader = Loader(self.shelf, self.catalogue, self.overrides, builder, self._installed, self.wake)
        self._reviewed: dict[str, float] = {}

    async def run(self) -> None:
        """Reconciles until cancelled: at start, whenever something changed, and on a timer."""
        while True:
            self._wake.clear()
            self.catalogue.look()
            self._act()
            try:
                await asyncio.wait_for(self._wake.wait(), _LOOK_SECONDS)
            except asyncio.TimeoutError:
                continue

    async def watch(self) -> None:
        """Refreshes whenever drivers or libraries may have changed on disk; until cancelled."""
        await self.surveyor.watch()

    async def refresh(self) -> tuple[Change, ...]:
        """Reads the device's facts again now; where they changed, engines are planned anew. Returns what changed."""
        return await self.surveyor.refresh()

    @property
    def fingerprint(self) -> Fingerprint:
        """The facts that engines are planned for."""
        return self.surveyor.fingerprint

    def wake(self) -> None:
        """Something changed: look now instead of at the next tick."""
        self._wake.set()

    async def stop(self) -> None:
        """Ends builds and hosts."""
        self._stopping = True
        await self.loader.stop()
        await self._chores.stop()
        await asyncio.gather(self._hosts.stop(), self.tracking.close())

    def find(self, name: str, version: str = "") -> PlannedModel:
        """The plan of a model, or of one version of it; NotFound."""
        return self.catalogue.find(name, version)

    def added(self, name: str) -> PlannedModel:
        """The plan of a model that was just put into the repository by command, whatever the mode of control."""
        self.shelf.take(name)
        return self.catalogue.find(name)

    def removed(self, name: str) -> None:
        """A model was just taken out of the repository by command."""
        loaded = self.shelf.held(name)
        self.shelf.drop(name)
        self.overrides.discard(loaded)
        self.wake()

    def is_configured(self, name: str) -> bool:
        """Whether a model comes from the configuration instead of the repository."""
        return self.catalogue.is_configured(name)

    def slot(self, name: str) -> Slot:
        """The slot of a model; with an empty name the only one there is. NotFound otherwise."""
        if not name:
            named = {planned.entry.model for planned in self.models.values()}
            name = named.pop() if len(named) == 1 else name
        return self.catalogue.find(name).slot

    def _installed(self) -> tuple[str, ...]:
        return registry.installed(self.fingerprint.facts)

    def _act(self) -> None:
        now = time.monotonic()
        self.calm.look(now)
        paused = self.maker.room.paused
        is_reboot_pending = self.surveyor.is_reboot_pending
        self.maker.abandon()
        self._review(now)
        views = actual(self.store, self.models.values())
        for action in reconcile(views, now, self.maker.busy, paused=bool(paused) or is_reboot_pending):
            planned = self.models[action.model]
            if isinstance(action, Open):
                self.opener.start(planned, action.key)
            else:
                self.maker.start(planned, action)
        self.opener.tidy(self.models)
        self.catalogue.refuse_hopeless()
        models = self.models.values()
        box = health.Box(self.calm.busy, paused, is_reboot_pending, self.tracking.problem)
        self.alarms.update(health.wrong(models, self.settings, now, box))

    def _review(self, now: float) -> None:
        """Engines whose figures may be off are verified and timed again: when the box is calm, those that were timed
        under load; at once, one that has become slow, since another may be faster by now."""
        has_lasted = self.calm.has_lasted(now) and not self.maker.busy
        for planned in self.models.values():
            slow = health.slow_engine(planned, self.settings, now) is not None
            for key, engine in planned.engines.items():
                record = engine.record
                if record is None or not engine.is_usable or engine.wish is not Wish.NONE:
                    continue
                is_due = now - self._reviewed.get(key, -_REVIEW_SECONDS) >= _REVIEW_SECONDS
                if is_due and ((slow and key == planned.serving) or (has_lasted and was_loaded(record.load))):
                    self._reviewed[key] = now
                    engine.wish = Wish.REVIEW

    def _read_again(self, planned: PlannedModel) -> None:
        self.catalogue.read_again(planned)

    def _device_changed(self, fingerprint: Fingerprint) -> None:
        self._planner.fingerprint = fingerprint
        self.catalogue.plan_all()
        self.wake()

    def _host_lost(self, link: HostLink, why: str) -> None:
        affected = [name for name, planned in self.models.items() if planned.slot.vacate(link)]
        if not link.stopping:
            self.events.tell(HostLost(link.backend, why))
        if affected and not self._stopping:
            _LOG.warning("engine host %s (pid %d) %s; affected: %s", link.backend, link.pid, why, ", ".join(affected))
        self.wake()
