"""Video files, at their own speed or as fast as they are read, and pictures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Protocol

from edged.client.frames import Captured
from edged.client.sources.source import Playback, Reader, Shot, Source
from edged.vision.image import read_header


class Film(Protocol):
    """An open video file. `rate` is frames a second, for those that have no position."""

    rate: float

    def shots(self, on_damage: Callable[[], None]) -> Iterator[Shot]: ...
    def close(self) -> None: ...


class Recording(Reader):
    """With `pace` each shot is stamped as if it were taken now; otherwise it has no capture time. With `loop` it begins
    again at its end."""

    def __init__(self, name: str, open_film: Callable[[], Film], *, pace: bool, loop: bool = False) -> None:
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
