"""Opens the source of an address."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from edged.client.sources.address import CameraSettings, camera_address, redact
from edged.client.sources.files import Pictures
from edged.client.sources.source import InOrder, Newest, Reader, Source
from edged.errors import InvalidInput, NotFound

PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
VIDEO_SUFFIXES = (".mp4", ".mkv", ".mov", ".avi", ".webm", ".m4v", ".ts")
_WEBCAM = "webcam:"
_GST = "gst:"
_KINDS = "rtsp://, http://, v4l2://, csi://, gst:, shm:// or a file"


def open_source(
    text: str | os.PathLike[str],
    *,
    pace: bool = True,
    latest: bool | None = None,
    max_fps: float = 0.0,
    loop: bool = False,
    hardware: bool = True,
) -> Source:
    """Open a source of frames:

    - a picture, a folder of pictures (sorted by name), or a video file, also one at `http://...mp4`
    - `rtsp://...` over TCP; `http://...` and `https://...` that send Motion JPEG or HLS
    - `v4l2:///dev/video0`, also with `?width=1280&height=720&fps=30&format=mjpeg`; `/dev/video0`; `webcam:0`
    - `csi://0`, a camera of a Jetson, also with width, height and fps
    - `gst:PIPELINE`, what GStreamer makes of it
    - `shm://NAME`, the frames of another process's `SharedRing`

    A video plays at its own speed; without `pace`, as fast as frames are taken. `latest` keeps only the newest frame,
    the default for cameras; False gives every frame, the default for files. `max_fps` leaves out frames that come
    faster, in a video by its own time; 0 leaves out none. `loop` repeats a file. `hardware` decodes video in hardware
    if possible.

    NotFound or InvalidInput if it cannot be opened; Unsupported if a library for it is not installed. A camera that is
    missing or goes away is connected again.
    """
    name = os.fspath(text)
    if max_fps < 0:
        raise InvalidInput(f"max_fps={max_fps:g} is not a rate; give frames a second, 0 for all")
    open_reader = _live(name, hardware)
    if open_reader is not None:
        reader = open_reader()
        return Newest(reader, max_fps) if latest is not False else InOrder(reader, max_fps)
    pictures = None if "://" in name else _pictures(Path(name))
    if pictures is not None:
        return Pictures(name, pictures, max_fps, loop)
    reader = _recording(name, pace, loop, hardware)
    return Newest(reader, max_fps) if latest else InOrder(reader, max_fps)


def _live(name: str, hardware: bool) -> Callable[[], Reader] | None:
    """Return what opens the camera of that name; None for a file."""
    scheme = name.partition("://")[0] if "://" in name else ""
    if name.startswith(_GST):
        return lambda: _gst_pipeline(name.removeprefix(_GST))
    if name.startswith(_WEBCAM):
        number = name.removeprefix(_WEBCAM) or "0"
        if not number.isdecimal():
            raise InvalidInput(f"{name!r} is not a webcam; write webcam:0 for /dev/video0")
        return lambda: _v4l2(f"/dev/video{number}", CameraSettings())
    if name.startswith("/dev/video"):
        return lambda: _v4l2(name, CameraSettings())
    match scheme:
        case "rtsp" | "rtsps":
            return lambda: _network(name, hardware)
        case "http" | "https":
            return None if _suffix(name) in VIDEO_SUFFIXES else lambda: _network(name, hardware)
        case "v4l2":
            return lambda: _v4l2(*camera_address(name))
        case "csi":
            return lambda: _csi(*camera_address(name))
        case "shm":
            return lambda: _shared(name.removeprefix("shm://"))
        case "":
            return None
    raise InvalidInput(f"{redact(name)!r} has an unknown scheme; give {_KINDS}")


def _network(url: str, hardware: bool) -> Reader:
    from edged.client.sources import gstreamer
    from edged.client.sources.cameras import network_camera

    if hardware and url.startswith("rtsp") and gstreamer.decodes_in_hardware():
        return gstreamer.rtsp_camera(url)
    return network_camera(url, hardware)


def _v4l2(device: str, settings: CameraSettings) -> Reader:
    from edged.client.sources.cameras import v4l2_camera

    return v4l2_camera(device, settings)


def _csi(sensor: str, settings: CameraSettings) -> Reader:
    from edged.client.sources.gstreamer import csi_camera

    if not sensor.isdecimal():
        raise InvalidInput(f"csi://{sensor} is not a camera of a Jetson; write csi://0 for the first")
    return csi_camera(int(sensor), settings)


def _gst_pipeline(text: str) -> Reader:
    from edged.client.sources.gstreamer import pipeline_camera

    return pipeline_camera(text)


def _shared(name: str) -> Reader:
    from edged.client.sources.shared import shared_camera

    return shared_camera(name)


def _recording(name: str, pace: bool, loop: bool, hardware: bool) -> Reader:
    from edged.client.sources import gstreamer
    from edged.client.sources.files import AvFilm, Film, Recording

    def open_film() -> Film:
        if hardware and "://" not in name and gstreamer.decodes_in_hardware():
            with contextlib.suppress(InvalidInput):  # a format that it does not know
                return gstreamer.GstFilm(name)
        return AvFilm(name, hardware)

    return Recording(redact(name), open_film, pace=pace, loop=loop)


def _pictures(path: Path) -> list[Path] | None:
    """The pictures of a folder, or a picture; None for another file. NotFound if there is nothing."""
    if path.is_dir():
        return _in_folder(path)
    if not path.exists():
        raise NotFound(f"no such picture, folder, video or camera {str(path)!r}")
    return [path] if path.suffix.lower() in PICTURE_SUFFIXES else None


def _in_folder(folder: Path) -> list[Path]:
    try:
        found = sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURE_SUFFIXES)
    except OSError as error:
        raise InvalidInput(f"the folder {str(folder)!r} cannot be read: {error.strerror}") from None
    if not found:
        raise NotFound(f"the folder {str(folder)!r} has no pictures ({', '.join(PICTURE_SUFFIXES)})")
    return found


def _suffix(url: str) -> str:
    return Path(urlsplit(url).path).suffix.lower()
