"""Pictures, videos and cameras as sources of frames. Most cameras are fakes."""

from __future__ import annotations

import contextlib
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

from edged.backoff import Backoff
from edged.client import Captured, Client
from edged.client.sources import open_source
from edged.client.sources.source import InOrder, Live, Newest, Shot
from edged.errors import InvalidInput, NotFound, Unsupported, redact
from tests.unit.client_daemon import Running
from tests.unit.client_rtsp import RtspCamera
from tests.unit.media import shade, video

av = pytest.importorskip("av")
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "pictures"
    made.mkdir()
    for name, number in (("b.png", 2), ("a.jpg", 1), ("c.JPG", 3)):
        assert cv2.imwrite(str(made / name), shade(20 * number))
    (made / "notes.txt").write_text("no picture")
    return made


# --- pictures -------------------------------------------------------------------------------------------------------


def test_pictures_folder_is_read_in_order_and_unchanged(folder: Path) -> None:
    with open_source(folder) as source:
        assert [frame.image for frame in source] == [
            (folder / name).read_bytes() for name in ("a.jpg", "b.png", "c.JPG")
        ]
        assert (source.paced, source.damaged) == (False, 0)


def test_pictures_damaged_files_are_counted(folder: Path) -> None:
    (folder / "b.png").write_bytes(b"not a picture")
    (folder / "d.png").write_bytes(b"")
    (folder / "e.png").mkdir()
    source = open_source(str(folder))
    assert len(list(source)) == 2
    assert source.damaged == 3
    for name in ("a.jpg", "c.JPG"):
        (folder / name).write_bytes(b"?")
    assert list(open_source(folder, loop=True)) == []


def test_pictures_closed_source_ends(folder: Path) -> None:
    with open_source(folder / "a.jpg") as source:
        assert [frame.image for frame in source] == [(folder / "a.jpg").read_bytes()]
    source = open_source(folder)
    next(source)
    source.close()
    assert list(source) == []


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("/nowhere/x.mp4", NotFound, "nowhere"),
        ("/dev/video987", NotFound, "video987"),
        ("webcam:987", NotFound, "/dev/video987"),
        ("webcam:x", InvalidInput, "webcam:0"),
        ("v4l2:///dev/video987", NotFound, "video987"),
        ("v4l2:///dev/video0?wdith=3", InvalidInput, "did you mean 'width'"),
        ("v4l2:///dev/video0?width=3", InvalidInput, "width=3"),
        ("csi://left", InvalidInput, "csi://0"),
        ("shm://other", InvalidInput, "edged-"),
        ("ftp://me:secret@box/x", InvalidInput, "'ftp://box/x'"),
        ("ftp://box/x", InvalidInput, "rtsp://, rtsps://, http://, https://, v4l2://, webcam:N, csi://, gst:, shm://"),
    ],
)
def test_open_source_invalid_address_raises(text: str, kind: type, words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        open_source(text)
    assert "secret" not in str(caught.value)


def test_open_source_empty_folder_raises_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        open_source(tmp_path)


def test_pictures_looped_are_paced(folder: Path) -> None:
    with open_source(folder, loop=True, max_fps=50) as source:
        begun = time.monotonic()
        got = [frame.image for frame, _ in zip(source, range(7), strict=False)]
    assert got[:3] == got[3:6]
    assert time.monotonic() - begun >= 6 * 0.02


# --- videos ---------------------------------------------------------------------------------------------------------


def test_recording_returns_every_frame(tmp_path: Path) -> None:
    source = open_source(video(tmp_path / "v.avi", range(0, 200, 20)), pace=False)
    frames = list(source)
    assert (len(frames), source.paced, source.damaged) == (10, False, 0)
    for number, frame in enumerate(frames):
        assert isinstance(frame.image, np.ndarray)
        assert (frame.image.shape, frame.image.dtype) == ((48, 64, 3), np.uint8)
        assert abs(float(frame.image.mean()) - 20 * number) < 4
        assert frame.captured_unix_ns == 0
    source.close()


def test_recording_paced_plays_at_its_own_speed(tmp_path: Path) -> None:
    with open_source(video(tmp_path / "v.avi", range(0, 220, 20), 20)) as source:
        start = time.monotonic()
        stamps = [frame.captured_mono_ns for frame in source]
    assert source.paced
    assert 0.45 < time.monotonic() - start < 2
    assert stamps == sorted(stamps)
    assert (stamps[-1] - stamps[0]) / 1e9 == pytest.approx(0.5, abs=0.1)


def test_recording_looped_starts_again(tmp_path: Path) -> None:
    with open_source(video(tmp_path / "v.avi", range(0, 80, 20)), pace=False, loop=True) as source:
        values = [value(frame) for frame, _ in zip(source, range(9), strict=False)]
    assert np.allclose(values, [0, 20, 40, 60] * 2 + [0], atol=4)


def test_recording_max_fps_skips_frames_by_the_videos_clock(tmp_path: Path) -> None:
    source = open_source(video(tmp_path / "v.avi", range(0, 200, 20), 20), pace=False, max_fps=10)
    assert np.allclose([value(frame) for frame in source], range(0, 200, 40), atol=4)
    assert source.skipped == 5


def test_recording_paced_returns_the_newest_frame(tmp_path: Path) -> None:
    with open_source(video(tmp_path / "v.avi", range(0, 200, 20), 50), latest=True) as source:
        time.sleep(0.5)
        assert value(next(source)) > 170
        assert list(source) == []
    assert source.skipped == 9


def test_recording_paced_can_be_interrupted(tmp_path: Path) -> None:
    source = open_source(video(tmp_path / "v.avi", range(0, 100, 20), 1))
    next(source)
    threading.Timer(0.1, source.close).start()
    start = time.monotonic()
    assert list(source) == []
    assert time.monotonic() - start < 0.9


def test_recording_truncated_file_ends(tmp_path: Path) -> None:
    path = video(tmp_path / "v.avi", range(0, 200, 20))
    data = path.read_bytes()
    fifth = -1
    for _ in range(5):
        fifth = data.index(b"\xff\xd8", fifth + 1)
    path.write_bytes(data[: fifth + 100])
    assert 4 <= len(list(open_source(path, pace=False))) <= 5


def test_open_source_without_pyav_raises_unsupported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    (tmp_path / "v.mp4").touch()
    for text in (str(tmp_path / "v.mp4"), "rtsp://camera/1"):
        with pytest.raises(Unsupported, match="-m pip install 'av"):
            open_source(text)
    assert len(list(open_source(folder))) == 3


# --- cameras --------------------------------------------------------------------------------------------------------

Shots = Callable[[], Iterator[Shot]]


def shot(number: int) -> Shot:
    return Shot.now(lambda: shade(20 * number))


def value(taken: Captured) -> int:
    assert isinstance(taken.image, np.ndarray)
    return int(taken.image[0, 0, 0])


def live(shots: Shots, **options: Any) -> Live:
    options = {"backoff": Backoff((0.05, 0.1))} | options
    return Live("rtsp://me:secret@box/1", lambda _: contextlib.nullcontext(shots()), **options)


def test_newest_converts_only_the_newest_frame() -> None:
    sent, over, converted = threading.Event(), threading.Event(), []

    def shots() -> Iterator[Shot]:
        for number in range(6):
            yield Shot.now(lambda number=number: converted.append(number) or shade(20 * number))  # type: ignore[misc]
        sent.set()
        over.wait(30)

    source = Newest(live(shots))
    assert sent.wait(5)
    before = time.monotonic_ns()
    got = next(source)
    assert (value(got), converted, source.skipped) == (100, [5], 5)
    assert 0 < got.captured_mono_ns <= before
    source.interrupt()
    assert list(source) == []
    over.set()


def test_newest_max_fps_limits_frames() -> None:
    def shots() -> Iterator[Shot]:
        for number in range(90):  # 30 frames a second, with jitter
            at = int((number / 30 + 0.004 * (number % 3)) * 1e9) + 10**9
            yield Shot(lambda number=number: shade(20 * (number % 10)), at, at)  # type: ignore[misc]

    source = InOrder(live(shots), max_fps=10)
    times = [next(source).captured_mono_ns / 1e9 for _ in range(30)]
    assert source.skipped == 2 * 29
    assert max(np.diff(times)) < 0.12
    source.close()


def test_live_lost_camera_is_reconnected(caplog: pytest.LogCaptureFixture) -> None:
    attempts = 0

    def shots() -> Iterator[Shot]:
        nonlocal attempts
        attempts += 1
        if attempts in (1, 2):
            raise OSError(111, "Connection refused by rtsp://me:secret@box/1")
        yield shot(attempts)
        time.sleep(0.05)

    caplog.set_level(logging.WARNING, "edged.client")
    with Newest(live(shots)) as source:
        values = [value(got) for got, _ in zip(source, range(3), strict=False)]
    assert values == [60, 80, 100]
    assert "secret" not in caplog.text
    assert "Connection refused by rtsp://box/1; trying again in 0.05 s" in caplog.text
    assert "trying again in 0.1 s" in caplog.text
    assert "the stream ended" in caplog.text


def test_live_pauses_grow_and_reset_after_success() -> None:
    now, pauses = 0.0, []
    works = iter([0, 0, 0, 0, 0, 3, 300, 0, None])  # seconds that each connection lasts

    def shots() -> Iterator[Shot]:
        nonlocal now
        lasts = next(works)
        if lasts is None:
            reader.stopped.set()
        elif lasts == 0:
            raise OSError("no answer")
        else:
            yield shot(1)
            now += lasts

    def wait(seconds: float) -> None:
        pauses.append(seconds)

    reader = live(shots, backoff=Backoff(), clock=lambda: now, wait=wait)
    assert len(list(InOrder(reader))) == 2
    assert pauses == [1, 5, 10, 60, 60, 60, 1, 5]


def test_live_missing_library_raises_without_retry() -> None:
    def shots() -> Iterator[Shot]:
        raise Unsupported("there is no such library")
        yield

    with Newest(live(shots)) as source, pytest.raises(Unsupported, match="no such library"):
        next(source)


def test_source_frame_that_fails_to_convert_is_counted() -> None:
    over = threading.Event()

    def broken() -> np.ndarray:
        raise ValueError("torn")

    def shots() -> Iterator[Shot]:
        yield Shot.now(broken)
        time.sleep(0.2)
        yield shot(3)
        over.wait(30)

    source = Newest(live(shots))
    assert value(next(source)) == 60
    assert source.damaged == 1
    source.interrupt()
    over.set()


def test_stream_over_silent_camera_closes_at_once(tmp_path: Path) -> None:
    over = threading.Event()

    def shots() -> Iterator[Shot]:
        yield shot(0)
        over.wait(30)

    with Running(f"unix:{tmp_path}/edged.sock") as running, Client(running.target) as client:
        reader = live(shots)
        stream = client.stream("shapes", Newest(reader))
        assert (next(stream).width, stream.counts.sent) == (64, 1)
        stream.close()
        assert reader.stopped.is_set()
    over.set()


def test_network_camera_rtsp_connection_lost_reconnects() -> None:
    with RtspCamera(frames=12) as rtsp, open_source(rtsp.url) as source:
        source.reader.backoff = Backoff((0.1,))  # type: ignore[attr-defined]
        values = [float(got.image.mean()) for got, _ in zip(source, range(15), strict=False)]  # type: ignore[union-attr]
        assert rtsp.connections >= 2
    assert min(values) < 60
    assert max(values) > 90
    assert rtsp.transport.startswith("RTP/AVP/TCP")


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("rtsp://me:p@ss@box/x?a=b@c", "rtsp://box/x?a=b@c"),
        ("rtsp://me:p/a?b#c@box/x", "rtsp://box/x"),
        ("rtsp://me:p/ss@box/x", "rtsp://box/x"),
        ("rtsp://box:554/door@2x", "rtsp://box:554/door@2x"),
        ("http://box/cgi?user=me&pwd=secret&channel=1", "http://box/cgi?user=***&pwd=***&channel=1"),
        ("rtsp://box:554/user=me_password=secret_channel=1.sdp", "rtsp://box:554/user=***"),
        ("http://box/cgi?cmd=snap&loginuse=me&loginpas=secret", "http://box/cgi?cmd=snap&loginuse=***&loginpas=***"),
        ("http://box/?access_token=a/b&api_key=c;authToken=d", "http://box/?access_token=***&api_key=***"),
        ("http://box/?keyframe=1&design=2&turnkey=3", "http://box/?keyframe=1&design=2&turnkey=3"),
        ("/models/top_key=3/my-user=5/model.onnx", "/models/top_key=3/my-user=5/model.onnx"),
        ("refused: 'http://box/?Password=secret'", "refused: 'http://box/?Password=***'"),
        ("gst:rtspsrc location=rtsp://me:secret@box/1 ! x", "gst:rtspsrc location=rtsp://box/1 ! x"),
        ("/dev/video0", "/dev/video0"),
    ],
)
def test_redact_removes_secrets(address: str, shown: str) -> None:
    assert redact(address) == shown
