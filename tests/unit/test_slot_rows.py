"""Tensor requests that go to an engine together, each answered with its own rows; and how they wait."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.errors import DeadlineExceeded, EngineUnusable, InvalidInput, NotFinite, Overloaded, TooLarge
from edged.ipc import messages as m
from edged.serving.schedule import Batching, QueuePolicy, TensorBatching
from edged.serving.session import ServingSession
from edged.serving.slot import Slot
from edged.serving.work import Answered, FrameWork, InputTensor, TensorWork
from tests.fake_link import FakeLink, engine_ref
from tests.waiting import run


def session(link: FakeLink, rows: int = 1 << 31) -> ServingSession:
    return ServingSession(link, 1, msgspec.structs.replace(engine_ref("engine"), rows=rows))  # type: ignore[arg-type]


def slot_with(limit: int = 8, wait: float = 0.0, preferred: tuple[int, ...] = (), **more: object) -> Slot:
    slot = Slot("m")
    slot.batching_policy = TensorBatching(Batching(limit, wait, preferred), **more)  # type: ignore[arg-type]
    return slot


def request(data: bytes, width: int = 1, priority: int = 0) -> TensorWork:
    """Rows of `width` bytes."""
    rows = len(data) // width
    return TensorWork((InputTensor("x", "UINT8", (rows, width), data),), None, priority=priority, batch=rows)


async def turn(times: int = 4) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def drain(link: FakeLink) -> list[tuple[int, ...]]:
    """Answers everything; the shapes of the inputs that the host saw."""
    shapes = []
    while link.jobs:
        job, _ = link.jobs[min(link.jobs)]
        shapes.append(job.inputs[0].shape if isinstance(job, m.Infer) else ())
        link.answer()
        await turn()
    return shapes


def rows_of(work: TensorWork) -> bytes:
    answer = work.future.result()
    assert isinstance(answer, Answered)
    (output,) = answer.outputs
    assert output.shape == work.inputs[0].shape
    return output.data


def test_requests_that_wait_go_together_and_get_their_own_rows() -> None:
    async def work() -> None:
        slot, link = slot_with(), FakeLink()
        works = [request(bytes([65 + n]) * size) for n, size in enumerate((2, 1, 3, 4))]
        for each in works:
            slot.push(each)
        slot.install(session(link))
        assert await drain(link) == [(6, 1), (4, 1)]
        assert [rows_of(each) for each in works] == [b"AA", b"B", b"CCC", b"DDDD"]
        assert link.arena.taken == 0
        figures = slot.statistics
        assert (figures.inference_count, figures.execution_count) == (10, 2)
        assert (figures.success.count, figures.queue.count, figures.compute_infer.count) == (4, 4, 4)
        assert {rows: batch.compute_infer.count for rows, batch in figures.batches.items()} == {6: 1, 4: 1}

    run(work())


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.sampled_from([1, 2]), st.booleans()), max_size=20),
    st.integers(1, 8),
    st.integers(1, 8),
)
def test_together_or_alone_every_answer_is_the_same(
    sizes: list[tuple[int, int, bool]], limit: int, allowed: int
) -> None:
    async def work() -> None:
        slot, link = slot_with(limit), FakeLink()
        works = []
        for number, (rows, width, alone) in enumerate(sizes):
            each = request(bytes([number]) * rows * width, width)
            if alone:
                each = TensorWork(each.inputs, None)
            works.append(each)
            slot.push(each)
        slot.install(session(link, allowed))
        shapes = await drain(link)
        for each, (rows, width, _) in zip(works, sizes, strict=True):
            assert rows_of(each) == bytes([works.index(each)]) * rows * width
        most = min(limit, allowed)
        assert all(shape[0] <= max(most, 5) for shape in shapes)
        assert link.arena.taken == 0

    run(work())


def test_requests_of_other_shapes_or_outputs_do_not_go_together() -> None:
    async def work() -> None:
        slot, link = slot_with(), FakeLink()
        narrow, wide = request(b"ab"), request(b"cdef", 2)
        some = TensorWork(narrow.inputs, ("y",), batch=2)
        for each in (narrow, wide, some):
            slot.push(each)
        slot.install(session(link))
        assert await drain(link) == [(2, 1), (2, 2), (2, 1)]

    run(work())


def test_as_many_as_are_preferred_go_at_once_and_others_wait() -> None:
    async def work() -> None:
        slot, link = slot_with(8, wait=0.05, preferred=(2, 4)), FakeLink()
        slot.install(session(link))
        slot.push(request(b"a"))
        assert not link.jobs
        slot.push(request(b"b"))
        assert len(link.jobs) == 1
        slot.push(request(b"c"))
        assert len(link.jobs) == 1
        assert await drain(link) == [(2, 1)]
        for _ in range(400):
            if link.jobs:
                break
            await asyncio.sleep(0.005)
        assert await drain(link) == [(1, 1)]

    run(work())


def test_a_preferred_number_is_made_from_what_waits() -> None:
    async def work() -> None:
        slot, link = slot_with(8, wait=5.0, preferred=(2, 4)), FakeLink()
        for letter in b"abcdefg":
            slot.push(request(bytes([letter])))
        slot.install(session(link))
        assert [job.inputs[0].shape[0] for job, _ in link.jobs.values() if isinstance(job, m.Infer)] == [4, 2]
        slot.refuse(EngineUnusable("the test is over"))
        await drain(link)

    run(work())


def test_an_engine_that_does_not_keep_rows_apart_is_never_given_a_batch_again() -> None:
    async def work() -> None:
        slot, link = slot_with(), FakeLink()
        works = [request(b"ab"), request(b"cd"), request(b"ef")]
        for each in works:
            slot.push(each)
        serving = session(link)
        slot.install(serving)
        _, future = link.jobs.pop(1)
        mixed = m.TensorRef("y", "UINT8", (1, 6), None, b"abcdef")
        future.set_result(m.Answer(1, (mixed,), m.Times()))
        await turn()
        assert await drain(link) == [(2, 1)] * 3
        assert serving.rows == 1
        assert [rows_of(each) for each in works] == [b"ab", b"cd", b"ef"]
        assert link.arena.taken == 0

    run(work())


def test_one_request_that_fails_by_itself_is_no_reason_to_batch_no_more() -> None:
    async def work() -> None:
        slot, link = slot_with(), FakeLink()
        works = [request(b"ab"), request(b"cd"), request(b"ef")]
        for each in works:
            slot.push(each)
        serving = session(link)
        slot.install(serving)
        link.fail(EngineUnusable("indices are out of range"))
        await turn()
        link.fail(EngineUnusable("indices are out of range"))
        await turn()
        assert await drain(link) == [(2, 1)] * 2
        assert isinstance(works[0].future.exception(), EngineUnusable)
        assert [rows_of(each) for each in works[1:]] == [b"cd", b"ef"]
        assert serving.rows > 1
        for each in (more := [request(b"gh"), request(b"ij"), request(b"kl"), request(b"mn")]):
            slot.push(each)
        await drain(link)
        assert all(rows_of(each) == each.inputs[0].data for each in more)
        assert link.arena.taken == 0

    run(work())


def test_a_batch_that_fails_when_nobody_waits_for_it_any_more_is_no_trouble() -> None:
    async def work() -> None:
        slot, link = slot_with(), FakeLink()
        works = [request(b"ab"), request(b"cd")]
        for each in works:
            slot.push(each)
        serving = session(link)
        slot.install(serving)
        for each in works:
            each.future.cancel()
        link.fail(EngineUnusable("indices are out of range"))
        await turn()
        assert (serving.in_flight, link.arena.taken) == (0, 0)
        slot.push(request(b"ef"))
        assert await drain(link) == [(2, 1)]

    run(work())


def test_higher_levels_go_first_and_one_that_does_not_exist_is_the_default() -> None:
    async def work() -> None:
        slot, link = slot_with(1, levels=3, default_level=2), FakeLink()
        works = {level: request(bytes([48 + level]), priority=level) for level in (3, 2, 0, 9, 1)}
        for each in works.values():
            slot.push(each)
        slot.install(session(link))
        seen = []
        while link.jobs:
            job, _ = link.jobs[min(link.jobs)]
            assert isinstance(job, m.Infer)
            assert job.inputs[0].span is not None
            seen.append(bytes(link.arena.read(job.inputs[0].span)))
            link.answer()
            await turn()
        assert seen == [b"1", b"2", b"0", b"9", b"3"]

    run(work())


def test_a_queue_has_the_size_that_was_configured() -> None:
    async def work() -> None:
        slot = slot_with(1, policy=QueuePolicy(size=2), levels=2, default_level=1, policies={2: QueuePolicy(size=100)})
        for _ in range(2):
            slot.push(request(b"a"))
        with pytest.raises(Overloaded, match="2 requests"):
            slot.push(request(b"a"))
        for _ in range(100):
            slot.push(request(b"b", priority=2))
        slot.refuse(EngineUnusable("the test is over"))

    run(work())


def test_a_request_that_waited_too_long_is_refused_or_goes_last() -> None:
    async def work() -> None:
        policies = {2: QueuePolicy(timeout=0.02, delay=True)}
        slot = slot_with(1, policy=QueuePolicy(timeout=0.02), levels=2, default_level=1, policies=policies)
        link = FakeLink()
        refused, delayed = request(b"a"), request(b"b", priority=2)
        slot.push(refused)
        slot.push(delayed)
        await asyncio.sleep(0.05)
        slot.push(request(b"c"))
        slot.install(session(link))
        assert isinstance(refused.future.exception(), DeadlineExceeded)
        await drain(link)
        assert rows_of(delayed) == b"b"

    run(work())


def test_a_request_that_goes_last_needs_no_other_to_be_answered() -> None:
    async def work() -> None:
        slot, link = slot_with(1, policy=QueuePolicy(timeout=0.01, delay=True)), FakeLink()
        alone = request(b"a")
        slot.push(alone)
        await asyncio.sleep(0.03)
        slot.install(session(link))
        assert len(link.jobs) == 1
        await drain(link)
        assert rows_of(alone) == b"a"

    run(work())


def test_no_more_requests_wait_for_the_last_place_than_may_wait_at_all() -> None:
    async def work() -> None:
        slot, link = slot_with(1, policy=QueuePolicy(size=3, timeout=0.01, delay=True)), FakeLink()
        slot.install(session(link))
        requests = [request(b"in flight") for _ in range(2)]
        for each in requests:
            slot.push(each)
        for _ in range(4):
            requests += [request(b"late") for _ in range(3)]
            for each in requests[-3:]:
                slot.push(each)
            await asyncio.sleep(0.03)
            link.answer()
            await turn()
        refused = [each for each in requests if each.future.done() and each.future.exception()]
        assert all(isinstance(each.future.exception(), DeadlineExceeded) for each in refused)
        assert len(refused) >= 4
        assert slot.waiting <= 6
        slot.refuse(EngineUnusable("the test is over"))

    run(work())


class Broken:
    size = 1

    def read_into(self, place: memoryview) -> None:
        raise InvalidInput("the region is too small")


def test_a_request_whose_bytes_cannot_be_read_is_left_out_of_its_batch() -> None:
    async def work() -> None:
        slot, link = slot_with(), FakeLink()
        broken = TensorWork((InputTensor("x", "UINT8", (1, 1), Broken()),), None, batch=1)
        works = [request(b"a"), broken, request(b"c")]
        for each in works:
            slot.push(each)
        slot.install(session(link))
        assert await drain(link) == [(2, 1)]
        assert isinstance(broken.future.exception(), InvalidInput)
        assert [rows_of(works[0]), rows_of(works[2])] == [b"a", b"c"]
        assert link.arena.taken == 0

    run(work())


def test_frames_and_requests_take_turns() -> None:
    async def work() -> None:
        slot, link = slot_with(), FakeLink()
        frame, tensors = FrameWork(b"frame"), request(b"ab")
        slot.push(tensors)
        slot.offer("camera", frame)
        slot.install(session(link))
        assert [type(job) for job, _ in link.jobs.values()] == [m.Infer, m.Detect]
        await drain(link)
        assert slot.statistics.inference_count == 3

    run(work())


def test_what_does_not_fit_into_the_memory_together_goes_in_parts() -> None:
    async def work() -> None:
        slot, link = slot_with(), FakeLink(1024)
        works = [request(bytes([65 + n]) * 400, width=400) for n in range(5)]
        for each in works:
            slot.push(each)
        slot.install(session(link))
        assert await drain(link) == [(2, 400), (1, 400), (1, 400), (1, 400)]
        assert [rows_of(each)[:1] for each in works] == [b"A", b"B", b"C", b"D", b"E"]
        assert link.arena.taken == 0

    run(work())


def test_one_that_could_never_fit_does_not_keep_the_others_of_its_batch_waiting() -> None:
    async def work() -> None:
        slot, link = slot_with(limit=1 << 20), FakeLink(capacity=4096)
        works = [request(bytes(5000)), request(b"ab"), request(b"cd")]
        for each in works:
            slot.push(each)
        slot.install(session(link))
        await drain(link)
        with pytest.raises(TooLarge):
            await works[0].future
        assert [rows_of(each) for each in works[1:]] == [b"ab", b"cd"]
        assert link.arena.taken == 0

    run(work())


def test_answers_that_are_not_finite_are_counted_served_or_refused() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink()
        slot.install(session(link))
        for outcome in (("y",), (), NotFinite("y is not finite", ("y",))):
            each = request(b"a")
            slot.push(each)
            number = min(link.jobs)
            if isinstance(outcome, NotFinite):
                link.fail(outcome)
                with pytest.raises(NotFinite):
                    await each.future
            else:
                job, future = link.jobs.pop(number)
                assert isinstance(job, m.Infer)
                future.set_result(m.Answer(number, (), m.Times(), outcome))
                await each.future
            await turn()
        (spell,) = slot.finite.spells(time.monotonic())
        assert (spell.output, spell.bad, spell.answers) == ("y", 2, 3)

    run(work())
