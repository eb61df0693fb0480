"""Opens the source that an address names; plays videos, reads pictures and draws scenes."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from edged import packages
from edged.client.frames import Captured
from edged.client.sources import gstreamer, pyav
from edged.client.sources.address import CameraSettings, camera_address
from edged.client.sources.shared import shared_camera
from edged.client.sources.source import InOrder, Live, Newest, Playback, Reader, Shot, Source
from edged.client.sources.wav import WAV_SUFFIX, Wav
from edged.errors import InvalidInput, NotFound, Unsupported, redact
from edged.vision.picture_header import read_header


class Film(Protocol):
    """An open video file. `rate`, in frames per second, is used for frames without a position."""

    rate: float

    def shots(self, on_damage: Callable[[], None]) -> Iterator[Shot]: ...
    def close(self) -> None: ...


class Recording(Reader):
    """Reads a video. With `pace` it plays in real time, and each shot is stamped as if it were taken now; otherwise
    shots have no capture time. With `loop` the video is repeated."""

    def __init__(self, name: str, open_film: Callable[[], Film], *, pace: bool, loop: bool = False) -> None:
        """Open the video. Raises the errors of `open_film`."""
        super().__init__(name)
        self.paced = pace
        self._open = open_film
        self._loop = loop
        self._film = open_film()

    def shots(self) -> Generator[Shot, None, None]:
        while (yield from self._play()) and self._loop:
            self._film = self._open()

    def close(self) -> None:
        self._film.close()

    def _play(self) -> Generator[Shot, None, bool]:
        """Play the video once. Return whether the video had frames and was played to the end."""
        due, given = Playback(self._film.rate), False
        try:
            for shot in self._film.shots(self.on_damage):
                if self.paced:
                    self.stopped.wait(due.until(shot.position))
                if self.stopped.is_set():
                    return False
                given = True
                yield (
                    Shot.now(shot.develop, shot.position) if self.paced else Shot(shot.develop, position=shot.position)
                )
        finally:
            self._film.close()
        return given


class Pictures(Source):
    """Returns picture files without decoding them. A file without a readable header counts as damaged. Picture
    files have no times, unlike the frames of a video. So `max_fps` delays pictures, and no picture is skipped."""

    def __init__(self, name: str, paths: list[Path], max_fps: float = 0.0, loop: bool = False) -> None:
        super().__init__(name)
        self._found = self._read(paths, loop)
        self._pause = 1 / max_fps if max_fps > 0 else 0.0
        self._stopped = threading.Event()
        self._given = False

    def __next__(self) -> Captured:
        if self._given and self._pause:
            self._stopped.wait(self._pause)
        if self._stopped.is_set():
            raise StopIteration
        encoded = next(self._found)
        self._given = True
        return Captured(encoded)

    def interrupt(self) -> None:
        self._stopped.set()

    def _read(self, paths: list[Path], loop: bool) -> Iterator[bytes]:
        usable = True
        while usable:
            usable = False
            for path in paths:
                try:
                    encoded = path.read_bytes()
                except OSError:
                    encoded = b""
                if read_header(encoded) is None:
                    self.damaged += 1
                    continue
                usable = loop
                yield encoded


PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
VIDEO_SUFFIXES = (".mp4", ".mkv", ".mov", ".avi", ".webm", ".m4v", ".ts")
_KINDS = "rtsp://, rtsps://, http://, https://, v4l2://, webcam:N, csi://, gst:, shm://, scene: or a file"


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
    - a WAV file, mono, 16 bits: chunks of its samples, for a model that takes sound
    - `rtsp://...` over TCP; `http://...` and `https://...` that send Motion JPEG or HLS
    - `v4l2:///dev/video0`, also with `?width=1280&height=720&fps=30&format=mjpeg`; `/dev/video0`; `webcam:0`
    - `csi://0`, a camera of a Jetson, also with width, height and fps
    - `gst:PIPELINE`, a GStreamer pipeline without a sink
    - `shm://NAME`, the frames of another process's `SharedRing`
    - `scene:SEED`, drawn moving shapes that the embedded model detects

    A video plays in real time; without `pace`, as fast as the caller reads frames. `latest=True` keeps only the newest
    frame, the default for cameras. `latest=False` returns every frame, the default for files. `max_fps` leaves out
    frames above this rate; 0 means no limit. In a video, the rate is computed from the positions of the frames. `loop`
    repeats a file. `hardware` decodes video in hardware if possible.

    Raises NotFound or InvalidInput if the source cannot be opened, Unsupported if a library for it is not installed. If
    a camera is missing or goes away, the source connects to it again.
    """
    name = os.fspath(text)
    if max_fps < 0:
        raise InvalidInput(f"max_fps={max_fps:g} is negative; give frames a second, or 0 for no limit")
    camera = _open_camera(name, hardware)
    if camera is None and Path(name).suffix.lower() == WAV_SUFFIX and "://" not in name:
        return Wav(name, pace=pace, loop=loop)
    pictures = None if camera is not None or "://" in name else _find_pictures(Path(name))
    if pictures is not None:
        return Pictures(name, pictures, max_fps, loop)
    reader: Reader = camera or Recording(redact(name), lambda: _open_film(name, hardware), pace=pace, loop=loop)
    newest = camera is not None if latest is None else latest
    return Newest(reader, max_fps) if newest else InOrder(reader, max_fps)


def _open_camera(name: str, hardware: bool) -> Live | None:
    """Return the camera that an address names; None for a file. Raises InvalidInput for an unknown scheme."""
    if name.startswith("/dev/video"):
        return pyav.v4l2_camera(name, CameraSettings())
    scheme, separator, rest = name.partition(":")
    match scheme if separator else "":
        case "gst":
            return gstreamer.pipeline_camera(rest)
        case "scene":
            return _scene_camera(rest)
        case "webcam" if (rest or "0").isdecimal():
            return pyav.v4l2_camera(f"/dev/video{rest or 0}", CameraSettings())
        case "webcam":
            raise InvalidInput(f"{name!r} is not a webcam; write webcam:0 for /dev/video0")
        case _ if "://" not in name:
            return None
        case "rtsp" | "rtsps" if hardware and gstreamer.decodes_in_hardware():
            return gstreamer.rtsp_camera(name)
        case "http" | "https" if Path(urlsplit(name).path).suffix.lower() in VIDEO_SUFFIXES:
            return None
        case "rtsp" | "rtsps" | "http" | "https":
            return pyav.network_camera(name, hardware)
        case "v4l2":
            return pyav.v4l2_camera(*camera_address(name))
        case "csi":
            return gstreamer.csi_camera(*camera_address(name))
        case "shm":
            return shared_camera(name.removeprefix("shm://"))
    raise InvalidInput(f"the source {redact(name)!r} has an unknown scheme; give {_KINDS}")


_SCENE_FPS = 15.0


def _scene_camera(seed: str) -> Live:
    """Return a camera that draws the scene of a seed (default 1). The camera sends 15 JPEGs of 640x480 pixels a second.
    Raises InvalidInput if `seed` is not a number of at most 9 digits, Unsupported without OpenCV."""
    if not (seed or "1").isdecimal() or len(seed) > 9:
        raise InvalidInput(
            f"'scene:{seed[:20]}' is not a drawn scene; write scene: and a number of up to 9 digits, such as scene:7"
        )
    if not packages.is_installed("cv2"):
        raise Unsupported(packages.missing("cv2", "a drawn scene"))
    return Live(f"scene:{seed or 1}", lambda live: contextlib.nullcontext(_draw(live, int(seed or "1"))))


def _draw(live: Live, seed: int) -> Iterator[Shot]:
    from edged.shapes import Scene
    from edged.vision.draw import encode_jpeg

    scene = Scene(seed)
    for number in itertools.count():
        if live.stopped.wait(1 / _SCENE_FPS):
            return
        picture, _ = scene.frame(number)
        yield Shot.now(functools.partial(encode_jpeg, picture))


def _open_film(name: str, hardware: bool) -> Film:
    if hardware and "://" not in name and gstreamer.decodes_in_hardware():
        with contextlib.suppress(InvalidInput):  # GStreamer does not know the format
            return gstreamer.GstFilm(name)
    return pyav.AvFilm(name, hardware)


def _find_pictures(path: Path) -> list[Path] | None:
    """Return the pictures of a folder, or the path itself if it is a picture. Return None for any other file. Raises
    NotFound if the path does not exist or the folder has no pictures, InvalidInput if the folder cannot be read."""
    if not path.exists():
        raise NotFound(f"there is no picture, folder, video or camera {str(path)!r}")
    if not path.is_dir():
        return [path] if path.suffix.lower() in PICTURE_SUFFIXES else None
    try:
        found = sorted(each for each in path.iterdir() if each.suffix.lower() in PICTURE_SUFFIXES)
    except OSError as error:
        raise InvalidInput(f"the folder {str(path)!r} cannot be read: {error.strerror}") from None
    if not found:
        raise NotFound(f"the folder {str(path)!r} has no pictures: files that end in {', '.join(PICTURE_SUFFIXES)}")
    return found
