"""Frames of a call: each one is answered or counted as skipped, in its camera's order and by its own options."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections import Counter
from collections.abc import Hashable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.errors import EdgedError, InvalidInput, NotReady, Overloaded, Overwritten
from edged.serving.camera import Cameras, StreamOptions
from edged.serving.schedule import Share
from edged.serving.slot import Slot
from edged.serving.stream import Delivery, SkipReport, Stream
from edged.serving.work import FrameWork
from tests.fake_link import FakeLink, turn
from tests.waiting import run

EVERY = StreamOptions(mode="every_frame")
SLOW = StreamOptions(max_fps=1e-3)


def frame(number: int) -> FrameWork:
    return FrameWork(number.to_bytes(4, "big"))


class World:
    """A stream, an engine and a client. The test decides when the engine answers and when the client reads."""

    def __init__(self, cameras: Cameras | None = None, tracking: Any = None, **options: Any) -> None:
        self.cameras = cameras or Cameras()
        self.stream = Stream[int](self.cameras, tracking, **options)
        self.slot, self.links = Slot("model"), list[FakeLink]()
        self.install()
        self.sent = 0
        self.got: list[Delivery[int] | SkipReport] = []
        self.ended = False
        self._results = self.stream.results()
        self._next: asyncio.Task[Delivery[int] | SkipReport] | None = None

    @property
    def link(self) -> FakeLink:
        return self.links[-1]

    def install(self) -> None:
        """Install a new engine."""
        self.links.append(FakeLink(1 << 14))
        self.slot.install(self.link.session())

    def put(
        self,
        options: StreamOptions | None = None,
        captured_ns: int = 0,
        camera: str = "c",
        work: FrameWork | None = None,
        error: EdgedError | None = None,
    ) -> None:
        """Put the next frame, tagged with its number."""
        number = self.sent
        self.stream.put(
            camera,
            number,
            frame(number) if work is None else work,
            error or self.slot,
            sequence=number,
            captured_ns=captured_ns,
            options=options,
        )
        self.sent += 1

    async def answer_all(self) -> None:
        """Answer all work that the engine gets."""
        await turn()
        while self.link.jobs:
            self.link.answer()
            await turn()

    async def read(self) -> None:
        """Read one result, if there is one."""
        if self.ended:
            return
        self._next = self._next or asyncio.ensure_future(anext(self._results))
        await turn()
        if self._next.done():
            reading, self._next = self._next, None
            try:
                self.got.append(reading.result())
            except StopAsyncIteration:
                self.ended = True

    async def finish(self) -> list[Delivery[int] | SkipReport]:
        """End the call, and return all its results."""
        self.stream.end()
        while not self.ended:
            await self.answer_all()
            await self.read()
        return self.got

    async def answered(self) -> list[int]:
        """End the call, and return the numbers of the answered frames."""
        return tags(await self.finish())

    def counts(self) -> dict[str, int]:
        (report,) = self.cameras.reports()
        return {"received": report.received, "answered": report.answered, "failed": report.failed, **report.skipped}


def tags(results: list[Delivery[int] | SkipReport]) -> list[int]:
    return [each.tag for each in results if isinstance(each, Delivery)]


def skips(results: list[Delivery[int] | SkipReport]) -> list[tuple[int, int, int, str]]:
    return [(run.first, run.last, run.count, run.reason) for each in results for run in each.skips]


ACTIONS = {
    "put": 3,
    "put b": 1,
    "put broken": 1,
    **dict.fromkeys(("answer", "answer last", "read", "lose", "install", "swap"), 1),
}
MODES = {
    "every": EVERY,
    "freshest": StreamOptions(),
    "rate": SLOW,
    "stale": StreamOptions(max_staleness=1e-6),
    "fresh": StreamOptions(mode="every_frame", max_staleness=1e-6),
}


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([*Counter(ACTIONS).elements(), *MODES]), max_size=60))
def test_stream_every_frame_is_answered_or_reported_as_skipped_exactly_once(actions: list[str]) -> None:
    async def act(world: World, action: str, options: StreamOptions) -> None:
        if action.startswith("put"):
            error = InvalidInput("no picture") if action.endswith("broken") else None
            world.put(options, camera="b" if action.endswith("b") else "c", error=error)
        elif action.startswith("answer") and world.link.jobs:
            world.link.answer(max(world.link.jobs) if action.endswith("last") else None)
        elif action == "read":
            await world.read()
        elif action == "lose" and not world.link.lost:
            await world.link.die(world.slot)
        elif (action == "install" and world.link.lost) or (action == "swap" and not world.link.jobs):
            world.install()
        await turn()

    async def work() -> None:
        world, options = World(), StreamOptions()
        for action in actions:
            options = MODES.get(action, options)
            await act(world, action, options)
        if world.link.lost:
            world.install()
        results = await world.finish()
        for camera in "bc":
            mine = tags([each for each in results if each.camera == camera])
            assert mine == sorted(mine)
        # A run names its first and last frame. A frame is in at most one run, and every other frame was answered.
        missing = sorted(set(range(world.sent)) - set(tags(results)))
        assert sum(count for *_, count, _ in skips(results)) == len(missing)
        inside = {n for first, last, *_ in skips(results) for n in range(first, last + 1) if n in missing}
        assert sorted(inside) == missing
        if options == StreamOptions() and not MODES.keys() & set(actions) and world.sent:
            assert world.sent - 1 in tags(results)  # the newest frame is always answered
        world.stream.close()
        reports = world.cameras.reports()
        for link in world.links:
            assert link.arena.taken == 0
            link.arena.close()
        if "put broken" not in actions:  # a camera with broken frames only is not recorded
            assert sum(report.received for report in reports) == world.sent
            assert sum(report.answered + report.failed for report in reports) == len(tags(results))
            assert sum(sum(report.skipped.values()) for report in reports) == len(missing)

    run(work())


async def test_stream_idle_engine_answers_all_frames_in_order() -> None:
    world = World()
    for _ in range(6):
        world.put()
        await world.answer_all()
        await world.read()
    assert [each.answer.detections for each in await world.finish()] == [frame(n).data for n in range(6)]  # type: ignore[union-attr]
    assert tags(world.got) == list(range(6))


@pytest.mark.parametrize(
    ("options", "count", "answered", "skipped"),
    [
        (StreamOptions(), 10, [0, 1, 9], [(2, 8, 7, "overtaken")]),
        (EVERY, 12, list(range(12)), []),
        (EVERY, 100, list(range(32)), [(32, 99, 68, "full")]),
        (SLOW, 10, [0], [(1, 9, 9, "rate")]),
    ],
    ids=["freshest", "every frame", "every frame beyond the room", "rate"],
)
async def test_stream_busy_engine_answers_by_mode(
    options: StreamOptions, count: int, answered: list[int], skipped: list[tuple[int, int, int, str]]
) -> None:
    world = World()
    for _ in range(count):
        world.put(options)
    assert await world.answered() == answered
    assert skips(world.got) == skipped
    expected = {reason: number for _, _, number, reason in skipped}
    assert world.counts() == {"received": count, "answered": len(answered), "failed": 0, **expected}


async def test_stream_client_that_does_not_read_gets_the_newest_frame_and_delays_no_other_camera() -> None:
    world = World()
    for _ in range(50):
        world.put()
        await world.answer_all()
    assert world.slot.statistics.success.count == 4
    world.put(camera="other")
    await world.answer_all()
    assert world.slot.statistics.success.count == 5
    mine = [each for each in await world.finish() if each.camera == "c"]
    assert (tags(mine), sum(each.skipped for each in mine)) == ([0, 1, 2, 3, 49], 45)


async def test_stream_mode_that_changes_keeps_the_order() -> None:
    world = World()
    for _ in range(4):
        world.put()
        await world.answer_all()
    for options in (None, None, EVERY, None):  # the second is held, because the client does not read
        world.put(options)
    assert await world.answered() == [0, 1, 2, 3, 5, 6, 7]
    assert skips(world.got) == [(4, 4, 1, "overtaken")]


async def test_stream_frames_without_a_slot_are_answered_in_order_and_bounded() -> None:
    world = World()
    world.put()
    for _ in range(1000):
        world.put(error=InvalidInput("no picture"))
    results = await world.finish()
    assert tags(results)[:2] == [0, 1]
    assert isinstance(results[1], Delivery)
    assert isinstance(results[1].answer, InvalidInput)
    assert len(tags(results)) <= 10
    assert len(tags(results)) + sum(each.skipped for each in results) == 1001


async def test_stream_error_of_the_slot_is_the_answer() -> None:
    world = World()
    world.slot.refuse(NotReady("no engine"))
    world.put()
    (result,) = await world.finish()
    assert isinstance(result, Delivery)
    assert isinstance(result.answer, NotReady)


async def test_stream_failure_of_the_call_follows_all_results() -> None:
    world = World()
    world.put()
    world.stream.end(InvalidInput("the call is broken"))
    await world.answer_all()
    await world.read()
    assert tags(world.got) == [0]
    with pytest.raises(InvalidInput):
        await world.read()


async def test_stream_close_withdraws_waiting_frames_and_cancels_the_others() -> None:
    world = World()
    for _ in range(8):
        world.put()
        world.put(camera="d")
    assert world.slot.waiting == 2
    world.stream.close()
    assert world.slot.waiting == 0
    await world.answer_all()
    assert (world.link.arena.taken, world.slot.statistics.success.count) == (0, 0)
    for report in world.cameras.reports():
        assert (report.received, report.skipped, report.dropped, report.connections) == (8, {"overtaken": 6}, 2, 0)


async def test_stream_cameras_of_one_id_in_two_calls_do_not_replace_each_others_frames() -> None:
    one, other, slot = Stream[int](), Stream[int](), Slot("m")
    one.put("c", 0, frame(0), slot)
    other.put("c", 0, frame(1), slot)
    assert slot.waiting == 2
    one.close()
    assert slot.waiting == 1
    other.close()


async def test_stream_camera_that_reconnects_keeps_its_counts() -> None:
    cameras = Cameras()
    for _ in range(3):
        world = World(cameras)
        world.put()
        world.put()
        await world.finish()
        world.stream.close()
    (report,) = cameras.reports()
    assert (report.camera, report.model, report.connections) == ("c", "model", 0)
    assert (report.received, report.answered, report.dropped) == (6, 6, 0)


async def test_stream_every_frame_holds_back_the_sender_of_that_camera() -> None:
    world = World()
    for _ in range(16):
        await asyncio.wait_for(world.stream.room("c"), 1)
        world.put(EVERY)
    waiting = asyncio.ensure_future(world.stream.room("c"))
    await turn()
    assert not waiting.done()
    await asyncio.wait_for(world.stream.room("other"), 1)
    world.link.answer()
    await world.read()
    await world.read()  # a result counts as read when the next one is requested
    await asyncio.wait_for(waiting, 5)
    world.stream.close()


async def test_stream_stale_frames_are_skipped_when_their_turn_comes() -> None:
    world, patient, now = World(), StreamOptions("every_frame", max_staleness=5.0), time.time_ns()
    for captured_ns in (now - 10_000_000_000, now, 0):
        world.put(patient, captured_ns)
    assert await world.answered() == [1, 2]
    assert skips(world.got) == [(0, 0, 1, "stale")]


async def test_stream_frames_that_waited_too_long_for_an_engine_are_stale() -> None:
    world = World()
    await world.link.die(world.slot)
    for _ in range(6):
        world.put(StreamOptions("every_frame", max_staleness=0.02))
    world.put(StreamOptions())  # held while the others wait
    await asyncio.sleep(0.05)
    world.install()
    assert await world.answered() == [6]
    assert skips(world.got) == [(0, 5, 6, "stale")]


async def test_stream_wrong_clock_of_a_camera_is_reported() -> None:
    world, hour = World(), 3_600_000_000_000
    world.put(StreamOptions(max_staleness=5.0), captured_ns=time.time_ns() - hour)
    world.put(captured_ns=time.time_ns() + hour)
    results = await world.finish()
    assert tags(results) == [1]
    assert all(each.age_ms >= 0 for each in results if isinstance(each, Delivery))
    (report,) = world.cameras.reports()
    assert "3600 s" in report.last_error
    assert report.failed == 0


@pytest.mark.parametrize("is_read", [True, False])
async def test_stream_skips_are_reported_while_no_answer_comes(is_read: bool) -> None:
    world = World(report_seconds=0.05)
    world.put(SLOW)
    await world.answer_all()
    await world.read()
    if not is_read:  # an answer is on its way to a slow client
        world.put(SLOW)
        await asyncio.sleep(0.15)
    for _ in range(2):
        world.put(SLOW)
    while len(world.got) < 2:
        await world.read()
    assert isinstance(world.got[1], SkipReport)
    assert world.got[1].camera == "c"
    await world.finish()
    assert skips(world.got)[0][0] == 1
    assert sum(each.skipped for each in world.got) == world.sent - 1


async def test_stream_skips_are_reported_as_runs_with_numbers_and_reasons() -> None:
    world = World()
    for options in (*[None] * 6, StreamOptions(max_fps=1e-6), None, StreamOptions(), None):
        world.put(options)
    await world.finish()
    assert skips(world.got) == [
        (2, 5, 4, "overtaken"),
        (7, 7, 1, "rate"),
        (6, 6, 1, "overtaken"),
        (8, 8, 1, "overtaken"),
    ]


class Torn:
    """A picture in shared memory that its client has overwritten."""

    size = 16

    def read_into(self, place: memoryview) -> None:
        raise Overwritten("the client used its place again")


async def test_stream_frame_that_was_overwritten_is_skipped() -> None:
    world = World()
    for work in (None, FrameWork(Torn()), None):
        world.put(work=work)
    await world.finish()
    assert skips(world.got) == [(1, 1, 1, "overwritten")]
    assert (world.link.arena.taken, world.slot.statistics.fail.count) == (0, 0)


async def test_stream_cameras_are_answered_by_weight() -> None:
    world = World()
    shares = {"door": StreamOptions(share=Share(3.0)), "yard": StreamOptions(), "gate": StreamOptions()}
    for _ in range(500):
        for camera, options in shares.items():
            world.put(options, camera=camera)
        world.link.answer()
        for _ in range(2):
            await world.read()
    counts = Counter(each.camera for each in world.got)
    assert abs(counts["door"] / counts.total() - 0.6) < 0.03
    assert abs(counts["yard"] - counts["gate"]) <= 10
    world.stream.close()


async def test_stream_weight_that_changes_does_not_reset_the_rate() -> None:
    world = World()
    for number in range(4):
        world.put(StreamOptions(max_fps=0.001, share=Share(1.0 + number)))
    assert await world.answered() == [0]


async def test_stream_refuses_more_than_256_cameras() -> None:
    world = World()
    for number in range(256):
        world.put(camera=str(number))
    world.put(camera="0")
    with pytest.raises(Overloaded):
        world.put(camera="one more")
    assert {each.camera for each in await world.finish()} == {str(number) for number in range(256)}


@pytest.mark.parametrize("camera", ["x" * 201, "two\nlines", "\x1b[31mred"])
async def test_stream_invalid_camera_id_is_refused(camera: str) -> None:
    with pytest.raises(InvalidInput):
        World().put(camera=camera)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"max_fps": -1.0}, {"max_fps": float("nan")}, {"max_staleness": -0.1}, {"weight": -1.0}, {"weight": 1e-3}),
        *({"weight": 1e3}, {"weight": float("nan")}, {"priority": 101}, {"priority": -101}),
    ],
    ids=str,
)
def test_stream_options_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as raised:
        StreamOptions.checked(**wrong)
    (name,) = wrong
    sent = {"max_staleness": "max_staleness_ms"}.get(name, name)  # the name of the field in a client's message
    assert str(raised.value).startswith(f"{sent}=")
    assert StreamOptions.checked().share == Share()


class Label:
    """A tag that supports weak references."""


def test_stream_delivered_frames_leave_nothing_for_the_garbage_collector() -> None:
    async def work() -> None:
        stream, slot = Stream[Label](), Slot("m")
        slot.refuse(NotReady("no engine"))
        labels = []
        for place in (slot, InvalidInput("no picture")):
            label = Label()
            labels.append(weakref.ref(label))
            stream.put("c", label, frame(0), place)
            del label
        stream.end()
        assert len([each async for each in stream.results()]) == 2
        stream.close()
        del stream, place
        await turn()
        assert [label() for label in labels] == [None, None]

    gc.collect()
    gc.disable()
    try:
        run(work())
    finally:
        gc.enable()


async def test_stream_answered_frames_release_their_pictures_before_they_are_read() -> None:
    world, works = World(), [frame(number) for number in range(3)]
    for work in works:
        world.put(work=work)
        await world.answer_all()
    assert [work.data for work in works] == [b""] * 3
    world.stream.close()


class Followed:
    """A tracker whose answers the test gives."""

    missing = ""

    def __init__(self) -> None:
        self.asked: list[tuple[Hashable, asyncio.Future[tuple[int, ...]]]] = []
        self.forgotten: list[Hashable] = []

    def follow(self, camera: Hashable, captured: float, found: bytes) -> asyncio.Future[tuple[int, ...]]:
        future: asyncio.Future[tuple[int, ...]] = asyncio.get_running_loop().create_future()
        self.asked.append((camera, future))
        return future

    def forget(self, camera: Hashable) -> None:
        self.forgotten.append(camera)


async def test_stream_tracker_ids_come_with_their_frames_in_order() -> None:
    tracker = Followed()
    world = World(tracking=tracker)
    world.put(StreamOptions(track=True))
    world.put()
    world.link.answer(2)
    world.link.answer(1)
    await turn()
    assert len(tracker.asked) == 1  # the tracker gets frames in their order
    tracker.asked[0][1].set_result((7, -1))
    await turn()
    tracker.asked[1][1].set_result(())
    assert [each.tracker_ids for each in await world.finish() if isinstance(each, Delivery)] == [(7, -1), ()]


async def test_stream_connections_of_one_camera_do_not_share_tracks() -> None:
    tracker, cameras = Followed(), Cameras()
    worlds = [World(cameras, tracker), World(cameras, tracker)]
    for world in (*worlds, worlds[0]):
        world.put(StreamOptions(track=True))
        world.link.answer()
        await turn()
        tracker.asked[-1][1].set_result(())
        await turn()
    # The newest connection continues the camera's tracks, because the older one may be lost unnoticed.
    *shared, own = [key for key, _ in tracker.asked]
    assert shared == [("c", "model")] * 2
    assert own != ("c", "model")
    for world in reversed(worlds):
        await world.finish()
        world.stream.close()
    assert own in tracker.forgotten
    assert ("c", "model") not in tracker.forgotten
