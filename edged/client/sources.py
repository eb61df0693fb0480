"""Where frames come from: pictures, videos, cameras; all as iterators of `Captured`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from edged.client.frames import Captured
from edged.errors import InvalidInput, NotFound
from edged.vision.header import read_header

if TYPE_CHECKING:
    from typing_extensions import Self

PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
_LIVE = ("rtsp://", "rtsps://")
_WEBCAM = "webcam:"
_SECRET = re.compile(r"//[^/]*@")


class Source(Iterator[Captured]):
    """Frames, one at a time.

    `paced` says that they come in their own time, so that a late one is worthless: a camera, or a video at its own
    speed. Without it each frame is as good as the last, and none should be skipped. `damaged` counts frames that
    could not be read; `overtaken` those of a camera that a newer one replaced before anybody asked.
    """

    paced = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.damaged = 0
        self.overtaken = 0

    def interrupt(self) -> None:
        """From any thread: whoever waits for a frame is told that there are no more."""

    def close(self) -> None:
        self.interrupt()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Pictures(Source):
    """Picture files as they are, not decoded; one without a readable header is counted as damaged."""

    def __init__(self, name: str, paths: list[Path]) -> None:
        super().__init__(name)
        self._paths = iter(paths)
        self._stopped = False

    def __next__(self) -> Captured:
        for path in self._paths:
            if self._stopped:
                break
            try:
                encoded = path.read_bytes()
            except OSError:
                encoded = b""
            if read_header(encoded) is not None:
                return Captured(encoded)
            self.damaged += 1
        raise StopIteration

    def interrupt(self) -> None:
        self._stopped = True


def open_source(text: str | os.PathLike[str], *, pace: bool = True) -> Source:
    """The frames of a picture, a folder of pictures (sorted by name), a video file, `rtsp://...`, `/dev/video0` or
    `webcam:0`.

    A video plays at its own speed, or as fast as it is asked without `pace`. NotFound or InvalidInput for what cannot
    be opened; Unsupported for a video or camera where PyAV is not installed. A camera that is not there yet, or goes
    away, is tried again.
    """
    name = os.fspath(text)
    if name.startswith(_LIVE):
        return _camera(name)
    if name.startswith(_WEBCAM):
        number = name.removeprefix(_WEBCAM) or "0"
        if not number.isdecimal():
            raise InvalidInput(f"{name!r} is no webcam; write webcam:0 for /dev/video0")
        return _camera(f"/dev/video{number}")
    if "://" in name:
        raise InvalidInput(f"{redact(name)!r} is a kind of stream that edged does not open; give rtsp:// or a file")
    if name.startswith("/dev/video"):
        return _camera(name)
    return _recorded(Path(name), pace)


def redact(url: str) -> str:
    """A URL without its user and password, for messages."""
    return _SECRET.sub("//", url)


def _camera(name: str) -> Source:
    from edged.client.live import open_camera

    return open_camera(name)


def _recorded(path: Path, pace: bool) -> Source:
    if path.is_dir():
        return Pictures(str(path), _pictures(path))
    if not path.exists():
        raise NotFound(f"there is no picture, folder, video or camera {str(path)!r}")
    if path.suffix.lower() in PICTURE_SUFFIXES:
        return Pictures(str(path), [path])
    from edged.client.video import VideoFile

    return VideoFile(path, pace)


def _pictures(folder: Path) -> list[Path]:
    try:
        found = sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURE_SUFFIXES)
    except OSError as error:
        raise InvalidInput(f"the folder {str(folder)!r} cannot be read: {error.strerror}") from None
    if not found:
        raise NotFound(f"the folder {str(folder)!r} has no pictures ({', '.join(PICTURE_SUFFIXES)})")
    return found
