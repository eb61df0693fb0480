"""Slots: two batches in flight, swaps that lose no work, one retry, fallbacks, and all memory released."""

from __future__ import annotations

import asyncio
import traceback

import pytest

from edged.backends.profile import Profile
from edged.errors import DeadlineExceeded, EngineUnusable, HostLost, NotReady, OutOfMemory, Overloaded, TooLarge
from edged.models.triton_config import QueuePolicy
from edged.serving.schedule import Batching, TensorBatching
from edged.serving.session import ServingSession
from edged.serving.slot import Slot
from edged.serving.work import FrameWork, InputTensor, TensorWork
from tests.fake_link import FakeLink, turn


def request(data: bytes = b"abcd") -> TensorWork:
    return TensorWork((InputTensor("x", "UINT8", (len(data),), data),), None)


def serving(capacity: int = 1 << 20) -> tuple[Slot, FakeLink]:
    """Return a slot with an engine, and the link of its host."""
    slot, link = Slot("m"), FakeLink(capacity)
    slot.install(link.session())
    return slot, link


def push(slot: Slot, *data: bytes) -> list[TensorWork]:
    works = [request(each) for each in data]
    for work in works:
        slot.push(work)
    return works


def echoed(work: TensorWork) -> bytes:
    """Return the output of an answered request; FakeLink makes it equal to the input."""
    return work.future.result().outputs[0].data


async def test_slot_work_that_waits_for_an_engine_is_answered_by_it() -> None:
    slot, link, frame = Slot("m"), FakeLink(), FrameWork(b"frame")
    (tensors,) = push(slot, b"tensor")
    slot.offer("camera", frame)
    assert slot.waiting == 2
    assert slot.install(link.session(key="k")) is None
    await link.drain()
    answer, seen = tensors.future.result(), frame.future.result()
    assert (answer.engine.key, answer.times.infer_ms, answer.queue_ms >= 0) == ("k", 1.0, True)
    assert [(output.name, output.data) for output in answer.outputs] == [("x", b"tensor")]
    assert (seen.detections, seen.width, seen.height) == (b"frame", 4, 3)
    assert (slot.statistics.success.count, slot.statistics.fail.count, slot.waiting, link.arena.taken) == (2, 0, 0, 0)


async def test_slot_under_load_has_one_batch_more_in_flight_than_the_engine_runs() -> None:
    slot, link = Slot("m"), FakeLink()
    session = link.session(batching=Batching(2))
    slot.install(session)
    works = push(slot, *(bytes([number]) for number in range(10)))
    for number in range(20):
        slot.offer(number, FrameWork(b"frame"))
    while link.jobs:
        assert session.in_flight == len(link.jobs) <= session.most_in_flight
        link.answer()
        await turn()
    assert link.most == session.most_in_flight == 2
    assert [echoed(work) for work in works] == [bytes([number]) for number in range(10)]
    assert (slot.statistics.success.count, link.arena.taken) == (30, 0)


async def test_slot_swap_under_load_answers_all_work_and_closes_the_old_engine_last() -> None:
    slot, old, new = Slot("m"), FakeLink(), FakeLink()
    slot.install(old.session(7, "old"))
    works = push(slot, *[b"a"] * 6)
    previous = slot.install(new.session(8, "new"))
    assert previous is not None
    retired = asyncio.ensure_future(previous.retire())
    await turn()
    assert (slot.swaps, old.closed, len(old.jobs), len(new.jobs)) == (1, [], 2, 2)
    await old.drain()
    await new.drain()
    await asyncio.wait_for(retired, 5)
    assert old.closed == [7]
    assert [work.future.result().engine.key for work in works] == ["old"] * 2 + ["new"] * 4
    assert (slot.statistics.fail.count, old.arena.taken, new.arena.taken) == (0, 0, 0)


async def test_slot_work_lost_with_its_host_is_retried_once_alone_and_first() -> None:
    slot, first = serving()
    second, third = FakeLink(), FakeLink()
    lost, *waiting = push(slot, b"lost", b"also", b"later")
    await first.die(slot)
    assert not slot.vacate(first)  # type: ignore[arg-type]
    assert (first.arena.taken, lost.future.done()) == (0, False)
    slot.install(second.session())
    assert second.sent() == [b"lost"]
    await second.die(slot)
    with pytest.raises(HostLost):
        lost.future.result()
    slot.install(third.session())
    assert third.sent() == [b"also"]
    await third.drain()
    assert [echoed(work) for work in waiting] == [b"also", b"later"]
    assert slot.statistics.fail.count == 1


async def test_slot_failed_request_is_not_retried() -> None:
    slot, link = serving()
    (failing,) = push(slot, b"a")
    link.fail(EngineUnusable("no"))
    await turn()
    with pytest.raises(EngineUnusable):
        failing.future.result()
    assert (link.jobs, link.arena.taken, slot.statistics.fail.count) == ({}, 0, 1)


async def test_slot_request_that_finds_no_device_memory_is_retried_once_alone() -> None:
    slot, link = serving()
    unlucky, _ = push(slot, b"1", b"other")
    link.fail(OutOfMemory("no memory"))
    await turn()
    assert link.sent() == [b"other"]
    await link.drain()
    assert echoed(unlucky) == b"1"
    (greedy,) = push(slot, b"2")
    for _ in range(2):
        link.fail(OutOfMemory("no memory"))
        await turn()
    with pytest.raises(OutOfMemory):
        greedy.future.result()


async def test_slot_unexpected_error_of_a_job_leaves_the_engine_serving() -> None:
    slot, link = serving()
    reported = list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(str(context["exception"])))
    (failed,) = push(slot, b"1")
    link.fail(RuntimeError("a mistake"))
    await turn()
    assert (reported, link.arena.taken) == (["a mistake"], 0)
    with pytest.raises(EngineUnusable):
        failed.future.result()
    push(slot, b"2")
    assert link.sent() == [b"2"]


async def test_slot_cancelled_work_is_neither_sent_nor_retried() -> None:
    slot, link = Slot("m"), FakeLink()
    (gone,) = push(slot, b"gone")
    gone.future.cancel()
    slot.install(link.session())
    assert not link.jobs
    (sent,) = push(slot, b"sent")
    sent.future.cancel()
    await link.die(slot)
    assert (slot.waiting, link.arena.taken) == (0, 0)


async def test_slot_answer_to_a_cancelled_request_releases_its_memory() -> None:
    slot, link = serving()
    works = push(slot, b"\0", b"\1", b"\2")
    works[0].future.cancel()
    link.answer()
    await turn()
    assert link.sent() == [b"\1", b"\2"]
    await link.drain()
    assert (echoed(works[2]), link.arena.taken, slot.statistics.success.count) == (b"\2", 0, 2)


async def test_slot_job_is_abandoned_when_its_last_client_cancels() -> None:
    slot, link = serving()
    first, second = push(slot, b"1", b"2")
    (_, job), _ = link.jobs.values()
    first.future.cancel()
    await turn()
    assert link.abandoned == [job]
    link.fail(EngineUnusable("it was stopped"))
    await link.drain()
    assert (link.abandoned, echoed(second), link.arena.taken) == ([job], b"2", 0)


@pytest.mark.parametrize(
    "error", [EngineUnusable("it was stopped while it ran"), DeadlineExceeded("it was stopped before it ran")]
)
@pytest.mark.parametrize("cancels", [True, False])
async def test_slot_engine_is_suspect_after_failed_but_not_after_cancelled_requests(
    error: Exception, cancels: bool
) -> None:
    slot, link = Slot("m"), FakeLink()
    session = link.session()
    slot.install(session)
    for _ in range(5):
        (work,) = push(slot, b"1")
        if cancels:
            work.future.cancel()
            await turn()
        link.fail(error)
        await turn()
        assert work.future.cancelled() or work.future.exception() is error
    assert session.health.is_suspect is not cancels


@pytest.mark.parametrize(
    ("sizes", "error"), [((5000,), TooLarge), ((1500, 1500, 1500), Overloaded)], ids=["one input", "together"]
)
async def test_slot_request_larger_than_the_arena_is_refused(sizes: tuple[int, ...], error: type[Exception]) -> None:
    slot, link = serving(4096)
    large = TensorWork(tuple(InputTensor(str(n), "UINT8", (size,), bytes(size)) for n, size in enumerate(sizes)), None)
    slot.push(large)
    (small,) = push(slot, b"small")
    with pytest.raises(error):
        large.future.result()
    await link.drain()
    assert (echoed(small), link.arena.taken) == (b"small", 0)
    assert (slot.statistics.success.count, slot.statistics.fail.count) == (1, 1)


@pytest.mark.parametrize("size", [3000, 5000])
async def test_slot_large_answers_do_not_stop_later_requests(size: int) -> None:
    slot, link = Slot("m"), FakeLink(4096)
    session = link.session()
    session.reply_bytes = size  # as after an answer of this size that was part of its message
    slot.install(session)
    works = push(slot, bytes(200), bytes(200))
    await link.drain()
    assert [len(echoed(work)) for work in works] == [200, 200]


async def test_slot_refused_answers_waiting_and_new_work_with_the_error() -> None:
    slot, link = Slot("m"), FakeLink()
    (waiting,) = push(slot, b"a")
    assert slot.refuse(NotReady("no engine")) is None
    with pytest.raises(NotReady):
        waiting.future.result()
    for call in (lambda: slot.push(request()), lambda: slot.offer("c", FrameWork(b""))):
        with pytest.raises(NotReady):
            call()
    assert slot.waiting == 0
    slot.set_refusal(None)
    (late,) = push(slot, b"late")
    session = link.session()
    slot.install(session)
    await link.drain()
    assert echoed(late) == b"late"
    assert slot.refuse(NotReady("again")) is session


async def test_slot_refused_answers_work_that_loses_its_host_later() -> None:
    slot, link = serving()
    (sent,) = push(slot, b"a")
    slot.refuse(NotReady("removed"))
    link.lose()
    await turn()
    with pytest.raises(NotReady):
        sent.future.result()
    assert link.arena.taken == 0


async def test_slot_shut_refuses_new_work_and_answers_waiting_work() -> None:
    slot, link = serving()
    works = push(slot, b"1", b"2", b"3")
    slot.shut(NotReady("replaced"))
    with pytest.raises(NotReady):
        slot.push(request())
    await link.drain()
    assert [echoed(work) for work in works] == [b"1", b"2", b"3"]


async def test_slot_refused_for_long_does_not_grow_the_traceback_of_its_error() -> None:
    slot, lengths = Slot("m"), set()
    slot.refuse(NotReady("no engine"))
    for _ in range(5):
        with pytest.raises(NotReady) as raised:
            slot.offer("camera", FrameWork(bytes(1000)))
        lengths.add(len(list(traceback.walk_tb(raised.value.__traceback__))))
    assert len(lengths) == 1


async def test_slot_frame_that_waits_is_replaced_or_withdrawn_but_not_one_in_flight() -> None:
    slot, link = serving()
    frames = [FrameWork(bytes([n])) for n in range(5)]
    assert [slot.offer("c", frame) for frame in frames] == [None, None, None, frames[2], frames[3]]
    assert slot.withdraw("c", frames[4])
    assert not slot.withdraw("c", frames[4])
    assert link.sent() == [b"\0", b"\1"]


# -- engines of a range of shapes ------------------------------------------------------------------------------------

RANGE = Profile.parse("x=1x2:1x2:4x2")


def rows(count: int, width: int = 2, value: int = 0) -> TensorWork:
    data = bytes([value]) * (count * width)
    return TensorWork((InputTensor("x", "UINT8", (count, width), data),), None, batch=count)


def with_fallback() -> tuple[Slot, Slot, FakeLink, FakeLink]:
    slot, fallback = Slot("m"), Slot("m")
    slot.fallback = fallback
    return slot, fallback, FakeLink(), FakeLink()


def ranged(link: FakeLink) -> ServingSession:
    return link.session(key="ranged", profile=RANGE)


@pytest.mark.parametrize("is_late", [False, True], ids=["engine installed before", "engine installed after"])
async def test_fallback_serves_requests_outside_the_range(is_late: bool) -> None:
    slot, fallback, link, other = with_fallback()
    works = [rows(4, value=1), rows(5, value=2), rows(1, 3, value=3)]
    if not is_late:
        slot.install(ranged(link))
    for work in works:
        slot.push(work)
    if is_late:
        slot.install(ranged(link))
    assert (link.sent(), fallback.waiting) == ([b"\1" * 8], 2)
    fallback.install(other.session(key="any"))
    await link.drain()
    await other.drain()
    assert [work.future.result().engine.key for work in works] == ["ranged", "any", "any"]
    assert (slot.waiting, fallback.waiting) == (0, 0)


async def test_fallback_serves_requests_that_give_a_folded_input() -> None:
    slot, fallback, link, other = with_fallback()
    slot.install(link.session(key="folded", folded=frozenset({"w"})))
    fallback.install(other.session(key="reference"))
    plain, giving = rows(2, value=1), rows(2, value=2)
    giving.inputs = (*giving.inputs, InputTensor("w", "UINT8", (1,), b"\7"))
    slot.push(plain)
    slot.push(giving)
    await link.drain()
    await other.drain()
    assert [work.future.result().engine.key for work in (plain, giving)] == ["folded", "reference"]


async def test_ranged_engine_gets_batches_within_its_range_and_all_frames() -> None:
    slot, _, link, _ = with_fallback()
    slot.batching_policy = TensorBatching(Batching(64, 1.0))
    for number in range(2):
        slot.push(rows(2, value=number))
    slot.offer("camera", FrameWork(b"frame"))
    slot.push(rows(2, value=3))
    slot.install(link.session(key="ranged", profile=RANGE, rows=4))
    assert sorted(map(len, link.sent())) == [5, 8]


async def test_fallback_without_an_engine_reports_that_a_request_waits() -> None:
    slot, fallback, link, _ = with_fallback()
    waiting = list[int]()
    fallback.on_waiting = lambda: waiting.append(fallback.waiting)
    slot.install(ranged(link))
    slot.push(rows(9))
    assert waiting == [1]


async def test_ranged_engine_without_fallback_refuses_other_shapes_with_its_range() -> None:
    slot, link = Slot("m"), FakeLink()
    slot.install(ranged(link))
    outside = rows(9)
    slot.push(outside)
    with pytest.raises(NotReady, match=r"x \[1, 2\] to \[4, 2\]"):
        outside.future.result()
    assert not link.jobs


async def test_push_when_room_waits_for_the_queue_of_the_fallback() -> None:
    slot, fallback, link, other = with_fallback()
    fallback.batching_policy = TensorBatching(policy=QueuePolicy(1))
    slot.install(ranged(link))
    slot.push(rows(9))
    with pytest.raises(Overloaded):
        slot.push(rows(9))
    patient = asyncio.create_task(slot.push_when_room(rows(9)))
    await turn()
    assert not patient.done()
    fallback.install(other.session())
    await asyncio.wait_for(patient, 5)
