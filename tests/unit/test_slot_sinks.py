"""Outputs that are taken where they lie: from the memory of the engine host, before that is another request's."""

from __future__ import annotations

import asyncio

import pytest

from edged.errors import InvalidInput
from edged.ipc import messages as m
from edged.ipc.arena import Span
from edged.serving.schedule import Batching, TensorBatching
from edged.serving.slot import Slot
from edged.serving.work import InputTensor, OutputView, Sink, TensorWork
from tests.fake_link import FakeLink
from tests.waiting import run


def request(data: bytes, sink: Sink | None, batch: int | None = None) -> TensorWork:
    return TensorWork((InputTensor("x", "UINT8", (len(data),), data),), None, batch=batch, sink=sink)


class Taken:
    """Keeps what it was shown, and the views themselves."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.views: list[memoryview] = []

    def __call__(self, outputs: tuple[OutputView, ...]) -> None:
        self.seen += [bytes(output.data) for output in outputs]
        self.views += [output.data for output in outputs]

    def forget(self) -> None:
        for view in self.views:
            view.release()


def answer(link: FakeLink, place: Span | None, data: bytes) -> None:
    """Answers the oldest job with one output, in the place for it or in the message."""
    number = min(link.jobs)
    job, future = link.jobs.pop(number)
    assert isinstance(job, m.Infer)
    if place is not None:
        link.arena.read(place)[:] = data
    ref = m.TensorRef("y", "UINT8", (len(data),), place, b"" if place is not None else data)
    future.set_result(m.Answer(number, (ref,), m.Times()))


async def turn() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def reply_of(link: FakeLink) -> Span | None:
    job, _ = link.jobs[min(link.jobs)]
    assert isinstance(job, m.Infer)
    return job.reply


def test_a_sink_sees_outputs_in_the_arena_and_the_answer_has_none() -> None:
    async def work() -> None:
        slot, link, taken = Slot("m"), FakeLink(), Taken()
        slot.install(link.session())
        for data, has_place in ((b"abcd", False), (b"efgh", True)):  # how much room an answer needs is learnt
            made = request(data, taken)
            slot.push(made)
            place = reply_of(link)
            assert (place is not None) == has_place
            answer(link, None if place is None else Span(place.offset, 4), data)
            await turn()
            assert made.future.result().outputs == ()
        assert taken.seen == [b"abcd", b"efgh"]
        taken.forget()
        assert link.arena.taken == 0

    run(work())


def test_without_a_sink_outputs_are_copies_that_stay() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink()
        slot.install(link.session())
        kept = []
        for data in (b"abcd", b"efgh", b"ijkl"):
            made = request(data, None)
            slot.push(made)
            place = reply_of(link)
            answer(link, None if place is None else Span(place.offset, 4), data)
            await turn()
            kept.append(made)
        assert [made.future.result().outputs[0].data for made in kept] == [b"abcd", b"efgh", b"ijkl"]

    run(work())


def test_each_of_those_that_went_together_takes_its_own_rows() -> None:
    async def work() -> None:
        slot, link, sinks = Slot("m"), FakeLink(), [Taken(), Taken()]
        slot.batching_policy = TensorBatching(Batching(8))
        for data, sink in zip((b"ab", b"cde"), sinks, strict=True):
            slot.push(request(data, sink, batch=len(data)))
        slot.install(link.session())
        answer(link, None, b"ABCDE")
        await turn()
        assert [sink.seen for sink in sinks] == [[b"AB"], [b"CDE"]]

    run(work())


def test_what_a_sink_says_against_outputs_is_the_answer_of_its_request_alone() -> None:
    async def work() -> None:
        def full(outputs: tuple[OutputView, ...]) -> None:
            raise InvalidInput("no room")

        slot, link, taken = Slot("m"), FakeLink(), Taken()
        slot.batching_policy = TensorBatching(Batching(8))
        refused, good = request(b"a", full, batch=1), request(b"b", taken, batch=1)
        slot.push(refused)
        slot.push(good)
        slot.install(link.session())
        answer(link, None, b"AB")
        await turn()
        with pytest.raises(InvalidInput, match="no room"):
            refused.future.result()
        assert good.future.result().outputs == ()
        assert taken.seen == [b"B"]
        assert (slot.answered, slot.failed) == (1, 1)

    run(work())


def test_a_request_whose_client_has_gone_is_not_told() -> None:
    async def work() -> None:
        slot, link, taken = Slot("m"), FakeLink(), Taken()
        slot.install(link.session())
        made = request(b"abcd", taken)
        slot.push(made)
        made.future.cancel()
        answer(link, None, b"ABCD")
        await turn()
        assert taken.seen == []
        assert link.arena.taken == 0

    run(work())


def test_an_engine_that_ran_is_counted_even_where_its_answer_does_not_get_to_its_place() -> None:
    async def work() -> None:
        def sink(outputs: tuple[OutputView, ...]) -> None:
            raise InvalidInput("its place is too small")

        slot, link = Slot("m"), FakeLink()
        slot.install(link.session())
        slot.push(request(b"abc", sink))
        answer(link, None, b"xyz")
        await turn()
        figures = slot.statistics
        assert (figures.execution_count, figures.inference_count) == (1, 0)
        assert (figures.success.count, figures.fail.count) == (0, 1)

    run(work())
