"""Taps of streams: they get copies of the frames that they want, once these are answered, and of no others."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from edged.api.auth.identity import Identity
from edged.api.endpoints.shared_memory import Segments
from edged.client.shared import SharedRing
from edged.errors import Overwritten
from edged.serving.camera import Cameras, StreamOptions
from edged.serving.pipeline_slot import PipelineCounts, PipelineRule, PipelineSlot, Steps
from edged.serving.slot import Slot
from edged.serving.sound import AnySlot, SoundSource, SoundWork
from edged.serving.stream import Stream
from edged.serving.taps import MOST_BYTES, Tapped
from edged.serving.work import Blob, FrameWork
from edged.vision.crops import CropRule
from edged.vision.detections import Detections
from edged.vision.family import recognise
from tests.fake_link import FakeLink, turn
from tests.vision_signatures import tensors

EVERY = StreamOptions(mode="every_frame")


class Recorder:
    """A tap that wants the frames of one camera."""

    def __init__(self, camera: str = "door") -> None:
        self.camera, self.asked, self.taken = camera, list[tuple[str, str]](), list[Tapped]()

    def wants(self, model: str, camera: str, now: float) -> bool:
        self.asked.append((model, camera))
        return camera == self.camera

    def take(self, frame: Tapped) -> None:
        self.taken.append(frame)


class Shared:
    """A frame in shared memory, which its client overwrites after the first reading."""

    def __init__(self, size: int = 4) -> None:
        self.size, self.reads = size, 0

    def read_into(self, place: memoryview) -> None:
        self.reads += 1
        place[:] = bytes([self.reads]) * self.size


class Torn:
    size = 4

    def read_into(self, place: memoryview) -> None:
        raise Overwritten("the client used its place again")


class World:
    """A stream with one tap, and an engine that the test plays."""

    def __init__(self) -> None:
        self.tap, cameras = Recorder(), Cameras()
        cameras.taps = (self.tap,)
        self.stream = Stream[int](cameras)
        self.slot, self.link = Slot("model"), FakeLink(1 << 16)
        self.slot.install(self.link.session())

    def put(
        self,
        data: Blob,
        camera: str = "door",
        slot: AnySlot | None = None,
        size: tuple[int, int, int] | None = None,
    ) -> FrameWork:
        work = FrameWork(data, "bgr", *size) if size else FrameWork(data)
        self.stream.put(camera, 0, work, slot or self.slot, options=EVERY)
        return work

    async def answer(self) -> None:
        await turn()
        while self.link.jobs:
            self.link.answer()
            await turn()


async def test_tap_gets_copy_of_an_answered_frame_that_it_wants() -> None:
    world = World()
    client = bytearray(b"frame")
    world.put(memoryview(client), size=(1, 1, 5))
    client[:] = b"other"
    assert not world.tap.taken
    await world.answer()
    (got,) = world.tap.taken
    assert (got.model, got.camera, got.data, got.pixel_format) == ("model", "door", b"frame", "bgr")
    assert (got.width, got.height, got.stride) == (1, 1, 5)
    assert got.work.data == b""
    assert got.answer.engine.backend


async def test_tap_that_raises_harms_no_result() -> None:
    world, problems = World(), list[dict[str, object]]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))

    def fail(frame: Tapped) -> None:
        raise OSError("no file descriptors are left")

    world.tap.take = fail  # type: ignore[method-assign]
    world.put(b"frame")
    await world.answer()
    world.stream.end()
    assert [each.camera async for each in world.stream.results()] == ["door"]
    assert len(problems) == 1


async def test_tap_is_not_given_frames_that_it_does_not_want() -> None:
    world = World()
    world.put(b"frame", "yard")
    await world.answer()
    assert world.tap.asked == [("model", "yard")]
    assert not world.tap.taken


async def test_tap_is_not_given_frames_that_fail_or_are_dropped() -> None:
    world = World()
    work = world.put(b"failing")
    work.future.set_exception(Overwritten("gone"))
    dropped = world.put(b"dropped")
    await turn()
    world.stream.close()
    await turn()
    assert dropped.future.cancelled()
    assert not world.tap.taken


async def test_tap_gets_copy_from_shared_memory() -> None:
    world = World()
    world.put(Shared())
    await world.answer()
    (got,) = world.tap.taken
    assert got.data == b"\1\1\1\1"


async def test_tap_is_not_given_frames_that_cannot_be_read_or_are_too_large() -> None:
    world = World()
    large = Shared(MOST_BYTES + 1)
    for source in (Torn(), large):
        world.put(source)
    await world.answer()
    assert not world.tap.taken


async def test_tap_that_reads_an_overwritten_picture_first_leaves_it_skipped(tmp_path: Path) -> None:
    world, segments = World(), Segments(tmp_path, lambda: Identity("own", os.geteuid()))
    with SharedRing(2, 100, folder=tmp_path) as ring:
        place, *_ = [ring.put(bytes(100)) for _ in range(3)]
        work = world.put(segments.picture(place.segment, place.offset, place.stamp, place.size))
        await world.answer()
    assert world.tap.asked
    assert not world.tap.taken
    assert isinstance(work.future.exception(), Overwritten)
    segments.close()


async def test_tap_sees_a_frame_of_a_pipeline_as_one_of_its_first_model() -> None:
    world = World()
    rule = PipelineRule("model", "reader", CropRule(classes=frozenset({"nothing"})))
    steps = Steps(world.slot, Slot("reader"))
    pipeline = PipelineSlot("p", rule, lambda: steps, PipelineCounts())
    world.put(Detections.of([(0, 0, 2, 2)], [0.9], [0]).pack(), slot=pipeline)
    await world.answer()
    assert [each.model for each in world.tap.taken] == ["model"]


async def test_tap_is_not_asked_for_sound() -> None:
    world = World()
    voice = recognise(
        tensors("input [n,s], state [2,n,128], sr:INT64 []"), tensors("output [n,1], stateN [2,n,128]"), {}, {}
    )
    source = SoundSource(world.slot, voice, "model")
    world.stream.put("door", 0, SoundWork(bytes(64), "s16", source.take_place()), source, options=EVERY)
    await asyncio.sleep(0)
    assert not world.tap.asked
    world.stream.close()
