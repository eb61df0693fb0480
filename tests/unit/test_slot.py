"""What serves a model now: two pieces at a time, swaps that lose nothing, one retry, and all memory given back."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable

import pytest

from edged.errors import EngineUnusable, HostLost, NotReady, OutOfMemory, Overloaded, TooLarge
from edged.serving.slot import IN_FLIGHT, Slot
from edged.serving.work import Answered, FrameWork, InputTensor, TensorWork
from tests.fake_link import FakeLink
from tests.waiting import run


def request(data: bytes = b"abcd") -> TensorWork:
    return TensorWork((InputTensor("x", "UINT8", (len(data),), data),), None)


async def turn(times: int = 4) -> None:
    """Lets everything that is due happen."""
    for _ in range(times):
        await asyncio.sleep(0)


async def quick(work: Awaitable[Answered]) -> Answered:
    return await asyncio.wait_for(work, 5)


def test_work_waits_for_an_engine_and_is_answered_with_its_own_bytes() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink()
        tensors, frame = request(b"tensor"), FrameWork(b"frame")
        slot.push(tensors)
        slot.offer("camera", frame)
        assert slot.waiting == 2
        assert slot.install(link.session(key="k")) is None
        link.answer()
        link.answer()
        answer = await quick(tensors.future)
        assert answer.engine.key == "k"
        assert [(o.name, o.data) for o in answer.outputs] == [("x", b"tensor")]
        assert answer.queue_ms >= 0
        assert answer.times.infer_ms == 1.0
        seen = await quick(frame.future)
        assert (seen.detections, seen.width, seen.height) == (b"frame", 4, 3)
        assert (slot.answered, slot.failed, slot.waiting) == (2, 0, 0)
        assert link.arena.taken == 0

    run(work())


def test_at_most_two_pieces_are_in_flight() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink()
        session = link.session()
        slot.install(session)
        works = [request(bytes([n])) for n in range(10)]
        for each in works:
            slot.push(each)
        for _ in works:
            assert session.in_flight == len(link.jobs) <= IN_FLIGHT
            link.answer()
            await turn()
        assert link.most == IN_FLIGHT
        assert [(await quick(w.future)).outputs[0].data for w in works] == [bytes([n]) for n in range(10)]
        assert link.arena.taken == 0

    run(work())


def test_a_swap_under_load_answers_everything_and_closes_the_old_engine_last() -> None:
    async def work() -> None:
        slot, old, new = Slot("m"), FakeLink(), FakeLink()
        slot.install(old.session(7, "old"))
        works = [request() for _ in range(6)]
        for each in works:
            slot.push(each)
        previous = slot.install(new.session(8, "new"))
        assert previous is not None
        assert slot.swaps == 1
        retired = asyncio.ensure_future(previous.retire())
        await turn()
        assert not old.closed  # it still holds two
        assert len(old.jobs) == len(new.jobs) == 2
        while old.jobs or new.jobs:
            (old if old.jobs else new).answer()
            await turn()
        await asyncio.wait_for(retired, 5)
        assert old.closed == [7]
        keys = [(await quick(w.future)).engine.key for w in works]
        assert keys == ["old", "old", "new", "new", "new", "new"]
        assert old.arena.taken == new.arena.taken == 0
        assert slot.failed == 0

    run(work())


def test_work_that_was_lost_with_its_host_is_tried_once_more_before_everything_else() -> None:
    async def work() -> None:
        slot, first, second, third = Slot("m"), FakeLink(), FakeLink(), FakeLink()
        slot.install(first.session())
        lost, waiting = request(b"lost"), [request(b"also"), request(b"later")]
        for each in (lost, *waiting):
            slot.push(each)
        first.lose()
        assert slot.vacate(first)  # type: ignore[arg-type]
        assert not slot.vacate(first)  # type: ignore[arg-type]
        await turn()
        assert first.arena.taken == 0
        assert not lost.future.done()
        slot.install(second.session())
        assert second.sent() == [b"lost"]  # with nothing beside it: it may be what killed the host
        second.lose()
        slot.vacate(second)  # type: ignore[arg-type]
        with pytest.raises(HostLost):
            await quick(lost.future)
        slot.install(third.session())
        assert third.sent() == [b"also"]
        third.answer()
        await turn()
        third.answer()
        assert [(await quick(each.future)).outputs[0].data for each in waiting] == [b"also", b"later"]
        assert slot.failed == 1

    run(work())


def test_other_errors_are_answered_and_not_tried_again() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink()
        slot.install(link.session())
        failing = request()
        slot.push(failing)
        link.fail(EngineUnusable("no"))
        with pytest.raises(EngineUnusable):
            await quick(failing.future)
        assert not link.jobs
        assert link.arena.taken == 0
        assert slot.failed == 1

    run(work())


def test_work_whose_caller_has_gone_is_neither_sent_nor_tried_again() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink()
        gone = request(b"gone")
        slot.push(gone)
        gone.future.cancel()
        slot.install(link.session())
        assert not link.jobs
        flying = request(b"flying")
        slot.push(flying)
        flying.future.cancel()
        link.lose()
        slot.vacate(link)  # type: ignore[arg-type]
        await turn()
        assert slot.waiting == 0
        assert link.arena.taken == 0

    run(work())


def test_an_answer_to_someone_who_has_gone_frees_its_memory_and_the_next_goes_on() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink()
        slot.install(link.session())
        works = [request(bytes([n])) for n in range(3)]
        for each in works:
            slot.push(each)
        works[0].future.cancel()
        link.answer()
        await turn()
        assert link.sent() == [b"\1", b"\2"]
        link.answer()
        link.answer()
        await quick(works[2].future)
        assert link.arena.taken == 0
        assert slot.answered == 2

    run(work())


def test_what_does_not_fit_into_the_memory_is_refused_and_the_next_goes_on() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink(4096)
        slot.install(link.session())
        large, small = request(bytes(5000)), request(b"small")
        slot.push(large)
        slot.push(small)
        with pytest.raises(TooLarge):
            await quick(large.future)
        link.answer()
        await quick(small.future)
        assert link.arena.taken == 0
        assert (slot.answered, slot.failed) == (1, 1)

    run(work())


def test_part_of_a_request_that_does_not_fit_is_given_back() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink(4096)
        slot.install(link.session())
        tensors = tuple(InputTensor(str(n), "UINT8", (1500,), bytes(1500)) for n in range(3))
        parts = TensorWork(tensors, None)
        slot.push(parts)
        with pytest.raises(Overloaded):
            await quick(parts.future)
        assert link.arena.taken == 0

    run(work())


@pytest.mark.parametrize("size", [3000, 5000])
def test_large_answers_do_not_stop_the_requests_after_them(size: int) -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink(4096)
        session = link.session()
        slot.install(session)
        session.reply_bytes = size  # as after an answer of so many bytes, which came in its message
        works = [request(bytes(200)) for _ in range(2)]
        for each in works:
            slot.push(each)
        while link.jobs:
            link.answer()
            await turn()
        for each in works:
            await quick(each.future)

    run(work())


def test_a_refused_model_answers_what_waits_and_what_comes_and_gives_its_engine_back() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink()
        waiting = request()
        slot.push(waiting)
        assert slot.refuse(NotReady("no engine")) is None
        with pytest.raises(NotReady):
            await quick(waiting.future)
        for call in (lambda: slot.push(request()), lambda: slot.offer("c", FrameWork(b""))):
            with pytest.raises(NotReady, match="no engine"):
                call()
        assert slot.waiting == 0
        slot.hold(None)
        late = request()
        slot.push(late)
        session = link.session()
        slot.install(session)
        link.answer()
        await quick(late.future)
        assert slot.refuse(NotReady("again")) is session

    run(work())


def test_work_that_loses_its_host_after_the_model_was_refused_is_answered() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink()
        slot.install(link.session())
        flying = request()
        slot.push(flying)
        slot.refuse(NotReady("removed"))
        link.lose()
        with pytest.raises(NotReady, match="removed"):
            await quick(flying.future)
        assert link.arena.taken == 0

    run(work())


def test_refusing_for_hours_does_not_fill_the_memory() -> None:
    async def work() -> None:
        slot = Slot("m")
        slot.refuse(NotReady("no engine"))
        lengths = []
        for _ in range(50):
            try:
                slot.offer("camera", FrameWork(bytes(1000)))
            except NotReady as error:
                lengths.append(len(list(traceback.walk_tb(error.__traceback__))))
        assert lengths[-1] == lengths[0]

    run(work())


def test_requests_beyond_the_bound_are_refused() -> None:
    async def work() -> None:
        slot, works = Slot("m"), [request() for _ in range(64)]
        for each in works:
            slot.push(each)
        with pytest.raises(Overloaded):
            slot.push(request())
        slot.refuse(NotReady("end"))
        assert all(isinstance(each.future.exception(), NotReady) for each in works)

    run(work())


def test_a_frame_that_waits_is_overtaken_or_withdrawn_and_one_in_flight_is_not() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink()
        slot.install(link.session())
        frames = [FrameWork(bytes([n])) for n in range(5)]
        assert [slot.offer("c", frame) for frame in frames] == [None, None, None, frames[2], frames[3]]
        assert slot.withdraw("c", frames[4])
        assert not slot.withdraw("c", frames[4])
        assert link.sent() == [b"\0", b"\1"]

    run(work())


def test_a_job_is_given_up_when_nobody_waits_for_any_part_of_it_and_not_before() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink()
        slot.install(link.session())
        first, second = request(b"1"), request(b"2")
        slot.push(first)
        slot.push(second)
        (_, future), _ = link.jobs.values()
        second.future.add_done_callback(lambda _: None)
        first.future.cancel()
        await turn()
        assert link.abandoned == [future]
        link.fail(EngineUnusable("it was told to stop"))
        link.answer()
        await quick(second.future)
        await turn()
        assert link.abandoned == [future]
        assert link.arena.taken == 0

    run(work())


def test_what_found_no_memory_is_tried_once_more_alone() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink()
        slot.install(link.session())
        unlucky, greedy = request(b"1"), request(b"2")
        slot.push(unlucky)
        link.fail(OutOfMemory("no memory"))
        await turn()
        link.answer()
        assert (await quick(unlucky.future)).outputs[0].data == b"1"
        slot.push(greedy)
        for _ in range(2):
            link.fail(OutOfMemory("no memory"))
            await turn()
        with pytest.raises(OutOfMemory):
            await quick(greedy.future)

    run(work())
