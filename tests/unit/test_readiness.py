"""When a model is ready, when its engine is probed, and what probes and requests record."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from edged import tasks
from edged.config import Health
from edged.engines import readiness as readiness_module
from edged.engines.plan import PlannedModel
from edged.engines.readiness import Prober, ReadyState, all_ready, next_probe, readiness
from edged.errors import DeadlineExceeded, EngineUnusable, HostLost, InvalidInput, NotReady, OutOfMemory
from edged.serving import session as vitals_module
from edged.serving.session import ServingSession, SessionHealth
from edged.serving.slot import Slot
from edged.serving.work import InputTensor, TensorWork
from edged.tasks import TaskGroup
from tests.fake_link import FakeLink
from tests.unit.control_room import Clock, FakeHost, model, planned_model, served_reference, settle

SETTINGS = Health(probe_seconds=30.0, probe_failures=3)
WRONG = EngineUnusable("inference failed")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(vitals_module, "time", clock)
    return clock


def due(models: Iterable[PlannedModel], settings: Health, now: float) -> PlannedModel | None:
    found = next_probe(models, settings, now)
    return None if found is None else found[0]


def probed_reference(name: str = "m") -> PlannedModel:
    """Return a model whose reference serves and has answered a probe."""
    planned = served_reference(name)
    health(planned).known = planned.known_answers()
    return planned


def health(planned: PlannedModel) -> SessionHealth:
    assert planned.slot.current is not None
    return planned.slot.current.health


# -- readiness ------------------------------------------------------------------------------------------------------


def test_readiness_without_an_engine_is_loading_with_a_reason() -> None:
    planned = planned_model()
    for model_read, reason in ((None, "the model is being read"), (model(), "no engine is open yet")):
        planned.model = model_read
        found = readiness(planned, SETTINGS)
        assert (found.state, found.reason, found.can_serve) == (ReadyState.LOADING, reason, True)
    planned = served_reference()
    planned.slot.current = None
    (reference,) = planned.engines.values()
    reference.refusals, reference.reason = 2, "the engine cannot be opened now: bad_alloc"
    found = readiness(planned, SETTINGS)
    assert (found.state, found.reason) == (ReadyState.LOADING, "the engine cannot be opened now: bad_alloc")


def test_readiness_refused_model_is_ready_while_the_old_version_answers() -> None:
    planned = planned_model()
    planned.problem = NotReady("it is no model")
    found = readiness(planned, SETTINGS)
    assert (found.state, found.can_serve) == (ReadyState.REFUSED, False)
    assert "it is no model" in found.reason
    before = served_reference()
    before.problem = NotReady("the new one is no model")
    assert readiness(before, SETTINGS).is_ready


def test_readiness_unproven_until_a_request_is_answered(clock: Clock) -> None:
    planned = served_reference()
    health(planned).unproven = "nothing that edged can make up is answered"
    found = readiness(planned, SETTINGS)
    assert (found.state, found.is_ready, found.can_serve) == (ReadyState.UNPROVEN, False, True)
    health(planned).answered(clock.now)
    assert readiness(planned, SETTINGS).is_ready


def test_readiness_ends_after_failed_probes_and_returns_with_an_answer(clock: Clock) -> None:
    planned = served_reference()
    for _ in range(2):
        health(planned).missed(WRONG)
        assert readiness(planned, SETTINGS).is_ready
    health(planned).missed(WRONG)
    found = readiness(planned, SETTINGS)
    assert (found.state, found.can_serve) == (ReadyState.FAILING, False)
    assert "inference failed" in found.reason
    health(planned).answered(clock.now)
    assert readiness(planned, SETTINGS).is_ready


@pytest.mark.parametrize("answers", [False, True])
def test_readiness_failed_requests_lead_to_a_probe_that_decides(clock: Clock, answers: bool) -> None:
    planned = served_reference()
    for _ in range(50):
        health(planned).failed(WRONG)  # for example by a client that sends wrong values
    assert health(planned).is_suspect
    assert readiness(planned, SETTINGS).is_ready
    if answers:
        health(planned).answered(clock.now)
        assert not health(planned).is_suspect
    health(planned).missed(WRONG)
    assert readiness(planned, SETTINGS).is_ready is answers


def test_readiness_ignores_invalid_requests() -> None:
    found = SessionHealth()
    for error in (InvalidInput("no picture"), HostLost("it died"), NotReady("no room")):
        for _ in range(10):
            found.failed(error)
    assert not found.is_suspect
    for _ in range(3):
        found.failed(RuntimeError("a bug"))
    assert found.is_suspect


@pytest.mark.parametrize("answers", [True, False])
def test_readiness_cancelled_requests_count_only_if_nothing_is_answered_for_a_minute(answers: bool) -> None:
    found = SessionHealth()
    for second in range(100):
        found.cancelled(WRONG, 1000.0 + second)
        if answers and second == 50:
            found.answered(1000.0 + second)
        assert found.is_suspect is (second >= 62 and not answers)


@pytest.mark.parametrize(("strict", "ready"), [(True, False), (False, True)])
def test_server_is_ready_if_every_servable_model_is_ready(strict: bool, ready: bool) -> None:
    settings = Health(strict_readiness=strict)
    refused = planned_model("refused")
    refused.problem = NotReady("it is no model")
    assert all_ready([], settings)
    assert all_ready([served_reference(), refused], settings)
    assert all_ready([served_reference(), planned_model("loading")], settings) is ready


# -- choice of the engine to probe ----------------------------------------------------------------------------------


def test_prober_probes_an_idle_engine(clock: Clock) -> None:
    planned = served_reference()
    assert due([planned], SETTINGS, clock.now + 29.0) is None
    assert due([planned], SETTINGS, clock.now + 30.0) is planned
    health(planned).answered(clock.now + 20.0)
    assert due([planned], SETTINGS, clock.now + 30.0) is None


def test_prober_waits_between_two_probes(clock: Clock) -> None:
    planned = served_reference()
    health(planned).unproven = "it answers nothing"  # as after the previous probe
    health(planned).probed_at = clock.now + 30.0
    assert due([planned], SETTINGS, clock.now + 31.0) is None
    assert due([planned], SETTINGS, clock.now + 60.0) is planned


def test_prober_probes_the_longest_idle_engine_first(clock: Clock) -> None:
    one, other = served_reference("one"), served_reference("other")
    health(one).answered_at = health(one).probed_at = clock.now + 5.0
    assert due([one, other], SETTINGS, clock.now + 100.0) is other


def test_prober_probes_a_suspect_at_once_and_often(clock: Clock) -> None:
    planned = served_reference()
    health(planned).probed_at = clock.now - 10.0
    for _ in range(3):
        health(planned).failed(WRONG)
    assert due([planned], SETTINGS, clock.now) is planned
    health(planned).probed_at = clock.now
    assert due([planned], SETTINGS, clock.now + 1.0) is None
    assert due([planned], SETTINGS, clock.now + readiness_module._SUSPECT_SECONDS) is planned


def test_prober_disabled_probes_suspects_only(clock: Clock) -> None:
    planned, never = served_reference(), Health(probe_seconds=0.0)
    assert due([planned], never, clock.now + 1e6) is None
    for _ in range(3):
        health(planned).failed(WRONG)
    assert due([planned], never, clock.now + 1e6) is planned


def session(planned: PlannedModel) -> Any:
    return planned.slot.current


REPLACED: dict[str, Callable[[PlannedModel], object]] = {
    "opening": lambda planned: setattr(planned, "opening", object()),
    "lost": lambda planned: setattr(session(planned).link, "lost", "died"),
    "stopping": lambda planned: setattr(session(planned).link, "stopping", True),
    "outdated": lambda planned: planned.engines.clear(),
    "gone": lambda planned: setattr(planned.slot, "current", None),
}


@pytest.mark.parametrize("change", REPLACED)
def test_prober_skips_replaced_engines(change: str, clock: Clock) -> None:
    planned = probed_reference()
    for _ in range(3):
        health(planned).failed(WRONG)
    REPLACED[change](planned)
    assert due([planned], SETTINGS, clock.now + 1e6) is None


def test_prober_probes_a_busy_engine_only_if_its_requests_fail(clock: Clock) -> None:
    planned = probed_reference()
    session(planned).in_flight = 1
    assert due([planned], SETTINGS, clock.now + 1e6) is None
    for _ in range(3):
        health(planned).failed(WRONG)
    assert due([planned], SETTINGS, clock.now + 1e6) is planned


LATER = 1e9  # seconds after which every engine is due


class SessionProbe:
    """A probe without a model, whose outcome the test sets."""

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


def prober(probe: SessionProbe, settings: Health = Health()) -> Prober:  # noqa: B008  (it is frozen)
    asking: Any = probe
    return Prober(asking, settings, TaskGroup(lambda: None))


# -- probes ---------------------------------------------------------------------------------------------------------


async def test_probe_records_its_outcome() -> None:
    probe, planned = SessionProbe(), probed_reference()
    probing = prober(probe)
    probe.outcomes.append(EngineUnusable("no kernel"))
    probing.look([planned], LATER)
    await settle()
    assert (health(planned).misses, health(planned).reason, probe.asked) == (1, "no kernel", [True])
    probing.look([planned], LATER)
    await settle()
    assert (health(planned).misses, health(planned).reason) == (0, "")


@pytest.mark.parametrize(
    ("error", "unproven"),
    [(HostLost("it died"), ""), (NotReady("no room"), ""), (EngineUnusable("as before"), "nothing is answered")],
)
async def test_probe_that_could_not_run_or_never_succeeded_records_nothing(error: Exception, unproven: str) -> None:
    probe, planned = SessionProbe(), probed_reference()
    health(planned).unproven = unproven
    if unproven:
        health(planned).known = None
    probe.outcomes.append(error)
    prober(probe).look([planned], LATER)
    await settle()
    assert health(planned).misses == 0


async def test_host_of_an_engine_that_no_longer_answers_is_killed_and_all_its_engines_are_suspects() -> None:
    probe, planned = SessionProbe(), probed_reference()
    probing, host = prober(probe), session(planned).link
    host.sessions = {1: object(), 2: object()}
    probe.outcomes += [WRONG, None, WRONG, WRONG, WRONG]
    for _ in range(4):
        probing.look([planned], LATER)
        await settle()
    assert not host.lost
    probing.look([planned], LATER)
    await settle()
    assert "inference failed" in host.lost
    assert host.suspects == (1, 2)


@pytest.mark.parametrize("error", [OutOfMemory("no room"), DeadlineExceeded("too long")], ids=str)
async def test_host_of_an_engine_without_memory_or_time_is_not_killed(error: Exception) -> None:
    probe, planned = SessionProbe(), probed_reference()
    for _ in range(5):
        probe.outcomes.append(error)
        prober(probe).look([planned], LATER)
        await settle()
    assert readiness(planned, SETTINGS).state is ReadyState.FAILING
    assert not session(planned).link.lost


async def test_host_of_an_engine_that_was_replaced_during_the_probe_is_not_killed() -> None:
    probe, planned = SessionProbe(), probed_reference()
    before = session(planned)
    for _ in range(3):
        before.health.failed(WRONG)
    probe.outcomes.append(WRONG)
    probe.gate.clear()
    prober(probe).look([planned], LATER)
    await settle()
    planned.slot.current = probed_reference().slot.current
    probe.gate.set()
    await settle()
    assert (before.health.misses, before.link.lost) == (0, "")


async def test_host_of_a_fallback_engine_that_no_longer_answers_is_killed() -> None:
    probe, planned = SessionProbe(), probed_reference()
    fallback, link = planned.fallback, FakeHost("fake")
    engine = session(planned).engine
    fallback.current = ServingSession(link, 2, engine)  # type: ignore[arg-type]
    fallback.current.health.known = planned.known_answers()
    assert due([planned], Health(probe_seconds=0.0), LATER) is None
    for _ in range(3):
        fallback.current.health.failed(WRONG)
    probe.outcomes.append(WRONG)
    prober(probe, Health(probe_seconds=0.0)).look([planned], LATER)
    await settle()
    assert link.lost
    assert not session(planned).link.lost


async def test_host_of_an_engine_whose_requests_and_probe_fail_is_killed() -> None:
    probe, planned = SessionProbe(), probed_reference()
    for _ in range(3):
        health(planned).failed(WRONG)
    probe.outcomes.append(WRONG)
    prober(probe).look([planned], LATER)
    await settle()
    assert session(planned).link.lost


@pytest.mark.parametrize("known", [None, object()], ids=["no probe", "a probe of before"])
async def test_probe_of_an_engine_that_never_answered_it_records_nothing(known: object) -> None:
    probe, planned = SessionProbe(), served_reference()
    health(planned).known = known
    for _ in range(5):
        probe.outcomes.append(EngineUnusable("the engine answers none of edged's probes"))
        prober(probe).look([planned], LATER)
        await settle()
    assert (health(planned).misses, session(planned).link.lost) == (0, "")
    session(planned).in_flight = 1
    for _ in range(3):
        health(planned).failed(WRONG)
    assert due([planned], SETTINGS, LATER) is None


async def test_prober_probes_one_engine_at_a_time() -> None:
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


async def test_request_outcomes_are_recorded_for_their_engine() -> None:
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


@pytest.mark.parametrize("change", [{"engines": {}}, {"model": None}], ids=str)
async def test_probe_of_a_replanned_model_records_nothing(change: dict[str, object]) -> None:
    before = tasks.FAILURES.total()
    probe, planned = SessionProbe(), probed_reference()
    prober(probe).look([planned], LATER)
    for name, value in change.items():
        setattr(planned, name, value)
    await settle()
    assert (probe.asked, health(planned).misses) == ([], 0)
    assert tasks.FAILURES.total() == before
