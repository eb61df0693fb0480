"""Sources that GStreamer reads: a Jetson's cameras, videos through its hardware decoder, and pipelines that users
write.

GStreamer's Python module is installed by the system, not by pip. Addresses are set as properties and never become part
of a pipeline's text, so that no part of an address can be interpreted as an element.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from edged.client.frames import Picture
from edged.client.sources import jpeg
from edged.client.sources.address import CameraSettings
from edged.client.sources.source import Live, Shot
from edged.errors import InvalidInput, Unsupported

_FORMATS = ("BGR", "BGRx", "NV12", "GRAY8")
Pixels: TypeAlias = npt.NDArray[np.uint8]
_CHANNELS = {"BGR": 3, "BGRx": 4, "GRAY8": 1}


def develop(gst: Any, sample: Any) -> Picture:
    """Convert a sample to JPEG bytes, BGR uint8 [height, width, 3] or gray uint8 [height, width]. Raises ValueError if
    the buffer is incomplete."""
    shape = sample.get_caps().get_structure(0)
    buffer = sample.get_buffer()
    mapped, view = buffer.map(gst.MapFlags.READ)
    if not mapped:
        raise ValueError("the buffer of a GStreamer sample cannot be mapped into memory")
    try:
        if shape.get_name() == "image/jpeg":
            whole = jpeg.complete(bytes(view.data))
            if whole is None:
                raise ValueError("the JPEG is cut off")
            return whole
        data = np.frombuffer(view.data, np.uint8)
        return pixels(data, shape.get_value("format"), shape.get_value("width"), shape.get_value("height"))
    finally:
        buffer.unmap(view)


def pixels(data: Pixels, layout: str, width: int, height: int) -> Pixels:
    """Return BGR [height, width, 3] or gray [height, width]. The pixels are a copy, since GStreamer uses the buffer
    again."""
    if layout == "NV12":
        return _from_nv12(data, width, height)
    channels = _CHANNELS[layout]
    rows = _rows(data, height, width * channels)
    if channels == 1:
        return np.array(rows, np.uint8)
    image = rows.reshape(height, width, channels)
    if channels == 3:
        return np.array(image, np.uint8)
    import cv2  # imported here: edged-client is installed without it

    return np.asarray(cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_BGRA2BGR), np.uint8)


def _from_nv12(data: Pixels, width: int, height: int) -> Pixels:
    """Convert NV12 to BGR. OpenCV needs even sizes. The planes are padded to even sizes, so the result is cut to the
    picture's size."""
    import cv2

    across, down = width + width % 2, height + height % 2
    luma_end = _round4(width) * down
    luma = _rows(data[:luma_end], down, across)
    chroma = _rows(data[luma_end:], down // 2, across).reshape(down // 2, across // 2, 2)
    image = cv2.cvtColorTwoPlane(luma, chroma, cv2.COLOR_YUV2BGR_NV12)
    return np.asarray(image[:height, :width], np.uint8)


def _rows(data: Pixels, height: int, used: int) -> Pixels:
    """Return a view [height, used] of rows that are padded to a multiple of 4 bytes. Raises ValueError if data is
    missing."""
    stride = _round4(used)
    if data.size < stride * height:
        raise ValueError(f"the picture has {data.size} bytes, too few for {height} rows of {stride} bytes")
    return data[: stride * height].reshape(height, stride)[:, :used]


def _round4(value: int) -> int:
    return (value + 3) // 4 * 4


PATIENCE_S = 10.0
_LOOK_NS = 200_000_000  # nanoseconds after which a wait for a sample checks whether the camera was stopped
_OPEN_NS = 10_000_000_000
_RAW = f"video/x-raw,format={{ {', '.join(_FORMATS)} }}"
# One sample waits; a newer one replaces it. Samples are delivered on arrival, not at their presentation time.
_LIVE_SINK = f'appsink name=edged max-buffers=1 drop=true sync=false caps="image/jpeg;{_RAW}"'
_FILM_SINK = f'appsink name=edged max-buffers=2 drop=false sync=false caps="{_RAW}"'
# The hardware copies pictures out of the memory of the decoder or camera. NV12 has half the bytes of BGR.
_FROM_DEVICE = "nvvidconv ! video/x-raw,format=NV12"


def require_gst() -> Any:
    """Import and initialise GStreamer's module. Raises Unsupported if it is not installed."""
    try:
        gi = importlib.import_module("gi")
        gi.require_version("Gst", "1.0")
        gst = importlib.import_module("gi.repository.Gst")
    except (ImportError, ValueError, AttributeError):
        raise Unsupported(
            "GStreamer's Python module is not installed; install it with: apt install python3-gi "
            "gir1.2-gst-plugins-base-1.0 gstreamer1.0-plugins-good (a virtual environment needs --system-site-packages)"
        ) from None
    if not gst.is_initialized():
        gst.init(None)
    return gst


@functools.cache
def decodes_in_hardware() -> bool:
    """Whether GStreamer can use a Jetson's hardware decoder."""
    try:
        gst = require_gst()
    except Unsupported:
        return False
    return all(gst.ElementFactory.find(name) is not None for name in ("nvv4l2decoder", "nvvidconv", "decodebin"))


def pipeline_camera(text: str) -> Live:
    """Return a camera that reads the pipeline `text`, in gst-launch syntax without a sink. Raises InvalidInput if
    GStreamer rejects the pipeline, Unsupported if GStreamer is not installed."""
    gst = require_gst()
    whole = f"{text.strip().removesuffix('!').strip()} ! {_LIVE_SINK}"
    if not text.strip():
        raise InvalidInput(
            "the address gst: has no pipeline; write, for example: gst:videotestsrc is-live=true ! videoconvert"
        )
    try:
        gst.parse_launch(whole).set_state(gst.State.NULL)
    except Exception as error:  # GLib.Error, which cannot be named without gi
        raise InvalidInput(f"GStreamer rejects the pipeline: {getattr(error, 'message', error)}") from None
    return _camera(f"gst:{text}", whole, {})


def csi_camera(sensor: str, settings: CameraSettings) -> Live:
    """Return the camera with the number `sensor` on a Jetson's CSI connector. Raises InvalidInput if `sensor` is not a
    number, Unsupported if GStreamer or its element nvarguscamerasrc is missing."""
    if not sensor.isdecimal():
        raise InvalidInput(f"csi://{sensor} is not a CSI camera; write csi://0 for the first camera")
    if require_gst().ElementFactory.find("nvarguscamerasrc") is None:
        raise Unsupported(
            "csi:// cameras need GStreamer's element nvarguscamerasrc, which is missing on this box; "
            "install NVIDIA's multimedia packages of JetPack"
        )
    caps = ["video/x-raw(memory:NVMM)", "format=NV12"]
    if settings.width:
        caps += [f"width={settings.width}", f"height={settings.height}"]
    if settings.fps:
        caps += [f"framerate={round(settings.fps * 1000)}/1000"]
    pipeline = f"nvarguscamerasrc name=source ! {','.join(caps)} ! {_FROM_DEVICE} ! {_LIVE_SINK}"
    return _camera(f"csi://{sensor}", pipeline, {"sensor-id": int(sensor)})


def rtsp_camera(url: str) -> Live:
    """Return an RTSP camera whose video a Jetson decodes in hardware."""
    return _camera(url, _RTSP_PIPELINE, {"location": url})


# decodebin selects the decoder with the highest rank: nvv4l2decoder on a Jetson.
_RTSP_PIPELINE = (
    "rtspsrc name=source protocols=tcp latency=0 ! application/x-rtp,media=video ! decodebin"
    f" ! {_FROM_DEVICE} ! {_LIVE_SINK}"
)
_FILM_PIPELINE = f"filesrc name=source ! decodebin ! {_FROM_DEVICE} ! {_FILM_SINK}"


class GstFilm:
    """A video file decoded by a Jetson's hardware."""

    rate = 25.0  # for samples without a position, which are rare

    def __init__(self, path: str) -> None:
        """Open the file. Raises InvalidInput if it cannot be opened."""
        self._gst = require_gst()
        self._pipeline = self._gst.parse_launch(_FILM_PIPELINE)
        self._pipeline.get_by_name("source").set_property("location", path)
        self._pipeline.set_state(self._gst.State.PAUSED)
        outcome = self._pipeline.get_state(_OPEN_NS)[0]
        if outcome == self._gst.StateChangeReturn.FAILURE:
            why = _complaint(self._gst, self._pipeline)
            self.close()
            raise InvalidInput(f"the video {path!r} cannot be opened: {why or 'GStreamer does not know its format'}")

    def shots(self, on_damage: Callable[[], None]) -> Iterator[Shot]:
        self._pipeline.set_state(self._gst.State.PLAYING)
        try:
            for sample in _samples(self._gst, self._pipeline, lambda: False, math.inf):
                stamp = sample.get_buffer().pts
                known = stamp != self._gst.CLOCK_TIME_NONE
                yield Shot(functools.partial(develop, self._gst, sample), position=stamp / 1e9 if known else None)
        except OSError:  # the file is cut off
            on_damage()

    def close(self) -> None:
        self._pipeline.set_state(self._gst.State.NULL)


def _camera(name: str, text: str, properties: Mapping[str, object]) -> Live:
    """Return a camera that reads a pipeline; `properties` are set on the element named `source`."""
    gst = require_gst()

    @contextlib.contextmanager
    def connect(camera: Live) -> Iterator[Iterator[Shot]]:
        pipeline = gst.parse_launch(text)
        for key, value in properties.items():
            pipeline.get_by_name("source").set_property(key, value)
        pipeline.set_state(gst.State.PLAYING)
        try:
            yield _stamped(gst, pipeline, camera.stopped.is_set)
        finally:
            pipeline.set_state(gst.State.NULL)

    return Live(name, connect)


def _stamped(gst: Any, pipeline: Any, stopped: Callable[[], bool]) -> Iterator[Shot]:
    """Yield samples with capture times. A buffer's time counts from the pipeline's start on the monotonic clock; if an
    element uses another clock, `Shot.at` detects it."""
    for sample in _samples(gst, pipeline, stopped, PATIENCE_S):
        stamp = sample.get_buffer().pts
        taken = 0 if stamp == gst.CLOCK_TIME_NONE else pipeline.get_base_time() + stamp
        yield Shot.at(functools.partial(develop, gst, sample), taken)


def _samples(gst: Any, pipeline: Any, stopped: Callable[[], bool], patience: float) -> Iterator[Any]:
    """Yield samples until the stream ends. Raises OSError if the pipeline fails, TimeoutError after `patience` seconds
    without a sample."""
    sink, last = pipeline.get_by_name("edged"), time.monotonic()
    while not stopped():
        sample = sink.emit("try-pull-sample", _LOOK_NS)
        if sample is not None:
            yield sample
            last = time.monotonic()
            continue
        complaint = _complaint(gst, pipeline)
        if complaint is not None:
            raise OSError(complaint)
        if sink.get_property("eos"):
            return
        if time.monotonic() - last > patience:
            raise TimeoutError(f"no frame for {patience:g} s")


def _complaint(gst: Any, pipeline: Any) -> str | None:
    """Return the pipeline's first error in one line, or None."""
    message = pipeline.get_bus().pop_filtered(gst.MessageType.ERROR)
    if message is None:
        return None
    error, _ = message.parse_error()
    return str(error.message)
