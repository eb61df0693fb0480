"""What one client may have under way."""

from __future__ import annotations

import asyncio

import pytest

from edged.api.auth import limits
from edged.api.auth.limits import Bounds, Budget, ClientLimits
from edged.errors import ClientLimited

_BOUNDS = Bounds(streams=2, requests=3, size=100, rate=10.0)


def test_requests_at_a_time() -> None:
    counted = ClientLimits(_BOUNDS)
    usage = counted.usage("a", "token a", 0.0)
    for _ in range(3):
        counted.request(usage, 1, 0.0)
    with pytest.raises(ClientLimited, match=r"token a has 3 requests.*0\.1 s"):
        counted.request(usage, 1, 0.0)
    counted.request(counted.usage("b", "token b", 0.0), 1, 0.0)
    counted.end(usage, 1)
    counted.request(usage, 1, 0.0)
    assert counted.refused == {"requests": 1}


def test_bytes_at_a_time_but_one_request_of_any_size() -> None:
    counted = ClientLimits(_BOUNDS)
    usage = counted.usage("a", "a", 0.0)
    counted.request(usage, 1000, 0.0)
    with pytest.raises(ClientLimited, match="MiB"):
        counted.request(usage, 1, 0.0)
    counted.end(usage, 1000)
    counted.request(usage, 60, 0.0)
    with pytest.raises(ClientLimited):
        counted.request(usage, 41, 0.0)
    counted.request(usage, 40, 0.0)
    assert counted.refused == {"bytes": 2}


def test_requests_a_second_and_when_to_come_again() -> None:
    counted = ClientLimits(Bounds(streams=99, requests=99, size=100, rate=10.0))
    usage = counted.usage("a", "a", 0.0)
    for _ in range(10):
        counted.request(usage, 0, 0.0)
    with pytest.raises(ClientLimited) as raised:
        counted.request(usage, 0, 0.05)
    assert raised.value.seconds == pytest.approx(0.05)
    counted.request(usage, 0, 0.11)
    for _ in range(10):  # a pause earns a second's worth and no more
        counted.request(usage, 0, 1000.0)
    with pytest.raises(ClientLimited):
        counted.stream(usage, 1000.0)
    assert counted.refused == {"rate": 2}


def test_streams_at_a_time() -> None:
    counted = ClientLimits(_BOUNDS)
    usage = counted.usage("a", "a", 0.0)
    counted.stream(usage, 0.0)
    counted.stream(usage, 0.0)
    with pytest.raises(ClientLimited, match="2 streams"):
        counted.stream(usage, 0.0)
    counted.end_stream(usage)
    counted.stream(usage, 0.0)


def test_clients_that_have_nothing_under_way_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_MOST_CLIENTS", 8)
    counted = ClientLimits(_BOUNDS)
    busy = counted.usage("busy", "busy", 0.0)
    counted.stream(busy, 0.0)
    for number in range(1000):
        counted.usage(str(number), "x", 0.0)
    assert len(counted._clients) <= 9
    assert counted.usage("busy", "busy", 0.0) is busy


_LONG = 60.0  # seconds that a message was under way, so that its room is free at once


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


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
