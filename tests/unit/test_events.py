"""The event log: numbers without gaps, a limited history, and followers that resume at any number."""

from __future__ import annotations

import asyncio

from edged.events import EngineMoved, EventLog, ModelRead, ModelRemoved


async def numbers(log: EventLog, after: int = 0, epoch: str = "") -> list[int]:
    return [event.sequence async for event in log.follow(after, epoch, live=False)]


def filled(count: int, kept: int = 100) -> EventLog:
    log = EventLog(kept)
    for _ in range(count):
        log.emit(ModelRemoved())
    return log


async def test_follow_events_are_numbered_from_one_in_order() -> None:
    log = EventLog()
    log.emit(ModelRead("d"), "m")
    log.emit(EngineMoved("ready", "onnxruntime", ""), "m", "k")
    first, second = [event async for event in log.follow(live=False)]
    assert (first.sequence, first.model, first.engine, first.what) == (1, "m", "", ModelRead("d"))
    assert (second.sequence, second.engine, second.what) == (2, "k", EngineMoved("ready", "onnxruntime", ""))


async def test_follow_after_a_number_gets_later_and_new_events() -> None:
    log, seen = filled(5), []

    async def follow() -> None:
        async for event in log.follow(after=3, epoch=log.epoch):
            seen.append(event.sequence)
            if event.sequence == 8:
                return

    task = asyncio.create_task(follow())
    for _ in range(3):
        await asyncio.sleep(0)
        log.emit(ModelRemoved())
    await task
    assert seen == [4, 5, 6, 7, 8]


async def test_follow_by_two_clients_gives_both_all_events() -> None:
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
    assert await asyncio.gather(*tasks) == [list(range(1, 51))] * 2


async def test_follow_after_dropped_events_has_a_gap_in_the_numbers() -> None:
    assert await numbers(filled(10, kept=3)) == [8, 9, 10]


async def test_follow_with_an_earlier_epoch_or_later_number_gets_all_events() -> None:
    log = filled(5)
    assert await numbers(log, 3, log.epoch) == [4, 5]
    assert await numbers(log, 3, "earlier") == await numbers(log, 9) == [1, 2, 3, 4, 5]
    assert await numbers(log, 5) == []
    assert log.epoch != EventLog().epoch
