"""Messages from a child to the daemon: frames on one pipe, which nothing else may write to.

A frame is one byte for its kind, four bytes of length (little-endian) and that many bytes of JSON. A child sends any
number of `PROGRESS` frames, then one `ANSWER` or `FAILURE`. Each kind has a largest length. The daemon refuses a larger
frame before it allocates memory, so that a child cannot fill the daemon's memory.

Children send no heartbeat. A runtime may hold the GIL for half an hour while it compiles, so the heartbeat of a healthy
child would stop. And a heartbeat would prove nothing about the thread that does the work. Instead the daemon observes
the processor time that a child uses (`edged.engines.child_watch`)."""

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
from edged.ipc.pipe_messages import UNREADABLE

PROGRESS, ANSWER, FAILURE = b"P", b"A", b"F"
_LARGEST = {PROGRESS: 64 << 10, ANSWER: 4 << 20, FAILURE: 64 << 10}  # bytes of JSON, which the event loop decodes
_HEADER = struct.Struct("<cI")
_INTERVAL = 0.2  # seconds between two reports of one phase
_LONGEST_REASON = 4000  # characters of an error message: a runtime's message may have any length


class InvalidMessage(ValueError):
    """The bytes in the pipe are not a valid frame; `str` describes them in a few words."""


class Frame(NamedTuple):
    kind: bytes
    payload: bytes


def pack(kind: bytes, message: msgspec.Struct) -> bytes:
    """Return a message as a frame. Raises BuildFailed if the message is too large for its kind."""
    payload = msgspec.json.encode(message)
    if len(payload) > _LARGEST[kind]:
        raise BuildFailed(
            f"a message of the child process ({type(message).__name__}) has {len(payload)} bytes, more than the limit"
            f" of {_LARGEST[kind]} bytes"
        )
    return _HEADER.pack(kind, len(payload)) + payload


def progress(frame: Frame) -> Progress:
    """Return the content of a PROGRESS frame. Raises InvalidMessage if it cannot be decoded."""
    try:
        return msgspec.json.decode(frame.payload, type=ready(Progress))
    except UNREADABLE as error:
        raise InvalidMessage(f"an invalid progress message: {error}") from None


class Frames:
    """Splits a stream of bytes into frames; the bytes may arrive in any pieces. Buffers at most one frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that `data` completes. Raises InvalidMessage if a byte cannot be part of a frame."""
        self._buffer += data
        while (size := self._size()) is not None and len(self._buffer) >= size:
            frame = Frame(bytes(self._buffer[:1]), bytes(self._buffer[_HEADER.size : size]))
            del self._buffer[:size]
            yield frame

    def _size(self) -> int | None:
        """Return the size of the frame at the start of the buffer; None until its header is complete."""
        if not self._buffer:
            return None
        largest = _LARGEST.get(bytes(self._buffer[:1]))
        if largest is None:
            raise InvalidMessage(f"byte {self._buffer[0]:#04x} instead of the start of a message")
        if len(self._buffer) < _HEADER.size:
            return None
        _, length = _HEADER.unpack_from(self._buffer)
        if length > largest:
            raise InvalidMessage(f"a message of {length} bytes, over the limit of {largest}")
        return _HEADER.size + int(length)


class JobReporter:
    """The child's end of the pipe. A runtime may report progress thousands of times, and from several threads.

    In each phase, the first report and the last report are sent, and between them at most five reports a second.
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
                return  # a thread of the runtime may still report after the end of the work
            now = self._clock()
            if progress.phase == self._phase and now - self._sent < _INTERVAL:
                self._waits = progress
                return
            if progress.phase != self._phase:
                self._send_waiting()
            self._phase, self._sent, self._waits = progress.phase, now, None
            self._write(pack(PROGRESS, _plain(progress)))

    def answer(self, message: msgspec.Struct) -> None:
        """End a job that succeeded. If the message is too large, nothing is sent and BuildFailed is raised."""
        self._end(pack(ANSWER, message))

    def fail(self, error: str, reason: str, finding: Mapping[str, str] | None = None) -> None:
        """End a job that failed. `error` is the name of a class of `edged.errors`, `reason` its message, and `finding`
        the fields of the error's finding, if any."""
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
    """Return the progress with a float fraction from 0 to 1, or None for NaN. A runtime may report 1.0000001 or NaN."""
    if progress.fraction is None:
        return progress
    fraction = float(progress.fraction)
    return Progress(progress.phase, min(max(fraction, 0.0), 1.0) if fraction == fraction else None)
