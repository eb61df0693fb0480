"""When a model has enough work for several inferences at the same time."""

from __future__ import annotations

from edged.serving.demand import Demand


def after(demand: Demand, since: float, seconds: float, *counts: int) -> float:
    """Note these numbers of pieces of work in turns, each for 10 ms, for so long; return the time."""
    now = since
    while now < since + seconds:
        for count in counts:
            demand.note(count, now)
            now += 0.01
            demand.is_high(now)
    return now


def test_demand_of_one_client_that_waits_for_each_answer_is_low() -> None:
    demand = Demand()
    assert not demand.is_high(after(demand, 0.0, 60.0, 1))


def test_demand_is_high_soon_after_work_begins_to_wait() -> None:
    demand = Demand()
    now = after(demand, 0.0, 30.0, 0, 1)
    assert not demand.is_high(now)
    now = after(demand, now, 0.3, 4)
    assert not demand.is_high(now), "a moment says little"
    assert demand.is_high(after(demand, now, 2.0, 4))


def test_demand_is_low_again_only_after_a_while_with_little_work() -> None:
    demand = Demand()
    now = after(demand, 0.0, 5.0, 3)
    assert demand.is_high(after(demand, now, 5.0, 1, 0))
    assert demand.is_high(after(demand, now + 5, 60.0, 1, 2)), "neither many nor few"
    assert not demand.is_high(after(demand, now + 65, 20.0, 1, 0))


def test_demand_of_an_idle_model_ends() -> None:
    demand = Demand()
    now = after(demand, 0.0, 5.0, 3)
    demand.note(0, now)
    demand.is_high(now + 10)
    assert not demand.is_high(now + 25)
