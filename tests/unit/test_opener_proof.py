"""What an engine must do before it serves: come up where it was verified, and answer."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edged.backends.contract import Composition, Nodes
from edged.config import Engines
from edged.engines import opener as opener_module
from edged.engines.alarms import Alarm, AlarmKind, Box, wrong
from edged.engines.desired import desired
from edged.engines.engine import EngineState, PlannedEngine
from edged.engines.opener import Opener
from edged.engines.probe import NoUsableProbe
from edged.engines.report import engines as reports
from edged.errors import DiskFailing, EngineUnusable, HostLost, NotReady, OutOfSpace, WrongAnswers
from edged.events import EventLog
from edged.store.store import Store
from edged.tasks import TaskGroup
from tests.unit.control_room import (
    Clock,
    FakeHost,
    FakeHosts,
    box,
    model,
    planned_model,
    put,
    record_of,
    settle,
    stop_time,
)
from tests.waiting import run, until

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
    """One model with a reference, and two engines of OpenVINO that are in the store."""

    def __init__(self, root: Path) -> None:
        self.store, self.hosts, self.examiner = Store(root), FakeHosts(), Examiner()
        self.planned = planned_model()
        self.model = model(backends="openvino", threads="1,2")
        self.planned.plan(self.model, desired(box(), {"m": self.model})["m"])
        self.reference, self.engine, self.other = self.planned.engines.values()
        for engine in (self.engine, self.other):
            record = record_of(engine.key, engine.recipe, standard=engine.standard, composition=Composition(nodes=HOME))
            put(self.store, record)
            engine.adopt(record)
        probe: Any = self.examiner
        hosts: Any = self.hosts
        self.opener = Opener(hosts, self.store, 4, EventLog(), TaskGroup(lambda: None), lambda _: None, probe)

    def host(self, engine: PlannedEngine) -> FakeHost:
        return self.hosts.host(engine.recipe.backend)

    async def open(self, engine: PlannedEngine, nodes: Nodes | None = None, outcome: Exception | None = None) -> None:
        """To its end, whatever that is. Its session's nodes are where a test says."""
        host = self.host(engine)
        host.nodes[len(host.opened) + 1] = HOME if nodes is None else nodes
        self.examiner.outcomes.append(outcome)
        self.opener.start(self.planned, engine.digest)
        await until(lambda: self.planned.opening is None, "the opening has ended")
        await settle()

    def alarms(self, *kinds: AlarmKind) -> list[Alarm]:
        kinds = kinds or (AlarmKind.FALLBACK, AlarmKind.ENGINE_MISMATCH)
        return [a for a in wrong([self.planned], Engines(), 0.0, Box()) if a.kind in kinds]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    monkeypatch.setattr(opener_module, "require_same", lambda order: None)
    with pytest.MonkeyPatch.context() as patch:
        yield stop_time(patch)


# -- answers --------------------------------------------------------------------------------------------------------


def test_every_engine_is_asked_once_before_it_serves(tmp_path: Path) -> None:
    async def story() -> None:
        gate = Gate(tmp_path)
        await gate.open(gate.reference, {})
        await gate.open(gate.engine)
        assert gate.examiner.asked == [(1, True), (1, False)]
        assert gate.planned.serving == gate.engine.digest

    run(story())


def test_open_engine_of_another_model_is_thrown_away_and_the_reference_serves(tmp_path: Path) -> None:
    async def story() -> None:
        gate = Gate(tmp_path)
        await gate.open(gate.reference, {})
        gate.examiner.differs = "cosine 0.1 is below 0.999"
        await gate.open(gate.engine)
        assert gate.planned.serving == gate.reference.digest
        assert gate.store.counts.damaged == 1
        assert gate.engine.digest not in gate.store.records()
        assert gate.engine.state is EngineState.ABSENT

    run(story())


def test_open_engine_of_another_model_raises_an_alarm_until_the_engine_is_made(tmp_path: Path) -> None:
    async def story() -> None:
        gate = Gate(tmp_path)
        gate.examiner.differs = "cosine 0.1 is below 0.999"
        await gate.open(gate.engine)
        (alarm,) = gate.alarms()
        assert (alarm.kind, alarm.model, alarm.engine) == (AlarmKind.ENGINE_MISMATCH, "m", gate.engine.digest)
        gate.engine.finish(record_of(gate.engine.key, gate.engine.recipe, standard=gate.engine.standard), None)
        assert not gate.alarms()

    run(story())


def test_open_engine_again_is_not_compared_again(tmp_path: Path) -> None:
    async def story() -> None:
        gate = Gate(tmp_path)
        await gate.open(gate.reference, {})
        for _ in range(2):
            await gate.open(gate.engine)
        assert gate.examiner.compared == 1

    run(story())


@pytest.mark.parametrize("error", [WrongAnswers("it holds no numbers"), EngineUnusable("it refuses")])
def test_one_that_does_not_answer_rightly_is_not_installed_and_what_served_goes_on(
    error: Exception, tmp_path: Path, clock: Clock
) -> None:
    async def story() -> None:
        gate = Gate(tmp_path)
        await gate.open(gate.reference, {})
        await gate.open(gate.engine, outcome=error)
        assert gate.planned.serving == gate.reference.digest
        assert gate.host(gate.engine).closed == [1]
        assert clock.now < gate.engine.open_at < math.inf
        assert str(error) in gate.engine.reason
        await gate.open(gate.engine)
        assert gate.planned.serving == gate.engine.digest

    run(story())


@pytest.mark.parametrize("error", [HostLost("it died"), NotReady("no room")])
def test_a_host_that_dies_over_the_question_says_nothing_against_the_engine(error: Exception, tmp_path: Path) -> None:
    async def story() -> None:
        gate = Gate(tmp_path)
        await gate.open(gate.engine, outcome=error)
        assert (gate.planned.serving, gate.engine.refusals) == (None, 0)

    run(story())


def test_a_model_that_cannot_be_asked_serves_and_is_not_ready(tmp_path: Path) -> None:
    async def story() -> None:
        gate = Gate(tmp_path)
        await gate.open(gate.reference, {}, NoUsableProbe("nothing is answered"))
        assert gate.planned.slot.current is not None
        assert gate.planned.slot.current.health.unproven == "nothing is answered"

    run(story())


def test_once_one_of_its_engines_has_answered_a_request_the_next_is_believed(tmp_path: Path, clock: Clock) -> None:
    async def story() -> None:
        gate = Gate(tmp_path)
        await gate.open(gate.reference, {}, NoUsableProbe("nothing is answered"))
        await gate.open(gate.engine, None, NoUsableProbe("nothing is answered"))
        assert gate.planned.slot.current is not None
        assert gate.planned.slot.current.health.unproven
        gate.planned.slot.current.health.answered(clock.now)
        await gate.open(gate.other, None, NoUsableProbe("nothing is answered"))
        assert gate.planned.serving == gate.other.digest
        assert not gate.planned.slot.current.health.unproven

    run(story())


@pytest.mark.parametrize("error", [DiskFailing("it fails"), OutOfSpace("it is full")])
def test_open_reference_on_a_disk_that_fails_is_tried_again(error: Exception, tmp_path: Path, clock: Clock) -> None:
    async def story() -> None:
        gate = Gate(tmp_path)
        for _ in range(4):
            await gate.open(gate.reference, {}, error)
            assert clock.now < gate.reference.open_at < math.inf
        await gate.open(gate.reference, {})
        assert gate.planned.serving == gate.reference.digest

    run(story())


def test_open_engine_on_a_disk_that_keeps_failing_raises_an_alarm_until_it_opens(tmp_path: Path) -> None:
    async def story() -> None:
        gate = Gate(tmp_path)
        await gate.open(gate.reference, {}, DiskFailing("it fails"))
        assert not gate.alarms(AlarmKind.DISK_FAILING)
        await gate.open(gate.reference, {}, DiskFailing("it fails"))
        (alarm,) = gate.alarms(AlarmKind.DISK_FAILING)
        assert alarm.model == ""
        await gate.open(gate.reference, {})
        assert not gate.alarms(AlarmKind.DISK_FAILING)

    run(story())


# -- places ---------------------------------------------------------------------------------------------------------


def test_an_engine_whose_provider_vanished_is_not_installed_while_another_can_serve(tmp_path: Path) -> None:
    async def story() -> None:
        gate = Gate(tmp_path)
        await gate.open(gate.reference, {})
        await gate.open(gate.engine, ELSEWHERE)
        assert gate.planned.serving == gate.reference.digest
        assert gate.host(gate.engine).closed == [1]
        (alarm,) = gate.alarms()
        assert alarm.engine == gate.engine.digest
        assert "nothing runs on CPU: its nodes are on GPU; it does not serve" in alarm.message
        told = next(r for r in reports({"m": gate.planned}, gate.store, "m") if r.key == gate.engine.digest)
        assert told.composition.nodes == ELSEWHERE
        assert told.composition.fallback == ("nothing runs on CPU: its nodes are on GPU",)
        assert "it is not what was verified" in told.reason

    run(story())


def test_it_is_asked_nothing_since_its_answers_prove_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        gate = Gate(tmp_path)
        await gate.open(gate.engine, ELSEWHERE)
        assert gate.examiner.asked == []

    run(story())


def test_it_serves_where_nothing_else_can_and_that_is_told(tmp_path: Path) -> None:
    async def story() -> None:
        gate = Gate(tmp_path)
        gate.reference.open_at, gate.other.record = math.inf, None
        await gate.open(gate.engine, ELSEWHERE)
        assert gate.planned.serving == gate.engine.digest
        (alarm,) = gate.alarms()
        assert "does not serve" not in alarm.message

    run(story())


def test_the_alarm_is_over_when_it_comes_up_as_it_was_verified(tmp_path: Path) -> None:
    async def story() -> None:
        gate = Gate(tmp_path)
        await gate.open(gate.engine, ELSEWHERE)
        assert gate.alarms()
        await gate.open(gate.engine)
        assert gate.planned.serving == gate.engine.digest
        assert not gate.alarms()

    run(story())


def test_or_when_it_is_thrown_away_to_be_built_for_what_the_box_is_now(tmp_path: Path) -> None:
    async def story() -> None:
        gate = Gate(tmp_path)
        for _ in range(3):
            await gate.open(gate.engine, ELSEWHERE)
        assert gate.engine.digest not in gate.store.records()
        assert gate.engine.record is None
        gate.engine.finish(record_of(gate.engine.key, gate.engine.recipe, standard=gate.engine.standard), None)
        assert not gate.alarms()

    run(story())


def test_what_the_build_left_to_the_cpu_and_what_moved_since_are_one_alarm(tmp_path: Path) -> None:
    async def story() -> None:
        gate = Gate(tmp_path)
        assert gate.engine.record is not None
        made = Composition(nodes=HOME, fallback=("1 Loop runs on the CPU",))
        gate.engine.record = msgspec.structs.replace(gate.engine.record, composition=made)
        gate.reference.open_at, gate.other.record = math.inf, None
        await gate.open(gate.engine, ELSEWHERE)
        (alarm,) = gate.alarms()
        assert "1 Loop runs on the CPU; nothing runs on CPU" in alarm.message

    run(story())
