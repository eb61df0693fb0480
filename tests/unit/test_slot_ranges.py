"""A slot with an engine of a range of shapes: no request outside it gets there, by whatever way it came."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from edged.backends.profile import Profile
from edged.errors import NotReady, Overloaded
from edged.serving.schedule import Batching, QueuePolicy, TensorBatching
from edged.serving.session import ServingSession
from edged.serving.slot import Slot
from edged.serving.work import FrameWork, InputTensor, TensorWork
from tests.fake_link import FakeLink, engine_ref
from tests.waiting import run

RANGE = Profile.parse("x=1x2:1x2:4x2")


def request(rows: int, width: int = 2, value: int = 0) -> TensorWork:
    data = bytes([value]) * (rows * width)
    return TensorWork((InputTensor("x", "UINT8", (rows, width), data),), None, batch=rows)


def ranged(link: FakeLink, profile: Profile = RANGE) -> ServingSession:
    return ServingSession(cast(Any, link), 1, msgspec.structs.replace(engine_ref("ranged"), profile=profile))


def place() -> tuple[Slot, Slot]:
    slot, fallback = Slot("m"), Slot("m")
    slot.fallback = fallback
    return slot, fallback


async def turn() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def test_push_request_that_gives_a_folded_input_goes_to_the_fallback_and_others_do_not() -> None:
    async def work() -> None:
        (slot, fallback), link, other = place(), FakeLink(), FakeLink()
        folded = msgspec.structs.replace(engine_ref("folded"), folded=frozenset({"w"}))
        slot.install(ServingSession(cast(Any, link), 1, folded))
        fallback.install(other.session(key="reference"))
        plain, giving = request(2, value=1), request(2, value=2)
        giving.inputs = (*giving.inputs, InputTensor("w", "UINT8", (1,), b"\7"))
        slot.push(plain)
        slot.push(giving)
        link.answer()
        other.answer()
        assert (await plain.future).engine.key == "folded"
        assert (await giving.future).engine.key == "reference"

    run(work())


def test_a_request_goes_where_its_shapes_are_taken() -> None:
    async def work() -> None:
        (slot, fallback), link, other = place(), FakeLink(), FakeLink()
        slot.install(ranged(link))
        fallback.install(other.session(key="any"))
        inside, outside = request(4, value=1), request(5, value=2)
        slot.push(inside)
        slot.push(outside)
        assert (link.sent(), other.sent()) == ([b"\1" * 8], [b"\2" * 10])
        link.answer()
        other.answer()
        assert (await inside.future).engine.key == "ranged"
        assert (await outside.future).engine.key == "any"

    run(work())


def test_what_waits_while_an_engine_of_a_range_takes_over_goes_to_the_fallback() -> None:
    async def work() -> None:
        (slot, fallback), link, other = place(), FakeLink(), FakeLink()
        works = [request(1, value=1), request(9, value=2), request(1, 3, value=3)]
        for each in works:
            slot.push(each)
        slot.install(ranged(link))
        assert link.sent() == [b"\1\1"]
        assert fallback.waiting == 2
        fallback.install(other.session(key="any"))
        link.answer()
        other.answer()
        other.answer()
        assert [(await each.future).engine.key for each in works] == ["ranged", "any", "any"]
        assert (slot.waiting, fallback.waiting) == (0, 0)

    run(work())


def test_requests_that_go_together_stay_in_the_range() -> None:
    async def work() -> None:
        (slot, _), link = place(), FakeLink()
        slot.batching_policy = TensorBatching(Batching(64, 1.0))
        works = [request(2, value=n) for n in range(4)]
        for each in works:
            slot.push(each)
        session = ranged(link)
        session.rows = 4
        slot.install(session)
        assert sorted(map(len, link.sent())) == [8, 8]

    run(work())


def test_frames_are_always_taken() -> None:
    async def work() -> None:
        (slot, _), link = place(), FakeLink()
        slot.install(ranged(link))
        slot.offer("camera", FrameWork(b"frame"))
        assert link.sent() == [b"frame"]

    run(work())


def test_whoever_opens_engines_is_told_of_a_request_that_nothing_serves() -> None:
    async def work() -> None:
        (slot, fallback), told = place(), list[int]()
        fallback.awaited = lambda: told.append(fallback.waiting)
        slot.install(ranged(FakeLink()))
        slot.push(request(9))
        assert told == [1]

    run(work())


def test_without_a_fallback_place_it_is_told_what_the_engine_takes() -> None:
    async def work() -> None:
        slot, link = Slot("m"), FakeLink()
        slot.install(ranged(link))
        outside = request(9)
        slot.push(outside)
        with pytest.raises(NotReady, match=r"takes x \[1, 2\] to \[4, 2\], and no fallback engine"):
            await outside.future
        assert not link.jobs

    run(work())


def test_a_caller_that_can_be_held_back_waits_for_room_where_its_request_goes() -> None:
    async def work() -> None:
        (slot, fallback), link, other = place(), FakeLink(), FakeLink()
        fallback.batching_policy = TensorBatching(policy=QueuePolicy(1))
        slot.install(ranged(link))
        slot.push(request(9))
        with pytest.raises(Overloaded):
            slot.push(request(9))
        patient = asyncio.create_task(slot.push_when_room(request(9)))
        await turn()
        assert not patient.done()
        fallback.install(other.session())
        await asyncio.wait_for(patient, 5)

    run(work())
