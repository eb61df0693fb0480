"""One HTTP/2 connection, as an asyncio protocol: turns frames into calls, within limits.

Four limits bound the memory and the work for a client. Flow-control windows grow only for messages that the daemon
wants to read. The size of headers and the number of calls are limited. Frames that carry no message cost units of an
allowance. A client that exceeds a limit loses only its own connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeAlias, cast

from edged.api.http2 import frames
from edged.api.http2 import limits as costs
from edged.api.http2.call import Call
from edged.api.http2.frames import Code, ConnectionFault
from edged.api.http2.headers import MOST_BLOCK, MOST_METADATA, Head, HeadDecoder, MalformedHead, Status
from edged.api.http2.limits import Allowance, Limits
from edged.api.http2.sending import Sender

_LOG = logging.getLogger("edged.api")

_BUFFER = 32 << 10  # usual bytes of the buffer for received data that is not read directly into a large message
_DIRECT = 16 << 10  # bytes; if a message lacks at least this many, data is read directly into the message
_AT_ONCE = 1024  # units of work until other connections get their turn; a frame costs one unit
_HEADERS_WORK = 16  # units that a new call costs
_MESSAGES_WORK, _BLOCK_WORK = 4, 16  # one unit is this many messages, or this many bytes of headers
_REPLENISHED = 1 << 20  # consumed bytes after which a WINDOW_UPDATE is sent at the latest
_ON_THEIR_WAY = 4  # the window of a stream should hold this many of its messages
_WIDEST = 4 << 20  # the largest window of one call, in bytes
_POOL = 16 << 20  # bytes by which the windows of all calls of a connection may grow together

# Frames that the daemon answers at once. While the client does not read the answers, such frames wait.
_ANSWERED_AT_ONCE = frozenset({frames.HEADERS, frames.CONTINUATION, frames.PING, frames.SETTINGS})

# Starts the task that answers a call.
Begin: TypeAlias = "Callable[[Call], asyncio.Task[None]]"


class Connection(asyncio.BufferedProtocol):
    """One connection. `begin` starts the task of each new call. `ended` is called after the connection has closed."""

    def __init__(self, limits: Limits, begin: Begin, peer: str, ended: Callable[[Connection], None]) -> None:
        """`peer`: the client as gRPC names it."""
        self.peer = peer
        self.certificate: dict[str, Any] | None = None  # the client's certificate, as the ssl module reports it
        self.memory: Any = None  # for use by the handler of calls only
        self._limits, self._begin_call, self._ended = limits, begin, ended
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self.sender: Sender
        self.calls: dict[int, Call] = {}
        self._decoder = HeadDecoder()
        self._buffer = memoryview(bytearray(_BUFFER))
        self._begin = self._end = 0  # where the unprocessed bytes in the buffer begin and end
        self._has_preface = self._has_settings = False
        self._data: Call | None = None  # the call of the current DATA frame; None if the call has ended
        self._data_rest = self._padding_rest = self._data_flags = 0
        self._direct = False
        self._block: bytearray | None = None  # an incomplete block of headers
        self._block_stream = self._block_flags = 0
        self._last_stream = 0
        self._receive_window, self._consumed, self._pool = limits.window, 0, _POOL
        self._is_waiting = False  # whether reading is paused until the client reads its answers
        self._allowance = Allowance(limits, self._loop.time)
        self._heard = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._is_pinged = self._is_leaving = self._lingers = self._is_closed = False
        self._work = 0  # units of work since other connections had their turn
        self._next_turn: asyncio.Handle | None = None

    @property
    def max_message(self) -> int:
        return self._limits.max_message

    @property
    def is_leaving(self) -> bool:
        """Whether the connection accepts no new calls."""
        return self._is_leaving or self._is_closed

    # -- the transport -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.sender = Sender(self._transport, self._allowance)
        if (session := transport.get_extra_info("ssl_object")) is not None:
            self.certificate = session.getpeercert()
        limits = self._limits
        announced = {
            frames.MAX_STREAMS: limits.streams,
            frames.INITIAL_WINDOW: limits.stream_window,
            frames.MAX_FRAME: limits.frame,
            frames.MAX_HEADER_LIST: MOST_METADATA,
        }
        self.sender.send(frames.settings(announced) + frames.window_update(0, limits.window - frames.DEFAULT_WINDOW))
        self._timer = self._loop.call_later(limits.handshake, self._greeted)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._next_turn is not None:
            self._next_turn.cancel()
        for call in list(self.calls.values()):
            call.abandon()
        self.sender.wake()
        self._ended(self)

    def eof_received(self) -> bool:
        return False  # close: HTTP/2 connections cannot be half-closed

    def pause_writing(self) -> None:
        self.sender.pause()

    def resume_writing(self) -> None:
        self.sender.resume()
        if self._is_waiting and not self._is_closed:
            self._is_waiting = False
            self._next_turn = self._loop.call_soon(self._go_on)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._data is not None and self._begin == self._end and self._data_rest >= _DIRECT:
            space = self._data.space(self._data_rest)
            if len(space) >= _DIRECT:
                self._direct = True
                return space
        self._direct = False
        if self._end == len(self._buffer):
            self._compact()
            if self._end == len(self._buffer):
                self._resize(2 * self._end)
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_closed:
            return
        self._heard, self._is_pinged = self._loop.time(), False
        try:
            if self._direct:
                assert self._data is not None
                self._data.filled(nbytes)
                self._data_rest -= nbytes
                self._end_data()
                return
            self._end += nbytes
            self._take()
        except ConnectionFault as fault:
            self._fail(fault)

    def _compact(self) -> None:
        rest = self._end - self._begin
        self._buffer[:rest] = bytes(self._buffer[self._begin : self._end])
        self._begin, self._end = 0, rest

    def _resize(self, size: int) -> None:
        """Move the unprocessed bytes to a buffer of `size` bytes.

        A buffer of the usual size can become full while reading is paused: before Python 3.11, asyncio delivers all TLS
        records of one read from the socket (256 KiB) before it pauses.
        """
        buffer, rest = memoryview(bytearray(size)), self._end - self._begin
        buffer[:rest] = self._buffer[self._begin : self._end]
        self._buffer, self._begin, self._end = buffer, 0, rest

    # -- received frames -----------------------------------------------------------------------------------------------

    def _take(self) -> None:
        """Process the bytes in the buffer."""
        if not self._has_preface:
            size = min(self._end, len(frames.PREFACE))
            if self._buffer[:size] != frames.PREFACE[:size]:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "no HTTP/2 connection preface")
            if size < len(frames.PREFACE):
                return
            self._begin, self._has_preface = size, True
        if self._next_turn is not None:
            return
        while not self._is_closed:
            if self._work >= _AT_ONCE:
                self._transport.pause_reading()
                self._next_turn = self._loop.call_soon(self._go_on)
                return
            if self._data_rest or self._padding_rest:
                if not self._take_data():
                    break
                continue
            if self._end - self._begin < frames.HEADER.size:
                break
            size, flags, stream = frames.HEADER.unpack_from(self._buffer, self._begin)
            size, kind, stream = size >> 8, size & 0xFF, stream & frames.LARGEST_WINDOW
            if not self.sender.is_writable and kind in _ANSWERED_AT_ONCE:
                self._transport.pause_reading()
                self._is_waiting = True
                return
            self._work += 1
            if not self._has_settings and kind != frames.SETTINGS:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "a first frame other than SETTINGS")
            if self._block is not None and (kind != frames.CONTINUATION or stream != self._block_stream):
                raise ConnectionFault(Code.PROTOCOL_ERROR, "a frame between HEADERS and CONTINUATION")
            if kind == frames.DATA:
                if not self._begin_data(size, flags, stream):
                    break
                continue
            if size > MOST_BLOCK:
                code = Code.ENHANCE_YOUR_CALM if size <= self._limits.frame else Code.FRAME_SIZE_ERROR
                raise ConnectionFault(code, "a frame that is too large")
            begin = self._begin + frames.HEADER.size
            if self._end - begin < size:
                break
            self._begin = begin + size
            self._frame(kind, flags, stream, bytes(self._buffer[begin : begin + size]))
        if self._begin == self._end:
            self._begin = self._end = 0
        elif self._begin > _BUFFER // 2:
            self._compact()
        if len(self._buffer) > _BUFFER and not self._is_closed:
            self._resize(_BUFFER)  # the rest is part of a frame other than DATA, which has at most MOST_BLOCK bytes

    def _go_on(self) -> None:
        """Continue after other connections had their turn, or after the client has read."""
        self._next_turn, self._work = None, 0
        if self._is_closed:
            return
        self._transport.resume_reading()
        try:
            self._take()
        except ConnectionFault as fault:
            self._fail(fault)

    def _begin_data(self, size: int, flags: int, stream: int) -> bool:
        """Begin a DATA frame; return False if its pad length was not received yet."""
        if size > self._limits.frame:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "a frame that is too large")
        begin, padding = self._begin + frames.HEADER.size, 0
        if flags & frames.PADDED:
            if self._end <= begin:
                return False
            padding = self._buffer[begin] + 1
            begin += 1
            if padding > size:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "padding longer than its frame")
        if not stream or ((call := self.calls.get(stream)) is None and stream > self._last_stream):
            raise ConnectionFault(Code.PROTOCOL_ERROR, "DATA on a stream that was never opened")
        self._receive_window -= size
        if self._receive_window < 0:
            raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "more DATA than the connection's window allows")
        unread = padding  # bytes that no handler reads
        if call is None:
            unread = size
        else:
            if not call.is_receiving:
                raise ConnectionFault(Code.STREAM_CLOSED, "DATA after the end of its stream")
            call.receive_window -= size
            if call.receive_window < 0:
                raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "more DATA than the stream's window allows")
            call.unread += size - padding
            self._credit(call, padding)
        if unread:
            self._replenish(unread)
        if call is None or (size - padding < costs.TINY_BYTES and not flags & frames.END_STREAM):
            self._allowance.charge()
        self._begin = begin
        self._data, self._data_flags = call, flags
        self._data_rest, self._padding_rest = size - padding, max(0, padding - 1)
        if not self._data_rest and not self._padding_rest:
            self._end_data()
        return True

    def _take_data(self) -> bool:
        """Process received bytes of the DATA frame; return whether any bytes were waiting."""
        count = min(self._end - self._begin, self._data_rest or self._padding_rest)
        if not count:
            return False
        if self._data_rest:
            if self._data is not None:
                self._work += self._data.feed(self._buffer[self._begin : self._begin + count]) // _MESSAGES_WORK
                if self._data is not None and self._data.has_ended:
                    self._data = None
            self._data_rest -= count
        else:
            self._padding_rest -= count
        self._begin += count
        self._end_data()
        return True

    def _end_data(self) -> None:
        """End the DATA frame if it is complete."""
        if self._data_rest or self._padding_rest:
            return
        call, self._data = self._data, None
        if self._data_flags & frames.END_STREAM and call is not None:
            call.received_all()

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Process a frame other than DATA."""
        if kind == frames.HEADERS:
            self._begin_block(flags, stream, frames.without_padding(payload, flags))
        elif kind == frames.CONTINUATION:
            self._go_on_with_block(flags, payload)
        elif kind == frames.WINDOW_UPDATE:
            self._allowance.charge()
            self._widen(stream, frames.read_word(payload))
        elif kind == frames.RST_STREAM:
            frames.read_word(payload)
            self._reset(stream)
        elif kind == frames.SETTINGS:
            self._settings(flags, payload)
        elif kind == frames.PING:
            if len(payload) != 8:
                raise ConnectionFault(Code.FRAME_SIZE_ERROR, "a PING frame of a wrong size")
            self._allowance.charge()
            if not flags & frames.ACK:
                self.sender.send(frames.ping(payload, frames.ACK))
        elif kind == frames.PUSH_PROMISE:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a PUSH_PROMISE frame, which only servers may send")
        elif kind == frames.GOAWAY:
            self._is_leaving, self._lingers = True, False
            self._close_if_done()
        else:  # PRIORITY and unknown frames are ignored
            self._allowance.charge()

    def _settings(self, flags: int, payload: bytes) -> None:
        self._allowance.charge(costs.SETTINGS)
        if flags & frames.ACK:
            return
        found = frames.read_settings(payload)
        self._has_settings = True
        self.sender.max_frame = found.get(frames.MAX_FRAME, self.sender.max_frame)
        if (window := found.get(frames.INITIAL_WINDOW)) is not None:
            more, self.sender.call_window = window - self.sender.call_window, window
            for call in self.calls.values():
                call.widen(more)
            self.sender.wake()
        self.sender.send(frames.SETTINGS_ACK)

    def _widen(self, stream: int, more: int) -> None:
        if not more:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a WINDOW_UPDATE frame with an increment of 0")
        if not stream:
            self.sender.widen(more)
        elif (call := self.calls.get(stream)) is not None:
            call.widen(more)
        else:
            self._require_begun(stream)
            return
        self.sender.wake()

    def _reset(self, stream: int) -> None:
        call = self.calls.get(stream)
        if call is None:
            self._require_begun(stream)
            self._allowance.charge()
            return
        self._allowance.charge(costs.CALL)
        call.abandon()

    def _require_begun(self, stream: int) -> None:
        if stream > self._last_stream or not stream:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a frame on a stream that was never opened")

    # -- headers -------------------------------------------------------------------------------------------------------

    def _begin_block(self, flags: int, stream: int, block: bytes) -> None:
        if not stream % 2:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "HEADERS with an even stream number")
        if flags & frames.END_HEADERS:
            self._headers(stream, flags, block)
            return
        self._block, self._block_stream, self._block_flags = bytearray(block), stream, flags

    def _go_on_with_block(self, flags: int, more: bytes) -> None:
        if self._block is None:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._allowance.charge()
        self._block += more
        if len(self._block) > MOST_BLOCK:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "headers that are too large")
        if flags & frames.END_HEADERS:
            block, self._block = bytes(self._block), None
            self._headers(self._block_stream, self._block_flags, block)

    def _headers(self, stream: int, flags: int, block: bytes) -> None:
        """Begin a call. If the stream has begun before, the headers are trailers: the client sends no more messages of
        the call, and the fields are ignored."""
        self._work += _HEADERS_WORK + len(block) // _BLOCK_WORK
        if cost := len(block) // costs.BLOCK_BYTES:
            self._allowance.charge(cost)
        if stream <= self._last_stream:
            self._allowance.charge()
            self._decoder.fields(block)
            if (call := self.calls.get(stream)) is not None:
                if not flags & frames.END_STREAM or not call.is_receiving:
                    raise ConnectionFault(Code.PROTOCOL_ERROR, "unexpected HEADERS on an open stream")
                call.received_all()
            return
        self._last_stream = stream
        try:
            head = self._decoder.decode(block)
        except MalformedHead:
            self._allowance.charge(costs.CALL)
            self.sender.send(frames.reset(stream, Code.PROTOCOL_ERROR))
            return
        if self.is_leaving or len(self.calls) >= self._limits.streams:
            self._allowance.charge()
            self.sender.send(frames.reset(stream, Code.REFUSED_STREAM))
            return
        self._start(Call(self, stream, head, self._limits.stream_window, self.sender.call_window), flags)

    def _start(self, call: Call, flags: int) -> None:
        self.calls[call.stream] = call
        if flags & frames.END_STREAM:
            call.received_all()
        head: Head = call.head
        if head.http != 200:
            call.refuse_http(head.http)
        elif head.status:
            call.finish(head.status, head.problem)
        else:
            call.task = self._begin_call(call)

    # -- flow control --------------------------------------------------------------------------------------------------

    def consumed(self, call: Call, size: int, more: bool) -> None:
        """Record that a handler has read `size` bytes of a call. `more`: the client may send more messages in the
        call."""
        self._allowance.answered()
        if size:
            self._replenish(size)
            if more and not call.has_ended:
                self._widen_for(call, size)
            self._credit(call, size if more else 0)

    def _credit(self, call: Call, size: int) -> None:
        """Collect consumed bytes of a call, and return them to its window in one WINDOW_UPDATE."""
        call.credit += size
        if size and call.credit >= self._limits.stream_window // 2:  # each update wakes the client
            self.allow(call)

    def _widen_for(self, call: Call, size: int) -> None:
        """Enlarge the window of a call with large messages, so that the window holds several messages. The windows of
        all calls of the connection grow by at most `_POOL` bytes together."""
        wanted = min(size * _ON_THEIR_WAY, _WIDEST) - self._limits.stream_window - call.widened
        if (more := min(wanted, self._pool)) > 0:
            self._pool -= more
            call.widened += more
            self.grant(call, more)

    def allow(self, call: Call) -> None:
        """Return the consumed bytes of a call to its window."""
        if call.credit and not call.has_ended:
            call.receive_window += call.credit
            self.sender.send(frames.window_update(call.stream, call.credit))
            call.credit = 0

    def grant(self, call: Call, size: int) -> None:
        """Enlarge the windows of a call and of the connection by `size` bytes."""
        call.receive_window += size
        self._receive_window += size
        self.sender.send(frames.window_update(call.stream, size) + frames.window_update(0, size))

    def _replenish(self, size: int) -> None:
        """Return `size` consumed bytes to the connection's window; collect small amounts into one WINDOW_UPDATE."""
        self._consumed += size
        if self._consumed >= min(_REPLENISHED, self._limits.window // 4):
            self._receive_window += self._consumed
            self.sender.send(frames.window_update(0, self._consumed))
            self._consumed = 0

    # -- the end -------------------------------------------------------------------------------------------------------

    def forget(self, call: Call) -> None:
        """Remove a call that has ended, and return its unread bytes to the connection's window."""
        if self.calls.pop(call.stream, None) is None:
            return
        if self._data is call:
            self._data = None
        self._pool += call.widened
        self._replenish(call.unread - call.granted - call.widened)
        call.unread = call.granted = call.widened = 0
        self._close_if_done()

    def leave(self) -> None:
        """Accept no new calls, and close once the running calls have ended.

        A call may be on its way when the client receives GOAWAY: the call is refused, and the client sends it again on
        another connection. If the connection were closed at once, the client could not know whether the call had begun.
        """
        if not self.is_leaving:
            self._is_leaving = self._lingers = True
            self.sender.send(frames.go_away(self._last_stream, Code.NO_ERROR))
        self._close_if_done()

    def close(self) -> None:
        """End all calls and close."""
        for call in list(self.calls.values()):
            call.finish(Status.UNAVAILABLE, "the daemon is stopping; call again when it is back")
            call.abandon()
        self._close()

    def abort(self) -> None:
        """Close at once, without sending the rest."""
        self._transport.abort()

    def _close_if_done(self) -> None:
        if self._is_leaving and not self.calls:
            if self._lingers:
                self._loop.call_later(self._limits.linger, self._close)
            else:
                self._close()

    def _close(self) -> None:
        """Read nothing more, and close when everything has been sent. If the client does not read, the keepalive ends
        the wait."""
        if not self._is_closed:
            self._is_closed = True
            self._transport.close()

    def _fail(self, fault: ConnectionFault) -> None:
        if self._has_preface:
            _LOG.log(
                logging.WARNING if fault.code is Code.ENHANCE_YOUR_CALM else logging.DEBUG,
                "%s sent %s; closing its connection",
                self.peer,
                fault.why,
            )
        self.sender.send(frames.go_away(self._last_stream, fault.code, fault.why))
        for call in list(self.calls.values()):
            call.abandon()
        self._close()

    # -- time ----------------------------------------------------------------------------------------------------------

    def _greeted(self) -> None:
        """Close the connection if its preface and settings have not arrived in time; otherwise start the keepalive."""
        if not self._has_settings:
            self.abort()
            return
        self._timer = self._loop.call_later(self._limits.keepalive, self._look)

    def _look(self) -> None:
        """Ping a silent client; close the connection if the client does not answer."""
        limits, silent = self._limits, self._loop.time() - self._heard
        if self._is_pinged:
            self.abort()
            return
        wait = limits.keepalive - silent
        if wait <= 0:
            self._is_pinged, wait = True, limits.answer
            self.sender.send(frames.ping(b"edged-up"))
        self._timer = self._loop.call_later(wait, self._look)
