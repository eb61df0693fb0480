"""Sources of sound: windows in order, the state from window to window, and what starts a source again."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

from edged.errors import EngineUnusable, InvalidInput, NotReady, Stale
from edged.ipc import messages as m
from edged.serving.camera import StreamOptions
from edged.serving.slot import Slot
from edged.serving.sound import SoundSource, SoundSources, SoundWork
from edged.serving.stream import Delivery, SkipReport, Stream
from edged.tensors import Array
from edged.vision.content import Classes
from edged.vision.family import Recognition, Thresholds, recognise
from tests.fake_link import FakeLink, turn
from tests.vision_signatures import tensors

VOICE = recognise(
    tensors("input [n,s], state [2,n,128], sr:INT64 []"), tensors("output [n,1], stateN [2,n,128]"), {}, {}
)
EVERY = StreamOptions(mode="every_frame")
WINDOW = 512


class World:
    """A source whose engine the test plays: `hear` answers the oldest window with a score, and adds 1 to the state."""

    def __init__(self, recognition: Recognition = VOICE) -> None:
        self.link, self.slot = FakeLink(), Slot("vad")
        self.slot.install(self.link.session())
        self.source = SoundSource(self.slot, recognition, "model")

    def work(self, samples: int, **about: object) -> SoundWork:
        data = np.zeros(samples, "<i2").tobytes()
        return SoundWork(data, "s16", self.source.take_place(), **about)  # type: ignore[arg-type]

    def queue(self, samples: int, **about: object) -> SoundWork:
        work = self.work(samples, **about)
        self.source.queue("hall", work)
        return work

    def asked(self) -> dict[str, Array]:
        """Return the inputs of the oldest window."""
        job, _ = self.link.jobs[min(self.link.jobs)]
        assert isinstance(job, m.Infer)
        kinds = {"FP32": "<f4", "INT64": "<i8"}
        return {
            ref.name: np.frombuffer(bytes(self.link.arena.read(ref.span)), kinds[ref.datatype]).reshape(ref.shape)
            for ref in job.inputs
            if ref.span is not None
        }

    async def hear(self, score: float = 0.9, **wrong: Array) -> None:
        said = {"output": np.array([[score]], "<f4"), "stateN": self.asked()["state"] + np.float32(1), **wrong}
        refs = (m.TensorRef(name, "FP32", each.shape, None, each.tobytes()) for name, each in said.items())
        self.link.reply(*refs)
        await turn()


def scores(work: SoundWork) -> list[float]:
    content = work.future.result().content
    assert isinstance(content, Classes)
    return [round(score, 3) for score in content.scores]


async def test_window_gets_the_state_and_context_of_the_one_before() -> None:
    world = World()
    loud = np.full(WINDOW, 16384, "<i2").tobytes()
    first = SoundWork(loud, "s16", world.source.take_place())
    world.source.queue("hall", first)
    second = world.queue(WINDOW)
    asked = world.asked()
    assert asked["input"].shape == (1, 64 + WINDOW)
    assert (asked["sr"].shape, int(asked["sr"])) == ((), 16000)
    assert not asked["input"][0, :64].any()
    assert not asked["state"].any()
    await world.hear(0.7)
    asked = world.asked()
    assert (asked["input"][0, :64] == 0.5).all()
    assert not asked["input"][0, 64:].any()
    assert (asked["state"] == 1).all()
    await world.hear(0.8)
    assert (scores(first), scores(second)) == ([0.7], [0.8])


async def test_windows_of_a_source_run_one_at_a_time() -> None:
    world = World()
    works = [world.queue(WINDOW) for _ in range(3)]
    for number, work in enumerate(works):
        assert len(world.link.jobs) == 1
        assert not any(each.future.done() for each in works[number:])
        await world.hear()
        assert work.future.done()


async def test_frame_that_completes_no_window_has_no_content() -> None:
    world = World()
    work = world.queue(WINDOW - 1)
    assert work.future.result().content is None
    assert not world.link.jobs
    rest = world.queue(1)
    await world.hear()
    assert scores(rest) == [0.9]


async def test_frame_of_several_windows_has_the_highest_score() -> None:
    world = World()
    work = world.queue(3 * WINDOW)
    for score in (0.2, 0.8, 0.6):
        await world.hear(score)
    assert scores(work) == [0.8]
    assert work.future.result().times.infer_ms >= 0


async def test_thresholds_of_a_frame_apply() -> None:
    world = World()
    work = world.queue(WINDOW, thresholds=Thresholds(score=0.95))
    await world.hear(0.9)
    assert scores(work) == []


async def test_whole_recording_is_filled_up_with_zeros() -> None:
    world = World()
    work = world.work(WINDOW + 1, is_whole=True)
    world.source.push(work)
    await world.hear(0.1)
    await world.hear(0.6)
    assert scores(work) == [0.6]


async def test_missing_frame_starts_the_source_again() -> None:
    world = World()
    world.queue(WINDOW + 100)
    await world.hear()
    world.source.take_place()  # a frame that the stream skipped
    world.queue(WINDOW)
    assert not world.asked()["state"].any()


async def test_failed_window_fails_its_frame_and_starts_the_source_again() -> None:
    world = World()
    first, second, third = (world.queue(WINDOW) for _ in range(3))
    await world.hear()
    await world.hear(0.9, stateN=np.zeros((2, 1, 64), "<f4"))
    assert isinstance(second.future.exception(), EngineUnusable)
    assert first.future.exception() is None
    assert not world.asked()["state"].any()
    await world.hear()
    assert scores(third) == [0.9]


async def test_samples_that_are_cut_fail_their_frame_only() -> None:
    world = World()
    bad = SoundWork(b"\0", "s16", world.source.take_place())
    world.source.queue("hall", bad)
    assert isinstance(bad.future.exception(), InvalidInput)
    good = world.queue(WINDOW)
    await turn()
    await world.hear()
    assert scores(good) == [0.9]


async def test_answer_of_another_version_of_the_model_is_refused() -> None:
    world = World()
    world.source.digest = "another"
    work = world.queue(WINDOW)
    await world.hear()
    assert isinstance(work.future.exception(), NotReady)


async def test_refusal_of_the_slot_is_the_answer() -> None:
    world = World()
    world.slot.refuse(NotReady("gone"))
    work = world.queue(WINDOW)
    await turn()
    assert isinstance(work.future.exception(), NotReady)


async def test_state_survives_a_change_of_the_engine() -> None:
    world = World()
    world.queue(WINDOW)
    await world.hear()
    later = FakeLink()
    world.slot.install(later.session())
    world.link = later
    world.queue(WINDOW)
    assert (world.asked()["state"] == 1).all()


async def test_frame_that_expires_is_stale() -> None:
    world = World()
    blocker = world.queue(WINDOW)
    old = world.queue(WINDOW, expires=-math.inf)
    await world.hear()
    await turn()
    assert blocker.future.done()
    assert isinstance(old.future.exception(), Stale)


async def test_cancelled_frame_drops_its_window_and_the_next_one_goes_on() -> None:
    world = World()
    left, next_one = world.queue(WINDOW), world.queue(WINDOW)
    left.future.cancel()
    await turn()
    assert world.link.abandoned
    world.link.jobs.pop(min(world.link.jobs))[1].set_exception(EngineUnusable("stopped"))
    await turn()
    assert not world.asked()["state"].any()
    await world.hear()
    assert scores(next_one) == [0.9]


async def test_withdraw_removes_a_waiting_frame() -> None:
    world = World()
    running, waiting = world.queue(WINDOW), world.queue(WINDOW)
    assert not world.source.withdraw("hall", running)
    assert world.source.withdraw("hall", waiting)
    assert not world.source.withdraw("hall", waiting)


async def test_sources_of_a_call_are_one_for_each_camera_and_version() -> None:
    world = World()
    sources = SoundSources()
    first = sources.of("hall", world.slot, VOICE, "model")
    assert sources.of("hall", world.slot, VOICE, "model") is first
    assert sources.of("door", world.slot, VOICE, "model") is not first
    assert sources.of("hall", world.slot, VOICE, "next") is not first


@pytest.mark.parametrize("options", [EVERY, StreamOptions()])
async def test_every_frame_of_a_stream_is_answered_or_skipped(options: StreamOptions) -> None:
    world = World()
    stream: Stream[int] = Stream()
    for number in range(12):
        stream.put("hall", number, world.work(WINDOW), world.source, sequence=number, options=options)
    stream.end()
    answered, skipped, resets = [], 0, 0

    async def read() -> None:
        nonlocal skipped
        async for each in stream.results():
            skipped += each.skipped
            if isinstance(each, Delivery):
                answered.append(each.tag)
            else:
                assert isinstance(each, SkipReport)

    reading = asyncio.create_task(read())
    await turn()
    while not reading.done():
        if world.link.jobs:
            resets += not world.asked()["state"].any()
            await world.hear()
        await turn()
    await reading
    assert len(answered) + skipped == 12
    assert answered == sorted(answered)
    assert resets == (1 if options is EVERY else 2)
