"""The daemon's end of the socket to an engine host. It only moves bytes; `serving.link` encodes and decodes messages.

The socket is an unnamed socket pair. A host is not trusted. If a host sends too much, the host blocks until the
daemon's event loop reads again. The sizes that a host announces are checked before memory is allocated for them.
"""

from __future__ import annotations

import asyncio
import mmap
import socket
from collections.abc import Callable

from edged.ipc.frames import HEADER, LARGEST_MESSAGE

_BUFFER = 64 << 10  # bytes read at once
_AT_ONCE = 16  # the most reads before other tasks of the loop run

Receive = Callable[[bytes, memoryview], None]


class HostSocket:
    """A socket pair to one host; create it in the event loop. `child` is the host's end."""

    def __init__(self, receive: Receive, most_bulk: Callable[[], int], gone: Callable[[str], None]) -> None:
        """Raises OSError if the box has no free file descriptor.

        `receive` is called with each message and the bulk bytes that followed it; it may close the socket. `most_bulk`
        returns the largest number of bulk bytes that may follow a message now. `gone` is called once: with "" when the
        host has closed its end, or with the reason when the host has violated the protocol.
        """
        self._receive, self._most_bulk, self._gone = receive, most_bulk, gone
        self._loop = asyncio.get_running_loop()
        self._socket, self.child = socket.socketpair()
        self._socket.setblocking(False)
        self._is_open, self._is_draining = True, False
        self._small = memoryview(bytearray(_BUFFER))
        self._large: memoryview | None = None  # the incoming frame, if it is larger than `_small`
        self._message_size = 0  # of the large frame
        self._filled = 0
        self._unsent = bytearray()
        self._loop.add_reader(self._socket, self.drain)

    def started(self) -> None:
        """Close the daemon's copy of `child`: the host has its own copy, or did not start."""
        self.child.close()

    def send(self, data: bytes) -> bool:
        """Send a message; return False if the host has ended."""
        if not self._is_open:
            return False
        frame = HEADER.pack(len(data), 0) + data
        if self._unsent:  # its size is limited, because the work in flight is limited
            self._unsent += frame
            return True
        sent = self._send(frame)
        if 0 <= sent < len(frame):
            self._unsent += frame[sent:]
            self._loop.add_writer(self._socket, self._flush)
        return sent >= 0

    def _flush(self) -> None:
        sent = self._send(self._unsent)
        if sent >= 0:
            del self._unsent[:sent]
        else:
            self._unsent.clear()
        if not self._unsent:
            self._loop.remove_writer(self._socket)

    def _send(self, data: bytes | bytearray) -> int:
        """Send bytes; return how many the kernel accepted, or -1 if the host has ended."""
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            return -1

    def drain(self) -> None:
        """Read and pass on the bytes that have arrived, with a limit on the number of reads."""
        if self._is_draining:  # `receive` has called this method
            return
        self._is_draining = True
        try:
            for _ in range(_AT_ONCE):
                if not self._is_open or not self._read():
                    return
        finally:
            self._is_draining = False

    def _read(self) -> bool:
        """Read once; return whether more bytes may have arrived."""
        place = (self._small if self._large is None else self._large)[self._filled :]
        try:
            count = self._socket.recv_into(place)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            count = 0
        if not count:
            self._end("")
            return False
        self._filled += count
        if self._large is None:
            self._take_small()
        elif self._filled == len(self._large):
            frame, self._large, self._filled = self._large, None, 0
            self._receive(bytes(frame[: self._message_size]), frame[self._message_size :])
        return count == len(place)

    def _take_small(self) -> None:
        """Pass on the complete frames in the buffer. If a frame is larger than the buffer, move its bytes to a separate
        buffer, which receives the rest."""
        begin = 0
        while self._is_open and self._filled - begin >= HEADER.size:
            size, bulk = HEADER.unpack_from(self._small, begin)
            if size > LARGEST_MESSAGE:
                return self._end(f"sent a message of {size} bytes; at most {LARGEST_MESSAGE} are allowed")
            if bulk and bulk > (most := self._most_bulk()):
                return self._end(f"sent an answer with {bulk} bytes of outputs; at most {most} are allowed")
            total = HEADER.size + size + bulk
            if total > _BUFFER:
                self._begin_large(size, size + bulk, begin + HEADER.size)
                return None
            if self._filled - begin < total:
                break
            frame = bytes(self._small[begin + HEADER.size : begin + total])
            begin += total
            self._receive(frame[:size] if bulk else frame, memoryview(frame)[size:])
        rest = self._filled - begin
        if begin:
            self._small[:rest] = bytes(self._small[begin : self._filled])
        self._filled = rest
        return None

    def _begin_large(self, message_size: int, size: int, begin: int) -> None:
        here = self._filled - begin
        self._large = memoryview(
            mmap.mmap(-1, size)
        )  # its pages are allocated when they are filled; a bytearray would allocate all at once
        self._large[:here] = self._small[begin : self._filled]
        self._message_size, self._filled = message_size, here

    def _end(self, why: str) -> None:
        self.close()
        self._gone(why)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._large = None
            self._socket.close()
            self.child.close()
