"""The engines' control loop without runtimes: models made in memory, a scripted builder and scripted hosts."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edged.backends.artefact import FileRecord
from edged.backends.contract import REFERENCE, Nodes, Order, Recipe, Signature
from edged.config import Engines
from edged.device.fingerprint import Fingerprint
from edged.engines import engine as engine_module
from edged.engines import maker as maker_module
from edged.engines import opener as opener_module
from edged.engines.builder import OnProgress, Reserve, Task
from edged.engines.desired import desired
from edged.engines.engine import PlannedEngine
from edged.engines.maker import Maker
from edged.engines.plan import PlannedModel
from edged.engines.reconcile import Make
from edged.errors import EngineUnusable
from edged.events import EventLog, What
from edged.ipc.job_messages import Progress
from edged.models.entries import ModelEntry
from edged.models.inspection import ExternalFile, Inspection
from edged.models.model import Model
from edged.serving.hosts import HostKind
from edged.serving.session import ServingSession
from edged.serving.slot import Slot
from edged.serving.work import EngineRef
from edged.store.attempts import AttemptLog
from edged.store.key import EngineKey
from edged.store.record import BuildFacts, EngineRecord, Speed, Verdict
from edged.store.store import Store
from edged.tasks import TaskGroup
from edged.tensors import TensorSpec
from edged.verification.standard import Standard
from edged.vision.family import Recognition
from tests.waiting import until

FACTS = {"runtime.onnxruntime": "1", "runtime.openvino": "2", "cpu.isa": "avx2", "cpu.model": "N100"}
MB = 1 << 20


class Clock:
    """A clock that stands still until a test advances it."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


def stop_time(patch: pytest.MonkeyPatch) -> Clock:
    """Patch the modules of the control loop to read the clock that is returned."""
    clock = Clock()
    for module in (engine_module, maker_module, opener_module):
        patch.setattr(module, "time", clock)
    return clock


# -- models ---------------------------------------------------------------------------------------------------------


def inspection(
    content: str = "content", external: Sequence[str] = (), shape: tuple[int | str, ...] = (1, 4)
) -> Inspection:
    """Return the inspection of a model file with this content: one input `x`, one output `y`, both of this shape."""
    digest = hashlib.sha256(content.encode()).hexdigest()
    tensor = TensorSpec("x", "FP32", shape)
    signature = Signature((tensor,), (msgspec.structs.replace(tensor, name="y"),))
    files = tuple(ExternalFile(path, 1) for path in external)
    return Inspection(digest, digest, 1, 10, {"": 20}, "tests", {}, signature, {"Identity": 1}, 0, 0, 0, files)


def entry(name: str = "m", stamp: str = "1", path: str = "", **settings: str) -> ModelEntry:
    return ModelEntry(name, "1", path or f"/nowhere/{name}.onnx", settings, stamp)


def model(name: str = "m", content: str = "content", **settings: str) -> Model:
    return Model.of(entry(name, **settings), inspection(content))


def planned_model(name: str = "m") -> PlannedModel:
    return PlannedModel(entry(name), Slot(name))


def key_of(of: Model, recipe: Recipe, **facts: str) -> EngineKey:
    """Return the key of a model's engine on a box with these facts."""
    return EngineKey.of(of.digest, recipe, box(**facts))


def box(**facts: str) -> Fingerprint:
    """Return `FACTS` with some facts replaced: `cpu__model="other"` sets `cpu.model`."""
    return Fingerprint(FACTS | {name.replace("__", "."): value for name, value in facts.items()})


# -- engines --------------------------------------------------------------------------------------------------------


def record_of(
    key: EngineKey,
    recipe: Recipe,
    *,
    accepted: bool = True,
    cost: float | None = 0.5,
    content: bytes = b"engine",
    made: float = 1.0,
    **more: Any,
) -> EngineRecord:
    """Return an engine's record as the store has it. References and rejected engines have no files."""
    reason = "" if accepted else "cosine 0.5 is below 0.999"
    has_files = accepted and not recipe.is_reference
    files = {"engine.bin": FileRecord(hashlib.sha256(content).hexdigest(), len(content))} if has_files else {}
    speeds = () if cost is None or not accepted else (Speed(1, 0, cost * 10.0, cost * 10.0, 10.0),)
    facts = BuildFacts(made, 1.0, 1.0, "test")
    return EngineRecord(key.parts, "m", recipe, files, facts, Verdict(accepted, reason, {}), speeds, **more)


def put(store: Store, record: EngineRecord, content: bytes = b"engine") -> str:
    """Commit an engine with this record to the store; its files have this content. Return its key's digest."""
    with store.stage() as out:
        for name in record.files:
            (out / name).write_bytes(content)
        return store.commit(out, record)


class Unexpected(RuntimeError):
    """An error that no code handles."""


class FakeBuilder:
    """A builder with scripted outcomes: an error to raise, or whether the engine is accepted.

    While `gate` is clear, jobs wait as if a child were running. `says` is the progress that the child reports.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.facts: Callable[[], Mapping[str, str]] = lambda: FACTS
        self.outcomes: deque[bool | BaseException] = deque()  # if empty, every engine is accepted
        self.did: list[tuple[str, str]] = []  # verb, key
        self.efforts: list[str] = []
        self.sources: list[str] = []
        self.cost: float | None = 0.5
        self.content = b"engine"
        self.says: list[Progress] = []
        self.estimate: float | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def make(self, task: Task, on_progress: OnProgress, reserve: Reserve) -> EngineRecord:
        self.efforts.append(task.effort)
        on_progress(Progress("building"))
        if not task.recipe.is_reference:
            await reserve(len(self.content))
        accepted = await self._work("make", task, on_progress)
        record = self._record(task, accepted)
        before = self.store.records().get(task.key.digest)
        if accepted:
            await reserve(record.size)
            self._keep(record)
        elif before is None or not before.is_usable:
            self.store.strip(record)
        return record

    async def verify(self, task: Task, on_progress: OnProgress) -> EngineRecord:
        record = self.store.records()[task.key.digest]
        accepted = await self._work("verify", task, on_progress)
        found = self._record(task, accepted)
        record = msgspec.structs.replace(record, verdict=found.verdict, speeds=found.speeds, standard=found.standard)
        (self.store.amend if accepted else self.store.strip)(record)
        return self.store.records()[task.key.digest]

    async def adopt(self, task: Task, source: str, on_progress: OnProgress, reserve: Reserve) -> EngineRecord:
        self.sources.append(source)
        old = self.store.records()[source]
        if not await self._work("adopt", task, on_progress):
            raise EngineUnusable("its answers are wrong")
        record = msgspec.structs.replace(self._record(task, True), files=old.files, adopted_from=source)
        self._keep(record)
        return record

    async def inspect(self, path: Path, tries: int = 1) -> Inspection:
        raise NotImplementedError

    async def model(self, entry: ModelEntry, inspection: Inspection) -> Model:
        return Model.of(entry, inspection)

    def expected_seconds(self, task: Task) -> float | None:
        return self.estimate

    async def _work(self, verb: str, task: Task, on_progress: OnProgress) -> bool:
        self.did.append((verb, task.key.digest))
        for progress in self.says or [Progress("verifying")]:
            on_progress(progress)
        await self.gate.wait()
        outcome = self.outcomes.popleft() if self.outcomes else True
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _record(self, task: Task, accepted: bool) -> EngineRecord:
        standard = Standard.of(task.model, task.recipe.precision, self.facts()).digest
        return record_of(
            task.key, task.recipe, accepted=accepted, cost=self.cost, content=self.content, standard=standard
        )

    def _keep(self, record: EngineRecord) -> None:
        put(self.store, record, self.content)


# -- hosts ----------------------------------------------------------------------------------------------------------


class FakeHost:
    """A host link that only opens and closes sessions. `outcomes` are errors, or None for success."""

    def __init__(self, backend: str) -> None:
        self.backend, self.lost, self.stopping = backend, "", False
        self.outcomes: deque[Exception | None] = deque()
        self.opened: list[Order] = []
        self.closed: list[int] = []
        self.nodes: dict[int, Nodes] = {}
        self.sessions: dict[int, object] = {}
        self.suspects: Sequence[int] = ()
        self.gate = asyncio.Event()
        self.gate.set()

    async def open(self, order: Order, recognition: Recognition, batch: int = 1, tenant: object = None) -> int:
        self.opened.append(order)
        await self.gate.wait()
        outcome = self.outcomes.popleft() if self.outcomes else None
        if outcome is not None:
            raise outcome
        return len(self.opened)

    async def close_session(self, number: int) -> None:
        self.closed.append(number)

    async def stop(self) -> None:
        self.stopping = True

    def kill(self, why: str, suspects: Sequence[int]) -> None:
        self.lost, self.suspects = why, suspects


class FakeHosts:
    """One host per backend, started on the first `get`."""

    def __init__(self) -> None:
        self.hosts: dict[str, FakeHost] = {}
        self.idle: list[FakeHost] = []
        self.wait = 0.0

    async def get(self, kind: HostKind, *paths: Path) -> FakeHost:
        return self.host(kind.backend)

    def host(self, backend: str) -> FakeHost:
        if backend not in self.hosts or self.hosts[backend].lost:
            self.hosts[backend] = FakeHost(backend)
        return self.hosts[backend]

    def retry_in(self, kind: HostKind) -> float:
        return self.wait

    def empty(self, wanted: object) -> list[FakeHost]:
        return self.idle


def served_reference(name: str = "m") -> PlannedModel:
    """Return a model with an installed reference engine."""
    planned = planned_model(name)
    planned.model = model(name)
    key = key_of(planned.model, REFERENCE)
    planned.engines = {key.digest: PlannedEngine(key, REFERENCE)}
    serve(planned, key.digest)
    return planned


def serve(planned: PlannedModel, key: str, *, edition: str = "", backend: str = "fake") -> FakeHost:
    """Install an engine in the model's slot, as after opening it. Return its host."""
    assert planned.model is not None
    host: Any = FakeHost(backend)
    known = planned.model
    ref = EngineRef(key, backend, known.digest, known.recognition, edition, limits=known.limits)
    planned.slot.install(ServingSession(host, 1, ref))
    return host  # type: ignore[no-any-return]


# -- everything together ----------------------------------------------------------------------------------------------


class ControlRoom:
    """Models that have a reference and two engines each, with a scripted builder, scripted hosts and a real maker."""

    def __init__(self, root: Path, clock: Clock, names: str = "m", **settings: object) -> None:
        self.clock, self.store, self.events, self.looks = clock, Store(root), EventLog(), 0
        self.builder, self.hosts, self.log = FakeBuilder(self.store), FakeHosts(), AttemptLog(root)
        self.states: list[str] = []  # each new state of any engine, in order
        self.models = {name: planned_model(name) for name in names}
        self.planned = self.models["m"]
        for name in names:
            self.plan(name, "content" if name == "m" else name)
        self.reference, self.engine, self.other = self.planned.engines.values()
        self.tasks = TaskGroup(self._look)
        builder: Any = self.builder
        wanted = msgspec.convert({"keep_free_mb": 0} | settings, Engines)
        self.maker = Maker(builder, self.store, self.models, wanted, self.events, self.tasks, self.log)

    def plan(self, name: str, content: str) -> None:
        """Plan a model with this content."""
        of = model(name, content, backends="openvino", threads="1,2")
        for engine in self.models[name].plan(of, desired(box(), of)):
            engine.on_change = lambda changed: self.states.append(changed.state.value)

    def _look(self) -> None:
        self.looks += 1

    async def idle(self) -> None:
        """Wait until all builds and openings have ended."""
        plans = self.models.values()
        await until(lambda: not self.maker.busy and all(plan.opening is None for plan in plans), "all work has ended")
        await settle()

    async def at_work(self) -> None:
        """Start making the engine, and wait until it waits for the builder's gate."""
        self.builder.gate.clear()
        self.maker.start(self.planned, Make("m", self.engine.digest))
        await until(lambda: bool(self.builder.did), "a child is at work")


# -- what happened --------------------------------------------------------------------------------------------------


def emitted(events: EventLog, kind: type[What]) -> list[Any]:
    """Return the events of a kind, oldest first."""

    async def read() -> list[Any]:
        return [event.what async for event in events.follow(live=False) if isinstance(event.what, kind)]

    reading = read()
    try:
        reading.send(None)  # stored events are read without waiting
    except StopIteration as end:
        return list(end.value)
    raise AssertionError("reading stored events had to wait")


async def settle() -> None:
    """Let all tasks run until they wait for something."""
    for _ in range(20):
        await asyncio.sleep(0)
