"""The frames of a call: every one delivered or counted as skipped, each camera's in order, whoever is slow."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.errors import InvalidInput, NotReady
from edged.serving.slot import Slot
from edged.serving.stream import Delivery, Stream
from edged.serving.work import FrameWork
from tests.fake_link import FakeLink
from tests.waiting import run

Tag = TypeVar("Tag")


class Reader(Generic[Tag]):
    """Takes deliveries only when told to."""

    def __init__(self, stream: Stream[Tag]) -> None:
        self._results = stream.results()
        self._next: asyncio.Task[Delivery[Tag]] | None = None
        self.got: list[Delivery[Tag]] = []
        self.ended = False

    async def read(self) -> bool:
        """Takes one delivery if there is one."""
        if self.ended:
            return False
        if self._next is None:
            self._next = asyncio.ensure_future(anext(self._results))
        await turn()
        if not self._next.done():
            return False
        task, self._next = self._next, None
        try:
            self.got.append(task.result())
        except StopAsyncIteration:
            self.ended = True
            return False
        return True

    async def read_all(self) -> None:
        while await self.read():
            pass

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
        await self._results.aclose()


async def turn(times: int = 5) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


def frame(number: int) -> FrameWork:
    return FrameWork(number.to_bytes(4, "big"))


def test_frames_of_an_idle_model_are_all_delivered_in_order() -> None:
    async def work() -> None:
        stream, slot, link = Stream[int](), Slot("m"), FakeLink()
        slot.install(link.session())
        reader = Reader(stream)
        for number in range(6):
            stream.put("c", number, frame(number), slot)
            link.answer()
            assert await reader.read()
        stream.end()
        await reader.read_all()
        assert reader.ended
        assert [(d.tag, d.skipped) for d in reader.got] == [(n, 0) for n in range(6)]
        assert [d.answer.detections for d in reader.got] == [frame(n).data for n in range(6)]  # type: ignore[union-attr]

    run(work())


def test_a_busy_model_gets_the_newest_frame_and_the_skipped_are_counted() -> None:
    async def work() -> None:
        stream, slot, link = Stream[int](), Slot("m"), FakeLink()
        slot.install(link.session())
        for number in range(10):
            stream.put("c", number, frame(number), slot)
        stream.end()
        reader = Reader(stream)
        while link.jobs:
            link.answer()
            await turn()
        await reader.read_all()
        assert reader.ended
        assert [d.tag for d in reader.got] == [0, 1, 9]
        assert sum(d.skipped for d in reader.got) == 7

    run(work())


def test_frames_answered_out_of_turn_are_delivered_in_turn() -> None:
    async def work() -> None:
        stream, slot, link = Stream[int](), Slot("m"), FakeLink()
        slot.install(link.session())
        stream.put("c", 0, frame(0), slot)
        stream.put("c", 1, frame(1), slot)
        reader = Reader(stream)
        link.answer(2)
        assert not await reader.read()
        link.answer(1)
        await reader.read_all()
        assert [d.tag for d in reader.got] == [0, 1]
        await reader.close()

    run(work())


def test_a_slow_reader_gets_the_newest_frame_when_it_comes_back_and_holds_up_no_other_camera() -> None:
    async def work() -> None:
        stream, slot, link = Stream[int](), Slot("m"), FakeLink()
        slot.install(link.session())
        for number in range(50):
            stream.put("c", number, frame(number), slot)
            while link.jobs:
                link.answer()
                await turn()
        assert slot.answered == 4  # the others were never even offered
        stream.put("other", 100, frame(100), slot)
        link.answer()
        await turn()
        assert slot.answered == 5
        reader = Reader(stream)
        stream.end()
        while not reader.ended:
            await reader.read()
            if link.jobs:
                link.answer()
        mine = [d for d in reader.got if d.tag < 100]
        assert [d.tag for d in mine] == [0, 1, 2, 3, 49]
        assert sum(d.skipped for d in mine) == 45

    run(work())


def test_an_error_of_the_slot_is_the_frames_answer() -> None:
    async def work() -> None:
        stream, slot = Stream[int](), Slot("m")
        slot.refuse(NotReady("no engine"))
        for number in range(3):
            stream.put("c", number, frame(number), slot)
        stream.end()
        reader = Reader(stream)
        await reader.read_all()
        assert reader.ended
        assert [(d.tag, type(d.answer), d.skipped) for d in reader.got] == [(n, NotReady, 0) for n in range(3)]

    run(work())


def test_a_frame_that_never_reaches_a_slot_is_answered_in_its_turn() -> None:
    async def work() -> None:
        stream, slot, link = Stream[int](), Slot("m"), FakeLink()
        slot.install(link.session())
        stream.put("c", 0, frame(0), slot)
        stream.put("c", 1, frame(1), InvalidInput("no picture"))
        stream.put("c", 2, frame(2), slot)
        reader = Reader(stream)
        assert not await reader.read()
        link.answer()
        link.answer()
        stream.end()
        await reader.read_all()
        assert [(d.tag, isinstance(d.answer, InvalidInput)) for d in reader.got] == [(0, False), (1, True), (2, False)]

    run(work())


def test_a_failed_frame_does_not_overtake_the_one_that_is_held() -> None:
    async def work() -> None:
        stream, slot, link = Stream[int](), Slot("m"), FakeLink()
        slot.install(link.session())
        for number in range(5):
            stream.put("c", number, frame(number), slot)
            while link.jobs:
                link.answer()
                await turn()
        stream.put("c", 5, frame(5), InvalidInput("no picture"))
        stream.end()
        reader = Reader(stream)
        while not reader.ended:
            await reader.read()
            if link.jobs:
                link.answer()
        assert [d.tag for d in reader.got] == sorted(d.tag for d in reader.got)

    run(work())


def test_failed_frames_of_a_caller_that_does_not_read_are_bounded_too() -> None:
    async def work() -> None:
        stream = Stream[int]()
        for number in range(1000):
            stream.put("c", number, frame(number), InvalidInput("no picture"))
        stream.end()
        reader = Reader(stream)
        await reader.read_all()
        assert len(reader.got) <= 10
        assert len(reader.got) + sum(d.skipped for d in reader.got) == 1000

    run(work())


def test_a_failure_of_the_call_comes_after_everything_that_was_put() -> None:
    async def work() -> None:
        stream, slot, link = Stream[int](), Slot("m"), FakeLink()
        slot.install(link.session())
        stream.put("c", 0, frame(0), slot)
        stream.end(InvalidInput("the call is broken"))
        link.answer()
        results = stream.results()
        assert (await anext(results)).tag == 0
        with pytest.raises(InvalidInput, match="broken"):
            await anext(results)

    run(work())


def test_closing_withdraws_what_waits_and_cancels_what_is_out() -> None:
    async def work() -> None:
        stream, slot, link = Stream[int](), Slot("m"), FakeLink()
        slot.install(link.session())
        for number in range(8):
            stream.put("c", number, frame(number), slot)
            stream.put("d", number, frame(number), slot)
        assert slot.waiting == 2
        stream.close()
        assert slot.waiting == 0
        while link.jobs:
            link.answer()
            await turn()
        assert link.arena.taken == 0
        assert slot.answered == 0

    run(work())


def test_two_calls_with_a_camera_of_one_name_do_not_overtake_each_other() -> None:
    async def work() -> None:
        one, other, slot = Stream[int](), Stream[int](), Slot("m")
        one.put("c", 0, frame(0), slot)
        other.put("c", 0, frame(1), slot)
        assert slot.waiting == 2
        one.close()
        assert slot.waiting == 1
        other.close()

    run(work())


def test_frames_wait_through_the_loss_of_a_host() -> None:
    async def work() -> None:
        stream, slot, first, second = Stream[int](), Slot("m"), FakeLink(), FakeLink()
        slot.install(first.session())
        for number in range(3):
            stream.put("c", number, frame(number), slot)
        first.lose()
        slot.vacate(first)  # type: ignore[arg-type]
        await turn()
        slot.install(second.session())
        stream.end()
        reader = Reader(stream)
        while not reader.ended:
            if second.jobs:
                second.answer()
            await reader.read()
        assert [d.tag for d in reader.got] == [0, 1, 2]

    run(work())


STEPS = st.lists(
    st.sampled_from(["put a", "put b", "put a", "answer", "answer last", "read", "lose", "install", "swap"]),
    max_size=60,
)


@settings(max_examples=80)
@given(STEPS)
def test_whatever_happens_put_is_delivered_plus_skipped_and_in_order(steps: list[str]) -> None:
    async def work() -> None:
        stream, slot = Stream[tuple[str, int]](), Slot("m")
        links = [FakeLink(1 << 14)]
        slot.install(links[0].session())
        reader = Reader(stream)
        put = {"a": 0, "b": 0}

        async def act(step: str) -> None:
            link = links[-1]
            if step.startswith("put"):
                camera = step[-1]
                stream.put(camera, (camera, put[camera]), frame(put[camera]), slot)
                put[camera] += 1
            elif step.startswith("answer") and link.jobs:
                link.answer(max(link.jobs) if step.endswith("last") else None)
            elif step == "read":
                await reader.read()
            elif step == "lose" and not link.lost:
                link.lose()
                slot.vacate(link)  # type: ignore[arg-type]
            elif (step == "install" and link.lost) or (step == "swap" and not link.lost and not link.jobs):
                links.append(FakeLink(1 << 14))
                slot.install(links[-1].session())
            await turn()

        for step in steps:
            await act(step)
        stream.end()
        for _ in range(1000):
            if reader.ended:
                break
            for step in ("install", "answer", "read"):
                await act(step)
        assert reader.ended
        for camera, count in put.items():
            mine = [d for d in reader.got if d.tag[0] == camera]
            assert [d.tag for d in mine] == sorted({d.tag for d in mine})
            assert len(mine) + sum(d.skipped for d in mine) == count
            if count:
                assert mine[-1].tag == (camera, count - 1)  # the newest frame always gets an answer
        assert all(link.arena.taken == 0 for link in links)
        for link in links:
            link.arena.close()

    run(work())
