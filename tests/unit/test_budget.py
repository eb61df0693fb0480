"""Large messages take turns: how many bytes may be under way, of one client and of all."""

from __future__ import annotations

import asyncio

import pytest

from edged.api.auth.limits import Budget
from edged.errors import ClientLimited

_LONG = 60.0  # seconds that a message was under way, so that its room is free at once


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_take_within_the_budget_does_not_wait() -> None:
    async def run() -> None:
        budget = Budget(10, 6)
        await asyncio.wait_for(budget.take("a", 4), 1)
        await asyncio.wait_for(budget.take("b", 4), 1)
        assert budget.used == 8

    asyncio.run(run())


def test_take_larger_than_the_budget_alone_does_not_wait() -> None:
    async def run() -> None:
        budget = Budget(10, 6)
        await asyncio.wait_for(budget.take("a", 50), 1)
        assert budget.used == 50

    asyncio.run(run())


def test_take_beyond_a_clients_share_waits_and_another_client_does_not() -> None:
    async def run() -> None:
        budget = Budget(10, 6)
        await budget.take("a", 5)
        second = asyncio.create_task(budget.take("a", 5))
        await _settle()
        other = asyncio.create_task(budget.take("b", 2))
        await _settle()
        budget.give_back("a", 5, _LONG)
        await asyncio.wait_for(asyncio.gather(second, other), 1)
        assert budget.used == 7

    asyncio.run(run())


def test_give_back_serves_clients_in_the_order_of_coming() -> None:
    async def run() -> None:
        budget, order = Budget(4, 4), list[str]()

        async def message(client: str) -> None:
            await budget.take(client, 4)
            order.append(client)
            budget.give_back(client, 4, _LONG)

        await budget.take("first", 4)
        tasks = [asyncio.create_task(message(name)) for name in "abc"]
        await _settle()
        budget.give_back("first", 4, _LONG)
        await asyncio.wait_for(asyncio.gather(*tasks), 1)
        assert order == ["a", "b", "c"]
        assert budget.used == 0

    asyncio.run(run())


def test_take_cancelled_while_it_waits_leaves_nothing() -> None:
    async def run() -> None:
        budget = Budget(4, 4)
        await budget.take("a", 4)
        waiting = asyncio.create_task(budget.take("b", 4))
        await _settle()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        budget.give_back("a", 4, _LONG)
        assert budget.used == 0
        await asyncio.wait_for(budget.take("c", 4), 1)

    asyncio.run(run())


def test_take_impatient_beyond_what_may_wait_is_refused() -> None:
    async def run() -> None:
        budget = Budget(4, 4, refused_after=0.0)
        await budget.take("a", 4)
        waiting = asyncio.create_task(budget.take("b", 4, is_patient=False))
        await _settle()
        with pytest.raises(ClientLimited):
            await budget.take("c", 4, is_patient=False)
        budget.give_back("a", 4, _LONG)
        await asyncio.wait_for(waiting, 1)

    asyncio.run(run())


def test_give_back_early_keeps_the_room_for_a_while() -> None:
    async def run() -> None:
        budget = Budget(64 << 20, 64 << 20)
        await budget.take("a", 32 << 20)
        budget.give_back("a", 32 << 20, 0.0)
        assert budget.used == 32 << 20
        while budget.used:  # noqa: ASYNC110 # time is no event
            await asyncio.sleep(0.01)

    asyncio.run(run())
