"""Frames of several cameras that go to an engine together, and what happens to each when something goes wrong."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from edged.errors import EngineUnusable, HostLost, InvalidInput, Overwritten
from edged.ipc import messages as m
from edged.serving.schedule import Batching
from edged.serving.session import ServingSession
from edged.serving.slot import IN_FLIGHT, Slot
from edged.serving.work import FrameWork, InputTensor, TensorWork
from tests.fake_link import FakeLink, engine_ref
from tests.waiting import run


def session(link: FakeLink, batching: Batching) -> ServingSession:
    engine = msgspec.structs.replace(engine_ref("engine"), batching=batching)
    return ServingSession(link, 1, engine)  # type: ignore[arg-type]


def sizes(link: FakeLink) -> list[int]:
    return [len(job.pictures) if isinstance(job, m.Detect) else 1 for job, _ in link.jobs.values()]


async def turn(times: int = 4) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


def frame(number: int) -> FrameWork:
    return FrameWork(bytes([number]))


async def drain(link: FakeLink) -> None:
    while link.jobs:
        link.answer()
        await turn()


def test_frames_that_wait_go_together_and_each_gets_its_own_answer() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink()
        frames = [frame(number) for number in range(7)]
        for number, each in enumerate(frames):
            slot.offer(number, each)
        slot.install(session(link, Batching(4)))
        assert sizes(link) == [4, 3]
        await drain(link)
        assert [each.future.result().detections for each in frames] == [bytes([n]) for n in range(7)]
        assert (slot.answered, link.arena.taken) == (7, 0)

    run(work())


def test_requests_go_between_batches_and_never_in_one() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink()
        request = TensorWork((InputTensor("x", "UINT8", (1,), b"t"),), None)
        for number in range(3):
            slot.offer(number, frame(number))
        slot.push(request)
        slot.install(session(link, Batching(8)))
        assert [type(job) for job, _ in link.jobs.values()] == [m.Detect, m.Infer]
        await drain(link)
        assert request.future.result().outputs[0].data == b"t"

    run(work())


def test_at_most_two_batches_are_in_flight() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink()
        serving = session(link, Batching(2))
        slot.install(serving)
        for number in range(20):
            slot.offer(number, frame(number))
        while link.jobs:
            assert serving.in_flight == len(link.jobs) <= IN_FLIGHT
            link.answer()
            await turn()
        assert slot.answered == 20

    run(work())


def test_a_batch_that_the_engine_refuses_is_taken_apart_and_none_is_made_again() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink()
        frames = [frame(number) for number in range(6)]
        for number, each in enumerate(frames):
            slot.offer(number, each)
        slot.install(session(link, Batching(4)))
        assert sizes(link) == [4, 2]
        link.fail(EngineUnusable("the reshape has a fixed size"))
        await turn()
        assert sizes(link) == [2, 1]
        await drain(link)
        assert [each.future.result().detections for each in frames] == [bytes([n]) for n in range(6)]
        for number in range(4):
            slot.offer(number, frame(number))
        assert sizes(link) == [1, 1]
        await drain(link)
        assert link.arena.taken == 0

    run(work())


def test_a_batch_that_is_lost_with_its_host_is_tried_once_more_one_by_one() -> None:
    async def work() -> None:
        slot, link, second = Slot("m"), FakeLink(), FakeLink()
        frames = [frame(number) for number in range(3)]
        for number, each in enumerate(frames):
            slot.offer(number, each)
        slot.install(session(link, Batching(4)))
        link.lose()
        slot.vacate(link)  # type: ignore[arg-type]
        await turn()
        slot.install(session(second, Batching(4)))
        assert sizes(second) == [1]
        await drain(second)
        assert [each.future.result().detections for each in frames] == [bytes([n]) for n in range(3)]

    run(work())


def test_a_picture_that_kills_its_host_again_and_again_takes_no_other_along() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink()
        frames = [frame(number) for number in range(6)]
        for number, each in enumerate(frames):
            slot.offer(number, each)
        slot.install(session(link, Batching(3)))
        while not all(each.future.done() for each in frames):
            if any(b"\1" in sent for sent in link.sent()):
                link.lose()
                slot.vacate(link)  # type: ignore[arg-type]
                await turn()
                link = FakeLink()
                slot.install(session(link, Batching(3)))
            else:
                link.answer()
            await turn()
        assert isinstance(frames[1].future.exception(), HostLost)
        others = [each for number, each in enumerate(frames) if number != 1]
        assert [each.future.result().detections for each in others] == [bytes([n]) for n in (0, 2, 3, 4, 5)]

    run(work())


def test_frames_that_find_no_room_together_go_one_after_the_other() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink(256)
        frames = [FrameWork(bytes([number]) * 100) for number in range(5)]  # of which two fit
        for number, each in enumerate(frames):
            slot.offer(number, each)
        slot.install(session(link, Batching(4)))
        assert sizes(link) == [2]
        for _ in range(10):
            if link.jobs:
                link.answer()
            await turn()
        assert [each.future.result().detections for each in frames] == [bytes([n]) * 100 for n in range(5)]
        assert (slot.failed, link.arena.taken) == (0, 0)

    run(work())


def test_an_answer_that_nobody_expected_does_not_stop_the_engine() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink()
        serving = session(link, Batching())
        slot.install(serving)
        slot.offer("a", frame(1))
        _, future = link.jobs.pop(1)
        future.set_exception(RuntimeError("a mistake"))
        await turn()
        assert (serving.in_flight, link.arena.taken) == (0, 0)

    with pytest.raises(AssertionError, match="a mistake"):  # it is heard of
        run(work())


def test_one_picture_that_is_damaged_is_nothing_to_the_others() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink()
        frames = [frame(number) for number in range(3)]
        for number, each in enumerate(frames):
            slot.offer(number, each)
        slot.install(session(link, Batching(4)))
        _, future = link.jobs.pop(1)
        good = m.Seen(4, 3, m.Times(), b"found")
        bad = m.Seen(error="InvalidInput", message="the JPEG picture is damaged")
        future.set_result(m.Detected(1, (good, bad, good)))
        await turn()
        assert [frames[n].future.result().detections for n in (0, 2)] == [b"found", b"found"]
        error = frames[1].future.exception()
        assert isinstance(error, InvalidInput)
        assert (slot.answered, slot.failed, link.arena.taken) == (2, 1, 0)

    run(work())


class Gone:
    size = 8

    def read_into(self, place: memoryview) -> None:
        raise Overwritten("it was used again")


def test_a_picture_that_cannot_be_read_is_left_out_of_its_batch() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink()
        frames = [frame(0), FrameWork(Gone()), frame(2)]
        for number, each in enumerate(frames):
            slot.offer(number, each)
        slot.install(session(link, Batching(4)))
        assert sizes(link) == [2]
        await drain(link)
        assert isinstance(frames[1].future.exception(), Overwritten)
        assert [frames[n].future.result().detections for n in (0, 2)] == [b"\0", b"\2"]
        assert (slot.failed, link.arena.taken) == (0, 0)

    run(work())


def test_a_frame_waits_for_others_and_not_for_ever() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink()
        slot.install(session(link, Batching(2, wait=0.05)))
        slot.offer("a", frame(1))
        assert sizes(link) == []
        slot.offer("b", frame(2))
        assert sizes(link) == [2]
        await drain(link)
        alone = frame(3)
        slot.offer("a", alone)
        began = time.monotonic()
        while not link.jobs:
            assert time.monotonic() - began < 10
            await asyncio.sleep(0.005)
        assert time.monotonic() - alone.received >= 0.05
        await drain(link)
        assert alone.future.result().detections == b"\3"

    run(work())
