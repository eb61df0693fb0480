"""Pictures, videos and cameras as frames. Cameras are made up, since the reading of one is what is tested."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edged.client import Client
from edged.client.live import Camera
from edged.client.sources import open_source, redact
from edged.errors import InvalidInput, NotFound, Unsupported
from tests.unit.client_daemon import Running
from tests.unit.client_rtsp import RtspCamera

av = pytest.importorskip("av")
pytestmark = pytest.mark.timeout(60)


def shade(number: int) -> np.ndarray:
    return np.full((48, 64, 3), 20 * number, np.uint8)


def make_video(path: Path, frames: int = 10, fps: float = 20, code: str = "MJPG") -> Path:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*code), fps, (64, 48))
    assert writer.isOpened()
    for number in range(frames):
        writer.write(shade(number))
    writer.release()
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "pictures"
    made.mkdir()
    for name, number in (("b.png", 2), ("a.jpg", 1), ("c.JPG", 3)):
        assert cv2.imwrite(str(made / name), shade(number))
    (made / "notes.txt").write_text("no picture")
    return made


# --- pictures -------------------------------------------------------------------------------------------------------


def test_a_folder_in_order_and_untouched(folder: Path) -> None:
    with open_source(folder) as source:
        assert [frame.image for frame in source] == [
            (folder / name).read_bytes() for name in ("a.jpg", "b.png", "c.JPG")
        ]
        assert (source.paced, source.damaged) == (False, 0)


def test_damaged_pictures_are_counted(folder: Path) -> None:
    (folder / "b.png").write_bytes(b"not a picture")
    (folder / "d.png").write_bytes(b"")
    (folder / "e.png").mkdir()
    source = open_source(str(folder))
    assert len(list(source)) == 2
    assert source.damaged == 3


def test_a_single_picture(folder: Path) -> None:
    assert [frame.image for frame in open_source(folder / "a.jpg")] == [(folder / "a.jpg").read_bytes()]


def test_interrupted(folder: Path) -> None:
    source = open_source(folder)
    next(source)
    source.close()
    assert list(source) == []


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("/nowhere/x.mp4", NotFound, "no picture, folder, video or camera"),
        ("/dev/video987", NotFound, "no camera"),
        ("webcam:987", NotFound, "/dev/video987"),
        ("webcam:x", InvalidInput, "webcam:0"),
        ("ftp://me:secret@box/x", InvalidInput, "'ftp://box/x'"),
    ],
)
def test_what_is_no_source(text: str, kind: type, words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        open_source(text)
    assert "secret" not in str(caught.value)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="has no pictures"):
        open_source(tmp_path)


# --- videos ---------------------------------------------------------------------------------------------------------


def test_every_frame_of_a_video(tmp_path: Path) -> None:
    source = open_source(make_video(tmp_path / "v.avi"), pace=False)
    frames = list(source)
    assert (len(frames), source.paced, source.damaged) == (10, False, 0)
    for number, frame in enumerate(frames):
        assert isinstance(frame.image, np.ndarray)
        assert (frame.image.shape, frame.image.dtype) == ((48, 64, 3), np.uint8)
        assert abs(float(frame.image.mean()) - 20 * number) < 4
        assert frame.captured_unix_ns == 0
    source.close()


def test_a_video_plays_at_its_own_speed(tmp_path: Path) -> None:
    with open_source(make_video(tmp_path / "v.avi", frames=11, fps=20)) as source:
        start = time.monotonic()
        stamps = [frame.captured_mono_ns for frame in source]
    assert source.paced
    assert 0.45 < time.monotonic() - start < 2
    assert stamps == sorted(stamps)
    assert (stamps[-1] - stamps[0]) / 1e9 == pytest.approx(0.5, abs=0.1)


def test_a_paced_video_can_be_interrupted(tmp_path: Path) -> None:
    source = open_source(make_video(tmp_path / "v.avi", frames=5, fps=1))
    next(source)
    threading.Timer(0.1, source.close).start()
    start = time.monotonic()
    assert list(source) == []
    assert time.monotonic() - start < 0.9


def test_damaged_frames_are_skipped_and_counted(tmp_path: Path) -> None:
    path = make_video(tmp_path / "v.avi")
    data = bytearray(path.read_bytes())
    at = data.index(b"\xff\xd8", data.index(b"\xff\xd8") + 2)  # the second frame's JPEG
    data[at : at + 200] = b"\0" * 200
    path.write_bytes(data)
    source = open_source(path, pace=False)
    assert 8 <= len(list(source)) <= 9
    assert source.damaged >= 1


def test_a_video_that_breaks_off(tmp_path: Path) -> None:
    path = make_video(tmp_path / "v.avi")
    data = path.read_bytes()
    fifth = -1
    for _ in range(5):
        fifth = data.index(b"\xff\xd8", fifth + 1)
    path.write_bytes(data[: fifth + 100])
    assert 4 <= len(list(open_source(path, pace=False))) <= 5


@pytest.mark.parametrize("content", [b"", b"no video at all" * 100])
def test_what_is_no_video(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "v.mp4").write_bytes(content)
    with pytest.raises(InvalidInput, match="cannot be opened"):
        open_source(tmp_path / "v.mp4")


def test_without_pyav(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    (tmp_path / "v.mp4").touch()
    for text in (str(tmp_path / "v.mp4"), "rtsp://camera/1"):
        with pytest.raises(Unsupported, match=r"pip install 'edged\[media\]'"):
            open_source(text)
    assert len(list(open_source(folder))) == 3


# --- cameras --------------------------------------------------------------------------------------------------------


class Connection:
    def __init__(self) -> None:
        self.closed = False

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True


def frame(number: int) -> Any:
    return av.VideoFrame.from_ndarray(shade(number), format="bgr24")


def camera(frames: Callable[[], Iterator[Any]], **options: Any) -> Camera:
    return Camera("rtsp://me:secret@box/1", Connection, frames=lambda *_: frames(), backoff=(0.05, 0.1), **options)


def test_only_the_newest_frame_is_kept() -> None:
    sent = threading.Event()

    def frames() -> Iterator[Any]:
        yield from (frame(number) for number in range(6))
        sent.set()
        time.sleep(30)

    source = camera(frames)
    assert sent.wait(5)
    before = time.monotonic_ns()
    got = next(source)
    assert isinstance(got.image, np.ndarray)
    assert got.image[0, 0, 0] == 100
    assert 0 < got.captured_mono_ns <= before
    assert source.overtaken == 5
    source.interrupt()
    assert list(source) == []


def test_a_camera_that_goes_away_is_opened_again(caplog: pytest.LogCaptureFixture) -> None:
    attempts = 0

    def frames() -> Iterator[Any]:
        nonlocal attempts
        attempts += 1
        if attempts in (1, 2):
            raise OSError(111, "Connection refused by rtsp://me:secret@box/1")
        yield frame(attempts)
        time.sleep(0.05)

    caplog.set_level(logging.WARNING, "edged.client")
    with camera(frames) as source:
        values = [int(got.image[0, 0, 0]) for got, _ in zip(source, range(3), strict=False)]  # type: ignore[index,call-overload]
    assert values == [60, 80, 100]
    assert "secret" not in caplog.text
    assert "Connection refused by rtsp://box/1; trying again in 0.05 s" in caplog.text
    assert "trying again in 0.1 s" in caplog.text
    assert "the stream ended" in caplog.text


def test_a_frame_that_cannot_be_converted_is_counted() -> None:
    def frames() -> Iterator[Any]:
        yield object()
        time.sleep(0.2)
        yield frame(3)
        time.sleep(30)

    source = camera(frames)
    assert next(source).image[0, 0, 0] == 60  # type: ignore[index,call-overload]
    assert source.damaged == 1
    source.interrupt()


def test_a_waiting_reader_is_woken() -> None:
    def frames() -> Iterator[Any]:
        time.sleep(30)
        yield frame(0)

    source = camera(frames)
    threading.Timer(0.1, source.interrupt).start()
    assert list(source) == []


def test_a_stream_over_a_silent_camera_closes_at_once(tmp_path: Path) -> None:
    def frames() -> Iterator[Any]:
        yield frame(0)
        time.sleep(30)

    with Running(f"unix:{tmp_path}/edged.sock") as running, Client(running.target) as client:
        source = camera(frames)
        stream = client.stream("shapes", source)
        assert (next(stream).width, stream.ledger.sent) == (64, 1)
        stream.close()
        assert source._stopped.is_set()


def test_a_real_rtsp_connection_that_breaks_and_comes_back() -> None:
    with RtspCamera(frames=12) as rtsp, open_source(rtsp.url) as source:
        source._backoff = (0.1,)  # type: ignore[attr-defined]
        values = [float(got.image.mean()) for got, _ in zip(source, range(15), strict=False)]  # type: ignore[union-attr]
        assert rtsp.connections >= 2
    assert min(values) < 60
    assert max(values) > 90
    assert rtsp.transport.startswith("RTP/AVP/TCP")


def test_redact() -> None:
    assert redact("rtsp://me:p@ss@box/x?a=b@c") == "rtsp://box/x?a=b@c"
    assert redact("/dev/video0") == "/dev/video0"
