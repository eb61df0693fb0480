"""Alarms: what raises them, and that each is reported once when it begins and once when it ends."""

from __future__ import annotations

import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.backends.contract import REFERENCE, Composition, Recipe
from edged.config import Engines
from edged.engines import alarms as alarms_module
from edged.engines.alarms import Alarm, AlarmKind, Alarms, Box, slow_engine, wrong
from edged.engines.engine import EngineState, PlannedEngine
from edged.engines.plan import PlannedModel
from edged.errors import BuildFailed, EngineUnusable, NotReady
from edged.events import AlarmCleared, AlarmRaised, EventLog
from edged.ipc.finite import QUIET_SECONDS
from tests.unit.control_room import Clock, emitted, key_of, model, planned_model, record_of, serve

SLOW = Alarm(AlarmKind.SLOW, "inference takes 340 ms instead of 12 ms", "m", "key")


@pytest.fixture
def events() -> EventLog:
    return EventLog()


@pytest.fixture
def alarms(events: EventLog) -> Alarms:
    return Alarms(events)


def test_update_changed_message_is_shown_but_not_reported(alarms: Alarms, events: EventLog) -> None:
    alarms.update([SLOW])
    later = Alarm(AlarmKind.SLOW, "inference takes 350 ms instead of 12 ms", "m", "key")
    alarms.update([later])
    assert [alarm.message for alarm in alarms.active()] == [later.message]
    assert len(emitted(events, AlarmRaised)) == 1


def test_update_lasting_alarm_keeps_its_start(alarms: Alarms, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(100.0)
    monkeypatch.setattr(alarms_module, "time", clock)
    alarms.update([SLOW])
    clock.now = 200.0
    alarms.update([SLOW, Alarm(AlarmKind.UNSERVED, "", "n")])
    assert [alarm.since_unix_s for alarm in alarms.active()] == [100.0, 200.0]


@pytest.mark.parametrize(
    "other",
    [
        Alarm(AlarmKind.QUARANTINED, SLOW.message, "m", "key"),
        Alarm(AlarmKind.SLOW, SLOW.message, "n", "key"),
        Alarm(AlarmKind.SLOW, SLOW.message, "m", "another"),
    ],
)
def test_update_other_subject_is_another_alarm(alarms: Alarms, events: EventLog, other: Alarm) -> None:
    alarms.update([SLOW])
    alarms.update([SLOW, other])
    assert len(emitted(events, AlarmRaised)) == 2
    alarms.update([other])
    assert [alarm.subject for alarm in alarms.active()] == [other.subject]


def test_update_event_names_model_and_engine(alarms: Alarms, events: EventLog) -> None:
    alarms.update([SLOW])
    alarms.update([])
    log = events.follow(live=False)
    found = []
    for _ in range(2):
        step = log.__anext__()
        with pytest.raises(StopIteration) as end:
            step.send(None)
        found.append(end.value.value)
    assert [(event.model, event.engine) for event in found] == [("m", "key")] * 2


def test_update_lasting_alarm_is_logged_once(alarms: Alarms, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "edged.alarms"):
        for found in ([SLOW], [SLOW], [], []):
            alarms.update(found)
    assert [record.getMessage() for record in caplog.records] == [SLOW.message, f"cleared: {SLOW.message}"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.INFO]


WRONG = st.lists(st.builds(Alarm, st.sampled_from(AlarmKind), st.just("x"), st.sampled_from("mn")), max_size=4)


@given(st.lists(WRONG, max_size=8))
def test_update_raised_and_not_cleared_is_active(looks: list[list[Alarm]]) -> None:
    events = EventLog()
    alarms = Alarms(events)
    for found in looks:
        alarms.update(iter(found))
        subjects = {alarm.subject for alarm in found}
        assert {alarm.subject for alarm in alarms.active()} == subjects
        assert len(emitted(events, AlarmRaised)) - len(emitted(events, AlarmCleared)) == len(subjects)


SETTINGS = Engines(regression_factor=3.0, regression_seconds=30.0)
RECIPE = Recipe("openvino")


class Served:
    """A model with one engine that took 12 ms while it served before, and cameras that never pause. When it was built,
    on a busy box, it took 201 ms."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.planned = clock, planned_model()
        self.planned.model = model()
        key = key_of(self.planned.model, RECIPE)
        self.engine = PlannedEngine(key, RECIPE)
        self.engine.adopt(record_of(key, RECIPE, cost=20.1))
        self.engine.paced(12.0)
        self.planned.engines = {key.digest: self.engine}
        serve(self.planned, key.digest)

    def infer(self, milliseconds: float, seconds: float) -> list[AlarmKind]:
        """Answers frame after frame for a while; what was wrong at the looks that were taken meanwhile."""
        found, end, look = [], self.clock.now + seconds, self.clock.now
        while self.clock.now < end:
            self.clock.now += max(0.04, milliseconds / 1000)
            assert self.planned.slot.current is not None
            self.planned.slot.current.latency.add(milliseconds, self.clock.now)
            if self.clock.now - look >= 1.0:
                look = self.clock.now
                found += [alarm.kind for alarm in self.look()]
        return found

    def look(self, busy: float = 0.25) -> list[Alarm]:
        return list(wrong([self.planned], SETTINGS, self.clock.now, Box(busy)))


@pytest.fixture
def served() -> Served:
    return Served(Clock())


# -- slowness -------------------------------------------------------------------------------------------------------


def test_slow_engine_raises_an_alarm_after_it_lasted(served: Served) -> None:
    assert served.infer(12, 60) == []
    assert served.infer(340, 29) == []
    assert AlarmKind.SLOW in served.infer(340, 60)
    (alarm,) = served.look()
    assert alarm.model == "m"
    assert alarm.engine == served.engine.digest
    for part in ("340 ms", "12 ms", "28.3x", "25%"):
        assert part in alarm.message


def test_slow_alarm_clears_when_inference_is_fast_again(served: Served) -> None:
    served.infer(340, 90)
    assert served.look()
    served.infer(12, 30)
    assert served.look() == []


def test_slow_engine_for_short_periods_raises_no_alarm(served: Served) -> None:
    for _ in range(4):
        assert served.infer(340, 20) == []
        assert served.infer(12, 30) == []


def test_slow_engine_below_the_factor_raises_no_alarm(served: Served) -> None:
    assert served.infer(35, 120) == []
    assert AlarmKind.SLOW in served.infer(37, 120)


def test_slow_tiny_engine_within_microseconds_raises_no_alarm(served: Served) -> None:
    served.engine.served_ms.clear()
    assert served.infer(0.11, 120) == []
    assert AlarmKind.SLOW in served.infer(1.2, 120)


def test_slow_alarm_stays_without_requests(served: Served) -> None:
    served.infer(340, 90)
    served.clock.now += 600
    (alarm,) = served.look()
    assert alarm.message.endswith("inference took much longer than 12 ms, then no inference ended for a while")


def test_slow_engine_with_few_answers_raises_no_alarm(served: Served) -> None:
    found = served.infer(340, 3)  # an engine that was just opened
    for _ in range(120):
        served.clock.now += 1
        found += [alarm.kind for alarm in served.look()]
    assert found == []


def test_slow_engine_that_was_never_faster_raises_no_alarm(served: Served) -> None:
    served.engine.served_ms.clear()
    assert served.infer(340, 120) == []
    assert slow_engine(served.planned, SETTINGS, served.clock.now) is None


def test_slow_outdated_engine_raises_no_alarm(served: Served) -> None:
    served.planned.engines = {}
    assert served.infer(340, 120) == []


def test_slow_alarm_ends_with_the_engine(served: Served) -> None:
    served.infer(340, 90)
    serve(served.planned, served.engine.digest)
    assert served.look() == []


# -- everything else ------------------------------------------------------------------------------------------------


def kinds(*models: PlannedModel, paused: str = "", is_reboot_pending: bool = False) -> list[AlarmKind]:
    return [alarm.kind for alarm in wrong(models, SETTINGS, 0.0, Box(0.0, paused, is_reboot_pending))]


def test_paused_builds_alarm_has_the_disks_reason() -> None:
    (alarm,) = wrong([], SETTINGS, 0.0, Box(paused="the disk is full"))
    assert alarm == Alarm(AlarmKind.BUILDS_PAUSED, "the disk is full")


def test_reboot_pending_alarm_names_the_remedy() -> None:
    (alarm,) = wrong([], SETTINGS, 0.0, Box(is_reboot_pending=True))
    assert alarm.kind is AlarmKind.REBOOT_PENDING
    assert "rebooted" in alarm.message


def test_tracking_alarm_names_the_remedy() -> None:
    (alarm,) = wrong([], SETTINGS, 0.0, Box(untracked="a library is not installed: pip install it"))
    assert (alarm.kind, alarm.model) == (AlarmKind.UNTRACKED, "")
    assert "no tracker ids: a library is not installed: pip install it" in alarm.message


@pytest.mark.parametrize("state", [s for s in EngineState if s is not EngineState.QUARANTINED])
def test_wrong_healthy_engine_has_no_alarm(served: Served, state: EngineState) -> None:
    served.engine.state = state
    assert kinds(served.planned) == []


def test_quarantined_engine_alarm_has_reason_and_remedy(served: Served) -> None:
    served.engine.move(EngineState.QUEUED)
    served.engine.record = None
    for _ in range(4):
        served.engine.fail(BuildFailed("no memory"), most=4)
        if served.engine.state is EngineState.FAILED:
            served.engine.move(EngineState.QUEUED)
    (alarm,) = served.look()
    assert (alarm.kind, alarm.model, alarm.engine) == (AlarmKind.QUARANTINED, "m", served.engine.digest)
    assert "failed 4 times, the last time: no memory; see: edged engines rebuild" in alarm.message


def test_cancelled_engine_raises_no_alarm(served: Served) -> None:
    served.engine.move(EngineState.QUEUED)
    served.engine.quarantine("cancelled by an operator", held=True)
    assert served.look() == []


def test_refused_and_replaced_models_raise_different_alarms(served: Served) -> None:
    served.planned.problem = NotReady("it is no model")
    (alarm,) = served.look()
    assert alarm.kind is AlarmKind.UNSERVED
    assert "is not what is served: it is no model" in alarm.message
    served.planned.slot.current = None
    (alarm,) = served.look()
    assert "cannot be served: it is no model" in alarm.message


def test_fallback_nodes_alarm_lasts_while_the_engine_serves(served: Served) -> None:
    record = served.engine.record
    assert record is not None
    composition = Composition(nodes={"CPUExecutionProvider": {"Loop": 1}}, fallback=("1 Loop runs on the CPU",))
    served.engine.record = msgspec.structs.replace(record, composition=composition)
    (alarm,) = served.look()
    assert (alarm.kind, alarm.model, alarm.engine) == (AlarmKind.FALLBACK, "m", served.engine.digest)
    assert "1 Loop runs on the CPU" in alarm.message
    assert "\n" not in alarm.message
    served.planned.engines = {"another": served.engine}  # it is there, and another serves
    assert served.look() == []


@pytest.mark.parametrize("settings", [{"backends": "tensorrt"}, {"precisions": "tf32"}])
def test_settings_without_candidates_raise_an_alarm(settings: dict[str, str]) -> None:
    planned = planned_model()
    planned.entry = msgspec.structs.replace(planned.entry, settings=settings)
    planned.model = model()
    key = key_of(planned.model, REFERENCE)
    planned.engines = {key.digest: PlannedEngine(key, REFERENCE)}
    (alarm,) = wrong([planned], SETTINGS, 0.0, Box())
    assert alarm.kind is AlarmKind.NO_CANDIDATE
    ((name, value),) = settings.items()
    assert f"{name}={value} names nothing that this box can use" in alarm.message
    planned.entry = msgspec.structs.replace(planned.entry, settings={})
    assert list(wrong([planned], SETTINGS, 0.0, Box())) == []


# -- bounds ---------------------------------------------------------------------------------------------------------


def test_not_finite_alarm_lasts_until_outputs_were_finite_for_a_while(served: Served) -> None:
    finite = served.planned.slot.finite
    finite.answered((), served.clock.now)
    assert served.look() == []
    finite.answered(("y",), served.clock.now)
    finite.answered(("h", "y"), served.clock.now)
    (alarm,) = served.look()
    assert (alarm.kind, alarm.model, alarm.engine) == (AlarmKind.NOT_FINITE, "m", "")
    assert "output 'y' in 2 of 2 answers" in alarm.message
    assert "output 'h' in 1 of 1 answers" in alarm.message
    served.clock.now += QUIET_SECONDS + 1
    assert served.look() == []


def test_alarms_quarantined_engines_and_their_model_are_raised(served: Served) -> None:
    served.engine.quarantined = "its work ended its engine host 3 times, which at last died"
    (alarm,) = served.look()
    assert (alarm.kind, alarm.engine) == (AlarmKind.QUARANTINED, served.engine.digest)
    assert "3 times" in alarm.message
    assert "edged engines rebuild" in alarm.message
    served.planned.slot.current = None
    for engine in served.planned.engines.values():
        engine.quarantined = served.engine.quarantined
    found = [each for each in served.look() if each.kind is AlarmKind.QUARANTINED]
    assert [each.engine for each in found] == [*served.planned.engines, ""]


# -- answers --------------------------------------------------------------------------------------------------------


def test_unresponsive_engine_alarm_lasts_until_it_answers(served: Served) -> None:
    assert served.planned.slot.current is not None
    health = served.planned.slot.current.health
    for _ in range(3):
        assert served.look() == []
        health.missed(EngineUnusable("inference failed"))
    (alarm,) = served.look()
    assert (alarm.kind, alarm.model, alarm.engine) == (AlarmKind.FAILING, "m", served.engine.digest)
    assert "model m is not ready: its engine no longer answers: inference failed" in alarm.message
    health.answered(served.clock.now)
    assert served.look() == []
