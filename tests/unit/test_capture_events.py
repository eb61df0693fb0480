"""Event files: snapshots, clips with the seconds before and after, and the removal of old files."""

from __future__ import annotations

import errno
import importlib.util
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edged.capture.events import EventFolder, EventRecorder
from edged.client.result import Detection, Result, Timings
from edged.client.sinks.mp4 import Mp4
from edged.client.sinks.sink import Answered
from edged.config.cameras import Events
from edged.store import atomic
from edged.vision.draw import encode_jpeg
from tests.waiting import wait

with_av = pytest.mark.skipif(importlib.util.find_spec("av") is None, reason="edged[media] is not installed")
UNIX = 1_790_000_000.0


def answered(number: int, *, raw: bool = False) -> Answered:
    picture = np.full((48, 64, 3), number % 200, np.uint8)
    box = Detection(4, 4, 40, 40, 0.9, 0, "person")
    mono = 1_000_000_000 + number * 100_000_000
    result = Result("hall", number, "m", 64, 48, (box,), {}, 1.0, Timings(), "", "", 0, None, mono, mono)
    return Answered(result, picture if raw else encode_jpeg(picture))


def files(folder: Path, suffix: str) -> list[Path]:
    return sorted(folder.glob(f"*{suffix}"))


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "the disk is full")


def test_begin_writes_a_snapshot(tmp_path: Path) -> None:
    recorder = EventRecorder(Events(snapshots=True), tmp_path / "hall")
    name = recorder.begin("door", answered(1), 1.0, UNIX)
    recorder.close()
    (kept,) = files(tmp_path / "hall", ".jpg")
    assert str(kept) == name
    assert kept.name.endswith("_door.jpg")
    assert kept.read_bytes()[:2] == b"\xff\xd8"
    assert not recorder.problem


@with_av
@pytest.mark.parametrize("raw", [False, True])
def test_clip_has_the_seconds_before_and_after(tmp_path: Path, raw: bool) -> None:
    import av

    events = Events(clips=True, before_seconds=1.0, after_seconds=0.5)
    recorder = EventRecorder(events, tmp_path, lambda: 0.0)
    for number in range(100):
        now = number / 10
        recorder.on_answer(answered(number, raw=raw), now)
        if number == 40:
            recorder.begin("door", None, now, UNIX)
        if number == 60:
            recorder.end("door", now)
    recorder.close()
    (clip,) = files(tmp_path, ".mp4")
    with av.open(str(clip)) as container:
        frames = sum(1 for _ in container.decode(video=0))
    assert frames == 11 + 25 + 1  # 3.0 to 4.0 s, up to 6.5 s, and the frame that ends the clip
    assert not files(tmp_path, ".part")


@with_av
def test_close_completes_an_unfinished_clip(tmp_path: Path) -> None:
    recorder = EventRecorder(Events(clips=True), tmp_path, lambda: 0.0)
    recorder.begin("door", None, 0.0, UNIX)
    for number in range(20):
        recorder.on_answer(answered(number), number / 10)
    recorder.close()
    assert len(files(tmp_path, ".mp4")) == 1


@with_av
def test_begin_during_a_clip_returns_the_path_of_that_clip(tmp_path: Path) -> None:
    recorder = EventRecorder(Events(clips=True), tmp_path, lambda: 0.0)
    recorder.on_answer(answered(0), 0.0)
    names = {recorder.begin(place, None, 0.0, UNIX) for place in ("door", "gate")}
    recorder.on_answer(answered(1), 0.1)
    names.add(recorder.begin("yard", None, 0.2, UNIX + 1))
    recorder.close()
    assert [str(path) for path in files(tmp_path, ".mp4")] == list(names)


@with_av
def test_begin_after_a_completed_clip_writes_another(tmp_path: Path) -> None:
    recorder = EventRecorder(Events(clips=True, before_seconds=0.0, after_seconds=0.0), tmp_path, lambda: 0.0)
    names = []
    for start in (1.0, 2.0):
        names.append(recorder.begin("door", None, start, UNIX + start))
        recorder.on_answer(answered(1), start + 0.1)
        recorder.end("door", start + 0.2)
        recorder.on_answer(answered(2), start + 0.3)
        wait(Path(names[-1]).exists)
    recorder.close()
    assert [str(path) for path in files(tmp_path, ".mp4")] == names


@with_av
def test_clip_of_a_camera_that_stops_sending_is_completed(tmp_path: Path) -> None:
    now = [0.0]
    recorder = EventRecorder(Events(clips=True, after_seconds=5.0), tmp_path, lambda: now[0])
    name = Path(recorder.begin("door", None, 0.0, UNIX))
    recorder.on_answer(answered(0), 0.1)
    recorder.end("door", 0.2)
    wait(Path(f"{name}.part").exists)
    assert not name.exists()
    now[0] = 5.3
    wait(name.exists)
    recorder.close()


def test_begin_in_an_unwritable_folder_reports_a_problem_without_raising(tmp_path: Path) -> None:
    (tmp_path / "hall").write_text("a file")
    recorder = EventRecorder(Events(snapshots=True), tmp_path / "hall")
    assert recorder.begin("door", answered(1), 1.0, UNIX) == ""
    assert recorder.problem
    recorder.close()


def test_begin_in_a_folder_that_is_writable_again_ends_the_problem(tmp_path: Path) -> None:
    folder = tmp_path / "hall"
    recorder = EventRecorder(Events(snapshots=True), folder)
    folder.write_text("a file")
    recorder.begin("door", answered(1), 1.0, UNIX)
    assert recorder.problem
    folder.unlink()
    kept = Path(recorder.begin("door", answered(2), 2.0, UNIX))
    wait(kept.exists)
    wait(lambda: not recorder.problem)
    recorder.close()


@with_av
def test_begin_snapshot_that_fails_does_not_end_the_clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "write_file", full)
    recorder = EventRecorder(Events(snapshots=True, clips=True), tmp_path, lambda: 0.0)
    recorder.begin("door", answered(0), 0.0, UNIX)
    recorder.on_answer(answered(1), 0.1)
    recorder.begin("gate", answered(2), 0.2, UNIX)
    recorder.on_answer(answered(3), 0.3)
    recorder.close()
    assert "full" in recorder.problem
    assert [path.name.partition("_")[2] for path in files(tmp_path, ".mp4")] == ["door.mp4"]


@with_av
def test_clip_that_fails_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mp4, "on_answer", full)
    before = set(threading.enumerate())
    recorder = EventRecorder(Events(clips=True), tmp_path, lambda: 0.0)
    recorder.begin("door", None, 0.0, UNIX)
    recorder.on_answer(answered(1), 0.1)
    wait(lambda: bool(recorder.problem))
    wait(lambda: "edged-video" not in [thread.name for thread in set(threading.enumerate()) - before])
    recorder.close()
    assert not files(tmp_path, ".part")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Holds the thread of a recorder at its start, until the event is set."""
    opened = threading.Event()
    monkeypatch.setattr(EventFolder, "prune", lambda *_: opened.wait(20))
    yield opened
    opened.set()


@with_av
@pytest.mark.parametrize("is_gray", [False, True])
def test_on_answer_while_the_thread_is_busy_compresses_pictures_and_drops_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: threading.Event, is_gray: bool
) -> None:
    import av

    monkeypatch.setattr("edged.capture.events._MOST_WAITING_BYTES", 20_000)
    recorder = EventRecorder(Events(clips=True), tmp_path, lambda: 0.0)
    recorder.begin("door", None, 0.0, UNIX)
    pictures = []
    for number in range(60):
        raw = answered(number, raw=True)
        pictures.append(weakref.ref(raw))
        if is_gray and isinstance(raw.image, np.ndarray):
            raw.image = raw.image[:, :, 0].copy()
        recorder.on_answer(raw, number / 10)  # 9216 bytes, gray 3072 bytes
        del raw
    assert sum(each() is not None for each in pictures) <= 8
    gate.set()
    recorder.close()
    (clip,) = files(tmp_path, ".mp4")
    with av.open(str(clip)) as container:
        assert sum(1 for _ in container.decode(video=0)) == 60
    assert not recorder.dropped
    assert not recorder.problem


def test_on_answer_with_a_full_queue_has_a_problem_until_the_queue_is_empty(
    tmp_path: Path, gate: threading.Event
) -> None:
    recorder = EventRecorder(Events(clips=True), tmp_path, lambda: 0.0)
    for number in range(300):
        recorder.on_answer(answered(number), number / 10)
    assert recorder.dropped == 300 - 256
    assert "slow" in recorder.problem
    gate.set()
    wait(lambda: not recorder.problem)
    recorder.close()


def test_old_files_are_removed_at_the_start_and_before_an_event_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def old() -> Path:
        path = tmp_path / "2020-01-01T00-00-00_door.jpg"
        path.touch()
        os.utime(path, (1.0, 1.0))
        return path

    monkeypatch.setattr(atomic, "write_file", full)
    path = old()
    recorder = EventRecorder(Events(snapshots=True), tmp_path, lambda: 0.0)
    wait(lambda: not path.exists())
    old()
    recorder.begin("door", answered(0), 0.0, UNIX)
    wait(lambda: not path.exists())
    recorder.close()


def test_path_of_a_taken_name_differs(tmp_path: Path) -> None:
    folder = EventFolder(tmp_path, 7, 1)
    first = folder.path("door", ".jpg", UNIX)
    first.touch()
    second = folder.path("door", ".jpg", UNIX)
    assert first != second
    assert second.parent == first.parent


def test_prune_removes_event_files_by_age_then_by_size(tmp_path: Path) -> None:
    folder = EventFolder(tmp_path, keep_days=1, keep_mb=1)
    ages = {"old": 90000, "first": 300, "second": 200, "third": 100}
    for name, age in ages.items():
        path = folder.path(name, ".jpg", UNIX - age)
        path.write_bytes(bytes(400 << 10))
        os.utime(path, (UNIX - age, UNIX - age))
    other = tmp_path / "holiday.jpg"
    other.write_bytes(bytes(2 << 20))
    os.utime(other, (1.0, 1.0))
    folder.prune(UNIX)
    assert other.exists()
    assert [path.name.partition("_")[2] for path in files(tmp_path, "_*.jpg")] == ["second.jpg", "third.jpg"]
