"""Streams of the blocking client over real sockets: counts of frames, and how streams end."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from edged.client import Captured, Client, Result
from edged.errors import DaemonUnavailable, DeadlineExceeded, InvalidInput, NotFound, NotReady
from tests.unit.client_daemon import JPEG, Frames, Running
from tests.waiting import wait

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(params=["unix", "tcp"])
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    with Running(f"unix:{tmp_path}/edged.sock" if request.param == "unix" else None) as running:
        yield running


@pytest.mark.parametrize("model", ["slow", "flaky"])
def test_stream_mixed_outcomes_are_all_counted(client: Client, model: str) -> None:
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
    else:
        assert failed[0].error == ("UNAVAILABLE", "the engine host died; send the next frame")


def test_stream_lossless_sends_times_and_thresholds_and_skips_nothing(client: Client, running: Running) -> None:
    before = time.time_ns()
    frames = [Captured(JPEG, 7, 9), *[JPEG] * 19]
    stream = client.stream("slow", frames, score=0.25, max_detections=3, lossless=True)
    results = list(stream)
    assert [result.sequence for result in results] == list(range(1, 21))
    assert (stream.counts.skipped, stream.counts.answered) == (0, 20)
    first, second = running.daemon.frames[:2]
    assert (first.captured_unix_ns, first.captured_mono_ns) == (7, 9)
    assert (results[0].captured_unix_ns, results[0].captured_mono_ns) == (7, 9)
    assert before <= second.captured_unix_ns <= time.time_ns()
    assert (first.thresholds.score, first.thresholds.max_detections) == (0.25, 3)
    assert not first.thresholds.HasField("iou")


@pytest.mark.parametrize("end", ["close", "left loop"])
def test_stream_ended_early_cancels_call_and_closes_frames(client: Client, running: Running, end: str) -> None:
    frames = Frames(gap=0.005)
    if end == "close":
        stream = client.stream("shapes", frames)
        assert next(stream).sequence >= 1
        assert frames.puller != threading.current_thread().name
        stream.close()
        assert list(stream) == []
    else:
        for _ in client.stream("shapes", frames):
            break
        gc.collect()
    assert frames.over()
    wait(lambda: running.daemon.ended == 1)


def test_stream_close_from_another_thread_wakes_the_reader(client: Client) -> None:
    stream = client.stream("hung", Frames(gap=0.01))
    threading.Timer(0.3, stream.close).start()
    assert list(stream) == []


def test_stream_close_while_lossless_frame_waits_ends(client: Client) -> None:
    frames = Frames()
    stream = client.stream("hung", frames, lossless=True)
    wait(lambda: stream.counts.sent == 1)
    time.sleep(0.1)
    stream.close()
    assert frames.over()
    assert stream.counts.sent == 1


def test_stream_failing_frames_raise_after_the_answers(client: Client) -> None:
    stream = client.stream("shapes", Frames(count=3, failure=KeyError("lens cap")))
    results: list[Result] = []
    with pytest.raises(KeyError, match="lens cap"):
        results.extend(stream)  # `extend` keeps the results before the exception
    assert results[-1].sequence == 3
    assert stream.counts.waiting == 0
    assert list(stream) == []


def test_stream_of_no_frames_is_empty_and_wrong_frames_raise(client: Client) -> None:
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


def test_stream_quiet_camera_is_no_timeout(running: Running) -> None:
    with Client(running.target, timeout=0.3) as client:
        assert len(list(client.stream("shapes", Frames(gap=0.5, count=2)))) == 2


def test_client_shared_by_threads_runs_many_streams(client: Client) -> None:
    def uncounted(camera: str) -> int:
        stream = client.stream("slow", Frames(gap=0.002, count=50), camera=camera)
        assert {result.camera for result in stream} == {camera}
        return stream.counts.sent - stream.counts.answered - stream.counts.skipped

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(uncounted, "abcdef")) == [0] * 6


@pytest.mark.parametrize("target", ["unix:{}/none.sock", "127.0.0.1:1"])
def test_client_without_daemon_raises_not_ready(tmp_path: Path, target: str) -> None:
    frames = Frames(gap=0.01)
    with Client(target.format(tmp_path)) as client:
        for call in (client.models, lambda: list(client.stream("shapes", frames))):
            with pytest.raises(DaemonUnavailable, match="start one with: edged serve") as raised:
                call()
            assert client.target in str(raised.value)
    assert frames.over()


def test_stream_daemon_that_stops_raises_not_ready(tmp_path: Path) -> None:
    target, frames = f"unix:{tmp_path}/edged.sock", Frames(gap=0.02)
    with Client(target) as client:
        with Running(target):
            stream = client.stream("shapes", frames)
            next(stream)
        with pytest.raises(NotReady):
            list(stream)
    assert frames.over()


def test_client_works_after_a_restart_of_the_daemon(tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/edged.sock"

    def answers() -> bool:
        try:
            return client.device().digest == "d1"
        except NotReady:
            return False

    with Client(target) as client:
        with Running(target):
            assert answers()
        assert not answers()
        with Running(target):
            wait(answers)
