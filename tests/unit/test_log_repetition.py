"""What is said again and again: the first at once, the rest once a second with its number; memory is bounded."""

from __future__ import annotations

import gc
import io
import logging
import sys
import time
import weakref
from collections.abc import Iterator

import pytest

from edged.logs.output import Output
from edged.logs.repetition import Repetition
from tests.unit.test_logs import record


def hot(message: str, *values: object, **extra: str) -> logging.LogRecord:
    """A warning from where each frame or request passes."""
    return record(message, *values, level=logging.WARNING, name="edged.zmq", **extra)


def _next_due(repetition: Repetition) -> float | None:
    return repetition.next_due


def said(records: list[logging.LogRecord]) -> list[str]:
    return [each.getMessage() for each in records]


def test_the_first_is_said_at_once_and_those_that_follow_once_a_second_with_their_number() -> None:
    repetition = Repetition()
    assert said(repetition.admit(hot("camera %s failed", 0), 100.0)) == ["camera 0 failed"]
    for number in range(1, 4215):
        assert repetition.admit(hot("camera %s failed", number), 100.5) == []
    assert _next_due(repetition) == 101.0
    assert repetition.due(100.99) == []
    (told,) = repetition.due(101.0)
    assert told.getMessage() == "camera 4214 failed ... and 4,213 more like it in the last 1.0 s"
    assert told.__dict__["repeated"] == 4213
    assert _next_due(repetition) is None
    repetition.admit(hot("camera %s failed", 1), 101.5)
    assert said(repetition.due(102.0)) == ["camera 1 failed"]  # a single one is said as it is, only late


def test_after_a_second_of_quiet_the_next_is_a_first_one() -> None:
    repetition = Repetition()
    assert len(repetition.admit(hot("it failed"), 0.0)) == 1
    assert len(repetition.admit(hot("it failed"), 1.0)) == 1
    assert repetition.admit(hot("it failed"), 1.5) == []
    assert len(repetition.due(2.1)) == 1
    assert len(repetition.admit(hot("it failed"), 3.2)) == 1


def test_what_was_held_back_is_said_before_what_comes_next_even_if_nobody_looked() -> None:
    repetition = Repetition()
    repetition.admit(hot("one"), 0.0)
    repetition.admit(hot("one"), 0.1)
    repetition.admit(hot("one"), 0.2)
    assert said(repetition.admit(hot("two"), 5.0)) == ["one ... and 1 more like it in the last 5.0 s", "two"]


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
def test_nothing_is_held_back_that_was_not_said(other: logging.LogRecord) -> None:
    repetition = Repetition()
    repetition.admit(hot("it failed: %s", "x"), 0.0)
    assert repetition.admit(other, 0.1) == [other]


def test_another_error_and_another_place_are_another_kind() -> None:
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
    for first in (failed(KeyError), failed(ValueError), failed_elsewhere()):
        assert repetition.admit(first, 0.0) == [first]
    for again in (failed(KeyError), failed(ValueError), failed_elsewhere()):
        assert repetition.admit(again, 0.1) == []


def test_a_camera_whose_name_a_client_makes_up_is_no_new_kind() -> None:
    repetition = Repetition()
    repetition.admit(hot("camera %s failed", "a"), 0.0)
    assert repetition.admit(hot("camera %s failed", "b"), 0.1) == []


@pytest.mark.parametrize("name", ["edged.engines", "edged.alarms", "edged"])
def test_decisions_are_each_said_and_only_the_very_same_is_repeated(name: str) -> None:
    repetition = Repetition()
    made = [record("engine %s: %s", n, "no", level=logging.WARNING, name=name) for n in range(50)]
    assert [len(repetition.admit(each, 0.0)) for each in made] == [1] * 50
    assert [len(repetition.admit(each, 0.1)) for each in made] == [0] * 50
    assert len(repetition.due(1.0)) == 50


def test_what_is_no_warning_is_always_said() -> None:
    repetition = Repetition()
    for level in (logging.INFO, logging.DEBUG):
        for _ in range(3):
            each = record("a call", level=level, name="edged.calls")
            assert repetition.admit(each, 0.0) == [each]


def test_memory_is_bounded_and_what_gives_way_has_its_say() -> None:
    repetition = Repetition(most=10)
    for number in range(1000):
        assert len(repetition.admit(hot("x", alike=str(number)), 0.0)) in (1, 2)
        assert repetition.admit(hot("x", alike=str(number)), 0.0) == []
    assert len(repetition._spells) == 10
    assert len(repetition.rest(0.5)) == 10
    assert repetition.next_due is None


class _Large(Exception):
    pass


def test_what_is_held_back_keeps_no_exception_alive() -> None:
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
    assert said(repetition.rest(0.5)) == ["it failed: big", "again"]


@pytest.fixture
def output() -> Iterator[Output]:
    made = Output(io.StringIO())
    made.shape("json")
    yield made
    made.close()


def _lines(output: Output) -> list[str]:
    stream = output._stream
    assert isinstance(stream, io.StringIO)
    return stream.getvalue().splitlines()


def test_the_remainder_is_said_when_it_is_quiet(output: Output) -> None:
    for _ in range(100):
        output.handle(hot("it failed"))
    assert len(_lines(output)) == 1
    deadline = time.monotonic() + 20
    while len(_lines(output)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert '"repeated":"98"' in _lines(output)[1]
    assert "it failed ... and 98 more like it" in _lines(output)[1]


def test_the_remainder_is_said_when_it_ends(output: Output) -> None:
    for _ in range(5):
        output.handle(hot("it failed"))
    output.close()
    assert len(_lines(output)) == 2


def test_a_record_that_cannot_be_made_a_line_costs_only_itself(
    output: Output, capsys: pytest.CaptureFixture[str]
) -> None:
    output.handle(hot("%d", "no number"))
    output.handle(hot("fine"))
    assert len(_lines(output)) == 1
    assert "no number" in capsys.readouterr().err  # logging's own words about it
