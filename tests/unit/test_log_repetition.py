"""Repeated log records: the first is written at once, the others once a second as one record with their number."""

from __future__ import annotations

import gc
import io
import json
import logging
import sys
import weakref

import pytest

from edged.logs.output import Output, Repetition
from tests.unit.test_logs import record
from tests.waiting import wait


def hot(message: str, *values: object, **extra: str) -> logging.LogRecord:
    """Return a warning of a logger that may log for each frame or request."""
    return record(message, *values, level=logging.WARNING, name="edged.zmq", **extra)


def texts(records: list[logging.LogRecord]) -> list[str]:
    return [each.getMessage() for each in records]


def test_admit_repeated_records_are_written_once_a_second_with_their_number() -> None:
    repetition = Repetition()
    assert texts(repetition.admit(hot("camera %s failed", 0), 100.0)) == ["camera 0 failed"]
    for number in range(1, 4215):
        assert repetition.admit(hot("camera %s failed", number), 100.5) == []
    assert repetition.next_due == 101.0
    assert repetition.due(100.99) == []
    (summed,) = repetition.due(101.0)
    assert summed.getMessage() == "camera 4214 failed ... and 4,213 more like it in the last 1.0 s"
    assert summed.__dict__["repeated"] == 4213
    assert repetition.next_due is None
    repetition.admit(hot("camera %s failed", 1), 101.5)
    assert texts(repetition.due(102.0)) == ["camera 1 failed"]  # a single held record is unchanged


def test_admit_after_a_quiet_second_writes_at_once_again() -> None:
    repetition = Repetition()
    assert [len(repetition.admit(hot("one"), now)) for now in (0.0, 1.0, 1.5)] == [1, 1, 0]
    repetition.admit(hot("one"), 1.6)
    assert texts(repetition.admit(hot("two"), 6.0)) == ["one ... and 1 more like it in the last 5.0 s", "two"]
    assert texts(repetition.admit(hot("one"), 7.2)) == ["one"]


@pytest.mark.parametrize(
    "other",
    [
        record("it failed: %s", "x", level=logging.ERROR, name="edged.zmq"),
        record("it failed: %s", "x", level=logging.WARNING, name="edged.frigate"),
        hot("it failed otherwise: %s", "x"),
        hot("it failed: %s", "x", model="m"),
        hot("it failed: %s", "x", engine="e"),
        hot("it failed: %s", "x", alike="another"),
    ],
)
def test_admit_record_of_another_kind_is_written(other: logging.LogRecord) -> None:
    repetition = Repetition()
    repetition.admit(hot("it failed: %s", "x"), 0.0)
    assert repetition.admit(other, 0.1) == [other]


def test_admit_errors_of_another_class_or_place_are_other_kinds() -> None:
    def failed(error: type[Exception]) -> logging.LogRecord:
        try:
            raise error("x")
        except Exception:
            return hot("a call failed")

    def failed_elsewhere() -> logging.LogRecord:
        try:
            raise KeyError("x")
        except KeyError:
            return hot("a call failed")

    repetition = Repetition()
    for written in (1, 0):
        for each in (failed(KeyError), failed(ValueError), failed_elsewhere()):
            assert len(repetition.admit(each, 0.0)) == written


@pytest.mark.parametrize("name", ["edged.engines", "edged.alarms", "edged"])
def test_admit_records_of_decisions_are_held_only_if_equal(name: str) -> None:
    repetition = Repetition()
    made = [record("engine %s: %s", n, "no", level=logging.WARNING, name=name) for n in range(50)]
    assert [len(repetition.admit(each, 0.0)) for each in made] == [1] * 50
    assert [len(repetition.admit(each, 0.1)) for each in made] == [0] * 50
    assert len(repetition.due(1.0)) == 50


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_admit_below_warning_is_never_held(level: int) -> None:
    repetition = Repetition()
    records = [record("a call", level=level, name="edged.calls") for _ in range(3)]
    assert [repetition.admit(each, 0.0) for each in records] == [[each] for each in records]


def test_admit_more_kinds_than_the_limit_writes_the_oldest() -> None:
    repetition = Repetition(most=10)
    for number in range(1000):
        assert len(repetition.admit(hot("x", alike=str(number)), 0.0)) in (1, 2)
        assert repetition.admit(hot("x", alike=str(number)), 0.0) == []
    assert len(repetition.rest(0.5)) == 10
    assert repetition.next_due is None


class _Large(Exception):
    pass


def test_admit_held_records_reference_no_exception() -> None:
    repetition = Repetition()
    error = _Large("big")
    gone = weakref.ref(error)
    for _ in range(2):
        repetition.admit(hot("it failed: %s", error), 0.0)
    try:
        raise error
    except _Large:
        for _ in range(2):
            repetition.admit(record("again", level=logging.ERROR, name="edged.zmq"), 0.0)
    del error
    sys.exc_info()
    gc.collect()
    assert gone() is None
    assert texts(repetition.rest(0.5)) == ["it failed: big", "again"]


@pytest.mark.parametrize("is_closed", [True, False])
def test_output_writes_held_records_after_a_second_or_when_closed(is_closed: bool) -> None:
    written = io.StringIO()
    output = Output(written)
    output.shape("json")
    for _ in range(100):
        output.handle(hot("it failed"))
    assert written.getvalue().count("\n") == 1
    if is_closed:
        output.close()
    wait(lambda: written.getvalue().count("\n") == 2)
    last = json.loads(written.getvalue().splitlines()[1])
    assert (last["repeated"], last["message"].startswith("it failed ... and 98 more like it")) == ("98", True)
    output.close()


def test_output_record_that_cannot_be_formatted_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    written = io.StringIO()
    output = Output(written)
    output.handle(hot("%d", "no number"))
    output.handle(hot("fine"))
    assert written.getvalue().count("\n") == 1
    output.close()
    assert "no number" in capsys.readouterr().err  # the logging module reports it
