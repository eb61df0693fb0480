"""A real tracker process: whom its ids follow, what it costs when it dies, hangs or cannot work, what stays of it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from edged import packages
from edged.confinement import rules
from edged.ipc import track_messages as m
from edged.serving import tracking
from edged.serving.tracking import _LARGEST, Tracking
from edged.vision.detections import Detections
from tests.moving import Score, drawn, watch
from tests.waiting import children, descriptors, is_running, run, until, wait

BOX = Detections.of([[100, 100, 200, 200]], [0.9], [0]).pack()
PATIENT = 20.0  # seconds: a busy machine is not what is tested
INSTALLED = importlib.util.find_spec("trackers") is not None and importlib.util.find_spec("supervision") is not None

with_library = pytest.mark.skipif(not INSTALLED, reason="the library of edged[tracking] is not installed")

# Stands in for the library, to do what a library may do; `{}` is done at a detection of class 9.
STUB = """
import os, sys, time
class BIoU:
    def __init__(self, ratio): self.buffer_ratio = ratio
class ByteTrackTracker:
    def __init__(self, **_): self.next = 0
    def update(self, found, timestamp):
        if any(found.class_id_of(i) == 9 for i in range(len(found))):
            {}
        found.tracker_id = list(range(self.next, self.next + len(found)))
        self.next += len(found)
        return found
"""
STUB_DETECTIONS = """
class Detections:
    def __init__(self, xyxy, confidence, data):
        self.xyxy, self.data, self.tracker_id = xyxy, data, None
    def __len__(self): return len(self.xyxy)
    def class_id_of(self, row): return round(float(self.xyxy[row][0]) / (1 << 20))
"""
TRIGGER = Detections.of([[0, 100, 200, 200]], [0.9], [9]).pack()


def with_tracking(
    work: Callable[[Tracking], Awaitable[None]], patience: float = PATIENT, seconds: float = 60.0
) -> None:
    """Does something with a tracking of its own; afterwards nothing of it may be left."""

    async def whole() -> None:
        before, running = descriptors(), children()
        tracking = Tracking(patience)
        try:
            await work(tracking)
        finally:
            await tracking.close()
        await until(lambda: children() <= running, "the end of the process")
        await until(lambda: descriptors() <= before, "the end of the pipes")

    run(whole(), seconds)


async def started(tracking: Tracking, camera: str = "starter") -> int:
    """Asks until it is answered; the process that answers."""

    async def asked() -> bool:
        return await tracking.follow(camera, time.monotonic(), BOX) != ()

    end = time.monotonic() + 30
    while not await asked():
        assert time.monotonic() < end, f"no ids: {tracking.problem}"
        await asyncio.sleep(0.02)
    return tracking.pid


async def ids_of(tracking: Tracking, camera: str, times: int = 2, start: float = 0.0) -> tuple[int, ...]:
    """Ids of a box that stands still, when it was seen some times."""
    for moment in range(times):
        ids = await tracking.follow(camera, start + moment / 10, BOX)
    return ids


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a library in the real one's place that does something at a detection of class 9."""

    def put(action: str) -> None:
        (tmp_path / "trackers.py").write_text(STUB.format(action))
        (tmp_path / "supervision.py").write_text(STUB_DETECTIONS)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return put


def speaking(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Puts a program in the tracker's place."""
    monkeypatch.setattr(tracking, "_command", lambda: [sys.executable, "-c", program])


# -- ids ---------------------------------------------------------------------------------------------------------------


@with_library
def test_ids_stay_with_the_objects_of_each_camera() -> None:
    async def work(tracking: Tracking) -> None:
        await started(tracking)
        scores, seen = {"a": Score(), "b": Score()}, {}
        for name, seed in (("a", 1), ("b", 2)):
            seen[name] = list(watch(drawn(seed), range(0, 120, 2)))
        for frames in zip(seen["a"], seen["b"], strict=True):
            answers = [
                tracking.follow(name, frame.captured, frame.found.pack())
                for name, frame in zip("ab", frames, strict=True)
            ]
            for name, frame, answer in zip("ab", frames, answers, strict=True):
                scores[name].add(frame, await answer)
        for score in scores.values():
            assert score.switches == 0
            assert score.given == set(range(1, 7))
            assert score.idf1 > 0.95
        assert tracking.problem == ""

    with_tracking(work)


@with_library
def test_frames_are_taken_in_the_order_in_which_they_come() -> None:
    async def work(tracking: Tracking) -> None:
        await started(tracking)
        answers = [tracking.follow("a", moment / 10, BOX) for moment in range(40)]
        assert await asyncio.gather(*answers) == [(-1,), *[(1,)] * 39]

    with_tracking(work)


@with_library
def test_where_nothing_was_found_nothing_is_waited_for_and_time_goes_on() -> None:
    async def work(tracking: Tracking) -> None:
        await started(tracking)
        assert await ids_of(tracking, "a") == (1,)
        for moment in range(40):
            answer = tracking.follow("a", 1 + moment / 10, b"")
            assert answer.result() == ()
        assert await ids_of(tracking, "a", start=5.0) == (2,)  # it was away for longer than an object may be

    with_tracking(work)


def test_frames_are_not_held_up_while_the_tracker_starts(stub: Callable[[str], None]) -> None:
    stub("pass")

    async def work(tracking: Tracking) -> None:
        assert tracking.pid == 0
        for moment in range(5):
            answer = tracking.follow("a", moment / 10, BOX)
            assert answer.result() == ()  # at once
            await asyncio.sleep(0)
        assert tracking.problem == ""
        await started(tracking)
        assert tracking.pid

    with_tracking(work)


@with_library
def test_a_camera_that_is_forgotten_begins_anew() -> None:
    async def work(tracking: Tracking) -> None:
        await started(tracking)
        assert await ids_of(tracking, "a") == (1,)
        assert await tracking.follow("a", 60.0, BOX) == (-1,)
        assert await tracking.follow("a", 60.1, BOX) == (2,)
        tracking.forget("a")
        tracking.forget("a")
        tracking.forget("nobody")
        assert await ids_of(tracking, "a", start=61.0) == (1,)

    with_tracking(work)


@with_library
def test_cameras_that_stayed_away_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edged.serving.tracking._MOST_CAMERAS", 3)

    async def work(tracking: Tracking) -> None:
        await started(tracking, "0")
        for camera in "abab":
            await ids_of(tracking, camera)
        assert list(tracking._cameras) == ["0", "a", "b"]
        await ids_of(tracking, "c")
        assert list(tracking._cameras) == ["a", "b", "c"]
        monkeypatch.setattr("edged.serving.tracking._REMEMBERED_SECONDS", 0.05)
        await asyncio.sleep(0.1)
        assert await ids_of(tracking, "b", start=9.0) == (2,)  # it came back before anybody forgot it
        assert list(tracking._cameras) == ["b"]
        assert await ids_of(tracking, "a") == (1,)

    with_tracking(work)


# -- a process that dies, hangs, or is not needed ----------------------------------------------------------------------


def test_a_killed_tracker_is_started_again_and_no_id_is_given_twice(stub: Callable[[str], None]) -> None:
    stub("pass")

    async def work(tracking: Tracking) -> None:
        pid = await started(tracking)
        assert await ids_of(tracking, "a") == (2,)
        os.kill(pid, signal.SIGSTOP)
        waiting = [tracking.follow("a", 1 + moment / 10, BOX) for moment in range(20)]
        os.kill(pid, signal.SIGKILL)
        assert await asyncio.gather(*waiting) == [()] * 20
        await until(lambda: tracking.problem != "", "the news")
        assert "died (exit status -9)" in tracking.problem
        assert tracking.follow("a", 4.0, BOX).result() == ()
        assert tracking.pid == 0  # not at once
        assert await started(tracking) != pid
        assert tracking.problem == ""
        assert await ids_of(tracking, "a", start=5.0) == (4,)

    with_tracking(work)


@with_library
def test_one_that_keeps_dying_is_started_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edged.serving.tracking._FIRST_PAUSE", 0.05)
    speaking(monkeypatch, "raise SystemExit(4)")

    async def work(tracking: Tracking) -> None:
        pauses = []
        for count in range(1, 5):
            tracking.follow("a", count, BOX)
            await until(lambda n=count: tracking._failures == n, "the death")
            pauses.append(tracking._not_before - time.monotonic())
            assert "died (exit status 4)" in tracking.problem
            await asyncio.sleep(max(0, pauses[-1]) + 0.01)
        assert pauses[-1] > 0.2 > pauses[0]

    with_tracking(work)


def test_a_hung_tracker_costs_one_frame_its_patience_and_the_others_nothing(stub: Callable[[str], None]) -> None:
    stub("pass")

    async def work(tracking: Tracking) -> None:
        pid = await started(tracking)
        os.kill(pid, signal.SIGSTOP)
        first = [tracking.follow("a", moment / 10, BOX) for moment in range(3)]
        assert not any(answer.done() for answer in first)
        assert await asyncio.gather(*first) == [()] * 3
        assert "too slow" in tracking.problem
        assert tracking.follow("a", 0.3, BOX).done()
        os.kill(pid, signal.SIGCONT)
        await until(lambda: not tracking._child.in_flight, "its answers")
        assert await tracking.follow("a", 0.4, BOX) == (4,)  # it took into account what it answered too late
        assert tracking.problem == ""
        assert tracking.pid == pid

    with_tracking(work, patience=1.0)


def test_one_that_hangs_for_good_is_ended_and_another_started(
    monkeypatch: pytest.MonkeyPatch, stub: Callable[[str], None]
) -> None:
    stub("pass")

    async def work(tracking: Tracking) -> None:
        pid = await started(tracking)
        monkeypatch.setattr("edged.serving.tracking._SILENT_SECONDS", 0.6)
        os.kill(pid, signal.SIGSTOP)
        assert await tracking.follow("a", 0.0, BOX) == ()
        await until(lambda: "hung and was ended" in tracking.problem, "its end")
        assert not is_running(pid)
        monkeypatch.setattr("edged.serving.tracking._SILENT_SECONDS", 60)
        assert await started(tracking) != pid

    with_tracking(work, patience=0.5)


def test_one_that_never_starts_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edged.serving.tracking._START_SECONDS", 0.4)
    speaking(monkeypatch, "import time; time.sleep(600)")

    async def work(tracking: Tracking) -> None:
        assert tracking.follow("a", 0.0, BOX).result() == ()
        await until(lambda: "did not start within" in tracking.problem, "its end")

    with_tracking(work, patience=0.2)


def test_when_too_many_wait_the_oldest_are_let_go(stub: Callable[[str], None]) -> None:
    stub("pass")

    async def work(tracking: Tracking) -> None:
        pid = await started(tracking)
        os.kill(pid, signal.SIGSTOP)
        answers = [tracking.follow("a", moment / 10, BOX) for moment in range(100)]
        let_go = [number for number, answer in enumerate(answers) if answer.done()]
        assert let_go == list(range(8, 36))  # 8 are at the tracker, the last 64 wait
        assert "too slow" in tracking.problem
        os.kill(pid, signal.SIGCONT)
        found = await asyncio.gather(*answers)
        assert found[:36] == [*((number,) for number in range(1, 9)), *[()] * 28]
        assert found[36:] == [(number,) for number in range(9, 73)]
        assert tracking.problem == ""

    with_tracking(work)


def test_it_ends_when_nobody_needs_it_and_comes_back(
    monkeypatch: pytest.MonkeyPatch, stub: Callable[[str], None]
) -> None:
    stub("pass")

    async def work(tracking: Tracking) -> None:
        pid = await started(tracking)
        assert await ids_of(tracking, "a") == (2,)
        monkeypatch.setattr("edged.serving.tracking._IDLE_SECONDS", 0.1)
        await until(lambda: tracking.pid == 0, "its end")
        await until(lambda: not is_running(pid), "its end")
        assert tracking.problem == ""
        monkeypatch.setattr("edged.serving.tracking._IDLE_SECONDS", 60)
        assert await started(tracking) != pid
        assert await ids_of(tracking, "a", start=3.0) == (4,)

    with_tracking(work, patience=1.0)


def test_closing_answers_what_waits_and_what_comes(stub: Callable[[str], None]) -> None:
    stub("pass")

    async def work(tracking: Tracking) -> None:
        pid = await started(tracking)
        os.kill(pid, signal.SIGSTOP)
        answers = [tracking.follow("a", moment / 10, BOX) for moment in range(20)]
        answers[3].cancel()  # its client has gone
        await tracking.close()
        assert not is_running(pid)
        assert [answer.result() for answer in answers if not answer.cancelled()] == [()] * 19
        assert await tracking.follow("a", 9.0, BOX) == ()
        assert tracking.pid == 0
        await tracking.close()

    with_tracking(work)


def test_closing_while_it_starts_leaves_nothing() -> None:
    async def work(tracking: Tracking) -> None:
        tracking.follow("a", 0.0, BOX)
        await asyncio.sleep(0)

    with_tracking(work)


def test_it_works_in_the_loop_that_the_daemon_uses(stub: Callable[[str], None]) -> None:
    stub("pass")

    async def whole() -> None:
        tracking = Tracking(PATIENT)
        pid = await started(tracking)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: "died" in tracking.problem, "the news")
        assert await started(tracking) != pid
        assert await ids_of(tracking, "a") == (2,)
        await tracking.close()
        await until(lambda: not children() - running, "the end of the process")

    running = children()
    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(asyncio.wait_for(whole(), 60))
    finally:
        loop.close()


def test_the_tracker_dies_with_its_parent(stub: Callable[[str], None]) -> None:
    stub("pass")
    program = """
import asyncio, os, tests.unit.test_tracking as t
from edged.serving.tracking import _LARGEST, Tracking
async def main():
    tracking = Tracking(20)
    print(await t.started(tracking), flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    root = Path(__file__).parents[2]
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=root)
    assert parent.stdout is not None
    try:
        pid = int(parent.stdout.readline())
        assert is_running(pid)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    wait(lambda: not is_running(pid), "the tracker's end")


# -- a library that is missing or misbehaves ---------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["trackers", "supervision"])
def test_a_missing_library_is_told_in_one_line_with_what_to_do(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stub: Callable[[str], None]
) -> None:
    stub("pass")
    error = f"raise ModuleNotFoundError('No module named {missing}', name='{missing}')"
    (tmp_path / f"{missing}.py").write_text(error)
    monkeypatch.setattr("edged.serving.tracking._LONGEST_PAUSE", 0.3)

    async def work(tracking: Tracking) -> None:
        assert tracking.follow("a", 0.0, BOX).result() == ()
        await until(lambda: tracking.problem != "", "the news")
        assert tracking.problem == tracking.missing == m.not_installed(missing)
        stub("pass")  # it is installed now
        assert await started(tracking)
        assert tracking.problem == ""

    with_tracking(work)


def test_missing_library_is_known_before_anything_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(tracking: Tracking) -> None:
        assert tracking.missing == ""
        monkeypatch.setattr(packages, "is_installed", lambda name: name != "trackers")
        assert tracking.missing == m.not_installed("trackers")

    with_tracking(work)


def test_a_library_that_cannot_be_loaded_is_told_too(tmp_path: Path, stub: Callable[[str], None]) -> None:
    stub("pass")
    (tmp_path / "trackers.py").write_text("raise ImportError('libGL.so.1: cannot open shared object file')")

    async def work(tracking: Tracking) -> None:
        tracking.follow("a", 0.0, BOX)
        await until(lambda: tracking.problem != "", "the news")
        assert "libGL.so.1" in tracking.problem
        assert "pip install" in tracking.problem
        assert "\n" not in tracking.problem

    with_tracking(work)


def test_a_library_that_fails_at_a_frame_loses_that_camera_its_tracks_only(stub: Callable[[str], None]) -> None:
    stub("raise RuntimeError('matrix is\\n singular')")

    async def work(tracking: Tracking) -> None:
        pid = await started(tracking)
        assert await ids_of(tracking, "a", 3) == (3,)
        assert await ids_of(tracking, "b", 1) == (1,)
        both = [tracking.follow("a", 1.0, TRIGGER), tracking.follow("a", 1.1, BOX)]  # the second is on its way already
        assert await asyncio.gather(*both) == [(), (4,)]  # a new tracker, which gives no id that there was
        assert await tracking.follow("a", 1.2, TRIGGER) == ()
        assert await ids_of(tracking, "b", 1) == (2,)
        assert tracking.problem == "the tracker failed at a frame: RuntimeError: matrix is singular"
        assert await ids_of(tracking, "a", 1) == (5,)
        assert tracking.problem == ""
        assert tracking.pid == pid

    with_tracking(work)


def test_what_a_library_prints_is_not_taken_for_an_answer(stub: Callable[[str], None]) -> None:
    stub("print('hello' * 1000, flush=True); os.write(1, b'world')")

    async def work(tracking: Tracking) -> None:
        await started(tracking)
        assert await tracking.follow("a", 0.0, TRIGGER) == (1,)
        assert await ids_of(tracking, "a", 1) == (2,)

    with_tracking(work)


def test_a_library_that_takes_the_process_with_it_is_survived(stub: Callable[[str], None]) -> None:
    stub("os.kill(os.getpid(), 11)")

    async def work(tracking: Tracking) -> None:
        await started(tracking)
        assert await ids_of(tracking, "a", 3) == (3,)
        assert await tracking.follow("a", 0.0, TRIGGER) == ()
        await until(lambda: "died (exit status -11)" in tracking.problem, "the news")
        await started(tracking)
        assert await ids_of(tracking, "a", 1) == (4,)

    with_tracking(work)


# -- the wire ----------------------------------------------------------------------------------------------------------

READY = m.pack(m.Ready())


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"\xff" * 4, "a message of 4294967295 bytes"),
        (m.HEADER.pack(3) + b"\xc1\xc1\xc1", "cannot be read"),
        (m.HEADER.pack(0), "cannot be read"),
        (m.HEADER.pack(5) + b"\x94" * 5, "cannot be read"),
        (m.pack(m.Forget(1)), "cannot be read"),  # what only the daemon says
        (READY + m.pack(m.Followed(77, (1,))), "an answer to what was not asked"),
        pytest.param(READY * 100_000, "its first word twice", id="ready for ever"),
        pytest.param(b"Traceback (most recent call last)\n" * 100_000, "a message of", id="traceback"),
        (READY + m.pack(m.Followed(1, (2,)))[:-1], "died"),
    ],
)
def test_garbage_from_the_tracker_ends_it(
    said: bytes, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "said").write_bytes(said)
    program = f"import sys; sys.stdout.buffer.write(open({str(tmp_path / 'said')!r}, 'rb').read())"
    speaking(monkeypatch, program)

    async def work(tracking: Tracking) -> None:
        assert tracking.follow("a", 0.0, BOX).result() == ()
        await until(lambda: tracking.problem != "", "the news")
        assert told in tracking.problem
        assert tracking.pid == 0

    with_tracking(work)


def test_ids_that_are_no_numbers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = m.HEADER.pack(20) + b"\x93\xa8Followed\x02\xa8nonsense"
    program = f"import sys; w = sys.stdout.buffer; w.write({READY!r}); w.flush(); sys.stdin.buffer.read(9)"
    speaking(monkeypatch, f"{program}; w.write({answer!r}); w.flush(); sys.stdin.read()")

    async def work(tracking: Tracking) -> None:
        tracking.follow("a", 0.0, BOX)
        await until(lambda: tracking._child is not None and tracking._child.ready, "the start")
        assert await tracking.follow("a", 0.1, BOX) == ()
        await until(lambda: "cannot be read" in tracking.problem, "the news")

    with_tracking(work)


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (b"", 0),
        (m.pack(m.Forget(1)), 0),
        (m.pack(m.Follow(1, 1, 0, 0.0, BOX))[:-5], 0),  # the daemon died while it wrote
        (b"\xff" * 64, 1),
        (m.HEADER.pack(4) + b"\xc1" * 4, 1),
    ],
)
def test_garbage_from_the_daemon_ends_the_tracker(asked: bytes, status: int, stub: Callable[[str], None]) -> None:
    stub("pass")
    command = [sys.executable, "-m", "edged.tracker.main", str(os.getpid()), rules.reach().argument()]
    ended = subprocess.run(command, input=asked, capture_output=True, timeout=60)
    assert ended.returncode == status
    assert ended.stdout == READY


@with_library
def test_detections_that_are_none_are_an_answer_that_says_so() -> None:
    async def work(tracking: Tracking) -> None:
        await started(tracking)
        assert await tracking.follow("a", 0.0, b"torn") == ()
        assert "the tracker failed at a frame: ValueError" in tracking.problem
        assert await ids_of(tracking, "a") == (1,)
        assert tracking.problem == ""
        too_many = bytes(_LARGEST + 24)
        assert tracking.follow("a", 3.0, too_many).result() == ()
        assert "too many to track" in tracking.problem
        tracking.forget("a")
        assert tracking.problem == ""

    with_tracking(work)


def test_messages_survive_the_way() -> None:
    for message in (m.Follow(1, 2, 3, 4.5, b"\0\1"), m.Forget(7)):
        assert msgspec.msgpack.decode(m.pack(message)[m.HEADER.size :], type=m.ToTracker) == message
    for message in (m.Ready(), m.Unfit("no"), m.Followed(1, (-1, 1 << 40)), m.NotFollowed(2, "why")):
        assert msgspec.msgpack.decode(m.pack(message)[m.HEADER.size :], type=m.FromTracker) == message


def test_the_daemon_s_end_loads_nothing_of_the_library() -> None:
    program = "import json, sys, edged.serving.tracking; print(json.dumps(sorted(sys.modules)))"
    loaded: list[Any] = json.loads(subprocess.check_output([sys.executable, "-c", program], timeout=60))
    assert not {"trackers", "supervision", "scipy", "cv2", "numpy"} & set(loaded)
