"""Sources through GStreamer, with a stand-in for it: the pipelines, and the frames made from their samples."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from edged.backoff import Backoff
from edged.client.frames import Captured
from edged.client.sources import gstreamer, open_source
from edged.client.sources.gstreamer import pixels
from edged.errors import InvalidInput, Unsupported
from tests.unit import fake_gst
from tests.unit.fake_gst import SECOND, Gst, Sample
from tests.unit.media import video

pytestmark = pytest.mark.timeout(60)
JETSON = {"nvarguscamerasrc", "nvv4l2decoder", "nvvidconv", "decodebin"}


@pytest.fixture
def gst(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gst]:
    gstreamer.decodes_in_hardware.cache_clear()
    yield fake_gst.install(monkeypatch)
    gstreamer.decodes_in_hardware.cache_clear()


def bgr(value: int, **changes: object) -> Sample:
    """Return 4x2 pixels of 3 bytes: rows of 12 bytes, which need no padding."""
    return Sample(bytes([value]) * 24, **changes)  # type: ignore[arg-type]


def take(text: str, count: int = 1, **options: object) -> list[Captured]:
    with open_source(text, latest=False, **options) as source:  # type: ignore[arg-type]
        return [next(source) for _ in range(count)]


def test_pipeline_camera_appends_edgeds_sink(gst: Gst) -> None:
    gst.scripts = [[], [bgr(7), None, bgr(9)]]
    first, second = take("gst:videotestsrc ! videoconvert !", 2)
    assert isinstance(first.image, np.ndarray)
    assert isinstance(second.image, np.ndarray)
    assert (first.image.shape, first.image[0, 0, 0], second.image[1, 3, 2]) == ((2, 4, 3), 7, 9)
    played = gst.pipelines[1]
    assert played.text.startswith("videotestsrc ! videoconvert ! appsink name=edged max-buffers=1 drop=true sync=false")
    assert "image/jpeg" in played.text
    assert played.states == ["playing", "null"]


def test_pipeline_camera_jpeg_is_passed_on(gst: Gst) -> None:
    picture = cv2.imencode(".jpg", np.zeros((16, 16, 3), np.uint8))[1].tobytes()
    gst.scripts = [[], [Sample(picture[:20], kind="image/jpeg"), Sample(picture + b"\0\0", kind="image/jpeg")]]
    with open_source("gst:v4l2src", latest=False) as source:
        assert next(source).image == picture
        assert source.damaged == 1


def test_pipeline_camera_buffers_are_unmapped(gst: Gst) -> None:
    whole, torn = bgr(1), Sample(b"\1" * 23)
    gst.scripts = [[], [torn, whole]]
    take("gst:x")
    assert (whole.buffer.mapped, torn.buffer.mapped) == (0, 0)


def test_pipeline_camera_plausible_time_of_element_is_used(gst: Gst) -> None:
    now = time.monotonic_ns()
    gst.base_time = now - 3 * SECOND
    stamps = (2 * SECOND, fake_gst.NONE, 900 * SECOND)
    gst.scripts = [[], [bgr(1, pts=pts) for pts in stamps]]
    known, unknown, nonsense = take("gst:x", 3)
    assert known.captured_mono_ns == pytest.approx(now - SECOND, abs=1000)
    assert abs((time.time_ns() - known.captured_unix_ns) - (time.monotonic_ns() - known.captured_mono_ns)) < SECOND / 10
    assert unknown.captured_mono_ns >= now
    assert nonsense.captured_mono_ns >= now


def test_pipeline_camera_failed_pipeline_is_restarted(gst: Gst, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "edged.client")
    gst.scripts = [[], [bgr(1), RuntimeError("rtsp://me:secret@box: not authorised")], [bgr(2)]]
    with open_source("gst:x", latest=False) as source:
        source.reader.backoff = Backoff((0.01,))  # type: ignore[attr-defined]
        values = [int(next(source).image[0, 0, 0]) for _ in range(2)]  # type: ignore[index,call-overload]
    assert values == [1, 2]
    assert "rtsp://box: not authorised" in caplog.text
    assert [pipeline.states for pipeline in gst.pipelines[1:]] == [["playing", "null"]] * 2


def test_pipeline_camera_silent_pipeline_times_out(gst: Gst, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gstreamer, "PATIENCE_S", 0.02)
    gst.scripts = [[], [None] * 10_000_000, [bgr(4)]]
    with open_source("gst:x", latest=False) as source:
        source.reader.backoff = Backoff((0.01,))  # type: ignore[attr-defined]
        assert next(source).image is not None


@pytest.mark.parametrize(("text", "words"), [("gst:nosuch", 'no element "nosuch"'), ("gst: ", "no pipeline")])
def test_pipeline_camera_rejected_pipeline_raises(gst: Gst, text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        open_source(text)


def test_csi_camera_on_jetson_opens(gst: Gst) -> None:
    gst.elements = JETSON
    gst.scripts = [[bgr(5)]]
    take("csi://1?width=1280&height=720&fps=29.97")
    (pipeline,) = gst.pipelines
    caps = "video/x-raw(memory:NVMM),format=NV12,width=1280,height=720,framerate=29970/1000"
    assert pipeline.text.startswith(
        f"nvarguscamerasrc name=source ! {caps} ! nvvidconv ! video/x-raw,format=NV12 ! app"
    )
    assert pipeline.source.properties == {"sensor-id": 1}


def test_rtsp_camera_on_jetson_decodes_in_hardware_with_address_as_property(gst: Gst) -> None:
    gst.elements = JETSON
    gst.scripts = [[bgr(5)]]
    url = 'rtsp://me:secret@box/1" ! filesink location="/tmp/x'
    take(url)
    (pipeline,) = gst.pipelines
    assert pipeline.text.startswith(
        "rtspsrc name=source protocols=tcp latency=0 ! application/x-rtp,media=video ! deco"
    )
    assert pipeline.source.properties == {"location": url}
    assert "secret" not in pipeline.text


def test_open_source_file_on_jetson_decodes_in_hardware(gst: Gst, tmp_path: Path) -> None:
    path = tmp_path / "v.mp4"
    path.touch()
    gst.elements = JETSON
    gst.scripts = [[bgr(1, pts=0), bgr(2, pts=SECOND // 50), bgr(3, pts=SECOND // 25)]] * 2
    frames = list(open_source(path, pace=False, max_fps=25))
    assert [int(frame.image[0, 0, 0]) for frame in frames] == [1, 3]  # type: ignore[index,call-overload]
    assert gst.pipelines[0].source.properties == {"location": str(path)}
    assert gst.pipelines[0].states == ["paused", "playing", "null"]


def test_open_source_file_unknown_to_gstreamer_uses_pyav(gst: Gst, tmp_path: Path) -> None:
    path = video(tmp_path / "v.avi", [0, 0, 0])
    gst.elements, gst.refuses = JETSON, True
    with open_source(path, pace=False) as source:
        assert len(list(source)) == 3
    assert gst.pipelines[0].states == ["paused", "null"]


def test_open_source_file_without_hardware_decoder_uses_pyav(gst: Gst, tmp_path: Path) -> None:
    (tmp_path / "v.mp4").touch()
    with pytest.raises(InvalidInput, match="cannot be opened"):
        open_source(tmp_path / "v.mp4")
    assert gst.pipelines == []


def test_open_source_without_gstreamer_says_what_to_install(monkeypatch: pytest.MonkeyPatch, gst: Gst) -> None:
    with pytest.raises(Unsupported, match="nvarguscamerasrc"):
        open_source("csi://0")
    monkeypatch.setitem(sys.modules, "gi", None)
    with pytest.raises(Unsupported, match="apt install python3-gi") as caught:
        open_source("gst:videotestsrc")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [(8, 4), (7, 5)])
@pytest.mark.parametrize("layout", ["BGR", "BGRx", "NV12", "GRAY8"])
def test_pixels_every_layout_with_padded_rows_is_converted(layout: str, size: tuple[int, int]) -> None:
    width, height = size
    blue = (255, 0, 0)

    def padded(row: list[int]) -> list[int]:
        return row + [99] * (-len(row) % 4)

    across, down = width + width % 2, height + height % 2
    rows = {
        "BGR": [padded([*blue] * width)] * height,
        "BGRx": [padded([*blue, 1] * width)] * height,
        "GRAY8": [padded([29] * width)] * height,
        "NV12": [padded([41] * across)] * down + [padded([240, 110] * (across // 2))] * (down // 2),
    }[layout]
    data = np.concatenate([np.array(row, np.uint8) for row in rows])
    image = pixels(data, layout, width, height)
    assert image.shape == ((height, width) if layout == "GRAY8" else (height, width, 3))
    expected = 29 if layout == "GRAY8" else blue
    assert np.abs(image.astype(int) - expected).max() <= 3
    with pytest.raises(ValueError, match="too few"):
        pixels(data[:-1], layout, width, height)
