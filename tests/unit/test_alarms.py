"""Alarms are told once when something begins to be wrong, and once when it is over."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.engines import alarms as alarms_module
from edged.engines.alarms import Alarm, AlarmKind, Alarms
from edged.events import AlarmCleared, AlarmRaised, EventLog
from tests.unit.control_room import Clock, told

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
    assert len(told(events, AlarmRaised)) == 1


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
    assert len(told(events, AlarmRaised)) == 2
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
        for wrong in ([SLOW], [SLOW], [], []):
            alarms.update(wrong)
    assert [record.getMessage() for record in caplog.records] == [SLOW.message, f"cleared: {SLOW.message}"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.INFO]


WRONG = st.lists(st.builds(Alarm, st.sampled_from(AlarmKind), st.just("x"), st.sampled_from("mn")), max_size=4)


@given(st.lists(WRONG, max_size=8))
def test_update_raised_and_not_cleared_is_active(looks: list[list[Alarm]]) -> None:
    events = EventLog()
    alarms = Alarms(events)
    for wrong in looks:
        alarms.update(iter(wrong))
        subjects = {alarm.subject for alarm in wrong}
        assert {alarm.subject for alarm in alarms.active()} == subjects
        assert len(told(events, AlarmRaised)) - len(told(events, AlarmCleared)) == len(subjects)
