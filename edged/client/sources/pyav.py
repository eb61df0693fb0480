"""Reading with PyAV, for video files and cameras, and its decoders in hardware.

PyAV's own wheels know NVIDIA's decoder (CUDA) and Intel's (QSV); a PyAV built against the system's FFmpeg may know
VA-API. On a Jetson none of them works, and GStreamer decodes instead (`edged.client.sources.gstreamer`).
"""

from __future__ import annotations

import functools
import glob
import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from edged import packages
from edged.client.sources import jpeg
from edged.client.sources.source import Shot
from edged.errors import Unsupported

_HOPELESS = 100  # reads in a row that fail
_IN_DECODER = 64  # more packets than any decoder keeps before it gives a frame

Damage = Callable[[], None]


def require_av() -> Any:
    """Import PyAV, an optional dependency."""
    try:
        return importlib.import_module("av")
    except ImportError:
        raise Unsupported(f"videos and cameras need PyAV; install it: {packages.install_extra('media')}") from None


def shots(container: Any, on_damage: Damage, *, undecoded: bool = False) -> Iterator[Shot]:
    """Yield the video of an open PyAV container without damaged frames, stamped with the arrival of their packets. With
    `undecoded` Motion JPEG stays JPEG. Raises errors of the container itself, such as a lost connection."""
    stream = container.streams.video[0]
    if undecoded and stream.codec_context.name == "mjpeg":
        return _pictures(container, stream, on_damage)
    if not getattr(stream.codec_context, "is_hwaccel", False):
        # Threads that each decode a frame would add a delay of as many frames to a camera.
        stream.thread_type = "AUTO" if container.duration else "SLICE"
    return _frames(container, stream, on_damage)


def pixels(frame: Any) -> npt.NDArray[np.uint8]:
    """BGR uint8 [height, width, 3]."""
    image: npt.NDArray[np.uint8] = frame.to_ndarray(format="bgr24")
    return image


def reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _frames(container: Any, stream: Any, on_damage: Damage) -> Iterator[Shot]:
    av = require_av()
    arrived: dict[int, tuple[int, int]] = {}
    for packet in _packets(container, stream, on_damage):
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
            yield Shot(functools.partial(pixels, frame), unix_ns, mono_ns, _seconds(frame.time))


def _pictures(container: Any, stream: Any, on_damage: Damage) -> Iterator[Shot]:
    for packet in _packets(container, stream, on_damage):
        if not packet.size:  # the last packet, which flushes a decoder
            return
        picture = jpeg.complete(bytes(packet))
        if picture is None:
            on_damage()
            continue
        yield Shot.at(functools.partial(bytes, picture), _driver_time(packet))


def _driver_time(packet: Any) -> int:
    """Nanoseconds on the monotonic clock if a Video4Linux driver stamped it; otherwise nonsense, which `Shot.at`
    detects."""
    if packet.pts is None or packet.time_base is None:
        return 0
    return int(packet.pts * packet.time_base * 1_000_000_000)


def _packets(container: Any, stream: Any, on_damage: Damage) -> Iterator[Any]:
    """Yield packets; skip places that cannot be read as long as something after them can."""
    av = require_av()
    failures = 0
    while True:
        try:
            for packet in container.demux(stream):
                failures = 0
                yield packet
            return
        except av.error.InvalidDataError:
            on_damage()
            failures += 1
            if failures >= _HOPELESS:
                raise


def _seconds(position: Any) -> float | None:
    return None if position is None else float(position)


# A kind of decoder and the device file without which asking for it is in vain.
_KINDS = (("cuda", "/dev/nvidiactl"), ("vaapi", "/dev/dri/renderD*"), ("qsv", "/dev/dri/renderD*"))


def accelerator() -> Any:
    """For `av.open(hwaccel=...)`; None if there is no such decoder. What the hardware cannot is decoded in
    software."""
    kind = _usable()
    return None if kind is None else _settings(kind)


@functools.cache
def _usable() -> str | None:
    """The first kind whose device lets itself be opened, found out once."""
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
            _settings(kind).create(codec)
        except Exception:  # noqa: S112 - whatever a driver does, the next kind or software may do
            continue
        return kind
    return None


def _settings(kind: str) -> Any:
    return importlib.import_module("av.codec.hwaccel").HWAccel(kind, allow_software_fallback=True)
