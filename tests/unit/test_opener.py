"""Opening engines in scripted hosts: which engine serves afterwards, and when a failed opening is retried."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec
import onnxruntime
import pytest

from edged.backends import registry
from edged.backends.artefact import Artefact
from edged.backends.contract import UNOPTIMISED, Composition, Nodes, Order, Placed, Recipe
from edged.config import Engines
from edged.engines import opener as opener_module
from edged.engines.alarms import Alarm, AlarmKind, Box, wrong
from edged.engines.desired import desired
from edged.engines.engine import EngineState, PlannedEngine
from edged.engines.opener import Opener, misplaced_nodes
from edged.engines.probe import NoUsableProbe
from edged.engines.report import engines as reports
from edged.errors import (
    DeadlineExceeded,
    DiskFailing,
    EdgedError,
    EngineDamaged,
    EngineUnusable,
    HostLost,
    NotReady,
    OutOfMemory,
    OutOfSpace,
    Overloaded,
    Superseded,
    WarmupFailed,
    WrongAnswers,
)
from edged.events import EngineServes, EventLog
from edged.jobs.tasks import load_graphs
from edged.serving.hosts import HostKind
from edged.store.store import Store
from edged.tasks import TaskGroup
from tests import models
from tests.unit.control_room import (
    Clock,
    FakeHost,
    FakeHosts,
    Unexpected,
    box,
    emitted,
    model,
    planned_model,
    put,
    record_of,
    settle,
    stop_time,
)
from tests.waiting import until

S = EngineState
HOME: Nodes = {"CPU": {"MatMul": 3}}  # as OpenVINO names it
ELSEWHERE: Nodes = {"GPU": {"MatMul": 3}}


class Examiner:
    """A probe whose outcomes a test gives."""

    def __init__(self) -> None:
        self.outcomes: deque[Exception | None] = deque()
        self.asked: list[tuple[int, bool]] = []
        self.differs, self.compared = "", 0

    async def compare(self, model: object, precision: str, link: object, session: int) -> str:
        self.compared += 1
        return self.differs

    async def ask(self, known: object, link: object, session: int, *, is_reference: bool) -> None:
        self.asked.append((session, is_reference))
        outcome = self.outcomes.popleft() if self.outcomes else None
        if outcome is not None:
            raise outcome


class Gate:
    """One model with a reference, and two engines that are in the store. Made within a loop."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self.clock, self.store, self.events, self.hosts = clock, Store(root), EventLog(), FakeHosts()
        self.looks = 0
        self.planned = planned_model()
        of = model(backends="openvino", threads="1,2")
        self.planned.plan(of, desired(box(), of))
        self.reference, self.engine, self.other = self.planned.engines.values()
        for engine in (self.engine, self.other):
            composition = Composition(nodes=HOME)
            record = record_of(engine.key, engine.recipe, standard=engine.standard, composition=composition)
            put(self.store, record)
            engine.adopt(record)
        self.examiner = Examiner()
        self.opener = Opener(
            self.hosts,  # type: ignore[arg-type]
            self.store,
            4,
            self.events,
            TaskGroup(self._look),
            self.examiner,  # type: ignore[arg-type]
        )

    def _look(self) -> None:
        self.looks += 1

    def host(self, engine: PlannedEngine | None = None) -> FakeHost:
        return self.hosts.host((engine or self.engine).recipe.backend)

    def start(self, engine: PlannedEngine | None = None) -> None:
        self.opener.start(self.planned, (engine or self.engine).digest)

    async def open(self, outcome: Exception | None = None, engine: PlannedEngine | None = None) -> PlannedEngine:
        """Opens an engine to its end, whatever that is."""
        self.host(engine).outcomes.append(outcome)
        self.start(engine)
        await self.idle()
        return engine or self.engine

    async def prove(self, engine: PlannedEngine, nodes: Nodes | None = None, outcome: Exception | None = None) -> None:
        """Open an engine whose session's nodes are there and whose probe has that outcome."""
        host = self.host(engine)
        host.nodes[len(host.opened) + 1] = HOME if nodes is None else nodes
        self.examiner.outcomes.append(outcome)
        self.start(engine)
        await self.idle()

    def alarms(self, *kinds: AlarmKind) -> list[Alarm]:
        kinds = kinds or (AlarmKind.FALLBACK, AlarmKind.ENGINE_MISMATCH)
        return [a for a in wrong([self.planned], Engines(), 0.0, Box()) if a.kind in kinds]

    async def idle(self) -> None:
        await until(lambda: self.planned.opening is None, "the opening has ended")
        await settle()

    @property
    def serving(self) -> str | None:
        return self.planned.serving


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    monkeypatch.setattr(opener_module, "require_same", lambda order: None)  # the file is what it was
    with pytest.MonkeyPatch.context() as patch:
        yield stop_time(patch)


@pytest.fixture
def gate(tmp_path: Path, clock: Clock) -> Gate:
    return Gate(tmp_path, clock)


# -- what serves ----------------------------------------------------------------------------------------------------


async def test_open_engine_serves_and_emits_the_event(gate: Gate) -> None:
    engine = await gate.open()
    assert (gate.serving, gate.planned.opening, gate.planned.opening_key) == (engine.digest, None, "")
    current = gate.planned.slot.current
    assert current is not None
    assert (current.engine.edition, current.engine.backend, current.engine.model) == (
        engine.edition,
        "openvino",
        gate.planned.model.digest if gate.planned.model else "",
    )
    assert current.engine.is_static
    assert emitted(gate.events, EngineServes) == [EngineServes("openvino")]
    (order,) = gate.host().opened
    assert order.artefact == gate.store.artefact(engine.digest)
    assert engine.open_at == 0
    assert gate.looks == 1


async def test_open_reference_reads_the_models_file(gate: Gate) -> None:
    await gate.open(engine=gate.reference)
    (order,) = gate.host(gate.reference).opened
    assert (gate.serving, order.artefact, order.model) == (gate.reference.digest, None, gate.planned.entry.path)


async def test_open_in_progress_names_the_engine_and_keeps_the_old_one_serving(gate: Gate) -> None:
    await gate.open(engine=gate.reference)
    gate.host().gate.clear()
    gate.start()
    await until(lambda: bool(gate.host().opened), "the host was asked")
    assert (gate.planned.opening_key, gate.serving) == (gate.engine.digest, gate.reference.digest)
    gate.host().gate.set()
    await gate.idle()
    assert gate.serving == gate.engine.digest


async def test_open_closes_the_previous_session_after_its_requests(gate: Gate) -> None:
    await gate.open(engine=gate.reference)
    before = gate.planned.slot.current
    assert before is not None
    before.idle.clear()
    await gate.open()
    assert gate.host(gate.reference).closed == []
    before.idle.set()
    await settle()
    assert gate.host(gate.reference).closed == [before.number]
    assert gate.host().closed == []


async def test_open_marks_the_engine_as_used(gate: Gate, tmp_path: Path) -> None:
    os.utime(tmp_path / "engines" / gate.engine.digest, (1, 1))
    gate.store.rescan()
    assert gate.store.used(gate.engine.digest) == 1
    await gate.open()
    assert gate.store.used(gate.engine.digest) > 1
    await gate.open(engine=gate.reference)


async def test_open_engine_no_longer_planned_is_closed(gate: Gate) -> None:
    gate.host().gate.clear()
    gate.start()
    await until(lambda: bool(gate.host().opened), "the host was asked")
    gate.planned.engines = {}
    gate.host().gate.set()
    await gate.idle()
    assert (gate.serving, gate.host().closed) == (None, [1])
    assert emitted(gate.events, EngineServes) == []


# -- what cannot be opened ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [HostLost("it died"), NotReady("it keeps dying"), Superseded("it was replaced")])
async def test_open_temporary_failure_is_retried_later(gate: Gate, clock: Clock, error: EdgedError) -> None:
    gate.hosts.wait = 7.0
    engine = await gate.open(error)
    assert (engine.state, engine.is_usable, gate.serving) == (S.READY, True, None)
    assert engine.open_at == clock.now + 7
    gate.hosts.wait = 0.0
    await gate.open(error)
    assert clock.now < engine.open_at < clock.now + 5
    assert gate.planned.is_superseded is isinstance(error, Superseded)


async def test_open_refused_reference_is_not_retried(gate: Gate) -> None:
    await gate.open(EngineUnusable("no such operator"), gate.reference)
    assert (gate.reference.open_at, gate.reference.reason) == (math.inf, "no such operator")
    assert gate.reference.state is S.ABSENT


@pytest.mark.parametrize("error", [OutOfMemory("bad_alloc"), Overloaded("the shared memory is full")])
async def test_open_reference_without_memory_is_retried_for_ever(gate: Gate, clock: Clock, error: EdgedError) -> None:
    gate.planned.engines = {gate.reference.digest: gate.reference}
    for wait in (2.0, 10.0, 60.0, 60.0):
        await gate.open(error, gate.reference)
        assert gate.reference.open_at == clock.now + wait
        assert not gate.planned.is_hopeless()
        assert str(error) in gate.reference.reason
    await gate.open(engine=gate.reference)
    assert (gate.serving, gate.reference.refusals) == (gate.reference.digest, 0)


async def test_open_reference_that_times_out_is_retried_twice(gate: Gate, clock: Clock) -> None:
    gate.planned.engines = {gate.reference.digest: gate.reference}
    for wait in (2.0, 10.0):
        await gate.open(DeadlineExceeded("it took longer"), gate.reference)
        assert gate.reference.open_at == clock.now + wait
    await gate.open(DeadlineExceeded("it took longer"), gate.reference)
    assert gate.planned.is_hopeless()


async def test_open_engine_with_failed_warm_up_is_kept_and_not_retried(gate: Gate) -> None:
    engine = await gate.open(WarmupFailed("its model_warmup 'w' failed"))
    assert (engine.open_at, engine.is_usable) == (math.inf, True)


async def test_open_refused_engine_is_rebuilt_until_quarantined(gate: Gate, clock: Clock) -> None:
    for number in range(1, 5):
        for _ in range(3):
            assert gate.engine.is_usable
            await gate.open(EngineUnusable("the driver refuses it"))
        assert (gate.engine.is_usable, gate.engine.failures) == (False, number)
        assert gate.engine.digest not in gate.store.records()
        if number < 4:
            assert gate.engine.state is S.FAILED
            assert gate.engine.retry_at > clock.now
            for state in (S.QUEUED, S.BUILDING, S.VERIFYING):
                gate.engine.move(state)
            record = record_of(gate.engine.key, gate.engine.recipe)
            put(gate.store, record)
            gate.engine.finish(record, record)
    assert gate.engine.state is S.QUARANTINED
    assert "the driver refuses it" in gate.engine.reason


async def test_open_refused_engine_is_retried_before_a_rebuild(gate: Gate, clock: Clock) -> None:
    for wait in (2.0, 10.0):
        await gate.open(EngineUnusable("the device is out of memory"))
        assert (gate.engine.state, gate.engine.is_usable) == (S.READY, True)
        assert gate.engine.open_at == clock.now + wait
        assert "out of memory" in gate.engine.reason
    await gate.open()
    assert (gate.engine.refusals, gate.engine.reason) == (0, "")
    await gate.open(EngineUnusable("the device is out of memory"))
    assert gate.engine.is_usable


async def test_open_without_memory_keeps_the_engine(gate: Gate, clock: Clock) -> None:
    for wait in (2.0, 10.0, 60.0, 60.0, 60.0):
        await gate.open(OutOfMemory("CUDA_ERROR_OUT_OF_MEMORY"))
        assert (gate.engine.is_usable, gate.engine.open_at) == (True, clock.now + wait)
    assert gate.engine.digest in gate.store.records()


async def test_open_discarded_engine_leaves_its_pin(gate: Gate) -> None:
    gate.store.pin(gate.engine.digest)
    for _ in range(3):
        await gate.open(EngineUnusable("the driver refuses it"))
    assert gate.engine.digest not in gate.store.records()
    assert gate.store.is_pinned(gate.engine.digest)


async def test_open_damaged_engine_is_rebuilt_at_once(gate: Gate) -> None:
    engine = await gate.open(EngineDamaged("it does not match its record"))
    assert (engine.state, engine.is_usable, engine.open_at) == (S.ABSENT, False, 0.0)
    assert engine.reason == "it does not match its record"
    assert engine.digest not in gate.store.records()
    assert gate.store.counts.damaged == 1


async def test_open_engine_missing_from_the_store_is_rebuilt(gate: Gate) -> None:
    gate.store.remove(gate.engine.digest)
    engine = await gate.open()
    assert (engine.state, engine.is_usable, gate.host().opened) == (S.ABSENT, False, [])


async def test_open_damaged_engine_replaced_meanwhile_is_kept(gate: Gate) -> None:
    gate.host().gate.clear()
    gate.host().outcomes.append(EngineDamaged("it does not match its record"))
    gate.start()
    await until(lambda: bool(gate.host().opened), "the host was asked")
    put(gate.store, record_of(gate.engine.key, gate.engine.recipe, content=b"another"), b"another")
    gate.host().gate.set()
    await gate.idle()
    assert isinstance(gate.store.artefact(gate.engine.digest), Artefact)


async def test_open_engine_rejected_while_its_host_starts_is_not_opened(gate: Gate) -> None:
    started, get = asyncio.Event(), gate.hosts.get

    async def slowly(kind: HostKind) -> FakeHost:
        await started.wait()
        return await get(kind)

    gate.hosts.get = slowly  # type: ignore[method-assign]
    gate.start()
    await settle()
    rejected = record_of(gate.engine.key, gate.engine.recipe, accepted=False, standard=gate.engine.standard)
    for state in (S.QUEUED, S.VERIFYING):
        gate.engine.move(state)
    gate.store.strip(rejected)
    gate.engine.finish(rejected, rejected)
    started.set()
    await gate.idle()
    assert (gate.serving, gate.host().opened, gate.engine.state) == (None, [], S.REJECTED)
    assert gate.engine.digest in gate.store.records(), "or it would be built again after the next start"


@pytest.mark.parametrize("error", [EngineDamaged("it does not match its record"), EngineUnusable("it is refused")])
async def test_open_failure_during_a_rebuild_waits_for_its_outcome(gate: Gate, clock: Clock, error: EdgedError) -> None:
    gate.engine.move(S.QUEUED)
    engine = await gate.open(error)
    assert engine.state is S.QUEUED
    assert not engine.is_usable or engine.open_at > clock.now, "it is not tried over and over meanwhile"


async def test_open_unexpected_error_is_logged_and_retried_later(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "edged.engines"):
        gate = Gate(tmp_path, clock)
        engine = await gate.open(Unexpected("a bug"))
        assert engine.open_at > clock.now
        assert (engine.state, gate.planned.opening, gate.planned.opening_key) == (S.READY, None, "")
    assert [record.exc_info is not None for record in caplog.records] == [True]


async def test_open_reference_whose_file_was_replaced_does_not_serve(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replaced(order: object) -> None:
        raise Superseded("model.onnx was replaced")

    gate = Gate(tmp_path, clock)
    await gate.open(engine=gate.reference)
    gate.planned.slot.current = None
    monkeypatch.setattr(opener_module, "require_same", replaced)
    await gate.open(engine=gate.reference)
    assert (gate.serving, gate.planned.is_superseded) == (None, True)
    assert gate.host(gate.reference).closed == [2]
    assert clock.now < gate.reference.open_at < math.inf


async def test_open_reference_whose_file_was_removed_is_retried_later(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime's own word would be final."""

    def gone(order: object) -> None:
        raise Superseded("model.onnx was taken away")

    gate = Gate(tmp_path, clock)
    monkeypatch.setattr(opener_module, "require_same", gone)
    await gate.open(EngineUnusable("NO_SUCHFILE"), gate.reference)
    assert gate.planned.is_superseded
    assert clock.now < gate.reference.open_at < math.inf


# -- hosts ----------------------------------------------------------------------------------------------------------


async def test_tidy_stops_idle_hosts(gate: Gate) -> None:
    idle = FakeHost("openvino")
    gate.hosts.idle = [idle]
    gate.opener.tidy({"m": gate.planned})
    await settle()
    assert idle.stopping


async def test_tidy_keeps_hosts_of_planned_engines(gate: Gate) -> None:
    asked = []
    gate.hosts.empty = lambda wanted: asked.append(wanted) or []  # type: ignore
    gate.opener.tidy({"m": gate.planned})
    (wanted,) = asked
    assert {(kind.backend, kind.version) for kind in wanted} == {("onnxruntime", "1"), ("openvino", "2")}
    assert {kind.generation for kind in wanted} == {e.key.generation for e in gate.planned.engines.values()}


@pytest.mark.parametrize("error", [Unexpected("a bug"), EngineUnusable("it is refused"), HostLost("it died")])
async def test_open_closes_the_session_if_a_later_step_fails(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fails(*_: object) -> None:
        raise error

    gate = Gate(tmp_path, clock)
    monkeypatch.setattr(opener_module, "warm_up", fails)
    await gate.open()
    assert (gate.serving, gate.host().closed) == (None, [1])


async def test_open_session_of_a_lost_host_is_not_installed(
    gate: Gate, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def dies(*_: object) -> None:
        gate.host().lost = "died"

    monkeypatch.setattr(opener_module, "warm_up", dies)
    engine = await gate.open()
    assert gate.serving is None
    assert clock.now < engine.open_at < clock.now + 1


# -- answers --------------------------------------------------------------------------------------------------------


async def test_open_probes_every_engine_before_it_serves(gate: Gate) -> None:
    await gate.prove(gate.reference, {})
    await gate.prove(gate.engine)
    assert gate.examiner.asked == [(1, True), (1, False)]
    assert gate.planned.serving == gate.engine.digest


async def test_open_engine_of_another_model_is_discarded_and_the_reference_serves(gate: Gate) -> None:
    await gate.prove(gate.reference, {})
    gate.examiner.differs = "cosine 0.1 is below 0.999"
    await gate.prove(gate.engine)
    assert gate.planned.serving == gate.reference.digest
    assert gate.store.counts.damaged == 1
    assert gate.engine.digest not in gate.store.records()
    assert gate.engine.state is EngineState.ABSENT


async def test_open_engine_of_another_model_raises_an_alarm_until_rebuilt(gate: Gate) -> None:
    gate.examiner.differs = "cosine 0.1 is below 0.999"
    await gate.prove(gate.engine)
    (alarm,) = gate.alarms()
    assert (alarm.kind, alarm.model, alarm.engine) == (AlarmKind.ENGINE_MISMATCH, "m", gate.engine.digest)
    gate.engine.finish(record_of(gate.engine.key, gate.engine.recipe, standard=gate.engine.standard), None)
    assert not gate.alarms()


async def test_open_engine_again_is_not_compared_again(gate: Gate) -> None:
    await gate.prove(gate.reference, {})
    for _ in range(2):
        await gate.prove(gate.engine)
    assert gate.examiner.compared == 1


@pytest.mark.parametrize("error", [WrongAnswers("it holds no numbers"), EngineUnusable("it refuses")])
async def test_open_engine_with_wrong_answers_is_not_installed(gate: Gate, error: Exception, clock: Clock) -> None:
    await gate.prove(gate.reference, {})
    await gate.prove(gate.engine, outcome=error)
    assert gate.planned.serving == gate.reference.digest
    assert gate.host(gate.engine).closed == [1]
    assert clock.now < gate.engine.open_at < math.inf
    assert str(error) in gate.engine.reason
    await gate.prove(gate.engine)
    assert gate.planned.serving == gate.engine.digest


@pytest.mark.parametrize("error", [HostLost("it died"), NotReady("no room")])
async def test_open_host_lost_during_the_probe_does_not_blame_the_engine(gate: Gate, error: Exception) -> None:
    await gate.prove(gate.engine, outcome=error)
    assert (gate.planned.serving, gate.engine.refusals) == (None, 0)


async def test_open_model_without_usable_probe_serves_and_is_not_ready(gate: Gate) -> None:
    await gate.prove(gate.reference, {}, NoUsableProbe("nothing is answered"))
    assert gate.planned.slot.current is not None
    assert gate.planned.slot.current.health.unproven == "nothing is answered"


async def test_open_model_without_usable_probe_is_ready_after_a_real_request(gate: Gate, clock: Clock) -> None:
    await gate.prove(gate.reference, {}, NoUsableProbe("nothing is answered"))
    await gate.prove(gate.engine, None, NoUsableProbe("nothing is answered"))
    assert gate.planned.slot.current is not None
    assert gate.planned.slot.current.health.unproven
    gate.planned.slot.current.health.answered(clock.now)
    await gate.prove(gate.other, None, NoUsableProbe("nothing is answered"))
    assert gate.planned.serving == gate.other.digest
    assert not gate.planned.slot.current.health.unproven


@pytest.mark.parametrize("error", [DiskFailing("it fails"), OutOfSpace("it is full")])
async def test_open_reference_on_a_failing_disk_is_retried(gate: Gate, error: Exception, clock: Clock) -> None:
    for _ in range(4):
        await gate.prove(gate.reference, {}, error)
        assert clock.now < gate.reference.open_at < math.inf
    await gate.prove(gate.reference, {})
    assert gate.planned.serving == gate.reference.digest


async def test_open_on_a_failing_disk_raises_an_alarm_until_it_succeeds(gate: Gate) -> None:
    await gate.prove(gate.reference, {}, DiskFailing("it fails"))
    assert not gate.alarms(AlarmKind.DISK_FAILING)
    await gate.prove(gate.reference, {}, DiskFailing("it fails"))
    (alarm,) = gate.alarms(AlarmKind.DISK_FAILING)
    assert alarm.model == ""
    await gate.prove(gate.reference, {})
    assert not gate.alarms(AlarmKind.DISK_FAILING)


# -- places ---------------------------------------------------------------------------------------------------------


async def test_open_misplaced_engine_is_not_installed_if_another_can_serve(gate: Gate) -> None:
    await gate.prove(gate.reference, {})
    await gate.prove(gate.engine, ELSEWHERE)
    assert gate.planned.serving == gate.reference.digest
    assert gate.host(gate.engine).closed == [1]
    assert gate.examiner.asked == [(1, True)], "only the reference is probed"
    (alarm,) = gate.alarms()
    assert alarm.engine == gate.engine.digest
    assert "nothing runs on CPU: its nodes are on GPU; it does not serve" in alarm.message
    report = next(r for r in reports({"m": gate.planned}, gate.store, "m") if r.key == gate.engine.digest)
    assert report.composition.nodes == ELSEWHERE
    assert report.composition.fallback == ("nothing runs on CPU: its nodes are on GPU",)
    assert "it is not what was verified" in report.reason


async def test_open_misplaced_engine_serves_if_nothing_else_can_and_raises_an_alarm(gate: Gate) -> None:
    gate.reference.open_at, gate.other.record = math.inf, None
    await gate.prove(gate.engine, ELSEWHERE)
    assert gate.planned.serving == gate.engine.digest
    (alarm,) = gate.alarms()
    assert "does not serve" not in alarm.message


async def test_open_misplaced_engine_is_rebuilt_and_clears_the_alarm(gate: Gate) -> None:
    for _ in range(3):
        await gate.prove(gate.engine, ELSEWHERE)
    assert gate.engine.digest not in gate.store.records()
    assert gate.engine.record is None
    gate.engine.finish(record_of(gate.engine.key, gate.engine.recipe, standard=gate.engine.standard), None)
    assert not gate.alarms()


async def test_open_fallback_nodes_and_moved_nodes_are_one_alarm(gate: Gate) -> None:
    assert gate.engine.record is not None
    made = Composition(nodes=HOME, fallback=("1 Loop runs on the CPU",))
    gate.engine.record = msgspec.structs.replace(gate.engine.record, composition=made)
    gate.reference.open_at, gate.other.record = math.inf, None
    await gate.prove(gate.engine, ELSEWHERE)
    (alarm,) = gate.alarms()
    assert "1 Loop runs on the CPU; nothing runs on CPU" in alarm.message


# ONNX Runtime 1.23, the last for Python 3.10, does not report which operators a session on the CPU has.
REPORTS_OPERATORS = hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info")
CUDA = Recipe("onnxruntime", device="cuda:0")
CPU = Recipe("onnxruntime")
GPU_1 = Recipe("openvino", device="intel-gpu:1")
REFERENCE = Recipe("onnxruntime", optimization=UNOPTIMISED)
VERIFIED: Nodes = {"CUDAExecutionProvider": {"Conv": 39, "Relu": 33}, "CPUExecutionProvider": {"Shape": 2}}


MOVED: dict[str, tuple[Recipe, Nodes, Nodes, str]] = {  # the only line that is reported, or nothing
    "unchanged": (CUDA, VERIFIED, VERIFIED, ""),
    "provider missing": (
        CUDA,
        VERIFIED,
        {"CPUExecutionProvider": {"Conv": 39, "Relu": 33, "Shape": 2}},
        "nothing runs on CUDAExecutionProvider: its nodes are on CPUExecutionProvider",
    ),
    "one node moved": (
        CUDA,
        VERIFIED,
        {"CUDAExecutionProvider": {"Conv": 38, "Relu": 33}, "CPUExecutionProvider": {"Shape": 2, "Conv": 1}},
        "1 Conv run on CPUExecutionProvider instead of CUDAExecutionProvider",
    ),
    "nodes missing": (
        CUDA,
        VERIFIED,
        {"CUDAExecutionProvider": {"Conv": 30, "Relu": 33}, "CPUExecutionProvider": {"Shape": 2}},
        "9 of 72 nodes are not on CUDAExecutionProvider any more: 9 Conv",
    ),
    "many operators": (
        CUDA,
        VERIFIED,
        {"CUDAExecutionProvider": {"Conv": 1}, "CPUExecutionProvider": {f"Op{i}": 9 - i for i in range(8)}},
        "9 Op0, 8 Op1, 7 Op2, 6 Op3, 5 Op4, … run on",
    ),
    "CPU engine": (CPU, {}, {"CPUExecutionProvider": {"Add": 1}}, ""),
    "CPU engine with another provider": (
        CPU,
        {},
        {"CPUExecutionProvider": {}, "XnnpackExecutionProvider": {"Add": 1}},
        "1 Add run on XnnpackExecutionProvider instead of CPUExecutionProvider",
    ),
    "reference": (REFERENCE, {}, {"CPUExecutionProvider": {"Add": 1}}, ""),
    "reference with another provider, uncounted": (
        REFERENCE,
        {},
        {"CPUExecutionProvider": {}, "XnnpackExecutionProvider": {}},
        "some nodes run on XnnpackExecutionProvider instead of CPUExecutionProvider",
    ),
    "fused on the CPU": (CPU, {"CPUExecutionProvider": {"Conv": 3}}, {"CPUExecutionProvider": {"FusedConv": 2}}, ""),
    "one of several devices": (GPU_1, {"GPU.1": {"Convolution": 3}}, {"GPU.1": {"Convolution": 3}}, ""),
    "moved off one of several devices": (GPU_1, {"GPU.1": {"Convolution": 3}}, {"CPU": {"Convolution": 3}}, "nothing"),
    "no data": (CUDA, VERIFIED, {}, ""),
    "no counts": (CUDA, VERIFIED, {"CUDAExecutionProvider": {}}, ""),
    "no counts of TensorRT": (Recipe("tensorrt", device="cuda:0"), {}, {"TensorRT": {}}, ""),
}


@pytest.mark.parametrize(("recipe", "verified", "now", "line"), MOVED.values(), ids=MOVED)
def test_misplaced_nodes_reports_what_moved(recipe: Recipe, verified: Nodes, now: Nodes, line: str) -> None:
    found = misplaced_nodes(recipe, verified, now)
    assert len(found) == bool(line)
    assert all(each.startswith(line) for each in found)


# -- nodes of real sessions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "null"])
def test_nodes_of_every_backends_session(backend: str, tmp_path: Path) -> None:
    proto, recipe, out = models.conv(), Recipe(backend), tmp_path / "engine"
    out.mkdir()
    order = Order(str(models.save(proto, tmp_path / "model.onnx")), models.signature(proto), recipe)
    recorded = registry.load(backend).build(order, out, lambda share: None, load_graphs)
    session = registry.load(backend).open(Order(order.model, order.signature, recipe, Artefact.seal(out)))
    assert isinstance(session, Placed)
    nodes = session.nodes()
    assert len(nodes) == 1
    assert misplaced_nodes(recipe, recorded.nodes, nodes) == ()
    if backend != "null" and (backend != "onnxruntime" or REPORTS_OPERATORS):
        assert sum(next(iter(nodes.values())).values()) > 0
    session.close()


def test_nodes_of_the_reference_are_those_of_the_model(tmp_path: Path) -> None:
    proto = models.matmul()
    order = Order(str(models.save(proto, tmp_path / "model.onnx")), models.signature(proto), REFERENCE)
    session = registry.load("onnxruntime").open(order)
    assert isinstance(session, Placed)
    assert session.nodes() == {"CPUExecutionProvider": {"MatMul": 1} if REPORTS_OPERATORS else {}}
    assert misplaced_nodes(REFERENCE, {}, session.nodes()) == ()
