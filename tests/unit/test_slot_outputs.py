"""Outputs of requests: copied or passed to a sink in place, and refused if they do not fit their request."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edged.errors import EngineUnusable, InvalidInput
from edged.ipc import messages as m
from edged.ipc.arena import Span
from edged.serving.schedule import Batching, TensorBatching
from edged.serving.slot import Slot
from edged.serving.work import FrameWork, InputTensor, OutputView, Sink, TensorWork
from tests.fake_link import FakeLink, turn


def request(data: bytes, sink: Sink | None = None, batch: int | None = None) -> TensorWork:
    return TensorWork((InputTensor("x", "UINT8", (len(data),), data),), None, batch=batch, sink=sink)


class Taken:
    """A sink that remembers the bytes of the outputs that it got."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def __call__(self, outputs: tuple[OutputView, ...]) -> None:
        self.seen += [bytes(output.data) for output in outputs]


def full(outputs: tuple[OutputView, ...]) -> None:
    raise InvalidInput("no room")


def serving() -> tuple[Slot, FakeLink]:
    slot, link = Slot("m"), FakeLink()
    slot.batching_policy = TensorBatching(Batching(8))
    slot.install(link.session())
    return slot, link


async def answer(link: FakeLink, data: bytes) -> bool:
    """Answer the oldest job with one output, and return whether the job had a place in the arena for it."""
    job, _ = link.jobs[min(link.jobs)]
    assert isinstance(job, m.Infer)
    place = None if job.reply is None else Span(job.reply.offset, len(data))
    if place is not None:
        link.arena.read(place)[:] = data
    link.reply(m.TensorRef("y", "UINT8", (len(data),), place, b"" if place is not None else data))
    await turn()
    return place is not None


@pytest.mark.parametrize("has_sink", [True, False])
async def test_outputs_go_to_the_sink_or_are_copied_into_the_answer(has_sink: bool) -> None:
    (slot, link), taken, made = serving(), Taken(), list[TensorWork]()
    for data, has_place in ((b"abcd", False), (b"efgh", True), (b"ijkl", True)):  # the first answer shows the size
        made.append(request(data, taken if has_sink else None))
        slot.push(made[-1])
        assert await answer(link, data) == has_place
    copied = [output.data for work in made for output in work.future.result().outputs]
    assert (taken.seen, copied) == (
        ([b"abcd", b"efgh", b"ijkl"], []) if has_sink else ([], [b"abcd", b"efgh", b"ijkl"])
    )
    assert link.arena.taken == 0


async def test_outputs_of_a_batch_go_to_the_sink_of_each_request() -> None:
    slot, link, sinks = Slot("m"), FakeLink(), [Taken(), Taken()]
    slot.batching_policy = TensorBatching(Batching(8))
    refused = request(b"f", full, batch=1)
    for work in (request(b"ab", sinks[0], batch=2), refused, request(b"cde", sinks[1], batch=3)):
        slot.push(work)
    slot.install(link.session())
    await answer(link, b"ABFCDE")
    assert [sink.seen for sink in sinks] == [[b"AB"], [b"CDE"]]
    with pytest.raises(InvalidInput):
        refused.future.result()
    assert (slot.statistics.success.count, slot.statistics.fail.count) == (2, 1)


async def test_outputs_of_a_cancelled_request_do_not_reach_its_sink() -> None:
    (slot, link), taken = serving(), Taken()
    slot.push(made := request(b"abcd", taken))
    made.future.cancel()
    await answer(link, b"ABCD")
    assert (taken.seen, link.arena.taken) == ([], 0)


async def test_outputs_refused_by_their_sink_count_as_an_execution_and_a_failure() -> None:
    slot, link = serving()
    slot.push(request(b"abc", full))
    await answer(link, b"xyz")
    figures = slot.statistics
    assert (figures.execution_count, figures.inference_count) == (1, 0)
    assert (figures.success.count, figures.fail.count) == (0, 1)


# -- outputs of a host that a hostile model has taken over -----------------------------------------------------------

Lie = Callable[[Span, Span], list[m.TensorRef]]  # given the spans of the request's bytes and of its outputs

_SIZE = 8


def ref(span: Span | None, shape: tuple[int, ...] = (2,), name: str = "y", datatype: str = "FP32") -> m.TensorRef:
    return m.TensorRef(name, datatype, shape, span, b"" if span is not None else bytes(_SIZE))


def honest(_: Span, reply: Span) -> list[m.TensorRef]:
    return [ref(Span(reply.offset, _SIZE))]


_LIES: dict[str, Lie] = {
    "in the bytes of a request": lambda given, _: [ref(Span(given.offset, _SIZE))],
    "before its place": lambda _, reply: [ref(Span(reply.offset - 1, _SIZE))],
    "beyond its place": lambda _, reply: [ref(Span(reply.offset + reply.size - 4, _SIZE))],
    "of a negative size": lambda _, reply: [ref(Span(reply.offset + 64, -_SIZE), (-2,))],
    "shorter than its shape": lambda _, reply: [ref(Span(reply.offset, _SIZE - 1))],
    "longer than its shape": lambda _, __: [ref(None, (1,))],
    "of a negative shape": lambda _, reply: [ref(Span(reply.offset, _SIZE), (-1, -2))],
    "of an unknown datatype": lambda _, reply: [ref(Span(reply.offset, _SIZE), datatype="FP33")],
    "of another datatype": lambda _, reply: [ref(Span(reply.offset, _SIZE), datatype="INT32")],
    "of another name": lambda _, reply: [ref(Span(reply.offset, _SIZE), name="z")],
    "twice": lambda _, reply: [ref(Span(reply.offset, _SIZE))] * 2,
    "and another": lambda _, reply: [ref(Span(reply.offset, _SIZE)), ref(None, name="z")],
    "missing": lambda _, __: [],
}


async def is_answered(work: TensorWork | FrameWork, make: Lie) -> bool:
    """Return whether a request with these outputs is answered. Check that the next one is answered in any case."""
    slot, link = Slot("m"), FakeLink()
    session = link.session(outputs={"y": "FP32"})
    session.reply_bytes = 256
    before = link.arena.reserve(256)  # belongs to another client
    slot.install(session)
    following = TensorWork(work.inputs, None) if isinstance(work, TensorWork) else FrameWork(b"frame")
    for each, made in ((work, make), (following, honest)):
        if isinstance(each, FrameWork):
            slot.queue("camera", each)
        else:
            slot.push(each)
        number, (job, future) = link.jobs.popitem()
        assert job.reply is not None
        span = job.pictures[0].span if isinstance(job, m.Detect) else job.inputs[0].span
        assert span is not None
        refs = tuple(made(span, job.reply))
        reply: m.Answer | m.Detected = m.Answer(number, refs, m.Times())
        if isinstance(job, m.Detect):
            reply = m.Detected(number, (m.Seen(4, 3, outputs=refs),))
        future.set_result(reply)
        await turn()
    assert len(following.future.result().outputs) == 1
    link.arena.release(before)
    assert link.arena.taken == 0
    assert work.future.exception() is None or isinstance(work.future.exception(), EngineUnusable)
    return slot.statistics.success.count == 2


@pytest.mark.parametrize("lie", _LIES.values(), ids=list(_LIES))
async def test_outputs_that_do_not_fit_their_request_are_refused(lie: Lie) -> None:
    assert not await is_answered(request(b"abcd"), lie)


@pytest.mark.parametrize("lie", [lie for name, lie in _LIES.items() if name != "missing"])
async def test_outputs_that_do_not_fit_their_frame_are_refused(lie: Lie) -> None:
    assert not await is_answered(FrameWork(b"frame"), lie)


@pytest.mark.parametrize(("asked", "is_right"), [(("y",), True), (("z",), False), (("y", "z"), False)])
async def test_outputs_other_than_requested_are_refused(asked: tuple[str, ...], is_right: bool) -> None:
    work = TensorWork(request(b"abcd").inputs, asked)
    assert await is_answered(work, honest) == is_right
