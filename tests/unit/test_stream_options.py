"""What a camera may ask for: every frame, a rate, a limit of age, a share; and that whatever is skipped is told."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections import Counter
from collections.abc import Hashable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.errors import InvalidInput, NotReady, Overloaded, Overwritten
from edged.serving import stream as streams
from edged.serving.camera import Cameras, StreamOptions
from edged.serving.schedule import Share
from edged.serving.slot import Slot
from edged.serving.stream import Delivery, SkipReport, Stream
from edged.serving.work import FrameWork
from tests.fake_link import FakeLink
from tests.waiting import run, until

EVERY = StreamOptions(mode="every_frame")


def frame(number: int = 0) -> FrameWork:
    return FrameWork(number.to_bytes(4, "big"))


async def turn(times: int = 5) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def collect(stream: Stream[int]) -> list[Delivery[int] | SkipReport]:
    return [each async for each in stream.results()]


class Line:
    """A stream of one camera in front of an engine that answers when told."""

    def __init__(self, cameras: Cameras | None = None, tracking: streams.Follows | None = None) -> None:
        self.cameras = cameras or Cameras()
        self.stream = Stream[int](self.cameras, tracking)
        self.slot, self.link = Slot("model"), FakeLink()
        self.slot.install(self.link.session())
        self.sent = 0

    def put(self, options: StreamOptions | None = None, captured_ns: int = 0, camera: str = "c") -> None:
        self.stream.put(
            camera, self.sent, frame(self.sent), self.slot, sequence=self.sent, captured_ns=captured_ns, options=options
        )
        self.sent += 1

    def come_back(self) -> None:
        """An engine serves."""
        if self.slot.current is None:
            self.slot.install(self.link.session())

    async def answer_all(self) -> None:
        await turn()
        while self.link.jobs:
            self.link.answer()
            await turn()

    async def finish(self) -> list[Delivery[int] | SkipReport]:
        self.stream.end()
        reading = asyncio.create_task(collect(self.stream))
        while not reading.done():
            await self.answer_all()
        return reading.result()

    def reports(self) -> dict[str, int]:
        (report,) = self.cameras.reports()
        return {"received": report.received, "answered": report.answered, "failed": report.failed, **report.skipped}


def skips(results: list[Delivery[int] | SkipReport]) -> list[tuple[int, int, int, str]]:
    return [(run.first, run.last, run.count, run.reason) for each in results for run in each.skips]


def test_every_frame_is_answered_in_its_order_where_that_was_asked_for() -> None:
    async def work() -> None:
        line = Line()
        for _ in range(12):
            line.put(EVERY)
        results = await line.finish()
        assert [each.tag for each in results if isinstance(each, Delivery)] == list(range(12))
        assert skips(results) == []

    run(work())


def test_a_stream_of_every_frame_holds_its_sender_back_and_only_that_camera() -> None:
    async def work() -> None:
        line = Line()
        held = 0
        while held == 0:
            line.put(EVERY)
            try:
                await asyncio.wait_for(line.stream.room("c"), 0.05)
            except asyncio.TimeoutError:
                held = line.sent
        assert 4 < held <= 32
        await asyncio.wait_for(line.stream.room("other"), 1)
        waiting = asyncio.create_task(line.stream.room("c"))
        await turn()
        assert not waiting.done()
        line.link.answer()
        await turn()
        results = line.stream.results()
        assert isinstance(await anext(results), Delivery)
        reading = asyncio.create_task(anext(results))  # what was handed over is read once more is asked for
        await asyncio.wait_for(waiting, 5)
        reading.cancel()
        line.stream.close()

    run(work())


def test_frames_far_beyond_the_room_are_skipped_and_told() -> None:
    async def work() -> None:
        line = Line()
        for _ in range(100):
            line.put(EVERY)
        results = await line.finish()
        answered = [each for each in results if isinstance(each, Delivery)]
        assert len(answered) + sum(each.skipped for each in results) == 100
        assert skips(results) == [(len(answered), 99, 100 - len(answered), "full")]

    run(work())


def test_a_camera_that_changes_its_mode_keeps_its_order() -> None:
    async def work() -> None:
        line = Line()
        for _ in range(4):
            line.put()
            await line.answer_all()
        line.put()
        line.put()  # nobody reads, so the newest is held
        line.put(EVERY)
        line.put()
        results = await line.finish()
        assert [each.tag for each in results if isinstance(each, Delivery)] == [0, 1, 2, 3, 5, 6, 7]
        assert skips(results) == [(4, 4, 1, "overtaken")]

    run(work())


def test_frames_that_come_too_fast_are_skipped_and_told() -> None:
    async def work() -> None:
        line = Line()
        for _ in range(10):
            line.put(StreamOptions(max_fps=0.001))
        results = await line.finish()
        assert [each.tag for each in results if isinstance(each, Delivery)] == [0]
        assert skips(results) == [(1, 9, 9, "rate")]
        assert line.reports() == {"received": 10, "answered": 1, "failed": 0, "rate": 9}

    run(work())


def test_a_frame_that_was_old_when_it_came_is_skipped_when_its_turn_comes() -> None:
    async def work() -> None:
        line, patient = Line(), StreamOptions(max_staleness=5.0)
        now = time.time_ns()
        line.put(patient, captured_ns=now - 10_000_000_000)
        line.put(patient, captured_ns=now)
        line.put(patient)
        results = await line.finish()
        assert [each.tag for each in results if isinstance(each, Delivery)] == [1, 2]
        assert skips(results) == [(0, 0, 1, "stale")]

    run(work())


def test_a_camera_whose_clock_is_slow_is_told_of_where_that_costs_its_frames() -> None:
    async def work() -> None:
        line = Line()
        line.put(StreamOptions(max_staleness=5.0), captured_ns=time.time_ns() - 3_600_000_000_000)
        line.put(captured_ns=time.time_ns() + 3_600_000_000_000)
        results = await line.finish()
        assert [each.tag for each in results if isinstance(each, Delivery)] == [1]
        assert all(each.age_ms >= 0 for each in results if isinstance(each, Delivery))
        (report,) = line.cameras.reports()
        assert "3600 s after its capture; is the camera's clock right?" in report.last_error
        assert report.failed == 0

    run(work())


def test_a_frame_that_was_held_back_goes_when_all_before_it_were_skipped() -> None:
    async def work() -> None:
        line = Line()
        line.slot.vacate(line.link)  # type: ignore[arg-type]
        for _ in range(6):
            line.put(StreamOptions("every_frame", max_staleness=0.02))
        line.put(StreamOptions())
        await asyncio.sleep(0.05)
        line.slot.install(line.link.session())
        results = await line.finish()
        assert [each.tag for each in results if isinstance(each, Delivery)] == [6]
        assert skips(results) == [(0, 5, 6, "stale")]

    run(work(), 10)


def test_a_frame_that_waited_too_long_for_its_engine_is_skipped() -> None:
    async def work() -> None:
        line = Line()
        line.put()
        line.put()  # both in flight
        line.put(StreamOptions(max_staleness=0.05))
        await asyncio.sleep(0.1)
        results = await line.finish()
        assert [each.tag for each in results if isinstance(each, Delivery)] == [0, 1]
        assert skips(results) == [(2, 2, 1, "stale")]

    run(work())


def test_skipped_frames_are_told_of_while_no_answer_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_TELL_SECONDS", 0.05)

    async def work() -> None:
        line, slow = Line(), StreamOptions(max_fps=0.001)
        line.put(slow)
        await line.answer_all()
        results = line.stream.results()
        assert isinstance(await anext(results), Delivery)
        for _ in range(5):
            line.put(slow)
        report = await asyncio.wait_for(anext(results), 10)
        assert isinstance(report, SkipReport)
        assert (report.camera, skips([report])) == ("c", [(1, 5, 5, "rate")])
        line.stream.end()
        assert [each async for each in results] == []

    run(work())


def test_frames_skipped_while_an_answer_was_being_read_are_told_of_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_TELL_SECONDS", 0.05)

    async def work() -> None:
        line, slow = Line(), StreamOptions(max_fps=0.001)
        line.put(slow)
        await line.answer_all()
        results = line.stream.results()
        assert isinstance(await anext(results), Delivery)
        line.put(slow)
        await asyncio.sleep(0.15)  # the answer is on its way to a slow client
        report = await asyncio.wait_for(anext(results), 10)
        assert isinstance(report, SkipReport)
        assert skips([report]) == [(1, 1, 1, "rate")]
        line.stream.close()

    run(work())


def test_runs_of_skipped_frames_are_told_by_their_numbers_and_reasons() -> None:
    async def work() -> None:
        line = Line()
        for _ in range(6):
            line.put()
        line.put(StreamOptions(max_fps=1e-6))
        line.put()
        line.put(StreamOptions())
        line.put()
        results = await line.finish()
        # Which of them are overtaken: all that waited when another came. One was too soon after the other.
        assert skips(results) == [
            (2, 5, 4, "overtaken"),
            (7, 7, 1, "rate"),
            (6, 6, 1, "overtaken"),
            (8, 8, 1, "overtaken"),
        ]

    run(work())


class Torn:
    """A picture in shared memory that is not there any more when its turn comes."""

    size = 16

    def read_into(self, place: memoryview) -> None:
        raise Overwritten("the client used its place again")


def test_a_frame_whose_bytes_are_gone_is_skipped_and_its_memory_given_back() -> None:
    async def work() -> None:
        line = Line()
        line.put()
        line.stream.put("c", 1, FrameWork(Torn()), line.slot, sequence=1)
        line.put()
        results = await line.finish()
        assert skips(results) == [(1, 1, 1, "overwritten")]
        assert line.link.arena.taken == 0
        assert line.slot.failed == 0

    run(work())


def test_weights_decide_how_often_a_camera_is_answered() -> None:
    async def work() -> None:
        line, counts = Line(), Counter[str]()
        shares = {"door": StreamOptions(share=Share(3.0)), "yard": StreamOptions(), "gate": StreamOptions()}
        results = line.stream.results()
        reading: asyncio.Task[Delivery[int] | SkipReport] | None = None
        for _ in range(1000):
            for camera, options in shares.items():
                line.put(options, camera=camera)
            line.link.answer()
            await turn(3)
            reading = reading or asyncio.ensure_future(anext(results))
            await turn(3)
            while reading is not None and reading.done():
                each = reading.result()
                assert isinstance(each, Delivery)
                counts[next(c for c in shares if c == each.camera)] += 1
                reading = asyncio.ensure_future(anext(results))
                await turn(2)
        assert abs(counts["door"] / counts.total() - 0.6) < 0.03
        assert abs(counts["yard"] - counts["gate"]) <= 10
        if reading is not None:
            reading.cancel()
        line.stream.close()

    run(work())


def test_a_change_of_its_weight_does_not_give_a_camera_more_frames() -> None:
    async def work() -> None:
        line = Line()
        for number in range(4):
            line.put(StreamOptions(max_fps=0.001, share=Share(1.0 + number)))
        results = await line.finish()
        assert [each.tag for each in results if isinstance(each, Delivery)] == [0]

    run(work())


def test_a_stream_has_so_many_cameras_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_MOST_CAMERAS", 3)

    async def work() -> None:
        line = Line()
        for camera in "abcab":
            line.put(camera=camera)
        with pytest.raises(Overloaded, match="3 cameras"):
            line.put(camera="d")
        for wrong in ("x" * 201, "two\nlines", "\x1b[31mred"):
            with pytest.raises(InvalidInput, match="printable"):
                Line().put(camera=wrong)
        assert {each.camera for each in await line.finish()} == set("abc")
        line.stream.close()
        assert [each.camera for each in line.cameras.reports()] == ["a", "b", "c"]

    run(work())


class Label:
    """A tag that can be asked whether it is still there."""


def test_nothing_of_a_frame_is_kept_for_the_garbage_collector() -> None:
    async def work() -> None:
        stream, slot = Stream[Label](), Slot("m")
        slot.refuse(NotReady("no engine"))
        labels = []
        for place in (slot, InvalidInput("no picture")):
            label = Label()
            labels.append(weakref.ref(label))
            stream.put("c", label, frame(), place)
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


def test_pictures_do_not_wait_with_their_answers_for_a_client_that_does_not_read() -> None:
    async def work() -> None:
        line = Line()
        works = [frame(number) for number in range(3)]
        for each in works:
            line.stream.put("c", 0, each, line.slot)
            await line.answer_all()
        assert [each.data for each in works] == [b""] * 3
        line.stream.close()

    run(work())


def test_a_camera_that_reconnects_keeps_its_counts() -> None:
    async def work() -> None:
        cameras = Cameras()
        for _ in range(3):
            line = Line(cameras)
            line.put()
            line.put()
            await line.finish()
            line.stream.close()
        (report,) = cameras.reports()
        assert (report.camera, report.model, report.connections) == ("c", "model", 0)
        assert (report.received, report.answered, report.dropped) == (6, 6, 0)

    run(work())


def test_frames_whose_connection_ended_are_accounted_for() -> None:
    async def work() -> None:
        line = Line()
        for _ in range(5):
            line.put()
        line.link.answer()
        await turn()
        line.stream.close()
        (report,) = line.cameras.reports()
        assert (report.received, report.skipped, report.dropped) == (5, {"overtaken": 2}, 3)
        assert report.connections == 0

    run(work())


def test_what_is_out_of_range_is_refused() -> None:
    for wrong in ({"max_fps": -1.0}, {"max_fps": float("nan")}, {"max_staleness": -0.1}, {"weight": -1.0}):
        with pytest.raises(InvalidInput):
            StreamOptions.checked(**wrong)  # type: ignore[arg-type]
    for weight, priority in ((1e-3, 0), (1e3, 0), (float("nan"), 0), (1.0, 101), (1.0, -101)):
        with pytest.raises(InvalidInput, match="must lie between"):
            StreamOptions.checked(weight=weight, priority=priority)
    assert StreamOptions.checked().share == Share()


class Followed:
    """A tracker that answers when told."""

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


def test_ids_of_tracked_cameras_come_with_their_results_and_in_their_order() -> None:
    async def work() -> None:
        tracker = Followed()
        line = Line(tracking=tracker)
        line.put(StreamOptions(track=True))
        line.put()
        line.link.answer(2)
        line.link.answer(1)
        await turn()
        assert len(tracker.asked) == 1  # a tracker sees frames in their order
        tracker.asked[0][1].set_result((7, -1))
        await turn()
        tracker.asked[1][1].set_result(())
        results = await line.finish()
        assert [each.tracker_ids for each in results if isinstance(each, Delivery)] == [(7, -1), ()]
        line.stream.close()

    run(work())


def test_two_connections_of_one_camera_do_not_share_their_tracks() -> None:
    async def work() -> None:
        tracker, cameras = Followed(), Cameras()
        lines = [Line(cameras, tracker), Line(cameras, tracker)]
        for line in lines:
            line.put(StreamOptions(track=True))
            line.link.answer()
            await until(lambda: bool(tracker.asked), "asking the tracker")
            await turn()
        lines[0].put()
        lines[0].link.answer()
        await turn()
        for _, future in tracker.asked:
            future.set_result(())
        await turn()
        keys = [key for key, _ in tracker.asked]
        # The one that began last goes on with the camera's tracks: the other may have been lost without a sign.
        assert keys[:2] == [("c", "model")] * 2
        own = tracker.asked[-1][0]
        tracker.asked[-1][1].set_result(())
        assert own != ("c", "model")
        for line in reversed(lines):
            await line.finish()
            line.stream.close()
        assert own in tracker.forgotten
        assert ("c", "model") not in tracker.forgotten

    run(work())


ACTIONS = st.lists(
    st.sampled_from(
        ["put", "put", "put", "answer", "read", "every", "freshest", "rate", "stale", "fresh", "away", "back"]
    ),
    max_size=60,
)
MODES = {
    "every": EVERY,
    "freshest": StreamOptions(),
    "rate": StreamOptions(max_fps=1e-3),
    "stale": StreamOptions(max_staleness=1e-6),
    "fresh": StreamOptions(mode="every_frame", max_staleness=1e-6),
}


@settings(max_examples=100, deadline=None)
@given(ACTIONS)
def test_whatever_is_asked_every_frame_is_answered_or_told_of_exactly_once(actions: list[str]) -> None:
    async def work() -> None:
        line, got, options = Line(), list[Delivery[int] | SkipReport](), StreamOptions()
        results = line.stream.results()
        reading: asyncio.Task[Delivery[int] | SkipReport] | None = None
        for action in actions:
            if action == "put":
                line.put(options)
            elif action == "answer" and line.link.jobs:
                line.link.answer()
            elif action == "away":
                line.slot.vacate(line.link)  # type: ignore[arg-type]
            elif action == "back":
                line.come_back()
            elif action == "read":
                reading = reading or asyncio.ensure_future(anext(results))
            options = MODES.get(action, options)
            await turn()
            if reading is not None and reading.done():
                got.append(reading.result())
                reading = None
        line.stream.end()
        line.come_back()

        async def rest() -> None:
            if reading is not None:
                try:
                    got.append(await reading)
                except StopAsyncIteration:
                    return
            got.extend([each async for each in results])

        ending = asyncio.create_task(rest())
        while not ending.done():
            await line.answer_all()
        ending.result()
        answered = [each.tag for each in got if isinstance(each, Delivery)]
        told = skips(got)
        assert answered == sorted(answered)
        # Runs name their frames by first and last; a frame is in one run at most, and every other one was answered.
        missing = sorted(set(range(line.sent)) - set(answered))
        assert sum(count for _, _, count, _ in told) == len(missing)
        inside = [n for first, last, _, _ in told for n in range(first, last + 1) if n in missing]
        assert sorted(inside) == missing
        assert line.link.arena.taken == 0
        line.stream.close()
        reports = line.cameras.reports()
        if reports:
            (report,) = reports
            assert (report.received, report.answered) == (line.sent, len(answered))
            assert sum(report.skipped.values()) == len(missing)

    run(work())
