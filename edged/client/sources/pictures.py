"""Picture files as frames."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

from edged.client.frames import Captured
from edged.client.sources.source import Source
from edged.vision.image import read_header


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
