"""Reads cameras (RTSP over TCP, Motion JPEG and HLS over HTTP, Video4Linux) and videos with PyAV, in hardware if
possible.

PyAV's wheels support NVIDIA's decoder (CUDA) and Intel's (QSV); a PyAV built against the system's FFmpeg may support
VA-API. None of these works on a Jetson; there GStreamer decodes (`edged.client.sources.gstreamer`).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import importlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from edged import packages
from edged.client.sources import jpeg
from edged.client.sources.address import CameraSettings
from edged.client.sources.source import Live, Playback, Shot
from edged.errors import InvalidInput, NotFound, Unsupported, redact

_HOPELESS = 100  # failed reads in a row after which reading ends
_SILENT_S = 10.0  # a camera is connected again if it sends no video for so long, although it sends sound
_DAMAGED_S = 120.0  # a camera is connected again if no frame can be decoded for so long; key frames may be rare
_IN_DECODER = 64  # more packets than any decoder holds before it returns a frame

Damage = Callable[[], None]


def require_av() -> Any:
    """Import PyAV, an optional dependency. Raises Unsupported if it is not installed."""
    try:
        return importlib.import_module("av")
    except ImportError:
        raise Unsupported(f"videos and cameras need PyAV; install it: {packages.install_extra('media')}") from None


def shots(container: Any, on_damage: Damage, *, undecoded: bool = False) -> Iterator[Shot]:
    """Yield the undamaged frames of an open PyAV container, stamped with the arrival times of their packets. If
    `undecoded` is set, Motion JPEG is not decoded, and plausible times of the driver replace the arrival times. Raises
    the container's errors, such as a lost connection."""
    stream = container.streams.video[0]
    if undecoded and stream.codec_context.name == "mjpeg":
        return _pictures(container, stream, on_damage)
    if not getattr(stream.codec_context, "is_hwaccel", False):
        # For a camera, frame threading would add a delay of one frame per thread.
        stream.thread_type = "AUTO" if container.duration else "SLICE"
    return _frames(container, stream, on_damage)


def pixels(frame: Any) -> npt.NDArray[np.uint8]:
    """Convert a frame to BGR uint8 [height, width, 3]."""
    image: npt.NDArray[np.uint8] = frame.to_ndarray(format="bgr24")
    return image


def reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _is_live(container: Any) -> bool:
    """Whether a container is a camera's stream, which has no end."""
    return not container.duration


class _Health:
    """Notices that a camera's packets no longer give frames, for example because its codec has changed."""

    def __init__(self, container: Any) -> None:
        self._is_live, self._seen = _is_live(container), time.monotonic()

    def has_frame(self) -> None:
        self._seen = time.monotonic()

    def require_frames(self) -> None:
        if self._is_live and time.monotonic() - self._seen > _DAMAGED_S:
            raise OSError(f"no frame of the camera's video could be decoded for {_DAMAGED_S:g} s")


def _frames(container: Any, stream: Any, on_damage: Damage) -> Iterator[Shot]:
    av = require_av()
    arrived: dict[int, tuple[int, int]] = {}
    health = _Health(container)
    for packet in _packets(container, stream, on_damage):
        health.require_frames()
        now = time.time_ns(), time.monotonic_ns()
        if packet.pts is not None:
            arrived[packet.pts] = now
            if len(arrived) > _IN_DECODER:
                del arrived[next(iter(arrived))]
        try:
            frames = packet.decode()
        except av.error.EOFError:
            return
        except av.FFmpegError:
            on_damage()
            continue
        for frame in frames:
            if frame.is_corrupt:
                on_damage()
                continue
            unix_ns, mono_ns = arrived.pop(frame.pts, now)
            yield Shot(
                functools.partial(pixels, frame), unix_ns, mono_ns, None if frame.time is None else float(frame.time)
            )
            health.has_frame()  # the reader may have taken long


def _pictures(container: Any, stream: Any, on_damage: Damage) -> Iterator[Shot]:
    health = _Health(container)
    for packet in _packets(container, stream, on_damage):
        health.require_frames()
        if not packet.size:  # the last packet, which only flushes the decoder
            return
        picture = jpeg.complete(bytes(packet))
        if picture is None:
            on_damage()
            continue
        yield Shot.at(functools.partial(bytes, picture), _driver_time(packet))
        health.has_frame()  # the reader may have taken long


def _driver_time(packet: Any) -> int:
    """Return a packet's time in nanoseconds; 0 if unknown. A Video4Linux driver stamps packets with the monotonic
    clock; `Shot.at` ignores times of another clock."""
    if packet.pts is None or packet.time_base is None:
        return 0
    return int(packet.pts * packet.time_base * 1_000_000_000)


def _packets(container: Any, stream: Any, on_damage: Damage) -> Iterator[Any]:
    """Yield packets and skip unreadable places. Raises PyAV's error after 100 failed reads in a row, and OSError if a
    camera sends no video."""
    av = require_av()
    failures, is_live, seen = 0, _is_live(container), time.monotonic()
    while True:
        try:
            # All packets of a camera are read, so that a camera that sends only sound is noticed.
            for packet in container.demux() if is_live else container.demux(stream):
                if is_live and packet.stream is not stream:
                    if time.monotonic() - seen > _SILENT_S:
                        raise OSError(f"the camera has sent no video for {_SILENT_S:g} s")
                    continue
                failures = 0
                yield packet
                seen = time.monotonic()
            return
        except av.error.InvalidDataError:
            on_damage()
            failures += 1
            if failures >= _HOPELESS:
                raise


# Kinds of hardware decoders, and the device file that each needs.
_KINDS = (("cuda", "/dev/nvidiactl"), ("vaapi", "/dev/dri/renderD*"), ("qsv", "/dev/dri/renderD*"))


def _hardware(accelerated: bool) -> dict[str, Any]:
    """Return options of `av.open` that decode in hardware if possible, otherwise in software."""
    kind = usable_accelerator() if accelerated else None
    return {} if kind is None else {"hwaccel": _accelerator(kind)}


@functools.cache
def usable_accelerator() -> str | None:
    """Return the first kind of decoder whose device can be opened, or None. Tested once per process."""
    try:
        module = importlib.import_module("av.codec.hwaccel")
        compiled = module.hwdevices_available()
        codec = importlib.import_module("av").Codec("h264", "r")
    except (ImportError, AttributeError, ValueError):  # PyAV before 14 has no such module
        return None
    for kind, device in _KINDS:
        if kind not in compiled or not glob.glob(device):
            continue
        try:
            _accelerator(kind).create(codec)
        except Exception:  # noqa: S112 - whatever the driver raises, the next kind or software may work
            continue
        return kind
    return None


def _accelerator(kind: str) -> Any:
    return importlib.import_module("av.codec.hwaccel").HWAccel(kind, allow_software_fallback=True)


_USUAL_FPS = 25.0


class AvFilm:
    """A video file, or an address that PyAV reads like a file."""

    def __init__(self, path: str, accelerated: bool) -> None:
        """Open the video. Raises InvalidInput if it cannot be opened or has no video stream."""
        av = require_av()
        try:
            self._container: Any = av.open(path, **_hardware(accelerated))
        except (av.FFmpegError, OSError) as error:
            raise InvalidInput(f"the video {redact(path)!r} cannot be opened: {reason(error)}") from None
        if not self._container.streams.video:
            self._container.close()
            raise InvalidInput(f"the file {redact(path)!r} has no video stream; give a video")
        self.rate = float(self._container.streams.video[0].average_rate or _USUAL_FPS)

    def shots(self, on_damage: Callable[[], None]) -> Iterator[Shot]:
        av = require_av()
        try:
            yield from shots(self._container, on_damage)
        except (av.FFmpegError, OSError):  # the file is cut off
            on_damage()

    def close(self) -> None:
        self._container.close()


_TIMEOUT_S = (10.0, 10.0)  # seconds to open, and for each read
# UDP loses packets on a busy LAN. FFmpeg's "nobuffer" is not used: it discards the frames from which it learns the
# format, including the first key frame, and the next key frame may follow seconds later. Old frames are skipped anyway.
_RTSP = {"rtsp_transport": "tcp"}


def network_camera(url: str, accelerated: bool = True) -> Live:
    """Return the camera at an address with `rtsp://`, `rtsps://`, `http://` or `https://`. Raises Unsupported if PyAV
    is not installed."""
    av = require_av()

    @contextlib.contextmanager
    def connect(camera: Live) -> Iterator[Iterator[Shot]]:
        transport = _RTSP if url.startswith("rtsp") else {}
        with av.open(url, timeout=_TIMEOUT_S, options=transport, **_hardware(accelerated)) as container:
            if not container.streams.video:
                raise OSError("the camera sends no video")
            taken = shots(container, camera.on_damage, undecoded=True)
            yield _played(taken, camera) if "hls" in container.format.name.split(",") else taken

    return Live(url, connect)


def _played(taken: Iterator[Shot], camera: Live) -> Iterator[Shot]:
    """Yield HLS shots at the video's frame rate, since HLS arrives in chunks of several seconds. Shots are stamped when
    they are yielded, since their capture times are unknown."""
    due = Playback(_USUAL_FPS)
    for shot in taken:
        camera.stopped.wait(due.until(shot.position))
        yield Shot.now(shot.develop, shot.position)


_NOT_ABOUT_THE_FORMAT = {errno.EBUSY, errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.EACCES, errno.EPERM, errno.EIO}


def v4l2_camera(device: str, settings: CameraSettings) -> Live:
    """Return a camera of this machine. If the driver has Motion JPEG and the settings name no other format, the camera
    sends Motion JPEG, which the daemon decodes on demand. Raises NotFound if the device does not exist, InvalidInput if
    this user may not open the device."""
    av = require_av()
    if not os.path.exists(device):
        raise NotFound(f"the camera {device} does not exist; see: ls /dev/video*")
    if not os.access(device, os.R_OK | os.W_OK):
        raise InvalidInput(
            f"this user is not allowed to open the camera {device}; join the group that owns the device (video)"
        )

    @contextlib.contextmanager
    def connect(camera: Live) -> Iterator[Iterator[Shot]]:
        with _open(av, device, settings) as container:
            yield shots(container, camera.on_damage, undecoded=True)

    return Live(device, connect)


def _open(av: Any, device: str, settings: CameraSettings) -> Any:
    wanted = {}
    if settings.width and settings.height:
        wanted["video_size"] = f"{settings.width}x{settings.height}"
    if settings.fps:
        wanted["framerate"] = f"{settings.fps:g}"

    def attempt(**more: str) -> Any:
        return av.open(device, format="v4l2", options=wanted | more, timeout=_TIMEOUT_S)

    if settings.format:
        return attempt(input_format=settings.format)
    try:
        return attempt(input_format="mjpeg")
    except (av.FFmpegError, OSError) as error:
        if error.errno in _NOT_ABOUT_THE_FORMAT:
            raise
        return attempt()
