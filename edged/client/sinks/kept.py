"""The pictures that were sent, kept until their answers come."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator

import numpy as np

from edged.client.frames import Captured, Picture

_MOST, _MOST_BYTES = 64, 256 << 20


class Kept(Iterator[Picture | Captured]):
    """Frames on their way to a stream, numbered as the stream numbers them. Of those that wait at most `most` pictures
    and `most_bytes` are kept, the newest: answers never wait for memory."""

    def __init__(self, frames: Iterable[Picture | Captured], most: int = _MOST, most_bytes: int = _MOST_BYTES) -> None:
        self.forgotten = 0
        self._frames = iter(frames)
        self._most, self._most_bytes = most, most_bytes
        self._pictures: OrderedDict[int, Picture] = OrderedDict()
        self._bytes = self._sequence = 0
        self._lock = threading.Lock()

    def __next__(self) -> Picture | Captured:
        taken = next(self._frames)
        picture = taken.image if isinstance(taken, Captured) else taken
        with self._lock:
            self._sequence += 1
            self._pictures[self._sequence] = picture
            self._bytes += _size(picture)
            while len(self._pictures) > self._most or (self._bytes > self._most_bytes and len(self._pictures) > 1):
                self._forget_oldest()
                self.forgotten += 1
        return taken

    def take(self, sequence: int) -> Picture | None:
        """The picture of that number. Those before it are not needed any more, since answers come in order."""
        with self._lock:
            while self._pictures and next(iter(self._pictures)) < sequence:
                self._forget_oldest()
            return self._forget_oldest() if next(iter(self._pictures), None) == sequence else None

    def interrupt(self) -> None:
        interrupt = getattr(self._frames, "interrupt", None)
        if interrupt is not None:
            interrupt()

    def close(self) -> None:
        close = getattr(self._frames, "close", None)
        if close is not None:
            close()

    def _forget_oldest(self) -> Picture:
        _, picture = self._pictures.popitem(last=False)
        self._bytes -= _size(picture)
        return picture


def _size(picture: Picture) -> int:
    if isinstance(picture, np.ndarray):
        return picture.nbytes
    return len(picture) if isinstance(picture, (bytes, bytearray, memoryview)) else 0
