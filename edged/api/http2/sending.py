"""The sending half of a connection: control frames at once, messages as the client's windows and the kernel allow."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from edged.api.http2 import frames
from edged.api.http2.frames import Code, ConnectionFault
from edged.api.http2.limits import Allowance

if TYPE_CHECKING:
    from edged.api.http2.call import Call

_COPIED = 64 << 10  # bytes; a larger answer is not copied together with its headers
_UNSENT = 1 << 20  # bytes in the send buffer above which calls wait


def writelines_never_pauses(version: tuple[int, ...]) -> bool:
    """Whether asyncio's `writelines` for sockets has the fault CVE-2024-12254 in this version of Python. With the
    fault, `writelines` never calls `pause_writing`: answers to a client that does not read would fill the memory."""
    return (3, 12) <= version < (3, 12, 9) or (3, 13) <= version < (3, 13, 2)


# Whether the parts of a message are joined by a copy. With uvloop that is not needed, but this module cannot know.
_JOINS = writelines_never_pauses(sys.version_info[:3])


class Sender:
    """The outgoing half of a connection."""

    def __init__(self, transport: asyncio.WriteTransport, allowance: Allowance) -> None:
        self._transport, self._allowance = transport, allowance
        transport.set_write_buffer_limits(_UNSENT)
        self._window = frames.DEFAULT_WINDOW
        self.call_window = frames.DEFAULT_WINDOW  # initial window of each call
        self.max_frame = frames.DEFAULT_FRAME
        self._is_writable = True
        self._waiting = dict[asyncio.Future[None], None]()

    @property
    def is_writable(self) -> bool:
        """Whether the send buffer has room."""
        return self._is_writable

    def pause(self) -> None:
        self._is_writable = False

    def resume(self) -> None:
        self._is_writable = True
        self.wake()

    def wake(self) -> None:
        """Wake the calls that wait for room, so that they try again."""
        waiting, self._waiting = self._waiting, {}
        for room in waiting:
            if not room.done():
                room.set_result(None)

    def widen(self, more: int) -> None:
        """Enlarge the connection's window for answers. Raises ConnectionFault beyond the largest window of HTTP/2."""
        self._window += more
        if self._window > frames.LARGEST_WINDOW:
            raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "window updates beyond 2**31 - 1 bytes")

    def send(self, data: bytes | memoryview) -> None:
        """Send frames; drop them if the connection is closing, since asyncio would log each of them."""
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def send_headers(self, stream: int, block: bytes, flags: int) -> None:
        """Send a block of headers, in several frames if the block does not fit into one."""
        parts = [block[at : at + self.max_frame] for at in range(0, len(block), self.max_frame)]
        kind = frames.HEADERS
        for number, part in enumerate(parts, 1):
            last = frames.END_HEADERS if number == len(parts) else 0
            self.send(frames.head(kind, flags | last, stream, len(part)) + part)
            kind, flags = frames.CONTINUATION, 0

    def takes(self, size: int) -> bool:
        """Whether a message of `size` bytes can be sent now with `send_data`. The connection's window and the send
        buffer must have room, and the message must fit into one frame. The message must also be small, because its
        bytes are copied into the frame."""
        return size <= self._window and size <= self.max_frame and size <= _COPIED and self._is_writable

    def send_data(self, data: bytes, size: int) -> None:
        """Send frames with `size` bytes of a message. `takes(size)` must have returned True."""
        self._window -= size
        self._allowance.answered()
        self.send(data)

    async def send_slowly(self, call: Call, prefix: bytes, data: memoryview) -> None:
        """Send a message as the client's windows allow. Stop if the call ends."""
        position = -len(prefix)
        while position < len(data) and not call.has_ended:
            most = min(self._window, call.send_window, _UNSENT)
            if most <= 0 or not self._is_writable:
                await self._has_room(call)
                continue
            parts = list[bytes | memoryview]()
            end = min(len(data), position + most)
            self._window -= end - position
            call.send_window -= end - position
            while position < end:
                last = min(end, position + self.max_frame)
                parts.append(frames.head(frames.DATA, 0, call.stream, last - position))
                if position < 0:
                    parts.append(prefix[position : min(0, last) or None])
                parts.append(data[max(0, position) : max(0, last)])
                position = last
            self._allowance.answered(len(parts))
            if not self._transport.is_closing():
                if _JOINS:
                    self._transport.write(b"".join(parts))
                else:
                    self._transport.writelines(parts)

    async def _has_room(self, call: Call) -> None:
        """Wait until a message can be sent, or until the call ends."""
        room = call.room = asyncio.get_running_loop().create_future()
        self._waiting[room] = None
        try:
            await room
        finally:
            call.room = None
            self._waiting.pop(room, None)
