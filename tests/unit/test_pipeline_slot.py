"""Frames of a pipeline: two steps, each on its own engine, and one answer; every frame is answered or skipped."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.errors import (
    DeadlineExceeded,
    EdgedError,
    EngineUnusable,
    InvalidImage,
    NotFound,
    NotReady,
    Overloaded,
    Overwritten,
    Stale,
)
from edged.ipc import messages as m
from edged.serving.camera import Cameras, StreamOptions
from edged.serving.pipeline_slot import PipelineCounts, PipelineRule, PipelineSlot, Steps
from edged.serving.schedule import Batching, Share
from edged.serving.slot import Slot
from edged.serving.stream import Delivery, Stream
from edged.serving.work import Answered, FrameWork, SecondStep
from edged.vision.crops import CropRule
from edged.vision.detections import MOST_DETECTIONS, Detections
from edged.vision.placement import Region, Roi
from tests.fake_link import FakeLink, turn
from tests.waiting import run

EVERY = StreamOptions(mode="every_frame")
TWO = Detections.of([(0, 0, 2, 2), (1, 1, 4, 3)], [0.9, 0.8], [0, 1]).pack()  # FakeLink's pictures have 4 x 3 pixels
NONE = Detections.empty().pack()


class World:
    """A pipeline of two models. The test decides when each engine answers; the detector answers with the bytes of the
    frame, and the second model with those of the picture for each crop."""

    def __init__(self, rule: CropRule | None = None, batching: Batching | None = None) -> None:
        self.detect, self.then = Slot("plates"), Slot("reader")
        self.first, self.second = FakeLink(1 << 16), FakeLink(1 << 16)
        self.detect.install(self.first.session())
        self.then.install(self.second.session(batching=batching or Batching()))
        self.missing: EdgedError | None = None
        self.counts = PipelineCounts()
        self.slot = PipelineSlot("p", PipelineRule("plates", "reader", rule or CropRule()), self.steps, self.counts)

    def steps(self) -> Steps:
        if self.missing is not None:
            raise self.missing
        return Steps(self.detect, self.then)

    def push(self, data: bytes | memoryview = TWO, **about: Any) -> FrameWork:
        work = FrameWork(data, must_answer=True, **about)
        self.slot.push(work)
        return work


def second(work: FrameWork) -> SecondStep:
    found = work.future.result().second
    assert found is not None
    return found


async def test_pipeline_frame_gets_answers_of_both_models() -> None:
    world = World()
    work = world.push()
    await turn()
    assert not world.second.jobs
    world.first.answer()
    await turn()
    ((job, _),) = world.second.jobs.values()
    assert isinstance(job, m.Detect)
    assert [picture.roi for picture in job.pictures] == [Roi(Region(0, 0, 2, 2)), Roi(Region(1, 1, 3, 2))]
    assert len({picture.span for picture in job.pictures}) == 1  # the picture is staged once
    assert not work.future.done()
    world.second.answer()
    await turn()
    found = second(work)
    assert (found.model, found.rows, found.left_out) == ("reader", (0, 1), 0)
    assert [each.detections for each in found.answers if isinstance(each, Answered)] == [TWO, TWO]
    assert work.future.result().detections == TWO
    assert (world.counts.answered, world.counts.crops_answered) == (1, 2)
    assert world.first.arena.taken == world.second.arena.taken == 0


async def test_pipeline_frame_without_detections_does_not_reach_the_second_model() -> None:
    world = World()
    work = world.push(NONE)
    world.first.answer()
    await turn()
    assert second(work) == SecondStep("reader")
    assert not world.second.jobs


async def test_pipeline_detections_beyond_the_limit_are_counted_as_left_out() -> None:
    world = World(CropRule(most=1))
    work = world.push()
    world.first.answer()
    await turn()
    world.second.answer()
    await turn()
    assert (second(work).rows, second(work).left_out) == ((0,), 1)
    assert world.counts.crops_left_out == 1


async def test_pipeline_frame_keeps_its_rotation_and_format_in_both_steps() -> None:
    world = World()
    world.push(TWO, pixel_format="bgr", width=4, height=3, stride=16, roi=Roi(None, 90))
    world.first.answer()
    await turn()
    ((job, _),) = world.second.jobs.values()
    assert isinstance(job, m.Detect)
    for picture in job.pictures:
        assert (picture.pixel_format, picture.width, picture.height, picture.stride) == ("bgr", 4, 3, 16)
        assert picture.roi is not None
        assert picture.roi.rotation == 90


async def test_pipeline_crops_of_several_frames_run_in_one_batch() -> None:
    world = World(batching=Batching(8, 60.0))
    works = [world.push() for _ in range(4)]
    for _ in works:
        world.first.answer()
        await turn()
    assert world.second.sizes() == [8]
    world.second.answer()
    await turn()
    assert all(len(second(work).answers) == 2 for work in works)


async def test_pipeline_crops_are_one_piece_of_work_for_an_engine_without_batches() -> None:
    world = World()
    world.push()
    world.first.answer()
    await turn()
    ((job, _),) = world.second.jobs.values()
    assert isinstance(job, m.Detect)
    assert (len(job.pictures), job.most) == (2, 1)
    world.second.answer()
    await turn()
    statistics = world.then.statistics
    assert (statistics.success.count, statistics.inference_count, statistics.execution_count) == (1, 2, 2)


async def test_pipeline_batch_of_crops_that_fails_is_run_one_by_one() -> None:
    world = World(batching=Batching(8))
    work = world.push()
    world.first.answer()
    await turn()
    world.second.fail(EngineUnusable("the reshape has a fixed size"))
    await turn()
    ((job, _),) = world.second.jobs.values()
    assert isinstance(job, m.Detect)
    assert (len(job.pictures), job.most) == (2, 1)
    world.second.answer()
    await turn()
    assert all(isinstance(each, Answered) for each in second(work).answers)
    assert world.then.current is not None
    assert world.then.current.batching.limit == 1  # later batches would fail too


# -- errors ----------------------------------------------------------------------------------------------------------


async def test_pipeline_failure_of_the_first_step_is_the_error_of_the_frame() -> None:
    world = World()
    work = world.push()
    world.first.fail(InvalidImage("damaged"))
    await turn()
    assert isinstance(work.future.exception(), InvalidImage)
    assert world.counts.failed == 1


async def test_pipeline_failure_of_the_second_step_is_the_error_of_its_crops() -> None:
    world = World()
    work = world.push()
    world.first.answer()
    await turn()
    world.second.fail(EngineUnusable("indices are out of range"))
    await turn()
    answer = work.future.result()
    assert answer.detections == TWO
    assert all(isinstance(each, EngineUnusable) for each in second(work).answers)
    assert (world.counts.answered, world.counts.crops_failed) == (1, 2)


async def test_pipeline_failure_of_one_crop_leaves_the_others() -> None:
    world = World()
    work = world.push()
    world.first.answer()
    await turn()
    number, (_, future) = world.second.jobs.popitem()
    times = m.Times(1, 1, 1, 1)
    seen = (m.Seen(error="NotFinite", message="NaN"), m.Seen(4, 3, times, TWO))
    future.set_result(m.Detected(number, seen))
    await turn()
    bad, good = second(work).answers
    assert isinstance(bad, EdgedError)
    assert isinstance(good, Answered)
    assert (world.counts.crops_answered, world.counts.crops_failed) == (1, 1)


async def test_pipeline_host_that_answers_too_few_crops_fails_all_of_them() -> None:
    world = World()
    work = world.push()
    world.first.answer()
    await turn()
    number, (_, future) = world.second.jobs.popitem()
    future.set_result(m.Detected(number, (m.Seen(4, 3, m.Times(), TWO),)))
    await turn()
    assert all(isinstance(each, EngineUnusable) for each in second(work).answers)


@pytest.mark.parametrize("found", [b"\0" * 23, Detections.of([(0, 0, 1, 1)], [1], [0]).pack()])
async def test_pipeline_invalid_answer_of_the_detector_fails_the_frame(found: bytes) -> None:
    world = World()
    work = world.push()
    number, (_, future) = world.first.jobs.popitem()
    future.set_result(m.Detected(number, (m.Seen(0, -7, m.Times(), found),)))
    await turn()
    assert isinstance(work.future.exception(), EngineUnusable)


@pytest.mark.parametrize("more", [{}, {"corners": np.zeros((MOST_DETECTIONS + 1, 4, 2))}], ids=["boxes", "corners"])
async def test_pipeline_detector_that_finds_more_than_a_family_can_fails_the_frame(more: Mapping[str, Any]) -> None:
    world, n = World(), MOST_DETECTIONS + 1
    work = world.push()
    number, (_, future) = world.first.jobs.popitem()
    found = Detections.of(np.zeros((n, 4)), np.zeros(n), np.zeros(n), **more).pack()
    future.set_result(m.Detected(number, (m.Seen(4, 3, m.Times(), found),)))
    await turn()
    assert isinstance(work.future.exception(), EngineUnusable)


async def test_pipeline_request_whose_deadline_passes_between_the_steps_fails() -> None:
    world = World()
    session, world.then.current = world.then.current, None
    work = world.push(expires=time.monotonic() + 0.05)
    world.first.answer()
    await turn()
    await asyncio.sleep(0.06)
    assert session is not None
    world.then.install(session)
    await turn()
    assert isinstance(work.future.exception(), DeadlineExceeded)
    assert not world.second.jobs


async def test_pipeline_second_host_without_room_for_the_picture_fails_the_request() -> None:
    world = World()
    work = world.push()
    world.first.answer()
    await turn()
    world.second.fail(Overloaded("the host's shared memory is full"))
    await turn()
    assert isinstance(work.future.exception(), Overloaded)


async def test_pipeline_crop_that_takes_too_long_is_the_error_of_the_crops() -> None:
    world = World()
    work = world.push(expires=time.monotonic() + 60)
    world.first.answer()
    await turn()
    world.second.fail(DeadlineExceeded("the request was stopped at its limit"))
    await turn()
    assert all(isinstance(each, DeadlineExceeded) for each in second(work).answers)


async def test_pipeline_second_model_with_a_full_queue_fails_a_request_as_overloaded() -> None:
    world = World()
    filling = [FrameWork(b"x") for _ in range(66)]  # two run, 64 wait
    for each in filling:
        world.then.push(each)
    work = world.push()
    world.first.answer()
    await turn()
    assert isinstance(work.future.exception(), Overloaded)
    while world.second.jobs:
        world.second.answer()
        await turn()


async def test_pipeline_model_that_disappears_between_the_steps_is_the_error_of_the_crops() -> None:
    world = World()
    work = world.push()
    world.missing = NotReady("pipeline 'p' is not ready: no model 'reader'")
    world.first.answer()
    await turn()
    assert all(isinstance(each, NotReady) for each in second(work).answers)
    with pytest.raises(NotReady):
        world.push()
    assert (world.counts.answered, world.counts.failed) == (1, 1)


async def test_pipeline_model_that_is_removed_while_crops_wait_is_the_error_of_the_crops() -> None:
    world = World()
    world.then.current = None  # no engine yet: crops wait
    work = world.push()
    world.first.answer()
    await turn()
    assert world.then.waiting == 1
    world.then.refuse(NotFound("model 'reader' was removed"))
    await turn()
    assert all(isinstance(each, NotFound) for each in second(work).answers)


async def test_pipeline_waits_for_a_second_model_that_is_being_loaded() -> None:
    world = World()
    world.then.current = None
    work = world.push()
    world.first.answer()
    await turn()
    assert not work.future.done()
    world.then.install(world.second.session())
    world.second.answer()
    await turn()
    assert len(second(work).answers) == 2


# -- clients that leave ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["first waits", "first runs", "second waits", "second runs"])
async def test_pipeline_abandoned_frame_leaves_nothing(step: str) -> None:
    world = World()
    blocked = world.detect if step == "first waits" else world.then if step == "second waits" else None
    session = None
    if blocked is not None:
        session, blocked.current = blocked.current, None
    work = world.push()
    await turn()
    if step.startswith("second"):
        world.first.answer()
        await turn()
    work.future.cancel()
    await turn()
    assert world.slot.in_flight == 0
    if blocked is not None and session is not None:
        blocked.install(session)
    for link in (world.first, world.second):
        await link.drain()
    assert world.first.arena.taken == world.second.arena.taken == 0
    assert world.counts.answered == world.counts.failed == 0


class Picture(bytearray):
    """Bytes that can be referenced weakly."""


async def test_pipeline_releases_the_picture_with_its_answer() -> None:
    world = World()
    data = Picture(TWO)
    work, picture = world.push(memoryview(data)), weakref.ref(data)
    work.data = b""  # as the stream does when the frame has ended
    del data
    world.first.answer()
    await turn()
    assert picture() is not None  # the second model still needs it
    world.second.answer()
    await turn()
    gc.collect()
    assert picture() is None


class Slots:
    """A picture in shared memory; the client reuses its place after the first read."""

    def __init__(self) -> None:
        self.size, self.reads = len(TWO), 0

    def read_into(self, place: memoryview) -> None:
        self.reads += 1
        if self.reads > 1:
            raise Overwritten("the client reused the picture's slot")
        place[:] = TWO


async def test_pipeline_reads_a_picture_in_shared_memory_once() -> None:
    world, place = World(), Slots()
    work = FrameWork(place)
    world.slot.push(work)
    world.first.answer()
    await turn()
    world.second.answer()
    await turn()
    assert place.reads == 1
    assert len(second(work).answers) == 2


# -- streams -----------------------------------------------------------------------------------------------------------


class Streamed:
    """A stream through the pipeline. The client reads everything at once."""

    def __init__(self, world: World) -> None:
        self.world, self.stream, self.sent = world, Stream[int](Cameras()), Counter[str]()
        self.results, self.skipped = Counter[str](), Counter[str]()
        self.order: dict[str, list[int]] = {}
        self.errors: list[EdgedError] = []

    def put(self, camera: str, options: StreamOptions | None = None, data: bytes = TWO) -> None:
        number = self.sent[camera]
        self.stream.put(camera, number, FrameWork(data), self.world.slot, sequence=number, options=options)
        self.sent[camera] += 1

    async def read(self) -> None:
        async for each in self.stream.results():
            self.skipped[each.camera] += each.skipped
            if isinstance(each, Delivery):
                self.results[each.camera] += 1
                self.order.setdefault(each.camera, []).append(each.tag)
                if isinstance(each.answer, EdgedError):
                    self.errors.append(each.answer)
                else:
                    assert each.answer.second is not None
                    assert len(each.answer.second.answers) == 2


async def test_stream_of_a_pipeline_replaces_the_frame_that_waits_for_the_first_model() -> None:
    world = World()
    flow = Streamed(world)
    world.detect.current = None
    for _ in range(3):
        flow.put("a")
    assert world.detect.waiting == 1
    world.detect.install(world.first.session())
    flow.stream.end()
    await _answer_all(world, flow)
    assert (flow.results["a"], flow.skipped["a"], flow.order["a"]) == (1, 2, [2])


async def test_stream_of_a_pipeline_gives_crops_the_share_of_their_camera() -> None:
    world = World()
    flow = Streamed(world)
    session, world.then.current = world.then.current, None
    for camera, priority in (("low", 0), ("high", 5)):
        flow.put(camera, msgspec.structs.replace(EVERY, share=Share(1.0, priority)))
        world.first.answer()
        await turn()
    assert session is not None
    session.most_in_flight = 1
    world.then.install(session)
    flow.stream.end()
    await _answer_all(world, flow)
    assert list(flow.order) == ["high", "low"]


async def test_stream_of_a_pipeline_skips_frames_that_become_stale_before_the_second_step() -> None:
    world = World()
    flow = Streamed(world)
    flow.put("a")
    world.first.answer()
    await turn()
    world.second.fail(Stale("the frame was too old when its turn came"))
    flow.stream.end()
    await _answer_all(world, flow)
    assert (flow.results["a"], flow.skipped["a"]) == (0, 1)
    assert world.counts.failed == 0


async def test_stream_of_a_pipeline_and_of_its_detector_do_not_replace_each_other() -> None:
    world = World()
    flow = Streamed(world)
    world.detect.current = None
    flow.put("a")
    flow.stream.put("a", 1, FrameWork(TWO), world.detect, sequence=1)
    assert world.detect.waiting == 2
    world.detect.install(world.first.session())
    flow.stream.end()
    await turn()
    while world.first.jobs or world.second.jobs:
        for link in (world.first, world.second):
            if link.jobs:
                link.answer()
        await turn()
    tags = [each.tag async for each in flow.stream.results() if isinstance(each, Delivery)]
    assert tags == [0, 1]


class Tracker:
    """Gives each detection its row as id, and records what it was asked."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []

    def follow(self, tracks: object, captured: float, packed: bytes) -> asyncio.Future[tuple[int, ...]]:
        self.asked.append(packed)
        future: asyncio.Future[tuple[int, ...]] = asyncio.get_running_loop().create_future()
        future.set_result(tuple(range(len(Detections.unpack(packed)))))
        return future

    def forget(self, tracks: object) -> None:
        pass


async def test_stream_of_a_pipeline_tracks_what_the_first_model_found() -> None:
    world, tracker = World(CropRule(most=1)), Tracker()
    stream = Stream[int](Cameras(), tracker)  # type: ignore[arg-type]
    stream.put("a", 1, FrameWork(TWO), world.slot, options=StreamOptions(track=True))
    stream.end()
    await turn()
    while world.first.jobs or world.second.jobs:
        (world.first if world.first.jobs else world.second).answer()
        await turn()
    (found,) = [each async for each in stream.results() if isinstance(each, Delivery)]
    assert (tracker.asked, found.tracker_ids) == ([TWO], (0, 1))


async def test_stream_of_a_pipeline_closed_between_the_steps_leaves_nothing() -> None:
    world = World()
    flow = Streamed(world)
    for camera in "abc":
        flow.put(camera)
        world.first.answer()
        await turn()
    flow.put("a")
    flow.stream.close()
    await turn()
    assert world.slot.in_flight == 0
    assert world.detect.waiting == 0
    for link in (world.first, world.second):
        await link.drain()
        assert link.arena.taken == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["put", "first", "second", "fail"])), max_size=80),
    st.booleans(),
)
def test_stream_of_a_pipeline_answers_or_skips_every_frame(steps: list[tuple[str, str]], every: bool) -> None:
    async def play() -> None:
        world = World(batching=Batching(4))
        flow = Streamed(world)
        options = EVERY if every else StreamOptions()
        for camera, step in steps:
            if step == "put":
                flow.put(camera, options)
            elif step == "first" and world.first.jobs:
                world.first.answer()
            elif step == "second" and world.second.jobs:
                world.second.answer()
            elif step == "fail" and world.first.jobs:
                world.first.fail(InvalidImage("damaged"))
            await turn()
        flow.stream.end()
        await _answer_all(world, flow)
        for camera, sent in flow.sent.items():
            assert sent == flow.results[camera] + flow.skipped[camera]
            assert flow.order.get(camera, []) == sorted(flow.order.get(camera, []))
        assert world.counts.answered + world.counts.failed == sum(flow.results.values())
        assert world.slot.in_flight == 0
        assert world.first.arena.taken == world.second.arena.taken == 0

    run(play())


async def _answer_all(world: World, flow: Streamed) -> None:
    """Answer all work, in both steps, and read all results."""
    await turn()
    while world.first.jobs or world.second.jobs:
        for link in (world.first, world.second):
            if link.jobs:
                link.answer()
        await turn()
    await flow.read()
