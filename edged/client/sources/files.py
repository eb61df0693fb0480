"""Video files, at their own speed or as fast as they are read, and pictures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from edged.client.frames import Captured
from edged.client.sources import pyav
from edged.client.sources import pyav as media
from edged.client.sources.address import redact
from edged.client.sources.source import Reader, Shot, Source
from edged.errors import InvalidInput
from edged.vision.image import read_header

_USUAL_FPS = 25.0
_HOPELESSLY_LATE_S = 1.0


class Film(Protocol):
    """An open video file. `rate` is frames a second, for those that have no position."""

    rate: float

    def shots(self, on_damage: Callable[[], None]) -> Iterator[Shot]: ...
    def close(self) -> None: ...


OpenFilm: TypeAlias = Callable[[], Film]


class Recording(Reader):
    """With `pace` each shot is stamped as if it were taken now; otherwise it has no capture time. With `loop` it begins
    again at its end."""

    def __init__(self, name: str, open_film: OpenFilm, *, pace: bool, loop: bool = False) -> None:
        """Raises what `open_film` raises."""
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
        """Play it once; return whether it had frames and more are wanted."""
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


class Playback:
    """When each shot of a recording is due, counted from the first."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._start: float | None = None
        self._count = 0

    def until(self, position: float | None) -> float:
        """Seconds from now, at least 0, until the shot at `position` seconds of the recording; those without a position
        follow each other at the usual rate."""
        at = self._count / self._rate if position is None else position
        self._count += 1
        now = self._clock()
        if self._start is None or now - (self._start + at) > _HOPELESSLY_LATE_S:
            self._start = now - at  # after a pause it continues at normal speed and does not catch up
        return max(0.0, self._start + at - now)


class AvFilm:
    """A file, or an address that PyAV reads like one."""

    def __init__(self, path: str, accelerated: bool) -> None:
        """InvalidInput if it cannot be opened or has no video."""
        av = media.require_av()
        accelerator = pyav.accelerator() if accelerated else None
        options = {} if accelerator is None else {"hwaccel": accelerator}
        try:
            self._container: Any = av.open(path, **options)
        except (av.FFmpegError, OSError) as error:
            raise InvalidInput(f"the video {redact(path)!r} cannot be opened: {media.reason(error)}") from None
        if not self._container.streams.video:
            self._container.close()
            raise InvalidInput(f"{redact(path)!r} has no video in it")
        self.rate = float(self._container.streams.video[0].average_rate or _USUAL_FPS)

    def shots(self, on_damage: Callable[[], None]) -> Iterator[Shot]:
        av = media.require_av()
        try:
            yield from media.shots(self._container, on_damage)
        except av.FFmpegError:  # the file breaks off
            on_damage()

    def close(self) -> None:
        self._container.close()


class Pictures(Source):
    """Picture files as they are, not decoded; one without a readable header is counted as damaged. Pictures have no
    times: with `max_fps` they wait for their turn and none is skipped."""

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
