"""A real tracker process: ids of objects, and the effects of a process that dies, hangs or cannot work."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from edged import packages
from edged.confinement import rules
from edged.ipc import pipe_messages
from edged.ipc import track_messages as m
from edged.serving.tracking import Tracking, TrackingLimits
from edged.vision.detections import Detections
from tests.moving import Score, drawn, watch
from tests.waiting import children, descriptors, is_running, until, wait, within

BOX = Detections.of([[100, 100, 200, 200]], [0.9], [0]).pack()
PATIENT = TrackingLimits(patience=20.0)  # for a busy machine
INSTALLED = importlib.util.find_spec("trackers") is not None and importlib.util.find_spec("supervision") is not None

with_library = pytest.mark.skipif(not INSTALLED, reason="the library of edged[tracking] is not installed")

# Replaces the library, and runs `{}` at a detection of class 9.
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
Stub = Callable[[str], None]


@asynccontextmanager
async def tracked(limits: TrackingLimits = PATIENT, command: list[str] | None = None) -> AsyncIterator[Tracking]:
    """Yield a tracking and check that no process and no descriptor remain. `command` replaces the tracker's command."""
    before, running = descriptors(), children()
    tracking = Tracking(limits) if command is None else Tracking(limits, lambda: command)
    try:
        yield tracking
    finally:
        await tracking.close()
    await until(lambda: children() <= running, "the end of the process")
    await until(lambda: descriptors() <= before, "the end of the pipes")


async def started(tracking: Tracking, camera: str = "starter") -> int:
    """Follow a camera until it gets ids, and return the id of the tracker's process."""
    end = time.monotonic() + 30
    while await tracking.follow(camera, time.monotonic(), BOX) == ():
        assert time.monotonic() < end, f"no ids: {tracking.problem}"
        await asyncio.sleep(0.02)
    return tracking.pid


async def ids_of(tracking: Tracking, camera: str, times: int = 2, start: float = 0.0) -> tuple[int, ...]:
    """Return the last ids of a box that does not move for a number of frames."""
    for moment in range(times):
        ids = await tracking.follow(camera, start + moment / 10, BOX)
    return ids


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    """Replace the library, and return a function that sets what the stub does at a detection of class 9."""

    def put(action: str) -> None:
        (tmp_path / "trackers.py").write_text(STUB.format(action))
        (tmp_path / "supervision.py").write_text(STUB_DETECTIONS)

    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    put("pass")
    return put


# -- ids ---------------------------------------------------------------------------------------------------------------


@with_library
@within(tracked)
async def test_follow_keeps_ids_with_the_objects_of_each_camera(tracking: Tracking) -> None:
    await started(tracking)
    scores = {"a": Score(), "b": Score()}
    seen = [list(watch(drawn(seed), range(0, 120, 2))) for seed in (1, 2)]
    for frames in zip(*seen, strict=True):
        answers = [
            tracking.follow(name, frame.captured, frame.found.pack()) for name, frame in zip("ab", frames, strict=True)
        ]
        for name, frame, answer in zip("ab", frames, answers, strict=True):
            scores[name].add(frame, await answer)
    for score in scores.values():
        assert score.switches == 0
        assert score.given == set(range(1, 7))
        assert score.idf1 > 0.95
    assert tracking.problem == ""


@with_library
@within(tracked)
async def test_follow_without_detections_returns_at_once_and_advances_the_time(tracking: Tracking) -> None:
    await started(tracking)
    assert await ids_of(tracking, "a") == (1,)
    for moment in range(40):
        assert tracking.follow("a", 1 + moment / 10, b"").result() == ()
    assert await ids_of(tracking, "a", start=5.0) == (2,)  # it was absent longer than a track is kept


@with_library
@within(tracked)
async def test_follow_unreadable_or_too_many_detections_is_reported(tracking: Tracking) -> None:
    await started(tracking)
    assert await tracking.follow("a", 0.0, b"torn") == ()
    assert "ValueError" in tracking.problem
    assert await ids_of(tracking, "a") == (1,)
    assert tracking.problem == ""
    assert tracking.follow("a", 3.0, bytes(m.LARGEST // 2 + 24)).result() == ()
    assert "too many" in tracking.problem
    tracking.forget("a")
    assert tracking.problem == ""


@within(tracked)
async def test_follow_while_the_tracker_starts_returns_at_once(tracking: Tracking, stub: Stub) -> None:
    for moment in range(5):
        assert tracking.follow("a", moment / 10, BOX).result() == ()
        await asyncio.sleep(0)
    assert tracking.problem == ""
    assert await started(tracking)


@within(tracked)
async def test_forgotten_camera_begins_at_the_first_id(tracking: Tracking, stub: Stub) -> None:
    await started(tracking)
    assert await ids_of(tracking, "a", 4) == (4,)
    for camera in ("a", "a", "unknown"):
        tracking.forget(camera)
    assert await ids_of(tracking, "a", start=61.0) == (2,)


@pytest.mark.parametrize("limit", [{"cameras": 2}, {"remembered": 0.2}], ids=["too many cameras", "too long ago"])
async def test_camera_that_was_used_longest_ago_is_forgotten(stub: Stub, limit: dict[str, Any]) -> None:
    async with tracked(TrackingLimits(20.0, **limit)) as tracking:
        await started(tracking, "c")
        assert [await ids_of(tracking, camera) for camera in "abab"] == [(2,), (2,), (4,), (4,)]
        await ids_of(tracking, "c")
        if "remembered" in limit:
            await asyncio.sleep(0.3)
        assert await ids_of(tracking, "b", start=9.0) == (6,)
        assert await ids_of(tracking, "a") == (2,)


# -- a process that dies, hangs, or is not needed ----------------------------------------------------------------------


@within(tracked)
async def test_killed_tracker_is_started_again_and_no_id_is_given_twice(tracking: Tracking, stub: Stub) -> None:
    pid = await started(tracking)
    assert await ids_of(tracking, "a") == (2,)
    os.kill(pid, signal.SIGSTOP)
    waiting = [tracking.follow("a", 1 + moment / 10, BOX) for moment in range(20)]
    os.kill(pid, signal.SIGKILL)
    assert await asyncio.gather(*waiting) == [()] * 20
    await until(lambda: "exit status -9" in tracking.problem, "the report")
    assert tracking.follow("a", 4.0, BOX).result() == ()
    assert tracking.pid == 0  # it is not restarted at once
    assert await started(tracking) != pid
    assert tracking.problem == ""
    assert await ids_of(tracking, "a", start=5.0) == (4,)


async def test_tracker_that_keeps_dying_is_restarted_after_growing_pauses(tmp_path: Path) -> None:
    log = tmp_path / "starts"
    program = f"import time; print(time.monotonic(), file=open({str(log)!r}, 'a')); raise SystemExit(4)"
    starts: list[float] = []
    async with tracked(TrackingLimits(20.0, first_pause=0.05), [sys.executable, "-c", program]) as tracking:
        while len(starts) < 5:
            assert await tracking.follow("a", 0.0, BOX) == ()
            await asyncio.sleep(0.005)
            starts = list(map(float, log.read_text().split())) if log.exists() else []
        await until(lambda: "exit status 4" in tracking.problem, "the report")
    assert (starts[4] - starts[3]) - (starts[1] - starts[0]) > 0.2


@within(tracked, limits=TrackingLimits(patience=1.0))
async def test_tracker_that_hangs_for_a_while_delays_no_frame_beyond_the_patience(
    tracking: Tracking, stub: Stub
) -> None:
    pid = await started(tracking)
    os.kill(pid, signal.SIGSTOP)
    first = [tracking.follow("a", moment / 10, BOX) for moment in range(3)]
    assert not any(answer.done() for answer in first)
    assert await asyncio.gather(*first) == [()] * 3
    assert "too slow" in tracking.problem
    assert tracking.follow("a", 0.3, BOX).done()
    os.kill(pid, signal.SIGCONT)
    await started(tracking, "other")
    assert await tracking.follow("a", 0.4, BOX) == (4,)  # the tracker saw the frames that it answered too late
    assert (tracking.problem, tracking.pid) == ("", pid)


@within(tracked, limits=TrackingLimits(patience=0.5, silent=1.0))
async def test_tracker_that_hangs_is_replaced(tracking: Tracking, stub: Stub) -> None:
    pid = await started(tracking)
    os.kill(pid, signal.SIGSTOP)
    assert await tracking.follow("a", 0.0, BOX) == ()
    await until(lambda: "hung and was ended" in tracking.problem, "its end")
    assert not is_running(pid)
    assert await started(tracking) != pid


@within(
    tracked,
    limits=TrackingLimits(patience=0.2, start=0.4),
    command=[sys.executable, "-c", "import time; time.sleep(600)"],
)
async def test_tracker_that_never_starts_is_ended(tracking: Tracking) -> None:
    assert tracking.follow("a", 0.0, BOX).result() == ()
    await until(lambda: "did not start within" in tracking.problem, "its end")


@within(tracked)
async def test_frames_beyond_the_queue_are_answered_without_ids_oldest_first(tracking: Tracking, stub: Stub) -> None:
    pid = await started(tracking)
    os.kill(pid, signal.SIGSTOP)
    answers = [tracking.follow("a", moment / 10, BOX) for moment in range(100)]
    dropped = [number for number, answer in enumerate(answers) if answer.done()]
    assert dropped == list(range(8, 36))  # 8 are at the tracker, the last 64 wait
    assert "too slow" in tracking.problem
    os.kill(pid, signal.SIGCONT)
    found = await asyncio.gather(*answers)
    assert found[:36] == [*((number,) for number in range(1, 9)), *[()] * 28]
    assert found[36:] == [(number,) for number in range(9, 73)]
    assert tracking.problem == ""


@within(tracked, limits=TrackingLimits(patience=1.0, idle=0.3))
async def test_tracker_that_is_not_needed_ends_and_restarts_on_demand(tracking: Tracking, stub: Stub) -> None:
    pid = await started(tracking)
    assert await ids_of(tracking, "a") == (2,)
    await until(lambda: tracking.pid == 0 and not is_running(pid), "its end")
    assert tracking.problem == ""
    assert await started(tracking) != pid
    assert await ids_of(tracking, "a", start=3.0) == (4,)


@within(tracked)
async def test_close_answers_waiting_and_later_frames_without_ids(tracking: Tracking, stub: Stub) -> None:
    pid = await started(tracking)
    os.kill(pid, signal.SIGSTOP)
    answers = [tracking.follow("a", moment / 10, BOX) for moment in range(20)]
    answers[3].cancel()  # its client disconnected
    await tracking.close()
    assert not is_running(pid)
    assert [answer.result() for answer in answers if not answer.cancelled()] == [()] * 19
    assert await tracking.follow("a", 9.0, BOX) == ()
    assert tracking.pid == 0
    await tracking.close()


@within(tracked)
async def test_close_while_the_tracker_starts_leaves_no_process(tracking: Tracking) -> None:
    tracking.follow("a", 0.0, BOX)
    await asyncio.sleep(0)


def test_tracking_works_in_the_event_loop_of_the_daemon(stub: Stub) -> None:
    async def whole() -> None:
        tracking = Tracking(PATIENT)
        pid = await started(tracking)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: "died" in tracking.problem, "the report")
        assert await started(tracking) != pid
        await tracking.close()

    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(asyncio.wait_for(whole(), 60))
    finally:
        loop.close()


def test_tracker_dies_with_its_parent(stub: Stub) -> None:
    program = """
import asyncio, tests.unit.test_tracking as t
async def main():
    tracking = t.Tracking(t.PATIENT)
    print(await t.started(tracking), flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=root) as parent:
        try:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            assert is_running(pid)
        finally:
            parent.kill()
    wait(lambda: not is_running(pid), "the tracker's end")


# -- a library that is missing or fails --------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["trackers", "supervision"])
async def test_missing_library_is_reported_until_it_is_installed(missing: str, tmp_path: Path, stub: Stub) -> None:
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('No module named x', name={missing!r})")
    async with tracked(TrackingLimits(20.0, longest_pause=0.3)) as tracking:
        assert tracking.follow("a", 0.0, BOX).result() == ()
        await until(lambda: tracking.problem != "", "the report")
        assert tracking.problem == tracking.missing == m.not_installed(missing)
        stub("pass")
        assert await started(tracking)
        assert tracking.problem == ""


@within(tracked)
async def test_missing_library_is_known_before_the_first_frame(
    tracking: Tracking, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tracking.missing == ""
    monkeypatch.setattr(packages, "is_installed", lambda name: name != "trackers")
    assert tracking.missing == m.not_installed("trackers")


@within(tracked)
async def test_library_that_cannot_be_loaded_is_reported_in_one_line(
    tracking: Tracking, tmp_path: Path, stub: Stub
) -> None:
    (tmp_path / "trackers.py").write_text("raise ImportError('libGL.so.1: cannot open shared object file')")
    tracking.follow("a", 0.0, BOX)
    await until(lambda: tracking.problem != "", "the report")
    assert "libGL.so.1" in tracking.problem
    assert "pip install" in tracking.problem
    assert "\n" not in tracking.problem


@within(tracked)
async def test_library_that_fails_at_a_frame_resets_only_that_cameras_tracks(tracking: Tracking, stub: Stub) -> None:
    stub("raise RuntimeError('matrix is\\n singular')")
    pid = await started(tracking)
    assert await ids_of(tracking, "a", 3) == (3,)
    assert await ids_of(tracking, "b", 1) == (1,)
    both = [tracking.follow("a", 1.0, TRIGGER), tracking.follow("a", 1.1, BOX)]
    assert await asyncio.gather(*both) == [(), (4,)]  # a new tracker, which repeats no id
    assert await tracking.follow("a", 1.2, TRIGGER) == ()
    assert await ids_of(tracking, "b", 1) == (2,)
    assert tracking.problem == "the tracker failed on a frame: RuntimeError: matrix is singular"
    assert await ids_of(tracking, "a", 1) == (5,)
    assert (tracking.problem, tracking.pid) == ("", pid)


@within(tracked)
async def test_library_that_prints_does_not_disturb_the_answers(tracking: Tracking, stub: Stub) -> None:
    stub("print('hello' * 1000, flush=True); os.write(1, b'world')")
    await started(tracking)
    assert await tracking.follow("a", 0.0, TRIGGER) == (1,)
    assert await ids_of(tracking, "a", 1) == (2,)


# -- invalid messages --------------------------------------------------------------------------------------------------

READY = pipe_messages.pack(m.Ready())


def frame(payload: bytes) -> bytes:
    return pipe_messages.HEADER.pack(len(payload)) + payload


@pytest.mark.parametrize(
    ("sent", "reported"),
    [
        (b"\xff" * 4, "a message of 4294967295 bytes"),
        (b"Traceback (most recent call last)\n" * 100_000, "a message of"),
        (frame(b"\xc1\xc1\xc1"), "invalid message"),
        (frame(b""), "invalid message"),
        (frame(b"\x94" * 5), "invalid message"),
        (pipe_messages.pack(m.Forget(1)), "invalid message"),
        (READY + frame(msgspec.msgpack.encode(["Followed", 2, "nonsense"])), "invalid message"),
        (READY + pipe_messages.pack(m.Followed(77, (1,))), "an answer out of order or without a request"),
        (READY * 100_000, "its first message twice"),
        (READY + pipe_messages.pack(m.Followed(1, (2,)))[:-1], "died"),
    ],
    ids=[
        *("long", "traceback", "not MessagePack", "empty", "not a message", "from the daemon", "wrong type"),
        *("unasked", "ready for ever", "cut short"),
    ],
)
async def test_garbage_from_the_tracker_ends_it(sent: bytes, reported: str, tmp_path: Path) -> None:
    (tmp_path / "sent").write_bytes(sent)
    program = f"import sys; sys.stdout.buffer.write(open({str(tmp_path / 'sent')!r}, 'rb').read())"
    async with tracked(command=[sys.executable, "-c", program]) as tracking:
        assert tracking.follow("a", 0.0, BOX).result() == ()
        await until(lambda: tracking.problem != "", "the report")
        assert reported in tracking.problem
        assert tracking.pid == 0


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", 0),
        (pipe_messages.pack(m.Forget(1)), 0),
        (pipe_messages.pack(m.Follow(1, 1, 0, 0.0, BOX))[:-5], 0),  # the daemon died while it wrote
        (b"\xff" * 64, 1),
        (frame(b"\xc1" * 4), 1),
    ],
)
def test_garbage_from_the_daemon_ends_the_tracker(sent: bytes, status: int, stub: Stub) -> None:
    command = [sys.executable, "-m", "edged.tracker.main", str(os.getpid()), rules.reach().argument()]
    ended = subprocess.run(command, input=sent, capture_output=True, timeout=60)
    assert ended.returncode == status
    assert ended.stdout == READY


def test_tracking_in_the_daemon_does_not_import_the_library() -> None:
    program = "import json, sys, edged.serving.tracking; print(json.dumps(sorted(sys.modules)))"
    loaded: list[Any] = json.loads(subprocess.check_output([sys.executable, "-c", program], timeout=60))
    assert not {"trackers", "supervision", "scipy", "cv2", "numpy"} & set(loaded)
