"""The pipe from a child to its parent: frames in pieces of any size, limits, and the rate of reports."""

from __future__ import annotations

import contextlib
import io
import threading

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.errors import BuildFailed
from edged.ipc import job_channel as channel
from edged.ipc import job_messages as jobs
from edged.ipc.job_channel import ANSWER, FAILURE, PROGRESS, Frame, Frames, InvalidMessage, JobReporter


class Text(msgspec.Struct):
    text: str


FRAMES = st.lists(st.tuples(st.sampled_from([PROGRESS, ANSWER, FAILURE]), st.binary(max_size=300)), max_size=8)


def raw(kind: bytes, payload: bytes) -> bytes:
    return kind + len(payload).to_bytes(4, "little") + payload


def reports(pipe: io.BytesIO) -> list[jobs.Progress]:
    frames = Frames().feed(pipe.getvalue())
    return [channel.progress(frame) for frame in frames if frame.kind == PROGRESS]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@given(FRAMES, st.lists(st.integers(1, 50)))
def test_feed_pieces_of_any_size_gives_whole_frames(sent: list[tuple[bytes, bytes]], sizes: list[int]) -> None:
    stream, frames, received = b"".join(raw(*frame) for frame in sent), Frames(), []
    for size in [*sizes, len(stream)]:
        received += frames.feed(stream[:size])
        stream = stream[size:]
    assert received == [Frame(*frame) for frame in sent]


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_feed_random_bytes_are_frames_or_garbled(pieces: list[bytes]) -> None:
    frames = Frames()
    with contextlib.suppress(InvalidMessage):
        for piece in pieces:
            for frame in frames.feed(piece):
                channel.progress(frame)


@pytest.mark.parametrize(("kind", "largest"), [(PROGRESS, 64 << 10), (ANSWER, 4 << 20), (FAILURE, 64 << 10)])
def test_feed_length_beyond_the_bound_is_garbled(kind: bytes, largest: int) -> None:
    assert list(Frames().feed(kind + largest.to_bytes(4, "little"))) == []
    with pytest.raises(InvalidMessage, match=f"{largest + 1} bytes"):
        list(Frames().feed(kind + (largest + 1).to_bytes(4, "little")))


def test_feed_yields_frames_before_garbage() -> None:
    frames = Frames().feed(raw(PROGRESS, b"{}") + b"garbage")
    assert next(frames) == Frame(PROGRESS, b"{}")
    with pytest.raises(InvalidMessage, match="0x67"):
        next(frames)


def test_answer_too_large_raises_and_sends_nothing() -> None:
    pipe = io.BytesIO()
    with pytest.raises(BuildFailed, match="67108875"):
        JobReporter(pipe).answer(Text("x" * (64 << 20)))
    assert pipe.getvalue() == b""


def test_fail_shortens_a_long_reason() -> None:
    pipe = io.BytesIO()
    JobReporter(pipe).fail("BuildFailed", "ä" * 1_000_000)
    (frame,) = Frames().feed(pipe.getvalue())
    assert msgspec.json.decode(frame.payload, type=jobs.Failure).message == "ä" * 4000


def test_report_is_sent_five_times_a_second_and_at_the_end_of_a_phase() -> None:
    pipe, clock = io.BytesIO(), Clock()
    report = JobReporter(pipe, clock)
    for count in range(10_000):  # ten seconds on the test's clock
        report(jobs.Progress("building", count / 10_000))
        clock.now += 0.001
    report(jobs.Progress("timing"))
    report.answer(jobs.Done())
    *building, timing = reports(pipe)
    assert 40 <= len(building) <= 52
    assert building[0].fraction == 0.0
    assert building[-1].fraction == 0.9999
    assert timing == jobs.Progress("timing")


def test_fail_sends_the_last_report_first_and_nothing_follows() -> None:
    pipe = io.BytesIO()
    report = JobReporter(pipe, Clock())
    for fraction in (0.1, 0.5, 0.9):
        report(jobs.Progress("building", fraction))
    report.fail("BuildFailed", "no")
    report(jobs.Progress("building", 1.0))
    assert [progress.fraction for progress in reports(pipe)] == [0.1, 0.9]
    assert [frame.kind for frame in Frames().feed(pipe.getvalue())] == [PROGRESS, PROGRESS, FAILURE]


@pytest.mark.parametrize(
    ("fraction", "sent"),
    [(1.0000001, 1.0), (-0.5, 0.0), (float("inf"), 1.0), (float("nan"), None), (np.float32(0.5), 0.5), (1, 1.0)],
)
def test_report_fraction_is_sent_as_a_number_from_0_to_1(fraction: float, sent: float | None) -> None:
    pipe = io.BytesIO()
    JobReporter(pipe)(jobs.Progress("building", fraction))
    assert reports(pipe) == [jobs.Progress("building", sent)]


def test_report_from_several_threads_sends_whole_frames() -> None:
    pipe = io.BytesIO()
    report = JobReporter(pipe)

    def work(name: str) -> None:
        for count in range(500):
            report(jobs.Progress(f"{name}{count}"))  # each has a new phase, so that none is left out

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {progress.phase for progress in reports(pipe)} == {
        f"{name}{count}" for name in "abcd" for count in range(500)
    }
