"""Messages from a child to its parent: frames on one pipe, which nothing else may write to.

A frame is one byte for its kind, four bytes of length (little-endian) and that many bytes of JSON. Any number of
`PROGRESS` may come first; one `ANSWER` or `FAILURE` is the last. A length beyond its kind's bound is refused before
memory is allocated for it, so that a child cannot fill its parent's memory.

Children send no heartbeat. A runtime may hold Python's lock for half an hour while it compiles, so a heartbeat would
stop in a healthy child; and it would prove nothing about the thread that works. Instead the parent observes the
processor time that a child uses (`edged.engines.child_watch`)."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO, NamedTuple

import msgspec

from edged.decoding import ready
from edged.errors import BuildFailed
from edged.ipc.job_messages import Failure, Progress

PROGRESS, ANSWER, FAILURE = b"P", b"A", b"F"
_LARGEST = {PROGRESS: 64 << 10, ANSWER: 4 << 20, FAILURE: 64 << 10}  # bytes of JSON, which are decoded on the loop
# Errors of decoding any bytes.
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
_HEADER = struct.Struct("<cI")
_INTERVAL = 0.2  # seconds between two reports of one phase
_LONGEST_REASON = 4000  # characters: errors are one line, and a runtime's may be anything


class InvalidMessage(ValueError):
    """The pipe holds something that is not a frame; the message describes it in a few words."""


class Frame(NamedTuple):
    kind: bytes
    payload: bytes


def pack(kind: bytes, message: msgspec.Struct) -> bytes:
    """A message as a frame. BuildFailed if it is larger than its kind may be."""
    payload = msgspec.json.encode(message)
    if len(payload) > _LARGEST[kind]:
        raise BuildFailed(f"the child's {type(message).__name__.lower()} of {len(payload)} bytes is too large to send")
    return _HEADER.pack(kind, len(payload)) + payload


def progress(frame: Frame) -> Progress:
    """The content of a PROGRESS frame. InvalidMessage if it is anything else."""
    try:
        return msgspec.json.decode(frame.payload, type=ready(Progress))
    except UNREADABLE as error:
        raise InvalidMessage(f"a progress that cannot be read: {error}") from None


class Frames:
    """Split a stream of bytes into frames, however it was cut. Buffers at most one frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that `data` completes. InvalidMessage at the first byte that cannot be part of one."""
        self._buffer += data
        while (size := self._size()) is not None and len(self._buffer) >= size:
            frame = Frame(bytes(self._buffer[:1]), bytes(self._buffer[_HEADER.size : size]))
            del self._buffer[:size]
            yield frame

    def _size(self) -> int | None:
        """The size of the frame at the start of the buffer; None until its header is complete."""
        if not self._buffer:
            return None
        largest = _LARGEST.get(bytes(self._buffer[:1]))
        if largest is None:
            raise InvalidMessage(f"byte {self._buffer[0]:#04x} where a message should begin")
        if len(self._buffer) < _HEADER.size:
            return None
        _, length = _HEADER.unpack_from(self._buffer)
        if length > largest:
            raise InvalidMessage(f"a message of {length} bytes; at most {largest} are allowed")
        return _HEADER.size + int(length)


class JobReporter:
    """The child's end. A runtime may report progress thousands of times, and from several of its threads.

    Of each phase the first report is sent, then at most five a second, and the last one before the next phase or the
    end.
    """

    def __init__(self, pipe: BinaryIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._pipe, self._clock, self._lock = pipe, clock, threading.Lock()
        self._phase: str | None = None
        self._sent = 0.0
        self._waits: Progress | None = None
        self._ended = False

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            if self._ended:
                return  # a thread of a runtime that reports after the work is done
            now = self._clock()
            if progress.phase == self._phase and now - self._sent < _INTERVAL:
                self._waits = progress
                return
            if progress.phase != self._phase:
                self._send_waiting()
            self._phase, self._sent, self._waits = progress.phase, now, None
            self._write(pack(PROGRESS, _plain(progress)))

    def answer(self, message: msgspec.Struct) -> None:
        """End a job that is done. BuildFailed, and nothing is sent, if the message is too large."""
        self._end(pack(ANSWER, message))

    def fail(self, error: str, reason: str, finding: Mapping[str, str] | None = None) -> None:
        """End a job that failed: a class of `edged.errors`, its message, and the finding that the error carries, if
        any."""
        cut = {name: value[:_LONGEST_REASON] for name, value in (finding or {}).items()}
        self._end(pack(FAILURE, Failure(error, reason[:_LONGEST_REASON], cut)))

    def _end(self, frame: bytes) -> None:
        with self._lock:
            self._send_waiting()
            self._ended = True
            self._write(frame)

    def _send_waiting(self) -> None:
        if self._waits is not None:
            self._write(pack(PROGRESS, _plain(self._waits)))
            self._waits = None

    def _write(self, frame: bytes) -> None:
        self._pipe.write(frame)
        self._pipe.flush()


def _plain(progress: Progress) -> Progress:
    """Make a runtime's fraction (NumPy's float, 1.0000001, not a number) a number from 0 to 1."""
    if progress.fraction is None:
        return progress
    fraction = float(progress.fraction)
    return Progress(progress.phase, min(max(fraction, 0.0), 1.0) if fraction == fraction else None)
