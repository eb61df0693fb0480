"""Recent latencies of a session, and whether it has enough work for several inferences at the same time."""

from __future__ import annotations

import pytest

from edged.serving.session import Demand, LatencyWindow

LIMIT_MS = 36.0


class World:
    def __init__(self) -> None:
        self.latency, self.now = LatencyWindow(), 1000.0

    def infer(self, milliseconds: float, times: int, every: float = 0.1) -> None:
        for _ in range(times):
            self.now += every
            self.latency.add(milliseconds, self.now)

    def slow_for(self) -> float:
        return self.latency.slow_for(self.now, LIMIT_MS)


@pytest.mark.parametrize(
    ("inferences", "pause", "median"),
    [
        ([(12.0, 4, 0.1)], 0.0, None),
        ([(12.0, 4, 0.1), (14.0, 1, 0.1)], 0.0, 12.0),
        ([(12.0, 6, 0.1), (9000.0, 1, 0.1)], 0.0, 12.0),
        ([(12.0, 20, 0.1)], 60.0, None),
        ([(12.0, 20, 0.1), (340.0, 1, 60.0), (340.0, 4, 0.1)], 0.0, 340.0),
        ([(12.0, 1000, 0.001), (340.0, 200, 0.001)], 0.0, 340.0),
    ],
    ids=["too few", "enough", "one outlier", "all are old", "some are old", "many"],
)
def test_latency_median_is_of_recent_inferences(
    inferences: list[tuple[float, int, float]], pause: float, median: float | None
) -> None:
    world = World()
    for milliseconds, times, every in inferences:
        world.infer(milliseconds, times, every)
    assert world.latency.median(world.now + pause) == median


def test_latency_slow_for_grows_while_slow_and_restarts() -> None:
    world, found = World(), []
    for _ in range(4):
        world.infer(340.0, 5, every=1.0)
        found.append(world.slow_for())
    assert found[0] > 0
    assert found[1:] == [5.0, 10.0, 15.0]
    world.infer(12.0, 200, every=0.01)
    assert world.slow_for() == 0
    world.infer(340.0, 200, every=0.01)
    assert 0 < world.slow_for() < 1


@pytest.mark.parametrize("times", [0, 5])
def test_latency_at_the_limit_or_unknown_is_not_slow(times: int) -> None:
    world = World()
    world.infer(LIMIT_MS, times)
    assert world.slow_for() == 0


@pytest.mark.parametrize(("rounds", "lasted"), [(1, 1e-9), (4, 15.0)])
def test_latency_slow_for_neither_grows_nor_ends_without_inferences(rounds: int, lasted: float) -> None:
    world = World()
    for _ in range(rounds):
        world.infer(340.0, 5, every=1.0)
        world.slow_for()
    for _ in range(300):
        world.now += 1
        assert world.slow_for() == pytest.approx(lasted)


def after(demand: Demand, since: float, seconds: float, *counts: int) -> float:
    """Note these counts of work in turn, each for 10 ms, during `seconds`; return the time."""
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
