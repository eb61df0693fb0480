"""The opener with scripted hosts: which engine serves afterwards, and when a failed opening is retried."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import onnxruntime
import pytest

from edged.backends import registry
from edged.backends.artefact import Artefact
from edged.backends.contract import UNOPTIMISED, Composition, Nodes, Order, Placed, Recipe
from edged.config import Engines
from edged.engines import opener as opener_module
from edged.engines.alarms import Alarm, AlarmKind, Box, wrong
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
from edged.events import EngineServes
from edged.family_packages import Package
from edged.jobs.tasks import load_graphs
from edged.serving.hosts import HostKind
from edged.store.attempts import AttemptLog
from tests import models
from tests.unit.control_room import (
    Clock,
    ControlRoom,
    FakeHost,
    Unexpected,
    emitted,
    put,
    record_of,
    settle,
    stop_time,
)
from tests.waiting import until

S = EngineState
HOME: Nodes = {"CPU": {"MatMul": 3}}  # nodes in OpenVINO's format
ELSEWHERE: Nodes = {"GPU": {"MatMul": 3}}


class Examiner:
    """A probe with scripted outcomes."""

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


class Gate(ControlRoom):
    """One model with two engines in the store, and a real opener."""

    def __init__(self, root: Path, clock: Clock) -> None:
        super().__init__(root, clock)
        for engine in (self.engine, self.other):
            composition = Composition(nodes=HOME)
            record = record_of(engine.key, engine.recipe, standard=engine.standard, composition=composition)
            put(self.store, record)
            engine.adopt(record)
        self.examiner = Examiner()
        hosts: Any = self.hosts
        probe: Any = self.examiner
        self.opener = Opener(hosts, self.store, 4, self.log, self.events, self.tasks, probe)

    def host(self, engine: PlannedEngine | None = None) -> FakeHost:
        return self.hosts.host((engine or self.engine).recipe.backend)

    async def open(
        self,
        outcome: Exception | None = None,
        engine: PlannedEngine | None = None,
        *,
        nodes: Nodes | None = None,
        probe: Exception | None = None,
    ) -> PlannedEngine:
        """Open an engine and wait for the end. `outcome` and `nodes` come from the host, `probe` from the probe."""
        host = self.host(engine)
        host.outcomes.append(outcome)
        host.nodes[len(host.opened) + 1] = nodes or {}
        if probe is not None:
            self.examiner.outcomes.append(probe)
        self.opener.start(self.planned, (engine or self.engine).digest)
        await self.idle()
        return engine or self.engine

    async def begin(self) -> None:
        """Start opening the engine, and wait until the host waits for its gate."""
        self.host().gate.clear()
        self.opener.start(self.planned, self.engine.digest)
        await until(lambda: bool(self.host().opened), "the host was asked")

    async def end(self) -> None:
        self.host().gate.set()
        await self.idle()

    def alarms(self, *kinds: AlarmKind) -> list[Alarm]:
        kinds = kinds or (AlarmKind.FALLBACK, AlarmKind.ENGINE_MISMATCH)
        return [a for a in wrong([self.planned], Engines(), 0.0, Box()) if a.kind in kinds]

    @property
    def serving(self) -> str | None:
        return self.planned.serving


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    monkeypatch.setattr(opener_module, "require_same", lambda order: None)  # the model's file is unchanged
    with pytest.MonkeyPatch.context() as patch:
        yield stop_time(patch)


@pytest.fixture
def gate(tmp_path: Path, clock: Clock) -> Gate:
    return Gate(tmp_path, clock)


# -- the serving engine ---------------------------------------------------------------------------------------------


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
    await gate.begin()
    assert (gate.planned.opening_key, gate.serving) == (gate.engine.digest, gate.reference.digest)
    await gate.end()
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
    await gate.begin()
    gate.planned.engines = {}
    await gate.end()
    assert (gate.serving, gate.host().closed) == (None, [1])
    assert emitted(gate.events, EngineServes) == []


# -- failures -------------------------------------------------------------------------------------------------------


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


# (whether it is the reference, the error, seconds until the next attempt after each failure)
PATIENCE: dict[str, tuple[bool, EdgedError, list[float]]] = {
    "refused reference": (True, EngineUnusable("no such operator"), [math.inf]),
    "reference without memory": (True, OutOfMemory("bad_alloc"), [2, 10, 60, 60]),
    "reference without shared memory": (True, Overloaded("the shared memory is full"), [2, 10, 60, 60]),
    "reference on a failing disk": (True, DiskFailing("it fails"), [2, 10, 60, 60]),
    "reference on a full disk": (True, OutOfSpace("it is full"), [2, 10, 60, 60]),
    "reference that takes too long": (True, DeadlineExceeded("it took longer"), [2, 10, math.inf]),
    "engine refused before it is rebuilt": (False, EngineUnusable("the driver refuses it"), [2, 10]),
    "engine without memory": (False, OutOfMemory("CUDA_ERROR_OUT_OF_MEMORY"), [2, 10, 60, 60, 60]),
    "engine whose warm-up fails": (False, WarmupFailed("the model_warmup request 'w' failed"), [math.inf]),
}


@pytest.mark.parametrize("case", PATIENCE)
async def test_open_that_fails_is_retried_if_the_cause_may_pass(gate: Gate, clock: Clock, case: str) -> None:
    is_reference, error, waits = PATIENCE[case]
    engine = gate.reference if is_reference else gate.engine
    if is_reference:
        gate.planned.engines = {engine.digest: engine}
    for wait in waits:
        await gate.open(error, engine)
        assert (engine.open_at, engine.is_usable) == (clock.now + wait, not is_reference)
        assert str(error) in engine.reason
    assert gate.planned.is_hopeless() is (is_reference and waits[-1] == math.inf)
    if waits[-1] < math.inf:
        await gate.open(engine=engine)
        assert (gate.serving, engine.refusals, engine.reason, engine.open_at) == (engine.digest, 0, "", 0)


async def test_open_refused_engine_is_rebuilt_until_quarantined(gate: Gate, clock: Clock) -> None:
    gate.store.pin(gate.engine.digest)
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
            assert gate.log.of(gate.engine.digest).stopped == ""
    assert gate.engine.state is S.QUARANTINED
    assert AttemptLog(gate.store.root).of(gate.engine.digest).stopped == "hopeless", "also after a restart"
    assert "the driver refuses it" in gate.engine.reason
    assert gate.store.is_pinned(gate.engine.digest)


async def test_open_damaged_engine_is_rebuilt_at_once(gate: Gate) -> None:
    engine = await gate.open(EngineDamaged("it does not match its record"))
    assert (engine.state, engine.is_usable, engine.open_at) == (S.ABSENT, False, 0.0)
    assert engine.reason == "it does not match its record"
    assert engine.digest not in gate.store.records()
    assert gate.store.counts.damaged == 1


async def test_open_builds_that_are_damaged_each_time_are_given_up(gate: Gate, clock: Clock) -> None:
    for number in range(5):
        assert gate.engine.is_usable
        await gate.open(EngineDamaged("it does not match its record"))
        assert (gate.engine.is_usable, gate.engine.failures) == (False, number)
        if number < 4:
            assert gate.engine.state is (S.FAILED if number else S.ABSENT)
            assert gate.engine.retry_at >= (clock.now if number else 0)
            for state in (S.QUEUED, S.BUILDING, S.VERIFYING):
                gate.engine.move(state)
            record = record_of(gate.engine.key, gate.engine.recipe)
            put(gate.store, record)
            gate.engine.finish(record, record)
    assert gate.engine.state is S.QUARANTINED
    assert AttemptLog(gate.store.root).of(gate.engine.digest).stopped == "hopeless", "also after a restart"


async def test_open_engine_missing_from_the_store_is_rebuilt(gate: Gate) -> None:
    gate.store.remove(gate.engine.digest)
    engine = await gate.open()
    assert (engine.state, engine.is_usable, gate.host().opened) == (S.ABSENT, False, [])


async def test_open_damaged_engine_replaced_meanwhile_is_kept(gate: Gate) -> None:
    gate.host().outcomes.append(EngineDamaged("it does not match its record"))
    await gate.begin()
    put(gate.store, record_of(gate.engine.key, gate.engine.recipe, content=b"another"), b"another")
    await gate.end()
    assert isinstance(gate.store.artefact(gate.engine.digest), Artefact)


async def test_open_engine_rejected_while_its_host_starts_is_not_opened(gate: Gate) -> None:
    started, get = asyncio.Event(), gate.hosts.get

    async def slowly(kind: HostKind) -> FakeHost:
        await started.wait()
        return await get(kind)

    gate.hosts.get = slowly  # type: ignore[method-assign]
    gate.opener.start(gate.planned, gate.engine.digest)
    await settle()
    rejected = record_of(gate.engine.key, gate.engine.recipe, accepted=False, standard=gate.engine.standard)
    for state in (S.QUEUED, S.VERIFYING):
        gate.engine.move(state)
    gate.store.strip(rejected)
    gate.engine.finish(rejected, rejected)
    started.set()
    await gate.idle()
    assert (gate.serving, gate.host().opened, gate.engine.state) == (None, [], S.REJECTED)
    assert gate.engine.digest in gate.store.records(), "its verdict prevents another build after a restart"


async def test_open_model_of_another_packages_family_uses_a_host_of_its_own(gate: Gate) -> None:
    asked: list[HostKind] = []
    get = gate.hosts.get

    async def noted(kind: HostKind, *_: object) -> FakeHost:
        asked.append(kind)
        return await get(kind)

    gate.hosts.get = noted  # type: ignore[method-assign]
    assert gate.planned.model is not None
    for digest in ("", "one", "two"):
        package = Package("tiles-package", "1.0", digest) if digest else None
        known = msgspec.structs.replace(gate.planned.model.recognition, family="tiles", package=package)
        gate.planned.model = msgspec.structs.replace(gate.planned.model, recognition=known)
        await gate.open()
    assert asked[0].apart == ""
    assert len({kind.apart for kind in asked}) == 3


@pytest.mark.parametrize("error", [EngineDamaged("it does not match its record"), EngineUnusable("it is refused")])
async def test_open_failure_during_a_rebuild_waits_for_its_outcome(gate: Gate, clock: Clock, error: EdgedError) -> None:
    gate.engine.move(S.QUEUED)
    engine = await gate.open(error)
    assert engine.state is S.QUEUED
    assert not engine.is_usable or engine.open_at > clock.now, "no further attempt during the rebuild"


async def test_open_unexpected_error_is_logged_and_retried_later(
    gate: Gate, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "edged.engines"):
        engine = await gate.open(Unexpected("a bug"))
    assert engine.open_at > clock.now
    assert (engine.state, gate.planned.opening, gate.planned.opening_key) == (S.READY, None, "")
    assert [record.exc_info is not None for record in caplog.records] == [True]


@pytest.mark.parametrize("outcome", [None, EngineUnusable("NO_SUCHFILE")], ids=["replaced", "removed"])
async def test_open_reference_whose_file_changed_does_not_serve_and_is_retried_later(
    gate: Gate, clock: Clock, monkeypatch: pytest.MonkeyPatch, outcome: EdgedError | None
) -> None:
    """Without the check, the runtime's error about a missing file would be final."""

    def changed(order: object) -> None:
        raise Superseded("model.onnx was replaced")

    monkeypatch.setattr(opener_module, "require_same", changed)
    await gate.open(outcome, gate.reference)
    assert (gate.serving, gate.planned.is_superseded) == (None, True)
    assert gate.host(gate.reference).closed == ([] if outcome else [1])
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


async def test_open_engine_of_another_model_is_discarded_and_the_reference_serves(gate: Gate) -> None:
    await gate.open(engine=gate.reference)
    gate.examiner.differs = "cosine 0.1 is below 0.999"
    await gate.open()
    assert gate.serving == gate.reference.digest
    assert gate.store.counts.damaged == 1
    assert gate.engine.digest not in gate.store.records()
    assert gate.engine.state is EngineState.ABSENT
    (alarm,) = gate.alarms()
    assert (alarm.kind, alarm.model, alarm.engine) == (AlarmKind.ENGINE_MISMATCH, "m", gate.engine.digest)
    gate.engine.finish(record_of(gate.engine.key, gate.engine.recipe, standard=gate.engine.standard), None)
    assert not gate.alarms()


async def test_open_probes_every_engine_and_compares_a_build_once(gate: Gate) -> None:
    await gate.open(engine=gate.reference)
    for _ in range(2):
        await gate.open()
    assert gate.examiner.asked == [(1, True), (1, False), (2, False)]
    assert gate.examiner.compared == 1


@pytest.mark.parametrize(
    ("error", "refusals"),
    [
        (WrongAnswers("it holds no numbers"), 1),
        (EngineUnusable("it refuses"), 1),
        (HostLost("it died"), 0),
        (NotReady("no room"), 0),
        (Unexpected("a bug"), 0),
    ],
)
async def test_open_engine_that_fails_its_probe_is_closed_and_retried_later(
    gate: Gate, clock: Clock, error: Exception, refusals: int
) -> None:
    await gate.open(engine=gate.reference)
    await gate.open(probe=error)
    assert (gate.serving, gate.host().closed) == (gate.reference.digest, [1])
    assert clock.now < gate.engine.open_at < math.inf
    assert gate.engine.refusals == refusals
    await gate.open()
    assert gate.serving == gate.engine.digest


async def test_open_model_without_usable_probe_is_ready_after_a_real_request(gate: Gate, clock: Clock) -> None:
    for engine in (gate.reference, gate.engine):
        await gate.open(engine=engine, probe=NoUsableProbe("nothing is answered"))
        assert gate.planned.slot.current is not None
        assert gate.planned.slot.current.health.unproven == "nothing is answered"
    gate.planned.slot.current.health.answered(clock.now)
    await gate.open(engine=gate.other, probe=NoUsableProbe("nothing is answered"))
    assert gate.serving == gate.other.digest
    assert not gate.planned.slot.current.health.unproven


async def test_open_in_a_process_that_has_answered_the_probe_before_still_expects_its_answer(gate: Gate) -> None:
    await gate.open(engine=gate.reference)
    known = gate.planned.known_answers()
    refused = NoUsableProbe("the engine answers none of edged's probes")
    await gate.open(engine=gate.reference, probe=refused)
    assert gate.planned.slot.current is not None
    assert gate.planned.slot.current.health.known is known
    gate.host(gate.reference).lost = "it died"
    await gate.open(engine=gate.reference, probe=refused)
    assert gate.planned.slot.current.health.known is None  # another process may be right to refuse it


async def test_open_on_a_failing_disk_raises_an_alarm_until_it_succeeds(gate: Gate) -> None:
    for count in (0, 1):
        await gate.open(DiskFailing("it fails"), gate.reference)
        assert [alarm.model for alarm in gate.alarms(AlarmKind.DISK_FAILING)] == [""] * count
    await gate.open(engine=gate.reference)
    assert not gate.alarms(AlarmKind.DISK_FAILING)


# -- placement of nodes ---------------------------------------------------------------------------------------------


async def test_open_misplaced_engine_is_not_installed_if_another_can_serve(gate: Gate) -> None:
    await gate.open(engine=gate.reference)
    await gate.open(nodes=ELSEWHERE)
    assert (gate.serving, gate.host().closed) == (gate.reference.digest, [1])
    assert gate.examiner.asked == [(1, True)], "only the reference is probed"
    (alarm,) = gate.alarms()
    assert alarm.engine == gate.engine.digest
    assert "no node runs on CPU; all run on GPU; this engine does not serve" in alarm.message
    report = next(r for r in reports({"m": gate.planned}, gate.store, "m") if r.key == gate.engine.digest)
    assert report.composition.nodes == ELSEWHERE
    assert report.composition.fallback == ("no node runs on CPU; all run on GPU",)
    assert "run on other devices than during verification" in report.reason
    for _ in range(2):
        await gate.open(nodes=ELSEWHERE)
    assert gate.engine.digest not in gate.store.records()
    assert gate.engine.record is None
    gate.engine.finish(record_of(gate.engine.key, gate.engine.recipe, standard=gate.engine.standard), None)
    assert not gate.alarms()


async def test_open_misplaced_engine_serves_if_nothing_else_can_and_raises_one_alarm(gate: Gate) -> None:
    assert gate.engine.record is not None
    made = Composition(nodes=HOME, fallback=("1 Loop runs on the CPU",))
    gate.engine.record = msgspec.structs.replace(gate.engine.record, composition=made)
    gate.reference.open_at, gate.other.record = math.inf, None
    await gate.open(nodes=ELSEWHERE)
    assert gate.serving == gate.engine.digest
    (alarm,) = gate.alarms()
    assert "1 Loop runs on the CPU; no node runs on CPU" in alarm.message
    assert "does not serve" not in alarm.message


# ONNX Runtime 1.23, the last version for Python 3.10, does not report the operators of a session on the CPU.
REPORTS_OPERATORS = hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info")
CUDA = Recipe("onnxruntime", device="cuda:0")
CPU = Recipe("onnxruntime")
GPU_1 = Recipe("openvino", device="intel-gpu:1")
REFERENCE = Recipe("onnxruntime", optimization=UNOPTIMISED)
VERIFIED: Nodes = {"CUDAExecutionProvider": {"Conv": 39, "Relu": 33}, "CPUExecutionProvider": {"Shape": 2}}


MOVED: dict[str, tuple[Recipe, Nodes, Nodes, str]] = {  # the expected line, or empty
    "unchanged": (CUDA, VERIFIED, VERIFIED, ""),
    "provider missing": (
        CUDA,
        VERIFIED,
        {"CPUExecutionProvider": {"Conv": 39, "Relu": 33, "Shape": 2}},
        "no node runs on CUDAExecutionProvider; all run on CPUExecutionProvider",
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
        "9 of 72 nodes no longer run on CUDAExecutionProvider: 9 Conv",
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
    "moved off one of several devices": (GPU_1, {"GPU.1": {"Convolution": 3}}, {"CPU": {"Convolution": 3}}, "no node"),
    "no data": (CUDA, VERIFIED, {}, ""),
    "no counts": (CUDA, VERIFIED, {"CUDAExecutionProvider": {}}, ""),
    "no counts of TensorRT": (Recipe("tensorrt", device="cuda:0"), {}, {"TensorRT": {}}, ""),
}


@pytest.mark.parametrize(("recipe", "verified", "now", "line"), MOVED.values(), ids=MOVED)
def test_misplaced_nodes_reports_moved_nodes(recipe: Recipe, verified: Nodes, now: Nodes, line: str) -> None:
    found = misplaced_nodes(recipe, verified, now)
    assert len(found) == bool(line)
    assert all(each.startswith(line) for each in found)


# -- nodes of real sessions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "null"])
def test_nodes_of_a_session_match_those_of_its_build(backend: str, tmp_path: Path) -> None:
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
