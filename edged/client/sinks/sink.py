"""The base of all sinks, `Sinks` for several at once, and the pictures that are kept until their results arrive."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import queue
import sys
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO, TypeVar

import msgspec
import numpy as np

from edged.client.frames import Captured, Picture, read_picture
from edged.client.result import Result
from edged.errors import EdgedError
from edged.vision.content_json import content_fields
from edged.vision.draw import annotate, encode_jpeg
from edged.vision.image import Image, decode

_log = logging.getLogger("edged.client")


class Sink(ABC):
    """Receives every result, with its picture if `wants_pictures` is set. `name` appears in messages."""

    name = "sink"
    wants_pictures = False

    @abstractmethod
    def on_answer(self, answered: Answered) -> None:
        """Write, publish or show a result. Must be fast, since the stream waits. Raises OSError or EdgedError if the
        sink cannot continue."""

    def close(self) -> None:  # noqa: B027 - not every sink has something to finish
        """Finish the output. No result follows."""


_QUALITY = 80


class Answered:
    """A result with its picture. Values that several sinks need are computed once. `image` is None if no sink wants
    pictures, or if the picture was dropped to save memory."""

    def __init__(self, result: Result, image: Picture | None = None) -> None:
        self.result = result
        self.image = image

    @property
    def size(self) -> int:
        """The picture's size in bytes; 0 without a picture, or if it is a path."""
        return 0 if self.image is None else _size(self.image)

    @functools.cached_property
    def painted(self) -> Image | None:
        """The annotated picture, BGR uint8 [height, width, 3]; None without a picture. Raises InvalidInput if the
        picture cannot be decoded."""
        if self.image is None:
            return None
        return paint(self.image, self.result, _caption(self.result))

    @functools.cached_property
    def jpeg(self) -> bytes | None:
        """`painted` as a JPEG."""
        return None if self.painted is None else encode_jpeg(self.painted, _QUALITY)


def paint(picture: Picture, result: Result, caption: str) -> Image:
    """Return the annotated picture, BGR uint8 [height, width, 3]. Raises InvalidInput or NotFound."""
    image = picture if isinstance(picture, np.ndarray) else decode(read_picture(picture))
    if image.ndim == 2:
        image = np.repeat(image[:, :, None], 3, axis=2)
    return annotate(image, result.boxes(), result.labels(), caption, result.content, result.captions())


def _caption(result: Result) -> str:
    if result.error is not None:
        return f"{result.camera}  {result.error[0]}"
    return f"{result.camera}  {result.age_ms:.0f} ms"


_DEPTH = 8


class Background:
    """A thread that calls `work` for each answer in order, and `finish` at the end. At most `depth` answers wait: a
    further answer replaces the oldest one, and `dropped` counts the replaced answers. With `lossless`, `put` waits
    instead."""

    def __init__(
        self,
        name: str,
        work: Callable[[Answered], None],
        finish: Callable[[], None],
        *,
        lossless: bool = False,
        depth: int = _DEPTH,
    ) -> None:
        self.dropped = 0
        self._work, self._finish, self._lossless = work, finish, lossless
        self._waiting: queue.Queue[Answered | None] = queue.Queue(depth)
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, answered: Answered) -> None:
        """Queue an answer. Raises the error of an earlier call of `work`."""
        self._raise_failure()
        while not self._lossless and self._waiting.full():
            with contextlib.suppress(queue.Empty):
                self._waiting.get_nowait()
                self.dropped += 1
        self._waiting.put(answered)
        self._raise_failure()

    def close(self) -> None:
        """Wait until all work is done. Raises the error of the work, if any."""
        self._waiting.put(None)
        self._thread.join()
        self._raise_failure()

    def _run(self) -> None:
        works = True
        for answered in iter(self._waiting.get, None):  # continues after a failure, so that `put` does not block
            works = works and self._attempt(self._work, answered)
        self._attempt(self._finish)

    def _attempt(self, work: Callable[..., None], *arguments: Answered) -> bool:
        try:
            work(*arguments)
        except Exception as error:
            self._failure = self._failure or error
            return False
        return True

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure


Added = TypeVar("Added", bound=Sink)


class Sinks(AbstractContextManager["Sinks"]):
    """Passes every result to every sink. A sink that fails is closed and removed with a warning. If it was the only
    sink left, its error is raised."""

    def __init__(self, sinks: Iterable[Sink] = ()) -> None:
        self._sinks = list(sinks)
        self._pending: PendingFrames | None = None

    def add(self, sink: Added) -> Added:
        """Add a sink. Call this before `tap`."""
        self._sinks.append(sink)
        return sink

    def tap(self, frames: Iterable[Picture | Captured]) -> Iterable[Picture | Captured]:
        """Return an iterable that the caller passes to `Client.stream` in place of `frames`. The iterable yields the
        same frames. If a sink wants pictures, the iterable also keeps them until their results arrive."""
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
        """Close all sinks, then raise the first error."""
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
        with contextlib.suppress(OSError, EdgedError):  # the sink has already failed
            sink.close()
        if not self._sinks:
            raise error
        _log.warning("%s: %s; the stream goes on without this output", sink.name, error)

    def __exit__(self, *_: object) -> None:
        self.close()


_MOST, _MOST_BYTES = 64, 256 << 20


class PendingFrames(Iterator[Picture | Captured]):
    """An iterator over frames that keeps the pictures of the newest frames. `most` limits the number of kept pictures,
    and `most_bytes` their size in bytes together. Pictures have the numbers that the stream gives to their frames."""

    def __init__(self, frames: Iterable[Picture | Captured], most: int = _MOST, most_bytes: int = _MOST_BYTES) -> None:
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
        return taken

    def take(self, sequence: int) -> Picture | None:
        """Remove and return the picture with this number; drop pictures before it, since answers arrive in order."""
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


class JsonLines(Sink):
    """Appends a JSON object per result to a file, or writes it to standard output if `path` is None. Each line is
    flushed.

    Raises OSError if the file cannot be opened, BrokenPipeError if the reader of standard output has closed the pipe.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.name = "standard output" if path is None else os.fspath(path)
        self._file: BinaryIO | None = None if path is None else open(path, "ab")  # noqa: SIM115 - closed by `close`

    def on_answer(self, answered: Answered) -> None:
        line = encode(answered.result)
        if self._file is not None:
            self._file.write(line + b"\n")
            self._file.flush()
        else:
            sys.stdout.write(line.decode() + "\n")
            sys.stdout.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def encode(result: Result, maps: bool = True) -> bytes:
    return msgspec.json.encode(line(result, maps))


def line(result: Result, maps: bool = True) -> dict[str, object]:
    """Return Roboflow's inference JSON with the frame's camera, number, age, skips and error. A result with a content
    also has the fields of `content_fields`; for a classifier these fields replace `predictions`. If `maps` is False,
    the cells of maps are left out. A result of a recording also has `position_s`, and a result of a pipeline has
    `second`."""
    error = None
    if result.error is not None:
        error = {"code": result.error[0], "message": result.error[1]}
        if result.error_code is not None:
            error["reason"] = result.error_code.value
    return {
        "camera": result.camera,
        "model": result.model,
        "sequence": result.sequence,
        "captured_unix_ns": result.captured_unix_ns,
        **({} if result.position_s is None else {"position_s": round(result.position_s, 6)}),
        "age_ms": result.age_ms,
        "skipped": result.skipped,
        "skips": msgspec.to_builtins(result.skips),
        "error": error,
        **result.json(),
        **({} if result.second is None else {"second": msgspec.to_builtins(result.second)}),
        **({} if result.content is None else content_fields(result.content, result.labels(), maps)),
    }
