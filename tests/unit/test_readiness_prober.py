"""What requests and probes leave behind of an engine: its health, and the model's readiness that follows from them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest

from edged import tasks
from edged.config import Health
from edged.engines.readiness import Prober
from edged.errors import EngineUnusable, HostLost, InvalidInput, NotReady
from edged.serving.slot import Slot
from edged.serving.work import InputTensor, TensorWork
from edged.tasks import TaskGroup
from tests.fake_link import FakeLink
from tests.unit.control_room import served_reference, settle

LATER = 1e9  # seconds after which every engine is due


class SessionProbe:
    """Asks nobody; what comes of it a test says."""

    def __init__(self) -> None:
        self.outcomes: deque[Exception | None] = deque()
        self.asked: list[bool] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def ask(self, known: object, link: object, session: int, *, is_reference: bool) -> None:
        self.asked.append(is_reference)
        await self.gate.wait()
        outcome = self.outcomes.popleft() if self.outcomes else None
        if outcome is not None:
            raise outcome


def prober(probe: SessionProbe) -> Prober:
    asking: Any = probe
    return Prober(asking, Health(), TaskGroup(lambda: None))


# -- probes ---------------------------------------------------------------------------------------------------------


async def test_a_probe_leaves_in_the_vitals_what_it_found() -> None:
    probe, planned = SessionProbe(), served_reference()
    probing = prober(probe)
    assert planned.slot.current is not None
    health = planned.slot.current.health
    probe.outcomes.append(EngineUnusable("no kernel"))
    probing.look([planned], LATER)
    await settle()
    assert (health.misses, health.reason, probe.asked) == (1, "no kernel", [True])
    probing.look([planned], LATER)
    await settle()
    assert (health.misses, health.reason) == (0, "")


@pytest.mark.parametrize("error", [HostLost("it died"), NotReady("no room")])
async def test_a_probe_that_could_not_be_made_says_nothing(error: Exception) -> None:
    probe, planned = SessionProbe(), served_reference()
    probe.outcomes.append(error)
    prober(probe).look([planned], LATER)
    await settle()
    assert planned.slot.current is not None
    assert planned.slot.current.health.misses == 0


async def test_an_engine_that_was_never_asked_with_success_does_not_fail_by_that() -> None:
    probe, planned = SessionProbe(), served_reference()
    assert planned.slot.current is not None
    planned.slot.current.health.unproven = "nothing is answered"
    probe.outcomes.append(EngineUnusable("nothing is answered"))
    prober(probe).look([planned], LATER)
    await settle()
    assert planned.slot.current.health.misses == 0


async def test_one_engine_is_probed_at_a_time() -> None:
    probe, models = SessionProbe(), [served_reference("one"), served_reference("other")]
    probing = prober(probe)
    probe.gate.clear()
    for _ in range(3):
        probing.look(models, LATER)
        await settle()
    assert len(probe.asked) == 1
    probe.gate.set()
    await settle()
    probing.look(models, LATER)
    await settle()
    assert len(probe.asked) == 2


# -- requests -------------------------------------------------------------------------------------------------------


async def test_what_becomes_of_requests_is_in_the_vitals_of_the_engine_that_had_them() -> None:
    slot, link = Slot("m"), FakeLink()
    session = link.session()
    slot.install(session)
    for error in (EngineUnusable("no kernel"), EngineUnusable("no kernel"), InvalidInput("not UTF-8")):
        work = TensorWork((InputTensor("x", "UINT8", (1,), b"a"),), None)
        slot.push(work)
        link.fail(error)
        await settle()
        assert work.future.exception() is not None
    assert (session.health.failures, session.health.reason) == (2, "no kernel")
    work = TensorWork((InputTensor("x", "UINT8", (1,), b"a"),), None)
    slot.push(work)
    link.answer()
    await settle()
    assert (session.health.failures, session.health.reason) == (0, "")


async def test_probe_of_a_model_that_was_planned_again_meanwhile_says_nothing() -> None:
    before = tasks.FAILURES.total()
    for change in ("engines", "model"):
        probe, planned = SessionProbe(), served_reference()
        prober(probe).look([planned], LATER)
        if change == "engines":
            planned.engines = {}
        else:
            planned.model = None
        await settle()
        assert probe.asked == []
        assert planned.slot.current is not None
        assert planned.slot.current.health.misses == 0
    assert tasks.FAILURES.total() == before
