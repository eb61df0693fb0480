"""Fault simulation of the control loop: steps of a simulated box whose builds, hosts and disk fail.

The catalogue, planner, reconciler, maker, opener, eviction and commands are real. Children, hosts, disk and clock are
simulated: a `Fate` that the test draws in advance gives the outcome of each build and each opening.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Coroutine, Mapping, Set
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edged.backends.artefact import Artefact, FileRecord
from edged.backends.contract import Order, Recipe
from edged.config import Engines
from edged.device.fingerprint import Fingerprint
from edged.engines import opener as opener_module
from edged.engines import plan as planner_module
from edged.engines.builder import OnProgress, Reserve, Task
from edged.engines.catalogue import Catalogue
from edged.engines.commands import Commands, Selection
from edged.engines.controller import carry_out
from edged.engines.desired import DesiredEngine, desired
from edged.engines.engine import MAKING, EngineState, PlannedEngine, Request
from edged.engines.maker import Maker
from edged.engines.opener import Opener
from edged.engines.plan import PlannedModel, Planner
from edged.engines.reconcile import ModelView, Open, Work, reconcile
from edged.engines.views import actual
from edged.errors import (
    BuildFailed,
    EdgedError,
    EngineDamaged,
    EngineUnusable,
    HostLost,
    NotReady,
    OutOfSpace,
    Superseded,
    Unsuitable,
)
from edged.events import EventLog
from edged.ipc.job_messages import Progress
from edged.models.entries import ModelEntry
from edged.models.inspection import Inspection
from edged.models.model import Model
from edged.serving.hosts import HostKind
from edged.serving.session import ServingSession
from edged.store.attempts import AttemptLog, Attempts
from edged.store.key import EngineKey
from edged.store.record import EngineRecord
from edged.store.sealed import at_once
from edged.tasks import TaskGroup
from edged.verification.standard import Standard
from tests.unit.control_room import (
    MB,
    Clock,
    FakeBuilder,
    FakeHost,
    Unexpected,
    box,
    entry,
    inspection,
    record_of,
    stop_time,
)

GPU = Recipe("onnxruntime", device="cuda:0")
NOISE = 0.95  # an engine is replaced only by one that takes less than this share of its time
ATTEMPTS = 3
UNDECIDED = MAKING | {EngineState.ABSENT, EngineState.FAILED}
# Every engine is one of these kinds. Models with equal content share the fate of each kind.
KINDS = ("reference", "onnxruntime", "openvino", "gpu")


def kind_of(recipe: Recipe) -> str:
    if recipe.is_reference:
        return "reference"
    return "gpu" if recipe.device == GPU.device else recipe.backend


class Fate(msgspec.Struct, frozen=True):
    """Outcomes of the first, second, ... attempt at an engine. The last outcome repeats."""

    builds: tuple[str, ...] = ("good",)
    opens: tuple[str, ...] = ("good",)
    adoptions: tuple[str, ...] = ("good",)
    costs: tuple[float, ...] = (0.5,)


_ERRORS: dict[str, type[Exception]] = {
    "failed": BuildFailed,
    "unsuitable": Unsuitable,
    "void": Superseded,
    "no space": OutOfSpace,
    "a bug": Unexpected,
    "refused": EngineUnusable,
    "damaged": EngineDamaged,
    "lost": HostLost,
    "not ready": NotReady,
}


class MemoryStore:
    """An engine store in memory."""

    def __init__(self) -> None:
        self.root, self.problem = Path("/"), ""
        self._records: dict[str, EngineRecord] = {}
        self._used: dict[str, int] = {}
        self._ticks = 0

    def records(self) -> dict[str, EngineRecord]:
        return dict(self._records)

    def find(self, key: str) -> EngineRecord | None:
        return self._records.get(key)

    def artefact(self, key: str) -> Artefact:
        return Artefact(f"/engines/{key}", self._records[key].files)

    def put(self, record: EngineRecord) -> EngineRecord:
        key = EngineKey(record.parts).digest
        self._records[key] = record
        self.touch(key)
        return record

    def amend(self, record: EngineRecord) -> None:
        if self._records[EngineKey(record.parts).digest].files != record.files:
            raise ValueError("the new record names other files")
        self.put(record)

    def strip(self, record: EngineRecord) -> None:
        self.put(msgspec.structs.replace(record, files={}))

    def remove(self, key: str, *, keep_pin: bool = False) -> None:
        self._records.pop(key, None)

    def damaged(self, artefact: Artefact) -> None:
        key = Path(artefact.root).name
        if key in self._records and self._records[key].files == artefact.files:
            self.remove(key)

    def touch(self, key: str) -> None:
        self._ticks += 1
        self._used[key] = self._ticks

    def used(self, key: str) -> float:
        return self._used.get(key, 0)

    def is_pinned(self, key: str) -> bool:
        return False

    @property
    def size(self) -> int:
        return sum(record.size for record in self._records.values())


class MemoryLog(AttemptLog):
    """A log of attempts in memory."""

    def __init__(self) -> None:
        self._known: dict[str, Attempts] = {}
        self._later = at_once

    def forget(self, key: str) -> None:
        self._known.pop(key, None)

    def _write(self, key: str, attempts: Attempts) -> None:
        self._known[key] = attempts


class Steps:
    """Holds work that takes time until the next step of the simulation."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def go(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


class Box(FakeBuilder):
    """Simulated children and hosts. Asserts that the control loop requests nothing forbidden."""

    def __init__(self, fates: Mapping[str, Mapping[str, Fate]], store: MemoryStore, steps: Steps) -> None:
        held: Any = store
        super().__init__(held)
        self.fates, self.steps, self.content = fates, steps, bytes(MB)
        self.files: dict[str, Inspection] = {}
        self.commanded: set[str] = set()  # keys of engines that a command wants built
        self.contents: dict[str, str] = {}  # digest of a model -> the content that selects its fate
        self.busy: Counter[str] = Counter()
        self.tries: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.built = self.opened = 0
        self.links: dict[HostKind, Link] = {}

    # -- the builder ------------------------------------------------------------------------------------------------

    async def make(self, task: Task, on_progress: OnProgress, reserve: Reserve) -> EngineRecord:
        key = task.key.digest
        known = self.store.records().get(key)
        if known is not None and not known.verdict.accepted and known.standard == self._standard(task):
            assert key in self.commanded, "a rejected engine is not made again without a command"
        return await super().make(task, on_progress, reserve)

    async def _work(self, verb: str, task: Task, on_progress: OnProgress) -> bool:
        self.busy[task.recipe.device] += 1
        assert self.busy[task.recipe.device] == 1, "one build at a time in a lane"
        try:
            self.built += verb == "make"
            await self.steps.wait()
            outcome = self._next(task, "builds" if verb == "make" else "adoptions")
            if outcome not in ("good", "rejected"):
                raise _ERRORS[outcome](outcome)
            on_progress(Progress("verifying"))
            await self.steps.wait()
            if verb == "make":
                self.commanded.discard(task.key.digest)
            return bool(outcome == "good")
        finally:
            self.busy[task.recipe.device] -= 1

    async def inspect(self, path: Path, tries: int = 1) -> Inspection:
        return self.files[path.stem]

    def forget(self, digest: str) -> None:
        pass

    def forget_others(self, needed: Set[str]) -> None:
        pass

    def _standard(self, task: Task) -> str:
        return Standard.of(task.model, task.recipe.precision, self.facts()).digest

    def _record(self, task: Task, accepted: bool) -> EngineRecord:
        number = self.tries[(task.key.digest, "costs")]
        cost = float(self._next(task, "costs"))
        record = record_of(
            task.key, task.recipe, accepted=accepted, cost=cost, made=float(number), standard=self._standard(task)
        )
        sha = hashlib.sha256(f"{task.key.digest} {number}".encode()).hexdigest()
        return msgspec.structs.replace(record, files={name: FileRecord(sha, MB) for name in record.files})

    def _keep(self, record: EngineRecord) -> None:
        store: Any = self.store
        store.put(record)

    def _next(self, task: Task, what: str) -> Any:
        return self.outcome(task.model.digest, task.recipe, task.key.digest, what)

    def outcome(self, digest: str, recipe: Recipe, key: str, what: str) -> Any:
        """Return the outcome of the next attempt."""
        fates = getattr(self.fate(digest, recipe), what)
        number = self.tries[(key, what)]
        self.tries[(key, what)] += 1
        return fates[min(number, len(fates) - 1)]

    def fate(self, digest: str, recipe: Recipe) -> Fate:
        return self.fates[self.contents[digest]][kind_of(recipe)]

    # -- the hosts --------------------------------------------------------------------------------------------------

    async def get(self, kind: HostKind, *paths: Path) -> Link:
        link = self.links.get(kind)
        if link is None or link.lost:
            link = self.links[kind] = Link(self, kind)
        return link

    def retry_in(self, kind: HostKind) -> float:
        return 0.0

    def empty(self, wanted: object) -> list[Any]:
        return []


class Link(FakeHost):
    """A link to a simulated host."""

    def __init__(self, box: Box, kind: HostKind) -> None:
        super().__init__(kind.backend)
        self.box = box

    async def open(self, order: Order, recognition: object, batch: int = 1, tenant: object = None) -> int:
        box = self.box
        key = Path(order.artefact.root).name if order.artefact is not None else f"reference of {order.digest}"
        record = box.store.records().get(key)
        if order.artefact is not None:
            assert record is not None, "an engine that is opened is in the store"
            assert record.is_usable, "a rejected engine is not opened"
        await box.steps.wait()
        if self.lost:
            raise HostLost("it died")
        outcome = box.outcome(order.digest, order.recipe, key, "opens")
        if outcome != "good":
            raise _ERRORS[outcome](outcome)
        box.opened += 1
        return box.opened


class WatchedChores(TaskGroup):
    """A TaskGroup that also records the errors of its tasks."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.errors: list[BaseException] = []

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = super().start(work)
        task.add_done_callback(self._watch)
        return task

    def _watch(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.errors.append(error)


class World:
    """The control loop on a simulated box. Create it inside an event loop, after calling `laws`."""

    def __init__(self, clock: Clock, fates: Mapping[str, Mapping[str, Fate]], budget_mb: int = 0) -> None:
        self.clock, self.steps, self.store, self.events = clock, Steps(), MemoryStore(), EventLog()
        self.box = Box(fates, self.store, self.steps)
        self.entries_now: dict[str, ModelEntry] = {}
        self.chores = WatchedChores()
        settings = Engines(budget_mb=budget_mb, keep_free_mb=0, attempts=ATTEMPTS)
        outside: Any = self.box
        store: Any = self.store
        log = MemoryLog()
        self.planner = Planner(store, box(), settings, log)
        self.box.facts = lambda: self.planner.fingerprint.facts
        repository: Any = self
        self.opener = Opener(outside, store, ATTEMPTS, log, self.events, self.chores)
        self.catalogue = Catalogue(repository, {}, outside, self.planner, self.events, self.chores, self.opener.retire)
        self.models = self.catalogue.models
        self.maker = Maker(outside, store, self.models, settings, self.events, self.chores, log)
        self.commands = Commands(self.catalogue, store, self.maker, self.events, lambda: None)
        self.lost: set[str] = set()  # models whose host was lost since the last step

    def entries(self) -> dict[str, ModelEntry]:
        return dict(self.entries_now)

    # -- events of the simulation -----------------------------------------------------------------------------------

    def put_model(self, name: str, content: str, version: int, is_strict: bool = False) -> None:
        """Add a model, or replace its version or settings."""
        settings = {"verify.fp32.cosine": "0.9999999"} if is_strict else {}
        found = inspection(f"{content} {version}")
        self.box.contents[found.digest] = content
        self.box.files[name] = found
        self.entries_now[name] = entry(name, f"{content} {version}", **settings)

    def remove_model(self, name: str) -> None:
        self.entries_now.pop(name, None)

    def change_device(self, **facts: str) -> None:
        self.planner.fingerprint = box(**facts)
        self.catalogue.plan_all()

    def lose_hosts(self, backend: str) -> None:
        for link in self.box.links.values():
            if link.backend == backend:
                link.lost = "died"
                self.lost |= {n for n, planned in self.models.items() if planned.slot.vacate(link)}  # type: ignore

    async def command(self, verb: str, selection: Selection) -> None:
        try:
            if verb == "rebuild":
                self.commands.rebuild(selection, force=False)
            elif verb == "force":
                self.commands.rebuild(selection, force=True)
            elif verb == "verify":
                self.commands.verify(selection)
            elif verb == "cancel":
                self.commands.cancel(selection)
            else:
                await self.commands.evict(selection)
        except EdgedError:
            pass  # the command is not possible now

    async def step(self, seconds: float = 1.0, *, is_missed: bool = False) -> None:
        """Advance the clock, let waiting work continue, and run the control loop unless `is_missed`."""
        before = {name: planned.slot.current for name, planned in self.models.items()}
        self.clock.now += seconds
        self.steps.go()
        await self._settle()
        if not is_missed:
            self._act()
            await self._settle()
        self._check(before)

    def _act(self) -> None:
        """Run one round of the control loop."""
        self.catalogue.look()
        self.maker.abandon()
        views, now, busy = actual(self.store, self.models.values()), self.clock.now, self.maker.busy  # type: ignore
        written = msgspec.json.encode(views)
        actions = reconcile(views, now, busy, paused=bool(self.store.problem), is_idle=True)
        assert actions == reconcile(iter(views), now, busy, paused=bool(self.store.problem), is_idle=True), (
            "reconcile depends only on its arguments"
        )
        assert msgspec.json.encode(views) == written, "reconcile changes nothing"
        self._check_actions(views, actions)
        for action in actions:
            if isinstance(action, Work) and self.models[action.model].engines[action.key].request is Request.BUILD:
                self.box.commanded.add(action.key)
            carry_out(action, self.clock.now, self.catalogue, self.opener, self.maker)

    async def _settle(self) -> None:
        for _ in range(12):
            await asyncio.sleep(0)

    # -- invariants of every step -----------------------------------------------------------------------------------

    def _check_actions(self, views: list[ModelView], actions: list[Any]) -> None:
        opens = [action for action in actions if isinstance(action, Open)]
        makes = [action for action in actions if isinstance(action, Work)]
        assert len({action.model for action in opens}) == len(opens), "one opening at a time for a model"
        engines = {(view.name, e.key): e for view in views for e in view.engines}
        lanes = [engines[action.model, action.key].lane for action in makes]
        assert len(set(lanes)) == len(lanes), "one build at a time in a lane"
        assert not set(lanes) & self.maker.busy
        assert not (makes and self.store.problem), "no builds while paused"
        for view in views:
            mine = [action for action in opens if action.model == view.name]
            assert not (mine and view.opening)
            able = [e for e in view.engines if (e.usable or e.recipe.is_reference) and e.open_at <= self.clock.now]
            if able and view.serving is None and not view.opening and not view.holds:
                assert mine, "a model without a serving engine opens one that can be opened"

    def _check(self, before: Mapping[str, ServingSession | None]) -> None:
        bugs = [error for error in self.chores.errors if not isinstance(error, Unexpected)]
        assert not bugs, bugs
        for name, planned in self.models.items():
            if before.get(name) is not None and planned.slot.current is None:
                assert name in self.lost, "a model loses its serving engine only with a lost host"
        self.lost.clear()

    # -- the end ----------------------------------------------------------------------------------------------------

    def sign(self) -> Any:
        """Return the state that must stop changing for `come_to_rest` to end."""
        serving = {
            name: (
                planned.serving,
                planned.slot.current.engine.edition if planned.slot.current else "",
                str(planned.problem),
            )
            for name, planned in self.models.items()
        }
        held = sorted((key, record.is_usable, record.edition) for key, record in self.store.records().items())
        return serving, held, self.box.built, self.box.opened

    async def come_to_rest(self) -> None:
        """Step until the state stays the same."""
        self.store.problem = ""
        quiet, last = 0, None
        for _ in range(100):
            for seconds in (200.0, *(0.3,) * 6):  # long enough for every retry, then short steps for the queued work
                await self.step(seconds)
            now = self.sign()
            quiet, last = (quiet + 1 if now == last else 0), now
            if quiet >= 4:
                return
        raise AssertionError("the box did not settle")

    def check_end(self, *, has_budget: bool) -> None:
        for name in self.entries_now:
            planned = self.models[name]
            engines = list(planned.engines.values())
            if not has_budget:
                assert not [
                    e for e in engines if e.state in MAKING or e.state in (EngineState.ABSENT, EngineState.FAILED)
                ]
            if planned.problem is not None:
                self._check_refused(planned)
                continue
            able = [e for e in engines if e.is_usable and e.open_at < math.inf]
            reference = planned.reference
            assert reference is not None
            if able or reference.open_at < math.inf:
                self._check_serving(planned, able)

    def _check_serving(self, planned: PlannedModel, able: list[PlannedEngine]) -> None:
        current = planned.slot.current
        assert current is not None, "a model with a usable engine has a serving engine"
        assert not current.link.lost
        assert planned.fits(), "the serving engine is of the current model"
        serving = planned.engines.get(current.engine.key)
        assert serving is not None, "the serving engine is for the current device"
        costs = [e.record.cost for e in able if e.record is not None and e.record.cost is not None]
        cost = serving.record.cost if serving.record is not None else None
        if cost is None and serving.recipe.is_reference:
            cost = 1.0  # costs are relative to the reference
        if costs:
            assert cost is not None
            assert min(costs) >= cost * NOISE, "the serving engine is about as fast as the fastest"
        if serving.is_usable:
            assert current.engine.edition == serving.edition, "the serving engine is the newest build"

    def _check_refused(self, planned: PlannedModel) -> None:
        """Check that a refused model has a reference that cannot be opened."""
        digest = self.box.files[planned.entry.name].digest
        assert "refused" in self.box.fates[self.box.contents[digest]]["reference"].opens
        assert planned.slot.current is None or planned.serving not in planned.engines


def desired_here(fingerprint: Fingerprint, model: Model) -> tuple[DesiredEngine, ...]:
    """Return the desired engines of any box, plus one for the GPU of the simulated box."""
    key = EngineKey.of(model.digest, GPU, fingerprint)
    on_gpu = DesiredEngine(key, GPU, Standard.of(model, GPU.precision, fingerprint.facts).digest, GPU.device)
    return (*desired(fingerprint, model), on_gpu)


def laws(patch: pytest.MonkeyPatch) -> Clock:
    """Patch the modules for the simulation: the clock stands still between steps, and no call waits for a thread."""

    async def in_the_loop(function: Any, *args: Any, **named: Any) -> Any:
        return function(*args, **named)

    patch.setattr(asyncio, "to_thread", in_the_loop)
    patch.setattr(planner_module, "desired", desired_here)
    patch.setattr(opener_module, "require_same", lambda order: None)
    patch.setattr(logging.getLogger("edged.engines"), "disabled", True)
    return stop_time(patch)
