"""Real media through PyAV: streams that change, break and reconnect, and cameras that send JPEG."""

from __future__ import annotations

import contextlib
import errno
import functools
import threading
import time
import wave
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edged.backoff import Backoff
from edged.client.sources import open_source, pyav
from edged.client.sources.address import CameraSettings, camera_address
from edged.client.sources.jpeg import complete, length
from edged.client.sources.pyav import AvFilm, shots
from edged.errors import InvalidInput
from tests.unit.media import h264, jpeg

av = pytest.importorskip("av")
pytestmark = pytest.mark.timeout(60)


def without_tables(picture: bytes) -> bytes:
    """Return the picture without Huffman tables, as USB cameras send it."""
    at = 2
    kept = [picture[:2]]
    while picture[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(picture[at + 2 : at + 4], "big")
        if picture[at + 1] != 0xC4:
            kept.append(picture[at:end])
        at = end
    return b"".join([*kept, picture[at:]])


# --- files ----------------------------------------------------------------------------------------------------------


def test_shots_changed_resolution_continues(tmp_path: Path) -> None:
    path = tmp_path / "v.ts"
    path.write_bytes(h264(12, (256, 192)) + h264(12, (320, 240)))
    with open_source(path, pace=False) as source:
        sizes = [frame.image.shape for frame in source]  # type: ignore[union-attr]
    assert sizes.count((192, 256, 3)) >= 11
    assert sizes.count((240, 320, 3)) >= 11
    assert sizes == sorted(sizes)


def test_shots_flipped_bytes_are_read_to_the_end(tmp_path: Path) -> None:
    data = bytearray(h264(60))
    rng = np.random.default_rng(1)
    for at in rng.integers(len(data) // 3, len(data) // 2, 300).tolist():
        data[at] ^= 0xFF
    path = tmp_path / "v.ts"
    path.write_bytes(data)
    with open_source(path, pace=False) as source:
        values = [float(frame.image.mean()) for frame in source]  # type: ignore[union-attr]
        assert source.damaged >= 1
    assert 20 < len(values) < 60
    assert values[-1] > 200  # the last frames are undamaged


def test_recording_without_readable_video_raises(tmp_path: Path) -> None:
    truncated, sound = tmp_path / "v.mp4", tmp_path / "a.mp4"
    empty = tmp_path / "empty.mp4"
    empty.touch()
    truncated.write_bytes(h264(30, container="mp4")[:2000])
    with wave.open(str(sound), "wb") as made:
        made.setparams((1, 2, 8000, 0, "NONE", ""))
        made.writeframes(bytes(1600))
    for path in (truncated, sound, empty):
        with pytest.raises(InvalidInput, match=path.name):
            open_source(path)


def test_shots_unreadable_packets_are_skipped() -> None:
    class Container:
        """Fails once between two packets, and always after them."""

        duration = None

        def __init__(self) -> None:
            self.stream = type("Stream", (), {"codec_context": self.Codec()})()
            self.streams = type("Streams", (), {"video": [self.stream]})()
            self.reads = iter([b"one", None, b"two"])

        class Codec:
            name, is_hwaccel = "h264", False

        def demux(self) -> Iterator[Any]:
            for read in self.reads:
                if read is None:
                    raise av.error.InvalidDataError(1, "invalid data")
                yield Packet(self.stream)
            raise av.error.InvalidDataError(1, "invalid data")

    class Packet:
        pts = None

        def __init__(self, stream: object) -> None:
            self.stream = stream

        def decode(self) -> list[Any]:
            return [av.VideoFrame(16, 16, "bgr24")]

    damages: list[int] = []
    taken = shots(Container(), lambda: damages.append(1))
    assert next(taken).develop() is not None
    assert next(taken).develop() is not None
    assert len(damages) == 1
    with pytest.raises(av.error.InvalidDataError):
        next(taken)


def test_accelerator_unavailable_decodes_in_software(tmp_path: Path) -> None:
    path = tmp_path / "v.ts"
    path.write_bytes(h264(5))
    pyav.usable_accelerator.cache_clear()
    for accelerated in (True, False):
        film = AvFilm(str(path), accelerated)
        assert len(list(film.shots(lambda: None))) == 5
        film.close()


# --- HTTP -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run an HTTP server on a free port; yield its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


class JpegCamera:
    """Sends JPEGs to each connection, with shades that count from 0, until `broken` is set."""

    def __init__(self) -> None:
        camera = self
        self.connections = 0
        self.broken = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                camera.connections += 1
                camera.broken.clear()
                self.send_response(200)
                self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=edge")
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    for number in range(10_000):
                        picture = jpeg(min(250, number))
                        head = f"--edge\r\nContent-Type: image/jpeg\r\nContent-Length: {len(picture)}\r\n\r\n"
                        self.wfile.write(head.encode() + picture + b"\r\n")
                        if camera.broken.wait(0.01):
                            return

        self.handler = Handler


def test_network_camera_motion_jpeg_stays_jpeg_and_reconnects(caplog: pytest.LogCaptureFixture) -> None:
    camera = JpegCamera()
    with serving(camera.handler) as url, open_source(f"{url}/video?user=me&password=secret") as source:
        source.reader.backoff = Backoff((0.1,))  # type: ignore[attr-defined]
        first = next(source)
        assert isinstance(first.image, bytes)
        decoded = cv2.imdecode(np.frombuffer(first.image, np.uint8), cv2.IMREAD_COLOR)
        assert decoded is not None
        assert decoded.shape == (48, 64, 3)
        assert first.captured_mono_ns > 0
        camera.broken.set()
        while camera.connections < 2:
            next(source)
        assert isinstance(next(source).image, bytes)
        assert source.damaged == 0
    assert "secret" not in caplog.text
    assert "trying again in 0.1 s" in caplog.text


def test_network_camera_hls_plays_at_its_own_speed(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "live.m3u8"), "w", format="hls", options={"hls_time": "1"}) as made:
        stream = made.add_stream("libx264", rate=25, options={"g": "25", "tune": "zerolatency"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(75):
            made.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((48, 64, 3), number, np.uint8), format="bgr24")))
        made.mux(stream.encode(None))
    assert len(list(tmp_path.glob("*.ts"))) >= 2
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with serving(handler) as url, open_source(f"{url}/live.m3u8") as source:
        stamps = [next(source).captured_mono_ns / 1e9 for _ in range(15)]
    assert stamps == sorted(stamps)
    assert stamps[-1] - stamps[0] > 0.4  # fifteen at 25 a second last 0.56 s
    assert max(np.diff(stamps)) < 0.9  # no segment was delivered at once


# --- JPEG -----------------------------------------------------------------------------------------------------------


def test_jpeg_complete_adds_missing_tables() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    whole = cv2.imencode(".jpg", noise)[1].tobytes()
    bare = without_tables(whole)
    assert len(whole) - len(bare) > 400
    completed = complete(bare)
    assert completed is not None
    pixels = [cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) for data in (whole, completed)]
    assert np.array_equal(*pixels)
    assert complete(whole) == whole


@pytest.mark.parametrize("damage", [lambda d: b"", lambda d: b"\0" * 9, lambda d: d[: len(d) // 2], lambda d: d[:9]])
def test_jpeg_complete_invalid_data_returns_none(damage: Callable[[bytes], bytes]) -> None:
    assert complete(damage(jpeg(3))) is None
    assert length(damage(jpeg(3))) is None


def test_jpeg_length_excludes_trailing_bytes() -> None:
    assert complete(jpeg(9) + b"\0\0\0") == jpeg(9)
    assert length(jpeg(9) + jpeg(200)) == len(jpeg(9))


# --- Video4Linux ----------------------------------------------------------------------------------------------------


class Devices:
    """Replaces PyAV's access to Video4Linux: a device is a file of Motion JPEG, which can refuse that format."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path, refuses: int = 0) -> None:
        self.asked: list[dict[str, str]] = []
        self._path, self._refuses, self._open = path, refuses, av.open
        monkeypatch.setattr(av, "open", self.open)

    def open(self, device: str, *, format: str, options: dict[str, str], timeout: object) -> Any:
        assert format == "v4l2"
        self.asked.append(options)
        if self._refuses and options.get("input_format") == "mjpeg":
            raise av.error.OSError(self._refuses, "not that")
        return self._open(str(self._path), format="mjpeg")


@pytest.fixture
def device(tmp_path: Path) -> Path:
    path = tmp_path / "video0"
    path.write_bytes(b"".join(jpeg(number * 10) for number in range(9)))
    return path


@pytest.mark.parametrize(
    ("query", "refuses", "asked"),
    [
        ("?width=64&height=48&fps=15", 0, [{"video_size": "64x48", "framerate": "15", "input_format": "mjpeg"}]),
        ("", errno.EINVAL, [{"input_format": "mjpeg"}, {}]),
    ],
    ids=["JPEG", "a camera without JPEG"],
)
def test_v4l2_camera_requests_jpeg_first_and_passes_it_on(
    device: Path, monkeypatch: pytest.MonkeyPatch, query: str, refuses: int, asked: list[dict[str, str]]
) -> None:
    devices = Devices(monkeypatch, device, refuses)
    with open_source(f"v4l2://{device}{query}") as source:
        assert next(source).image[:2] == b"\xff\xd8"  # type: ignore[index]
    assert devices.asked[: len(asked)] == asked


def test_v4l2_camera_busy_is_tried_again(
    device: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    devices = Devices(monkeypatch, device, errno.EBUSY)
    with open_source(f"v4l2://{device}") as source:
        threading.Timer(0.3, source.interrupt).start()
        assert list(source) == []
    assert devices.asked == [{"input_format": "mjpeg"}]
    assert "trying again in 1 s" in caplog.text


def test_camera_address_has_place_and_settings() -> None:
    place, settings = camera_address("v4l2:///dev/video1?width=1280&height=720&fps=29.97&format=yuyv422")
    assert (place, settings) == ("/dev/video1", CameraSettings(1280, 720, 29.97, "yuyv422"))
    assert camera_address("csi://1") == ("1", CameraSettings())


@pytest.mark.parametrize("fault", ["sound only", "nothing can be decoded"])
def test_shots_of_a_camera_without_video_end_so_that_it_is_connected_again(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyav, "_SILENT_S", 0.05)
    monkeypatch.setattr(pyav, "_DAMAGED_S", 0.05)

    class Packet:
        pts = None

        def __init__(self, stream: object) -> None:
            self.stream = stream

        def decode(self) -> list[Any]:
            raise av.error.InvalidDataError(1, "invalid data")

    class Camera:
        duration = None

        def __init__(self) -> None:
            codec = type("Codec", (), {"name": "h264", "is_hwaccel": False})()
            video, sound = type("Stream", (), {"codec_context": codec})(), object()
            self.streams = type("Streams", (), {"video": [video]})()
            self.sends = sound if fault == "sound only" else video

        def demux(self) -> Iterator[Packet]:
            while True:
                time.sleep(0.005)
                yield Packet(self.sends)

    with pytest.raises(OSError, match="no video" if fault == "sound only" else "no frame"):
        next(shots(Camera(), lambda: None))
