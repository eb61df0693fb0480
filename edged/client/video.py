"""Decoding with PyAV: what video files and cameras share, and the files themselves."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.client.frames import Captured
from edged.client.sources import Source
from edged.errors import InvalidInput, Unsupported

_USUAL_FPS = 25.0
_HOPELESSLY_LATE_S = 1.0


def require_av() -> Any:
    """PyAV, which ships without being needed by anything else."""
    try:
        return importlib.import_module("av")
    except ImportError:
        raise Unsupported("videos and cameras need PyAV; install it with: pip install 'edged[media]'") from None


def decode(container: Any, on_damage: Callable[[], None]) -> Iterator[Any]:
    """The video frames of an open PyAV container, without those that are damaged. Errors of the container itself,
    such as a lost connection, are raised."""
    av = require_av()
    stream = container.streams.video[0]
    stream.thread_type = "AUTO" if container.duration else "SLICE"  # frame threads would add delay to a camera
    for packet in container.demux(stream):
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
            else:
                yield frame


def pixels(frame: Any) -> npt.NDArray[np.uint8]:
    """BGR uint8 [height, width, 3]."""
    image: npt.NDArray[np.uint8] = frame.to_ndarray(format="bgr24")
    return image


class VideoFile(Source):
    """A video file, at its own speed with `pace`, each frame then stamped as if it were taken now; otherwise as fast
    as it is asked and without capture times."""

    def __init__(self, path: Path, pace: bool) -> None:
        super().__init__(str(path))
        av = require_av()
        self.paced = pace
        try:
            self._container = av.open(str(path))
        except (av.FFmpegError, OSError) as error:
            raise InvalidInput(f"the video {str(path)!r} cannot be opened: {_reason(error)}") from None
        if not self._container.streams.video:
            self._container.close()
            raise InvalidInput(f"{str(path)!r} has no video in it")
        self._rate = float(self._container.streams.video[0].average_rate or _USUAL_FPS)
        self._stopped = threading.Event()
        self._reading = threading.Lock()
        self._frames = self._read()

    def __next__(self) -> Captured:
        with self._reading:
            return next(self._frames)

    def interrupt(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        self.interrupt()
        with self._reading:  # at most one frame away: the wait for its time has just been interrupted
            self._frames.close()
            self._container.close()

    def _read(self) -> Generator[Captured, None, None]:
        av = require_av()
        clock = _Clock(self._rate)
        try:
            for frame in decode(self._container, self._on_damage):
                if self.paced:
                    self._stopped.wait(clock.until_due(frame.time))
                if self._stopped.is_set():
                    return
                yield Captured.now(pixels(frame)) if self.paced else Captured(pixels(frame))
        except av.FFmpegError:  # the file breaks off
            self._on_damage()

    def _on_damage(self) -> None:
        self.damaged += 1


class _Clock:
    """When each frame of a recording is due, counted from the first."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._start: float | None = None
        self._count = 0

    def until_due(self, position: float | None) -> float:
        """Seconds from now, at least 0, until the frame at `position` seconds of the recording; frames without a
        position follow each other at the usual rate."""
        at = self._count / self._rate if position is None else float(position)
        self._count += 1
        now = time.monotonic()
        if self._start is None or now - (self._start + at) > _HOPELESSLY_LATE_S:
            self._start = now - at  # a reader that stood still goes on at the normal speed, it does not rush
        return max(0.0, self._start + at - now)


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
