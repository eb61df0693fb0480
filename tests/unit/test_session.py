"""How long inference takes while serving, by a clock that a test turns."""

from __future__ import annotations

import pytest

from edged.serving import session as pace_module
from edged.serving.session import LatencyWindow
from tests.unit.control_room import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pace_module, "time", clock)
    return clock


def feed(latency: LatencyWindow, clock: Clock, milliseconds: float, times: int = 1, every: float = 0.1) -> None:
    for _ in range(times):
        clock.now += every
        latency.add(milliseconds)


def test_a_few_answers_make_no_median(clock: Clock) -> None:
    latency = LatencyWindow()
    feed(latency, clock, 12.0, 4)
    assert latency.median(clock.now) is None
    feed(latency, clock, 14.0)
    assert latency.median(clock.now) == 12.0


def test_one_answer_that_took_long_does_not_move_the_median(clock: Clock) -> None:
    latency = LatencyWindow()
    feed(latency, clock, 12.0, 6)
    feed(latency, clock, 9000.0)
    assert latency.median(clock.now) == 12.0


def test_what_happened_a_while_ago_says_nothing_about_now(clock: Clock) -> None:
    latency = LatencyWindow()
    feed(latency, clock, 12.0, 20)
    clock.now += 60
    assert latency.median(clock.now) is None
    feed(latency, clock, 340.0, 5)
    assert latency.median(clock.now) == 340.0


def test_only_the_newest_answers_count_however_many_there_are(clock: Clock) -> None:
    latency = LatencyWindow()
    feed(latency, clock, 12.0, 1000, every=0.001)
    feed(latency, clock, 340.0, 200, every=0.001)
    assert latency.median(clock.now) == 340.0


def test_slowness_lasts_from_when_it_was_first_found_until_it_is_over(clock: Clock) -> None:
    latency, found = LatencyWindow(), []
    for _ in range(4):
        feed(latency, clock, 340.0, 5, every=1.0)
        found.append(latency.slow_for(clock.now, 36.0))
    assert found[0] > 0, "it is slow now"
    assert found[1:] == [5.0, 10.0, 15.0]
    feed(latency, clock, 12.0, 200, every=0.01)
    assert latency.slow_for(clock.now, 36.0) == 0
    feed(latency, clock, 340.0, 200, every=0.01)
    assert 0 < latency.slow_for(clock.now, 36.0) < 1, "it begins anew"


def test_what_is_as_slow_as_the_limit_is_not_slow(clock: Clock) -> None:
    latency = LatencyWindow()
    feed(latency, clock, 36.0, 5)
    assert latency.slow_for(clock.now, 36.0) == 0


def test_nothing_inferred_is_not_slow(clock: Clock) -> None:
    assert LatencyWindow().slow_for(clock.now, 36.0) == 0


def test_silence_ends_no_slowness_that_was_found(clock: Clock) -> None:
    latency = LatencyWindow()
    for _ in range(4):
        feed(latency, clock, 340.0, 5, every=1.0)
        lasted = latency.slow_for(clock.now, 36.0)
    clock.now += 300
    assert latency.slow_for(clock.now, 36.0) >= lasted > 0


def test_silence_does_not_make_slowness_last(clock: Clock) -> None:
    latency = LatencyWindow()
    feed(latency, clock, 340.0, 5)  # the first answers of an engine that was just opened
    latency.slow_for(clock.now, 36.0)
    for _ in range(60):
        clock.now += 1
        lasted = latency.slow_for(clock.now, 36.0)
    assert lasted <= 30.0, "five answers say nothing about the minute after them"
