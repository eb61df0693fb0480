"""Answers of a host that a stranger's model speaks for: what does not fit the request never reaches a client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from edged.errors import EngineUnusable
from edged.ipc import messages as m
from edged.ipc.arena import Span
from edged.serving.slot import Slot
from edged.serving.work import FrameWork, InputTensor, TensorWork, Work
from tests.fake_link import FakeLink
from tests.waiting import run

Lie = Callable[[Span, Span], list[m.TensorRef]]  # given where the request's bytes and where its outputs go

_SIZE = 8


def ref(span: Span | None, shape: tuple[int, ...] = (2,), name: str = "y", datatype: str = "FP32") -> m.TensorRef:
    return m.TensorRef(name, datatype, shape, span, b"" if span is not None else bytes(_SIZE))


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


async def answered(work: Work, lie: Lie) -> int:
    """A host answers one request with a lie, and the next as it should; how many requests the slot answered."""
    slot, link = Slot("m"), FakeLink()
    session = link.session()
    session.engine = msgspec.structs.replace(session.engine, outputs={"y": "FP32"})
    session.reply_bytes = 256
    before = link.arena.reserve(256)  # another client's
    slot.install(session)
    honest = TensorWork(work.inputs, None) if isinstance(work, TensorWork) else FrameWork(b"frame")
    for each, made in ((work, lie), (honest, lambda _, reply: [ref(Span(reply.offset, _SIZE))])):
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
        await asyncio.wait({each.future}, timeout=5)
    assert len((await honest.future).outputs) == 1
    link.arena.release(before)
    assert link.arena.taken == 0
    return slot.answered


@pytest.mark.parametrize("lie", _LIES.values(), ids=list(_LIES))
def test_slot_answer_that_does_not_fit_the_request_is_an_error_of_it_alone(lie: Lie) -> None:
    async def work() -> None:
        request = TensorWork((InputTensor("x", "UINT8", (4,), b"abcd"),), None)
        assert await answered(request, lie) == 1
        with pytest.raises(EngineUnusable):
            await request.future

    run(work())


@pytest.mark.parametrize("lie", [lie for what, lie in _LIES.items() if what != "missing"])
def test_slot_answer_to_a_frame_that_does_not_fit_it_is_an_error_of_it_alone(lie: Lie) -> None:
    async def work() -> None:
        frame = FrameWork(b"frame")
        assert await answered(frame, lie) == 1
        with pytest.raises(EngineUnusable):
            await frame.future

    run(work())


@pytest.mark.parametrize(("asked", "is_right"), [(("y",), True), (("z",), False), (("y", "z"), False)])
def test_slot_outputs_that_were_not_asked_for_are_an_error(asked: tuple[str, ...], is_right: bool) -> None:
    async def work() -> None:
        request = TensorWork((InputTensor("x", "UINT8", (4,), b"abcd"),), asked)
        assert await answered(request, lambda _, reply: [ref(Span(reply.offset, _SIZE))]) == 1 + is_right

    run(work())
