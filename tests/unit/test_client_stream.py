"""The blocking client over real sockets: counts of frames, and the ends of streams."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edged.client import Captured, Client, Result
from edged.errors import DaemonUnavailable, DeadlineExceeded, InvalidInput, NotFound, NotReady
from tests.unit import client_daemon
from tests.unit.client_daemon import JPEG, Frames, Running, eventually

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(params=["unix", "tcp"])
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    with Running(f"unix:{tmp_path}/edged.sock" if request.param == "unix" else None) as running:
        yield running


@pytest.fixture
def client(running: Running) -> Iterator[Client]:
    with Client(running.target, timeout=10) as client:
        yield client


@pytest.mark.parametrize("model", ["shapes", "slow", "flaky"])
def test_stream_mixed_outcomes_are_all_counted(client: Client, running: Running, model: str) -> None:
    stream = client.stream(model, Frames(gap=0.002, count=100), camera="door")
    results = list(stream)
    failed = [result for result in results if result.error]
    assert stream.counts.sent == 100 == len(results) + sum(result.skipped for result in results)
    assert (stream.counts.answered, stream.counts.failed) == (len(results) - len(failed), len(failed))
    assert stream.counts.waiting == 0
    sequences = [result.sequence for result in results]
    assert sequences == sorted(set(sequences))
    assert sequences[-1] == 100
    assert {result.camera for result in results} == {"door"}
    if model == "slow":
        assert stream.counts.skipped > 0
    if model == "flaky":
        assert failed[0].error == ("UNAVAILABLE", "the engine host died; send the next frame")


def test_stream_lossless_skips_nothing(client: Client) -> None:
    stream = client.stream("slow", [JPEG] * 20, lossless=True)
    assert [result.sequence for result in stream] == list(range(1, 21))
    assert (stream.counts.skipped, stream.counts.answered) == (0, 20)


def test_stream_capture_times_and_thresholds_are_sent(client: Client, running: Running) -> None:
    before = time.time_ns()
    results = list(client.stream("shapes", [Captured(JPEG, 7, 9), JPEG], score=0.25, max_detections=3, lossless=True))
    first, second = running.daemon.frames
    assert (first.captured_unix_ns, first.captured_mono_ns) == (7, 9)
    assert (results[0].captured_unix_ns, results[0].captured_mono_ns) == (7, 9)
    assert before <= second.captured_unix_ns <= time.time_ns()
    assert first.thresholds.score == 0.25
    assert not first.thresholds.HasField("iou")
    assert first.thresholds.max_detections == 3


def test_stream_closed_early_cancels_call_and_closes_frames(client: Client, running: Running) -> None:
    frames = Frames(gap=0.005)
    stream = client.stream("shapes", frames)
    assert next(stream).sequence >= 1
    assert frames.puller != threading.current_thread().name
    stream.close()
    assert frames.over()
    assert list(stream) == []
    assert eventually(lambda: running.daemon.ended == 1)


def test_stream_left_loop_ends_call(client: Client, running: Running) -> None:
    frames = Frames(gap=0.005)
    for _ in client.stream("shapes", frames):
        break
    gc.collect()
    assert frames.over()
    assert eventually(lambda: running.daemon.ended == 1)


def test_stream_close_from_another_thread_wakes_the_reader(client: Client) -> None:
    stream = client.stream("hung", Frames(gap=0.01))
    threading.Timer(0.3, stream.close).start()
    assert list(stream) == []


def test_stream_close_while_lossless_frame_waits_ends(client: Client) -> None:
    frames = Frames()
    stream = client.stream("hung", frames, lossless=True)
    assert eventually(lambda: stream.counts.sent == 1)
    time.sleep(0.1)
    stream.close()
    assert frames.over()
    assert stream.counts.sent == 1


def test_stream_failing_frames_raise_after_the_answers(client: Client) -> None:
    stream = client.stream("shapes", Frames(count=3, failure=KeyError("lens cap")))
    results: list[Result] = []
    with pytest.raises(KeyError, match="lens cap"):
        results.extend(stream)  # keeps what came before the exception
    assert results[-1].sequence == 3
    assert stream.counts.waiting == 0
    assert list(stream) == []


def test_stream_of_no_or_wrong_frames(client: Client) -> None:
    assert list(client.stream("shapes", [])) == []
    with pytest.raises(InvalidInput, match="float32"):
        list(client.stream("shapes", [JPEG, np.zeros((4, 4, 3), np.float32)]))
    with pytest.raises(InvalidInput, match="open_source"):
        client.stream("shapes", "hall.mp4")


@pytest.mark.parametrize(
    ("model", "error"), [("missing", NotFound), ("quits", DaemonUnavailable), ("hung", DeadlineExceeded)]
)
def test_stream_failed_call_raises_its_error_and_closes_frames(running: Running, model: str, error: type) -> None:
    frames = Frames(gap=0.01)
    with Client(running.target, timeout=0.4) as client, pytest.raises(error):
        list(client.stream(model, frames))
    assert frames.over()


def test_stream_quiet_camera_is_not_a_silent_daemon(running: Running) -> None:
    with Client(running.target, timeout=0.3) as client:
        assert len(list(client.stream("shapes", Frames(gap=0.5, count=2)))) == 2


def test_client_shared_by_threads_runs_many_streams(client: Client) -> None:
    counts: list[int] = []

    def run(camera: str) -> None:
        stream = client.stream("slow", Frames(gap=0.002, count=50), camera=camera)
        assert {result.camera for result in stream} == {camera}
        counts.append(stream.counts.sent - stream.counts.answered - stream.counts.skipped)

    threads = [threading.Thread(target=run, args=(f"camera-{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert counts == [0] * 6


@pytest.mark.parametrize("target", ["unix:{}/none.sock", "127.0.0.1:1"])
def test_client_without_daemon_raises_not_ready(tmp_path: Path, target: str) -> None:
    frames = Frames(gap=0.01)
    with Client(target.format(tmp_path)) as client:
        for call in (client.models, lambda: list(client.stream("shapes", frames))):
            with pytest.raises(DaemonUnavailable, match="start one with: edged serve") as raised:
                call()
            assert client.target in str(raised.value)
    assert frames.over()


@pytest.mark.parametrize("how", ["kill", "exit"])
def test_stream_daemon_that_dies_raises_not_ready(tmp_path: Path, how: str) -> None:
    target = f"unix:{tmp_path}/edged.sock"
    with Spawned(target) as process, Client(target) as client:
        frames = Frames(gap=0.02)
        stream = client.stream("dies" if how == "exit" else "shapes", frames)
        next(stream)
        if how == "kill":
            process.send_signal(signal.SIGKILL)
        with pytest.raises(NotReady, match="went away") as caught:
            list(stream)
        assert "\n" not in str(caught.value)
        assert frames.over()


def test_client_outlives_a_restart_of_the_daemon(tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/edged.sock"
    with Client(target) as client:
        with Spawned(target):
            assert client.device().digest == "d1"
        with pytest.raises(NotReady):
            client.device()
        with Spawned(target):
            assert eventually(lambda: _answers(client))


def _answers(client: Client) -> bool:
    try:
        return client.device().digest == "d1"
    except NotReady:
        return False


class Spawned:
    """The daemon as a process of its own, which can be killed."""

    def __init__(self, target: str) -> None:
        self._command = [sys.executable, "-m", client_daemon.__name__, target]

    def __enter__(self) -> subprocess.Popen[bytes]:
        root = Path(client_daemon.__file__).parents[2]
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, env=os.environ, cwd=root)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()
