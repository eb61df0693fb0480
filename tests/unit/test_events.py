"""Events are numbered without gaps, kept for a while, and followed from any number of this run or an earlier one."""

from __future__ import annotations

import asyncio

from edged.events import EngineMoved, Event, EventLog, ModelRead, ModelRemoved


def test_events_are_numbered_from_one_and_kept_in_order() -> None:
    async def work() -> list[Event]:
        log = EventLog()
        log.emit(ModelRead("d"), "m")
        log.emit(EngineMoved("ready", "onnxruntime", ""), "m", "k")
        return [event async for event in log.follow(live=False)]

    first, second = asyncio.run(work())
    assert (first.sequence, first.model, first.engine, first.what) == (1, "m", "", ModelRead("d"))
    assert (second.sequence, second.engine, second.what) == (2, "k", EngineMoved("ready", "onnxruntime", ""))


def test_a_follower_resumes_where_it_was_and_gets_what_comes() -> None:
    async def work() -> list[int]:
        log, seen = EventLog(), []
        for _ in range(5):
            log.emit(ModelRemoved())

        async def follow() -> None:
            async for event in log.follow(after=3, epoch=log.epoch):
                seen.append(event.sequence)
                if event.sequence == 8:
                    return

        task = asyncio.create_task(follow())
        await asyncio.sleep(0)
        for _ in range(3):
            log.emit(ModelRemoved())
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
            log.emit(ModelRemoved())
            if number % 7 == 0:
                await asyncio.sleep(0)
        return list(await asyncio.wait_for(asyncio.gather(*tasks), 10))

    assert asyncio.run(work()) == [list(range(1, 51))] * 2


def numbers(log: EventLog, after: int = 0, epoch: str = "") -> list[int]:
    async def work() -> list[int]:
        return [event.sequence async for event in log.follow(after, epoch, live=False)]

    return asyncio.run(work())


def filled(count: int, kept: int = 100) -> EventLog:
    log = EventLog(kept)
    for _ in range(count):
        log.emit(ModelRemoved())
    return log


def test_a_follower_that_falls_behind_sees_the_gap_in_the_numbers() -> None:
    assert numbers(filled(10, kept=3)) == [8, 9, 10]


def test_a_number_of_an_earlier_run_means_other_events() -> None:
    log, earlier = filled(5), filled(9)
    assert log.epoch != earlier.epoch
    assert numbers(log, 3, log.epoch) == [4, 5]
    assert numbers(log, 3, earlier.epoch) == [1, 2, 3, 4, 5]


def test_a_number_that_is_still_to_come_can_only_be_of_an_earlier_run() -> None:
    assert numbers(filled(5), 9) == [1, 2, 3, 4, 5]
    assert numbers(filled(5), 5) == []
