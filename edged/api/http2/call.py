"""One call on a connection: the messages that are received and sent on its stream.

Format: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from edged.api.http2 import frames, headers
from edged.api.http2.frames import Code, ConnectionFault
from edged.api.http2.headers import Head, Metadata, Status

if TYPE_CHECKING:
    from edged.api.http2.connection import Connection

Message: TypeAlias = "bytes | memoryview"

_PREFIX = struct.Struct(">BI")  # the prefix of a message: whether the message is compressed, and its size
_AT_ONCE = 32  # messages that are read before other tasks get their turn
_EXPIRY_SECONDS = 0.05  # time after the deadline in which the handler can still send its own error, which says more


class Call:
    """One call. The handler reads messages, writes messages, and ends the call once with `reply` or `finish`.

    If the client disconnects or resets the stream, or if the deadline passes, the handler's task is cancelled; messages
    that the handler still writes are dropped.
    """

    __slots__ = (
        "_at_once",
        "_connection",
        "_expected",
        "_expiry",
        "_filled",
        "_has_begun",
        "_messages",
        "_partial",
        "_prefix",
        "_reader",
        "_received_all",
        "credit",
        "expires",
        "granted",
        "has_ended",
        "head",
        "is_reset",
        "receive_window",
        "room",
        "send_window",
        "stream",
        "task",
        "unread",
        "widened",
    )

    def __init__(self, connection: Connection, stream: int, head: Head, receive_window: int, send_window: int) -> None:
        """The flow-control windows are in bytes."""
        self._connection, self.stream, self.head = connection, stream, head
        self.receive_window, self.send_window = receive_window, send_window
        self.expires = None if head.timeout is None else time.monotonic() + head.timeout
        self.task: asyncio.Task[None] | None = None
        self.has_ended = False  # no more answers can be sent
        self.is_reset = False  # the client reset the stream, or the connection closed
        self._messages: deque[Message] = deque()
        self._prefix = b""  # the received part of an incomplete prefix
        self._expected = -1  # the size of the incomplete message
        self._partial: memoryview | None = None
        self._filled = 0  # received bytes of the incomplete message
        self.unread = self.credit = 0  # bytes not read by a handler yet; bytes read but not yet returned to the window
        self.granted = self.widened = 0  # bytes by which the window was enlarged: for one message, and permanently
        self._received_all = False
        self._reader: asyncio.Future[None] | None = None
        self.room: asyncio.Future[None] | None = None  # while an answer waits until the client reads
        self._has_begun = False  # whether the first headers were sent
        self._at_once = 0
        self._expiry: asyncio.TimerHandle | None = None
        if head.timeout is not None:
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(head.timeout + _EXPIRY_SECONDS, self._expire)

    @property
    def peer(self) -> str:
        """The client as gRPC names it, such as `ipv4:127.0.0.1:4711`, or `unix:`."""
        return self._connection.peer

    @property
    def connection(self) -> Connection:
        return self._connection

    # -- messages of the client ----------------------------------------------------------------------------------------

    async def announced(self) -> int | None:
        """Return the size of the next message in bytes, even if it is incomplete; None if no further message comes."""
        while not self._messages:
            if self._expected >= 0:
                return self._expected
            if self._received_all or self.has_ended:
                return None
            await self._news()
        return len(self._messages[0])

    async def read(self) -> Message | None:
        """Return the next message; None if no further message comes. If the message is large, first let the client send
        the rest of the message."""
        self._at_once += 1
        if self._at_once >= _AT_ONCE:
            self._at_once = 0
            await asyncio.sleep(0)
        while not self._messages:
            if self._received_all or self.has_ended:
                return None
            self._let_in()
            await self._news()
        data = self._messages.popleft()
        size = len(data) + _PREFIX.size
        extra = min(size, self.granted)
        self.granted -= extra
        self.unread -= size
        self._connection.consumed(self, size - extra, not self._received_all)
        return data

    def _let_in(self) -> None:
        """Let the client send the rest of the incomplete message."""
        if self._expected < 0 or self._expected - self._filled <= self.receive_window:
            return
        self._connection.allow(self)
        more = self._expected - self._filled - self.receive_window
        if more <= 0:
            return
        self.granted += more
        self._connection.grant(self, more)

    async def _news(self) -> None:
        self._at_once = 0
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def feed(self, data: memoryview) -> int:
        """Process received bytes of the stream; return how many messages began in them."""
        position, end, began = 0, len(data), 0
        while position < end and not self.has_ended:
            if self._expected < 0:
                begin = position
                if self._prefix or end - position < _PREFIX.size:
                    position += _PREFIX.size - len(self._prefix)
                    self._prefix += data[begin:position]
                    if len(self._prefix) < _PREFIX.size:
                        break
                    packed, size = _PREFIX.unpack(self._prefix)
                    self._prefix = b""
                else:
                    packed, size = _PREFIX.unpack_from(data, position)
                    position += _PREFIX.size
                began += 1
                if not self._accepts(packed, size):
                    break
                if end - position >= size:
                    self._messages.append(bytes(data[position : position + size]))
                    position += size
                    continue
                self._expected, self._filled = size, 0
                # Unlike with a bytearray, pages of memory are allocated only when they are filled.
                self._partial = np.empty(size, np.uint8).data
            position += self._fill(data[position:])
        self._wake()
        return began

    def _fill(self, data: memoryview) -> int:
        """Copy bytes into the incomplete message; return how many were copied."""
        assert self._partial is not None
        take = min(len(data), self._expected - self._filled)
        self._partial[self._filled : self._filled + take] = data[:take]
        self.filled(take)
        return take

    def space(self, most: int) -> memoryview:
        """Return the memory for up to `most` further bytes of the incomplete message. Empty if no message is
        incomplete."""
        if self._partial is None:
            return memoryview(b"")
        return self._partial[self._filled : min(self._filled + most, self._expected)]

    def filled(self, count: int) -> None:
        """Record that `count` bytes were received into `space`."""
        assert self._partial is not None
        self._filled += count
        if self._filled == self._expected:
            self._messages.append(self._partial)
            self._partial, self._expected = None, -1
            self._wake()

    def _accepts(self, packed: int, size: int) -> bool:
        if packed:
            self.finish(Status.UNIMPLEMENTED, "compressed messages are not accepted; send them uncompressed")
        elif size > (most := self._connection.max_message):
            problem = (
                f"the message has {size} bytes, more than {most}; raise 'max_message_mb' in the daemon's configuration"
            )
            self.finish(Status.RESOURCE_EXHAUSTED, problem)
        else:
            return True
        self._cancel()
        return False

    def received_all(self) -> None:
        """Record that the client sends no more messages."""
        self._received_all = True
        if (self._expected >= 0 or self._prefix) and not self.has_ended:
            self.finish(Status.INTERNAL, "the stream ended in the middle of a message")
            self._cancel()
        self._wake()

    @property
    def is_receiving(self) -> bool:
        """Whether the client may send more."""
        return not self._received_all and not self.is_reset

    def widen(self, more: int) -> None:
        """Enlarge the window for answers. Raises ConnectionFault beyond the largest window of HTTP/2."""
        self.send_window += more
        if self.send_window > frames.LARGEST_WINDOW:
            raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "window updates beyond 2**31 - 1 bytes")

    # -- answers -------------------------------------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        """Send a message; wait while the client does not read."""
        await self._send(data, b"")

    async def reply(self, data: bytes) -> None:
        """Send the last message, and end the call with status OK."""
        trailer = headers.END_OK
        frame = frames.head(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, self.stream, len(trailer))
        await self._send(data, frame + trailer)

    async def _send(self, data: bytes, last: bytes) -> None:
        """Send a message, then `last`; a `last` that is not empty ends the call."""
        if self.has_ended:
            return
        sender, size = self._connection.sender, len(data) + _PREFIX.size
        begin = b"" if self._has_begun else self._begin()
        prefix = _PREFIX.pack(0, len(data))
        if size <= self.send_window and sender.takes(size):
            self.send_window -= size
            head = frames.head(frames.DATA, 0, self.stream, size)
            sender.send_data(b"".join((begin, head, prefix, data, last)), size)
        else:
            sender.send(begin)
            await sender.send_slowly(self, prefix, memoryview(data))
            sender.send(b"" if self.is_reset else last)
        if last:
            self._ended()

    def finish(self, status: Status, message: str = "", metadata: Metadata = ()) -> None:
        """End the call with a status, unless it has already ended."""
        if self.has_ended:
            return
        trailer = headers.end(status, message, metadata) if status or message or metadata else headers.END_OK
        if not self._has_begun:
            self._has_begun = True
            trailer = headers.BEGIN + trailer
        self._send_last(trailer)

    def refuse_http(self, http: int) -> None:
        """End the call of a client that does not use gRPC, with the HTTP status `http`."""
        if not self.has_ended:
            self._send_last(headers.not_grpc(http))

    def _send_last(self, block: bytes) -> None:
        self._connection.sender.send_headers(self.stream, block, frames.END_STREAM)
        self._ended()

    def _begin(self) -> bytes:
        self._has_begun = True
        block = headers.BEGIN
        return frames.head(frames.HEADERS, frames.END_HEADERS, self.stream, len(block)) + block

    # -- the end -------------------------------------------------------------------------------------------------------

    def _ended(self) -> None:
        if self.is_reset:
            return
        self.has_ended = True
        self._drop()
        if self.is_receiving:  # the client should not send the rest
            self._connection.sender.send(frames.reset(self.stream, Code.NO_ERROR))
        self._connection.forget(self)
        self._wake()
        if self.room is not None and not self.room.done():
            self.room.set_result(None)

    def abandon(self) -> None:
        """End a call whose client has disconnected or reset the stream."""
        self.is_reset = self.has_ended = True
        self._drop()
        self._connection.forget(self)
        self._wake()
        self._cancel()

    def _drop(self) -> None:
        """Drop all messages: a task or an error's traceback may keep the call in memory for long."""
        self._messages.clear()
        self._partial, self._expected = None, -1
        if self._expiry is not None:
            self._expiry.cancel()

    def _expire(self) -> None:
        self.finish(Status.DEADLINE_EXCEEDED, "the call's deadline passed")
        self._cancel()

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()
