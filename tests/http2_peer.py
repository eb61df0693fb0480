"""An HTTP/2 client for one connection, without sockets: bytes in, frames out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import hpack

from edged.api.http2.call import Call
from edged.api.http2.connection import Connection
from edged.api.http2.limits import Limits
from tests.fuzz import http2

HEADERS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a/b"),
    (b":authority", b"edged"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)
Answer = Callable[[Call], Coroutine[Any, Any, None]]


@dataclass
class Frame:
    """A frame that the connection sent."""

    kind: int
    flags: int
    stream: int
    payload: bytes


@dataclass
class Transport:
    """An asyncio transport that keeps written bytes."""

    written: bytearray = field(default_factory=bytearray)
    is_closed: bool = False
    is_aborted: bool = False
    is_reading: bool = True
    resumed: Callable[[], None] | None = None

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written += data

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.write(b"".join(parts))

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True
        if self.resumed is not None:
            asyncio.get_running_loop().call_soon(self.resumed)

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_extra_info(self, name: str) -> None:
        return None


class Peer:
    """The client's end of the connection. `answer` handles its calls."""

    def __init__(self, answer: Answer, limits: Limits | None = None, *, greets: bool = True) -> None:
        self.transport, self.calls = Transport(), list[Call]()
        self._answer, self._tasks = answer, set[asyncio.Task[None]]()
        self._decoder, self._encoder = hpack.Decoder(), hpack.Encoder()
        self._read = 0
        self._unsent, self._piece = b"", 0
        self.transport.resumed = self._deliver
        self.connection = Connection(limits or Limits(), self._begin, "ipv4:127.0.0.1:4711", lambda _: None)
        self.connection.connection_made(cast(asyncio.Transport, self.transport))
        if greets:
            self.send(http2.PREFACE + http2.settings())

    def _begin(self, call: Call) -> asyncio.Task[None]:
        self.calls.append(call)
        task = asyncio.get_running_loop().create_task(self._answer(call))
        self._tasks.add(task)
        return task

    def send(self, data: bytes, piece: int = 1 << 20) -> None:
        """Send bytes, at most `piece` at a time. While the connection pauses reading, the rest waits."""
        self._unsent, self._piece = self._unsent + data, piece
        self._deliver()

    def _deliver(self) -> None:
        position, data = 0, self._unsent
        while position < len(data) and self.transport.is_reading and not self.transport.is_closed:
            place = self.connection.get_buffer(-1)
            count = min(len(place), self._piece, len(data) - position)
            assert count
            place[:count] = data[position : position + count]
            self.connection.buffer_updated(count)
            position += count
        self._unsent = data[position:]

    def push(self, data: bytes, record: int = 16 << 10) -> None:
        """Send bytes even while the connection pauses reading, as asyncio does before Python 3.11 with all TLS records
        of one read from the socket."""
        # asyncio.protocols._feed_data_to_buffered_proto does the same, but it is private.
        for at in range(0, len(data), record):
            rest = data[at : at + record]
            while rest:
                place = self.connection.get_buffer(len(rest))
                assert len(place)
                count = min(len(place), len(rest))
                place[:count] = rest[:count]
                self.connection.buffer_updated(count)
                rest = rest[count:]

    def begin(self, stream: int, *more: tuple[bytes, bytes], flags: int = http2.END_HEADERS) -> None:
        self.send(http2.frame(http2.HEADERS, flags, stream, self._encoder.encode([*HEADERS, *more])))

    def frames(self) -> list[Frame]:
        """Return the frames received since the last call."""
        found, data = list[Frame](), bytes(self.transport.written)
        while self._read < len(data):
            size = int.from_bytes(data[self._read : self._read + 3], "big")
            kind, flags = data[self._read + 3 : self._read + 5]
            stream = int.from_bytes(data[self._read + 5 : self._read + 9], "big")
            found.append(Frame(kind, flags, stream, data[self._read + 9 : self._read + 9 + size]))
            self._read += 9 + size
        return found

    def headers(self, frame: Frame) -> dict[bytes, bytes]:
        """Return the fields of a HEADERS frame. Must be called once for each such frame, in order (HPACK state)."""
        assert frame.kind == http2.HEADERS
        return {each[0]: each[1] for each in self._decoder.decode(frame.payload, raw=True)}

    def lose(self) -> None:
        """Break the connection."""
        self.transport.is_closed = True
        self.connection.connection_lost(None)

    async def end(self) -> None:
        """Wait for the tasks of all calls."""
        await asyncio.wait_for(asyncio.gather(*self._tasks, return_exceptions=True), 10)


def messages(frames: Iterable[Frame], stream: int) -> list[bytes]:
    """Return the messages in the frames of a stream."""
    data = b"".join(frame.payload for frame in frames if frame.kind == http2.DATA and frame.stream == stream)
    found = list[bytes]()
    while data:
        size = int.from_bytes(data[1:5], "big")
        found.append(data[5 : 5 + size])
        data = data[5 + size :]
    return found
