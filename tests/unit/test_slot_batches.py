"""Batches of frames and of tensor requests: each part has its own answer, independent of the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.errors import (
    DeadlineExceeded,
    EdgedError,
    EngineUnusable,
    HostLost,
    InvalidInput,
    NotFinite,
    Overloaded,
    Overwritten,
    TooLarge,
)
from edged.ipc import messages as m
from edged.models.triton_config import QueuePolicy
from edged.serving.schedule import Batching, TensorBatching
from edged.serving.slot import Slot
from edged.serving.work import Blob, FrameWork, InputTensor, TensorWork
from tests.fake_link import FakeLink, turn
from tests.waiting import run, until

TOGETHER = TensorBatching(Batching(8))
OVER = EngineUnusable("the test is over")


def rows(data: Blob, width: int = 1, priority: int = 0) -> TensorWork:
    """Return a request with rows of `width` bytes."""
    size = len(data) if isinstance(data, bytes | memoryview) else data.size
    tensor = InputTensor("x", "UINT8", (size // width, width), data)
    return TensorWork((tensor,), None, priority=priority, batch=size // width)


def slot_of(policy: TensorBatching, *works: FrameWork | TensorWork) -> Slot:
    """Return a slot where work waits. Each frame is from its own camera."""
    slot = Slot("m")
    slot.batching_policy = policy
    for number, work in enumerate(works):
        if isinstance(work, FrameWork):
            slot.offer(number, work)
        else:
            slot.push(work)
    return slot


def content(work: FrameWork | TensorWork) -> bytes | None:
    """Return the bytes of an answer; FakeLink makes them equal to those of the request."""
    answer = work.future.result()
    return answer.outputs[0].data if isinstance(work, TensorWork) else answer.detections


# -- any batch -------------------------------------------------------------------------------------------------------


class Unreadable:
    def __init__(self, error: EdgedError) -> None:
        self.size, self.error = 1, error

    def read_into(self, place: memoryview) -> None:
        raise self.error


Make = Callable[[Blob], FrameWork | TensorWork]
BOTH = pytest.mark.parametrize("make", [FrameWork, rows], ids=["frames", "requests"])


@BOTH
async def test_batch_failed_by_the_engine_is_retried_individually_and_no_batch_follows(make: Make) -> None:
    works = [make(bytes([number])) for number in range(6)]
    slot, link = slot_of(TensorBatching(Batching(4)), *works), FakeLink()
    slot.install(link.session(batching=Batching(4)))
    assert link.sizes() == [4, 2]
    link.fail(EngineUnusable("the reshape has a fixed size"))
    await turn()
    assert await link.drain() == [2, 1, 1, 1, 1]
    assert [content(work) for work in works] == [bytes([number]) for number in range(6)]
    assert slot.current is not None
    slot_of(TensorBatching(Batching(4)), *(make(b"a") for _ in range(3))).install(slot.current)
    assert link.sizes() == [1, 1]
    await link.drain()
    assert link.arena.taken == 0


@BOTH
async def test_batch_part_that_fails_alone_too_does_not_end_batching(make: Make) -> None:
    works = [make(bytes([number])) for number in range(3)]
    slot, link = slot_of(TOGETHER, *works), FakeLink()
    session = link.session(batching=Batching(8))
    slot.install(session)
    for _ in range(2):
        link.fail(EngineUnusable("indices are out of range"))
        await turn()
    assert await link.drain() == [1, 1]
    assert isinstance(works[0].future.exception(), EngineUnusable)
    assert [content(work) for work in works[1:]] == [b"\1", b"\2"]
    assert session.rows > 1
    assert session.batching.limit == 8


@BOTH
async def test_batch_cancelled_before_it_fails_does_not_end_batching(make: Make) -> None:
    works = [make(b"a"), make(b"b")]
    slot, link = slot_of(TOGETHER, *works), FakeLink()
    session = link.session(batching=Batching(8))
    slot.install(session)
    for work in works:
        work.future.cancel()
    link.fail(EngineUnusable("indices are out of range"))
    await turn()
    assert (session.in_flight, link.arena.taken, link.jobs) == (0, 0, {})
    assert session.rows > 1
    assert session.batching.limit == 8


@BOTH
@pytest.mark.parametrize("error", [InvalidInput("the region is too small"), Overwritten("it was used again")], ids=str)
async def test_batch_part_that_cannot_be_read_is_left_out(make: Make, error: EdgedError) -> None:
    works = [make(b"a"), make(Unreadable(error)), make(b"c")]
    slot, link = slot_of(TOGETHER, *works), FakeLink()
    slot.install(link.session(batching=Batching(8)))
    assert await link.drain() == [2]
    assert works[1].future.exception() is error
    assert [content(works[0]), content(works[2])] == [b"a", b"c"]
    assert (slot.statistics.fail.count, link.arena.taken) == (isinstance(error, InvalidInput), 0)


@BOTH
async def test_batch_that_does_not_fit_into_the_arena_is_sent_in_parts(make: Make) -> None:
    works = [make(bytes([number]) * 100) for number in range(5)]  # two fit into the arena
    slot, link = slot_of(TensorBatching(Batching(400)), *works), FakeLink(256)
    slot.install(link.session(batching=Batching(4)))
    await link.drain()
    assert [content(work) for work in works] == [bytes([number]) * 100 for number in range(5)]
    assert (slot.statistics.fail.count, link.arena.taken) == (0, 0)


@BOTH
async def test_batch_part_larger_than_the_arena_does_not_delay_the_others(make: Make) -> None:
    works = [make(bytes(5000)), make(b"ab"), make(b"cd")]
    slot, link = slot_of(TensorBatching(Batching(1 << 20)), *works), FakeLink(4096)
    slot.install(link.session(batching=Batching(8)))
    await link.drain()
    assert isinstance(works[0].future.exception(), TooLarge)
    assert [content(work) for work in works[1:]] == [b"ab", b"cd"]
    assert link.arena.taken == 0


@BOTH
async def test_batch_waits_for_more_work_for_a_limited_time(make: Make) -> None:
    patient = Batching(2, wait=0.05)
    slot, link = slot_of(TensorBatching(patient), make(b"a")), FakeLink()
    slot.install(link.session(batching=patient))
    assert not link.jobs
    for work in (make(b"b"), alone := make(b"c")):
        if isinstance(work, FrameWork):
            slot.offer(work, work)
        else:
            slot.push(work)
    assert await link.drain() == [2]
    await until(lambda: bool(link.jobs), "the last piece of work goes alone")
    assert time.monotonic() - alone.received >= 0.05
    assert await link.drain() == [1]


async def test_batches_of_frames_and_of_requests_take_turns() -> None:
    slot, link = slot_of(TOGETHER, rows(b"ab"), *(FrameWork(b"frame") for _ in range(3)), rows(b"c")), FakeLink()
    slot.install(link.session(batching=Batching(8)))
    assert [type(job) for job, _ in link.jobs.values()] == [m.Infer, m.Detect]
    assert await link.drain() == [3, 3]
    assert slot.statistics.inference_count == 6


# -- frames ----------------------------------------------------------------------------------------------------------


async def test_frame_that_kills_every_host_fails_alone() -> None:
    frames = [FrameWork(bytes([number])) for number in range(6)]
    slot, link = slot_of(TOGETHER, *frames), FakeLink()
    slot.install(link.session(batching=Batching(3)))
    while not all(frame.future.done() for frame in frames):
        if any(b"\1" in sent for sent in link.sent()):
            await link.die(slot)
            link = FakeLink()
            slot.install(link.session(batching=Batching(3)))
            assert len(link.sent()[0]) == 1  # work that was lost with a host is retried alone
        else:
            link.answer()
        await turn()
    assert isinstance(frames.pop(1).future.exception(), HostLost)
    assert [content(frame) for frame in frames] == [bytes([number]) for number in (0, 2, 3, 4, 5)]


async def test_damaged_frame_of_a_batch_fails_alone() -> None:
    frames = [FrameWork(bytes([number])) for number in range(3)]
    slot, link = slot_of(TOGETHER, *frames), FakeLink()
    slot.install(link.session(batching=Batching(4)))
    _, future = link.jobs.pop(1)
    good, bad = m.Seen(4, 3, m.Times(), b"found"), m.Seen(error="InvalidInput", message="the picture is damaged")
    future.set_result(m.Detected(1, (good, bad, good)))
    await turn()
    assert isinstance(frames.pop(1).future.exception(), InvalidInput)
    assert [content(frame) for frame in frames] == [b"found", b"found"]
    assert (slot.statistics.success.count, slot.statistics.fail.count, link.arena.taken) == (2, 1, 0)


# -- tensor requests -------------------------------------------------------------------------------------------------


async def test_requests_of_a_batch_get_their_own_rows_and_are_counted() -> None:
    works = [rows(data) for data in (b"AA", b"B", b"CCC", b"DDDD")]
    slot, link = slot_of(TOGETHER, *works), FakeLink()
    slot.install(link.session())
    assert await link.drain() == [6, 4]
    assert [content(work) for work in works] == [b"AA", b"B", b"CCC", b"DDDD"]
    figures = slot.statistics
    assert (figures.inference_count, figures.execution_count) == (10, 2)
    assert (figures.success.count, figures.queue.count, figures.compute_infer.count) == (4, 4, 4)
    assert {size: batch.compute_infer.count for size, batch in figures.batches.items()} == {6: 1, 4: 1}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.sampled_from([1, 2]), st.booleans()), max_size=20),
    st.integers(1, 8),
    st.integers(1, 8),
)
def test_requests_are_answered_the_same_in_any_batch(
    sizes: list[tuple[int, int, bool]], limit: int, allowed: int
) -> None:
    async def work() -> None:
        works = [rows(bytes([number]) * size * width, width) for number, (size, width, _) in enumerate(sizes)]
        works = [TensorWork(w.inputs, None) if alone else w for w, (*_, alone) in zip(works, sizes, strict=True)]
        slot, link = slot_of(TensorBatching(Batching(limit)), *works), FakeLink()
        slot.install(link.session(rows=allowed))
        assert all(size <= max(min(limit, allowed), 5) for size in await link.drain())
        for each in works:
            assert content(each) == each.inputs[0].data
            assert each.future.result().outputs[0].shape == each.inputs[0].shape
        assert link.arena.taken == 0

    run(work())


async def test_requests_of_other_shapes_or_outputs_do_not_share_a_batch() -> None:
    narrow, wide = rows(b"ab"), rows(b"cdef", 2)
    slot, link = slot_of(TOGETHER, narrow, wide, TensorWork(narrow.inputs, ("y",), batch=2)), FakeLink()
    slot.install(link.session())
    assert await link.drain() == [2, 2, 2]


async def test_requests_are_sent_in_preferred_batch_sizes() -> None:
    policy = TensorBatching(Batching(8, wait=60.0, preferred=(2, 4)))
    slot, link = slot_of(policy, *(rows(b"a") for _ in range(7))), FakeLink()
    slot.install(link.session())
    assert await link.drain() == [4, 2]
    assert slot.waiting == 1
    slot.push(rows(b"a"))
    assert await link.drain() == [2]


async def test_engine_that_mixes_the_rows_of_a_batch_gets_no_batch_again() -> None:
    works = [rows(data) for data in (b"ab", b"cd", b"ef")]
    slot, link = slot_of(TOGETHER, *works), FakeLink()
    session = link.session()
    slot.install(session)
    link.reply(m.TensorRef("y", "UINT8", (1, 6), None, b"abcdef"))
    await turn()
    assert await link.drain() == [2, 2, 2]
    assert session.rows == 1
    assert [content(work) for work in works] == [b"ab", b"cd", b"ef"]


async def test_requests_of_higher_levels_are_first_and_unknown_levels_are_the_default() -> None:
    policy = TensorBatching(Batching(1), levels=3, default_level=2)
    slot, link = slot_of(policy, *(rows(bytes([48 + level]), priority=level) for level in (3, 2, 0, 9, 1))), FakeLink()
    slot.install(link.session())
    sent = []
    while link.jobs:
        sent.append(link.sent()[0])
        link.answer()
        await turn()
    assert sent == [b"1", b"2", b"0", b"9", b"3"]


@pytest.mark.parametrize(("policy", "size"), [(TensorBatching(), 64), (TensorBatching(policy=QueuePolicy(size=2)), 2)])
async def test_requests_beyond_the_queue_size_are_refused(policy: TensorBatching, size: int) -> None:
    works = [rows(b"a") for _ in range(size)]
    slot = slot_of(policy, *works)
    with pytest.raises(Overloaded):
        slot.push(rows(b"a"))
    slot.refuse(OVER)
    assert all(isinstance(work.future.exception(), EngineUnusable) for work in works)


async def test_queue_size_of_a_level_applies_to_that_level_only() -> None:
    policy = TensorBatching(policy=QueuePolicy(size=2), levels=2, default_level=1, policies={2: QueuePolicy(size=100)})
    slot = slot_of(policy, rows(b"a"), rows(b"a"), *(rows(b"b", priority=2) for _ in range(100)))
    with pytest.raises(Overloaded):
        slot.push(rows(b"a"))
    slot.refuse(OVER)


@pytest.mark.parametrize("has_other", [True, False])
async def test_request_that_waited_too_long_is_refused_or_served_last(has_other: bool) -> None:
    policies = {2: QueuePolicy(timeout=0.02, delay=True)}
    policy = TensorBatching(policy=QueuePolicy(timeout=0.02), levels=2, default_level=1, policies=policies)
    refused, delayed = rows(b"a"), rows(b"b", priority=2)
    slot, link = slot_of(policy, refused, delayed), FakeLink()
    await asyncio.sleep(0.05)
    if has_other:
        slot.push(rows(b"c"))
    slot.install(link.session())
    assert link.sent() == [b"c", b"b"][not has_other :]
    assert isinstance(refused.future.exception(), DeadlineExceeded)
    await link.drain()
    assert content(delayed) == b"b"


async def test_requests_beyond_the_queue_size_that_waited_too_long_are_refused() -> None:
    policy = TensorBatching(policy=QueuePolicy(size=3, timeout=0.01, delay=True))
    works = [rows(b"a") for _ in range(2)]
    slot, link = slot_of(policy), FakeLink()
    slot.install(link.session())
    for work in works:
        slot.push(work)
    for _ in range(4):
        for _ in range(3):
            slot.push(work := rows(b"late"))
            works.append(work)
        await asyncio.sleep(0.03)
        link.answer()
        await turn()
    refused = [error for work in works if work.future.done() and (error := work.future.exception())]
    assert all(isinstance(error, DeadlineExceeded) for error in refused)
    assert len(refused) >= 4
    assert slot.waiting <= 6
    slot.refuse(OVER)


async def test_outputs_that_are_not_finite_are_counted_if_served_or_refused() -> None:
    slot, link = slot_of(TOGETHER), FakeLink()
    slot.install(link.session())
    for bad in (("y",), ()):
        slot.push(rows(b"a"))
        link.reply(not_finite=bad)
        await turn()
    slot.push(refused := rows(b"a"))
    link.fail(NotFinite("y is not finite", ("y",)))
    await turn()
    assert isinstance(refused.future.exception(), NotFinite)
    (spell,) = slot.finite.spells(time.monotonic())
    assert (spell.output, spell.bad, spell.answers) == ("y", 2, 3)
