"""Events are numbered without gaps, kept for a while, and followed from any number."""

from __future__ import annotations

import asyncio

from edged.events import Event, EventLog, Kind


def test_events_are_numbered_from_one_and_kept_in_order() -> None:
    async def work() -> list[Event]:
        log = EventLog()
        log.tell(Kind.MODEL_READ, "m", digest="d")
        log.tell(Kind.ENGINE_STATE, "m", "k", state="ready")
        return [event async for event in log.follow(live=False)]

    first, second = asyncio.run(work())
    assert (first.sequence, first.kind, first.model, first.detail) == (1, Kind.MODEL_READ, "m", {"digest": "d"})
    assert (second.sequence, second.engine) == (2, "k")


def test_a_follower_resumes_where_it_was_and_gets_what_comes() -> None:
    async def work() -> list[int]:
        log, seen = EventLog(), []
        for _ in range(5):
            log.tell(Kind.MODEL_REMOVED)

        async def follow() -> None:
            async for event in log.follow(after=3):
                seen.append(event.sequence)
                if event.sequence == 8:
                    return

        task = asyncio.create_task(follow())
        await asyncio.sleep(0)
        for _ in range(3):
            log.tell(Kind.MODEL_REMOVED)
            await asyncio.sleep(0)
        await asyncio.wait_for(task, 10)
        return seen

    assert asyncio.run(work()) == [4, 5, 6, 7, 8]


def test_two_followers_see_the_same() -> None:
    async def work() -> list[list[int]]:
        log = EventLog()

        async def follow() -> list[int]:
            seen: list[int] = []
            async for event in log.follow():
                seen.append(event.sequence)
                if len(seen) == 50:
                    break
            return seen

        tasks = [asyncio.create_task(follow()) for _ in range(2)]
        for number in range(50):
            log.tell(Kind.MODEL_REMOVED)
            if number % 7 == 0:
                await asyncio.sleep(0)
        return list(await asyncio.wait_for(asyncio.gather(*tasks), 10))

    assert asyncio.run(work()) == [list(range(1, 51))] * 2


def test_a_follower_that_falls_behind_sees_the_gap_in_the_numbers() -> None:
    async def work() -> list[int]:
        log = EventLog(kept=3)
        for _ in range(10):
            log.tell(Kind.MODEL_REMOVED)
        return [event.sequence async for event in log.follow(live=False)]

    assert asyncio.run(work()) == [8, 9, 10]
