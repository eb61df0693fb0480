"""Alarms: the conditions that raise them, and one event at the beginning and one at the end of each."""

from __future__ import annotations

import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.backends.contract import REFERENCE, Composition, Recipe
from edged.config import Engines
from edged.engines import alarms as alarms_module
from edged.engines.alarms import Alarm, AlarmKind, Alarms, Box, wrong
from edged.engines.engine import EngineState, PlannedEngine
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


def test_update_lasting_alarm_keeps_its_start_and_is_reported_once(
    alarms: Alarms, events: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(100.0)
    monkeypatch.setattr(alarms_module, "time", clock)
    alarms.update([SLOW])
    clock.now = 200.0
    later = Alarm(AlarmKind.SLOW, "inference takes 350 ms instead of 12 ms", "m", "key")
    alarms.update([later, Alarm(AlarmKind.UNSERVED, "", "n")])
    assert [alarm.since_unix_s for alarm in alarms.active()] == [100.0, 200.0]
    assert alarms.active()[0].message == later.message
    assert len(emitted(events, AlarmRaised)) == 2


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


async def test_update_event_names_model_and_engine(alarms: Alarms, events: EventLog) -> None:
    alarms.update([SLOW])
    alarms.update([])
    found = [(event.model, event.engine) async for event in events.follow(live=False)]
    assert found == [("m", "key")] * 2


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
    """A model with one serving engine, timed at 201 ms when built on a busy box, and at 12 ms when it served before."""

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
        """Answer frames without a pause for some seconds. Return the alarms seen meanwhile, checked once a second."""
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


# The usual latency in ms, then periods: (latency in ms, seconds, whether the alarm is active at the end).
SLOWNESS: dict[str, tuple[float | None, list[tuple[float, float, bool]]]] = {
    "for long enough": (12, [(12, 60, False), (340, 29, False), (340, 60, True)]),
    "fast again": (12, [(340, 90, True), (12, 30, False)]),
    "for short periods": (12, [(340, 20, False), (12, 30, False)] * 4),
    "below the factor": (12, [(35, 120, False), (37, 120, True)]),
    "tiny, by microseconds": (None, [(0.11, 120, False), (1.2, 120, True)]),
    "never faster": (None, [(340, 120, False)]),
}


@pytest.mark.parametrize("case", SLOWNESS)
def test_slow_engine_raises_an_alarm_while_it_lasts(served: Served, case: str) -> None:
    usual_ms, course = SLOWNESS[case]
    if usual_ms is None:
        served.engine.served_ms.clear()
    was_slow = False
    for milliseconds, seconds, is_slow in course:
        found = served.infer(milliseconds, seconds)
        assert is_slow == bool(served.look())
        assert (AlarmKind.SLOW in found) or not is_slow
        assert found == [] or is_slow or was_slow
        was_slow = is_slow


def test_slow_alarm_names_the_engine_and_ends_with_it(served: Served) -> None:
    served.infer(340, 90)
    (alarm,) = served.look()
    assert (alarm.model, alarm.engine) == ("m", served.engine.digest)
    for part in ("340 ms", "12 ms", "28.3x", "25%"):
        assert part in alarm.message
    engines, served.planned.engines = served.planned.engines, {}
    assert served.look() == [], "an outdated engine has no alarm"
    served.planned.engines = engines
    serve(served.planned, served.engine.digest)
    assert served.look() == []


def test_slow_alarm_stays_without_requests(served: Served) -> None:
    served.infer(340, 90)
    served.clock.now += 600
    (alarm,) = served.look()
    assert alarm.message.endswith("inference took much longer than 12 ms, then no inference finished for a while")


def test_slow_engine_with_few_answers_raises_no_alarm(served: Served) -> None:
    found = served.infer(340, 3)  # an engine that was just opened
    for _ in range(120):
        served.clock.now += 1
        found += [alarm.kind for alarm in served.look()]
    assert found == []


# -- everything else ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("box", "kind", "message"),
    [
        (Box(paused="the disk is full"), AlarmKind.BUILDS_PAUSED, "the disk is full"),
        (Box(is_reboot_pending=True), AlarmKind.REBOOT_PENDING, "reboot"),
        (Box(untracked="no library: install it"), AlarmKind.UNTRACKED, "no tracker ids: no library: install it"),
    ],
)
def test_alarm_of_the_box_has_its_reason(box: Box, kind: AlarmKind, message: str) -> None:
    (alarm,) = wrong([], SETTINGS, 0.0, box)
    assert (alarm.kind, alarm.model, alarm.engine) == (kind, "", "")
    assert message in alarm.message


@pytest.mark.parametrize("state", EngineState)
def test_wrong_engine_not_quarantined_or_cancelled_has_no_alarm(served: Served, state: EngineState) -> None:
    served.engine.state, served.engine.is_held = state, True
    assert served.look() == []
    served.engine.is_held = False
    assert [alarm.kind for alarm in served.look()] == [AlarmKind.QUARANTINED] * (state is EngineState.QUARANTINED)


def test_quarantined_engine_alarm_has_reason_and_remedy(served: Served) -> None:
    served.engine.record, served.engine.failures = None, 3
    served.engine.move(EngineState.QUEUED)
    served.engine.fail(BuildFailed("no memory"), most=4)
    (alarm,) = served.look()
    assert (alarm.kind, alarm.model, alarm.engine) == (AlarmKind.QUARANTINED, "m", served.engine.digest)
    assert "failed 4 times; last error: no memory; to try it again: edged engines rebuild" in alarm.message


def test_refused_and_replaced_models_raise_different_alarms(served: Served) -> None:
    served.planned.problem = NotReady("it is no model")
    (alarm,) = served.look()
    assert alarm.kind is AlarmKind.UNSERVED
    assert "because the new version cannot be served: it is no model" in alarm.message
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
    served.planned.engines = {"another": served.engine}  # the engine exists, but another one serves
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
    assert f"its settings {name}={value} allow no other engine here" in alarm.message
    planned.entry = msgspec.structs.replace(planned.entry, settings={})
    assert list(wrong([planned], SETTINGS, 0.0, Box())) == []


def test_named_precision_that_no_backend_has_raises_an_alarm() -> None:
    planned = planned_model()
    planned.entry = msgspec.structs.replace(planned.entry, settings={"precisions": "int8,tf32"})
    planned.model = model()
    recipes = (REFERENCE, Recipe("onnxruntime"))
    planned.engines = {key.digest: PlannedEngine(key, r) for r in recipes if (key := key_of(planned.model, r))}
    (alarm,) = wrong([planned], SETTINGS, 0.0, Box())
    assert alarm.kind is AlarmKind.NO_CANDIDATE
    assert "int8,tf32" in alarm.message
    recipe = Recipe("openvino", precision="int8")
    key = key_of(planned.model, recipe)
    planned.engines[key.digest] = PlannedEngine(key, recipe)
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
    served.engine.quarantined = "the engine ended its host 3 times; the last time the host died"
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
