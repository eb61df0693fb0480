"""Limits per client, and the memory budget for large messages."""

from __future__ import annotations

import asyncio

import pytest

from edged.api.auth.limits import Bounds, Budget, ClientLimits, Usage
from edged.errors import ClientLimited
from tests.waiting import until

BOUNDS = Bounds(streams=2, requests=3, size=100, rate=10.0)


@pytest.fixture
def limits() -> ClientLimits:
    return ClientLimits(BOUNDS, 8)


@pytest.fixture
def usage(limits: ClientLimits) -> Usage:
    return limits.usage("a", "token a", 0.0)


def test_request_over_the_limit_of_requests_is_refused_until_one_ends(limits: ClientLimits, usage: Usage) -> None:
    for _ in range(3):
        limits.request(usage, 1, 0.0)
    with pytest.raises(ClientLimited, match="token a") as raised:
        limits.request(usage, 1, 0.0)
    assert raised.value.seconds == pytest.approx(0.1)
    limits.request(limits.usage("b", "token b", 0.0), 1, 0.0)
    limits.end(usage, 1)
    limits.request(usage, 1, 0.0)
    assert limits.refused == {"requests": 1}


def test_request_over_the_limit_of_bytes_is_refused_unless_alone(limits: ClientLimits, usage: Usage) -> None:
    limits.request(usage, 1000, 0.0)
    with pytest.raises(ClientLimited):
        limits.request(usage, 1, 0.0)
    limits.end(usage, 1000)
    limits.request(usage, 60, 0.0)
    with pytest.raises(ClientLimited):
        limits.request(usage, 41, 0.0)
    limits.request(usage, 40, 0.0)
    assert limits.refused == {"bytes": 2}


def test_request_over_the_rate_is_refused_with_a_retry_time(limits: ClientLimits, usage: Usage) -> None:
    limits.bounds = Bounds(streams=99, requests=99, size=100, rate=10.0)
    for _ in range(10):
        limits.request(usage, 0, 0.0)
    with pytest.raises(ClientLimited) as raised:
        limits.request(usage, 0, 0.05)
    assert raised.value.seconds == pytest.approx(0.05)
    limits.request(usage, 0, 0.11)
    for _ in range(10):  # after any pause, one second of the rate is allowed
        limits.request(usage, 0, 1000.0)
    with pytest.raises(ClientLimited):
        limits.stream(usage, 1000.0)
    assert limits.refused == {"rate": 2}


def test_stream_over_the_limit_is_refused_until_one_ends(limits: ClientLimits, usage: Usage) -> None:
    for _ in range(2):
        limits.stream(usage, 0.0)
    with pytest.raises(ClientLimited):
        limits.stream(usage, 0.0)
    limits.end_stream(usage)
    limits.stream(usage, 0.0)


def test_usage_of_idle_clients_is_forgotten(limits: ClientLimits) -> None:
    busy = limits.usage("busy", "busy", 0.0)
    limits.stream(busy, 0.0)
    for number in range(1000):
        limits.usage(str(number), "x", 0.0)
    assert len(limits) <= 9
    assert limits.usage("busy", "busy", 0.0) is busy


# -- large messages -------------------------------------------------------------------------------------------------

LONG = 60.0  # seconds for which a message was held: long enough that its bytes are free at once


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def budget_of(total: int = 4, each: int = 4) -> Budget:
    return Budget(total, each, refused_after=0.0)


@pytest.mark.parametrize("sizes", [{"a": 4, "b": 4}, {"a": 50}])
async def test_take_within_the_budget_or_alone_does_not_wait(sizes: dict[str, int]) -> None:
    budget = budget_of(10, 6)
    for client, size in sizes.items():
        await asyncio.wait_for(budget.take(client, size), 1)
    assert budget.used == sum(sizes.values())


async def test_take_over_a_clients_share_waits_but_another_client_does_not() -> None:
    budget = budget_of(10, 6)
    await budget.take("a", 5)
    second = asyncio.create_task(budget.take("a", 5))
    await settle()
    other = asyncio.create_task(budget.take("b", 2))
    await settle()
    assert (second.done(), other.done()) == (False, True)
    budget.give_back("a", 5, LONG)
    await asyncio.wait_for(second, 1)
    assert budget.used == 7


async def test_give_back_client_at_its_share_does_not_stop_others_even_if_its_message_exceeds_the_total() -> None:
    budget = budget_of(10, 6)
    await budget.take("a", 5)
    await budget.take("c", 4)
    waiting = asyncio.create_task(budget.take("a", 6))
    other = asyncio.create_task(budget.take("b", 4))
    await settle()
    assert (waiting.done(), other.done()) == (False, False)
    budget.give_back("c", 4, LONG)
    await asyncio.wait_for(other, 1)
    waiting.cancel()


async def test_give_back_serves_clients_in_order_of_arrival() -> None:
    budget = budget_of()
    order: list[str] = []

    async def message(client: str) -> None:
        await budget.take(client, 4)
        order.append(client)
        budget.give_back(client, 4, LONG)

    await budget.take("first", 4)
    tasks = [asyncio.create_task(message(name)) for name in "abc"]
    await settle()
    budget.give_back("first", 4, LONG)
    await asyncio.wait_for(asyncio.gather(*tasks), 1)
    assert (order, budget.used) == (["a", "b", "c"], 0)


async def test_take_cancelled_while_it_waits_leaves_nothing() -> None:
    budget = budget_of()
    await budget.take("a", 4)
    waiting = asyncio.create_task(budget.take("b", 4))
    await settle()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    budget.give_back("a", 4, LONG)
    assert budget.used == 0
    await asyncio.wait_for(budget.take("c", 4), 1)


async def test_take_impatient_over_the_waiting_bytes_is_refused() -> None:
    budget = budget_of()
    await budget.take("a", 4)
    waiting = asyncio.create_task(budget.take("b", 4, is_patient=False))
    await settle()
    with pytest.raises(ClientLimited):
        await budget.take("c", 4, is_patient=False)
    budget.give_back("a", 4, LONG)
    await asyncio.wait_for(waiting, 1)


async def test_take_impatient_message_over_the_total_waits_if_no_other_message_waits() -> None:
    budget = budget_of()
    await budget.take("a", 1)
    waiting = asyncio.create_task(budget.take("b", 5, is_patient=False))
    await settle()
    budget.give_back("a", 1, LONG)
    await asyncio.wait_for(waiting, 1)


async def test_is_short_only_if_a_message_waits_for_the_clients_room() -> None:
    budget, tasks = budget_of(10, 6), list[asyncio.Task[None]]()
    await budget.take("a", 4)
    await budget.take("b", 4)
    assert not budget.is_short("a")
    tasks.append(asyncio.create_task(budget.take("b", 4)))
    await settle()
    assert (budget.is_short("a"), budget.is_short("b")) == (False, True)
    tasks.append(asyncio.create_task(budget.take("c", 4)))
    await settle()
    assert budget.is_short("a")
    for task in tasks:
        task.cancel()


async def test_give_back_soon_after_take_frees_the_bytes_later() -> None:
    budget = budget_of(64 << 20, 64 << 20)
    await budget.take("a", 32 << 20)
    budget.give_back("a", 32 << 20, 0.0)
    assert budget.used == 32 << 20
    await until(lambda: not budget.used)


async def test_take_cancelled_just_before_bytes_are_freed_raises_cancelled() -> None:
    budget = budget_of(10, 10)
    await budget.take("a", 10)
    waiting = asyncio.ensure_future(budget.take("b", 10))
    await asyncio.sleep(0)
    waiting.cancel()
    budget.give_back("a", 10, 1.0)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert budget.used == 0
    await asyncio.wait_for(budget.take("c", 10), 1)
