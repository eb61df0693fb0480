"""Several sinks for one stream, and the pictures that wait for their results."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

import numpy as np

from edged.client.frames import Captured, Picture
from edged.client.result import Result
from edged.client.sinks.sink import Answered, Sink
from edged.errors import EdgedError

Added = TypeVar("Added", bound=Sink)

_log = logging.getLogger("edged.client")


class Sinks(AbstractContextManager["Sinks"]):
    """Gives every result to every sink. A sink that fails is closed and removed with a warning; the failure of the
    last one is raised."""

    def __init__(self, sinks: Iterable[Sink] = ()) -> None:
        self._sinks = list(sinks)
        self._pending: PendingFrames | None = None

    def add(self, sink: Added) -> Added:
        """Add a sink; before `tap`."""
        self._sinks.append(sink)
        return sink

    def tap(self, frames: Iterable[Picture | Captured]) -> Iterable[Picture | Captured]:
        """Return what to stream in place of `frames`, so that pictures are kept until their results come."""
        if not any(sink.wants_pictures for sink in self._sinks):
            return frames
        self._pending = PendingFrames(frames)
        return self._pending

    def on_result(self, result: Result) -> None:
        picture = None if self._pending is None else self._pending.take(result.sequence)
        answered = Answered(result, picture)
        for sink in tuple(self._sinks):
            try:
                sink.on_answer(answered)
            except (OSError, EdgedError) as error:
                self._leave_out(sink, error)

    def close(self) -> None:
        """Close all sinks, then raise the first failure."""
        failure: Exception | None = None
        while self._sinks:
            try:
                self._sinks.pop(0).close()
            except (OSError, EdgedError) as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _leave_out(self, sink: Sink, error: Exception) -> None:
        self._sinks.remove(sink)
        with contextlib.suppress(OSError, EdgedError):  # it failed already
            sink.close()
        if not self._sinks:
            raise error
        _log.warning("%s: %s; the stream goes on without it", sink.name, error)

    def __exit__(self, *_: object) -> None:
        self.close()


_MOST, _MOST_BYTES = 64, 256 << 20


class PendingFrames(Iterator[Picture | Captured]):
    """Frames on their way to a stream, numbered as the stream numbers them. Keeps the newest pictures: at most
    `most` and `most_bytes`."""

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
        """Remove and return the picture of that number, and drop those before it: answers come in order."""
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
