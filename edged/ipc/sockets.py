"""The daemon's end of the socket to an engine host: orders out, answers in. Bytes only; what they mean is the link's.

The two ends are a pair without a name. A host is not trusted: however much it sends, the kernel holds it back until the
loop reads again, and what it announces is compared with what it may send before any memory is taken for it.
"""

from __future__ import annotations

import asyncio
import mmap
import socket
from collections.abc import Callable

from edged.ipc.frames import HEADER, LARGEST_MESSAGE

_BUFFER = 64 << 10  # bytes read at once
_AT_ONCE = 16  # reads, before others have their turn

Heard = Callable[[bytes, memoryview], None]


class HostSocket:
    """Made in the loop. `child` is the host's end, to be given up by `started` once the host has it."""

    def __init__(self, heard: Heard, most_bulk: Callable[[], int], gone: Callable[[str], None]) -> None:
        """OSError if the box has no sockets left.

        `heard` is called with each message and the bulk bytes that followed it, and may close the socket. `most_bulk`
        returns how many bulk bytes may follow a message now. `gone` is called once if the host has closed its end, with
        why if it sent something that it may not send.
        """
        self._heard, self._most_bulk, self._gone = heard, most_bulk, gone
        self._loop = asyncio.get_running_loop()
        self._socket, self.child = socket.socketpair()
        self._socket.setblocking(False)
        self._is_open, self._is_draining = True, False
        self._small = memoryview(bytearray(_BUFFER))
        self._large: memoryview | None = None  # the frame that is coming, if it is larger than that
        self._message_size = 0  # of the large frame
        self._filled = 0
        self._unsent = bytearray()
        self._loop.add_reader(self._socket, self.drain)

    def started(self) -> None:
        """The host has its end, or will never have it."""
        self.child.close()

    def send(self, data: bytes) -> bool:
        """Sends a message; False if the host is not there any more."""
        if not self._is_open:
            return False
        frame = HEADER.pack(len(data), 0) + data
        if self._unsent:  # bounded by what may be in flight
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
        """How many bytes the kernel took; -1 if the host is gone."""
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            return -1

    def drain(self) -> None:
        """Read what has arrived, if it is not more than a working host sends at once."""
        if self._is_draining:  # called by what a message led to
            return
        self._is_draining = True
        try:
            for _ in range(_AT_ONCE):
                if not self._is_open or not self._read():
                    return
        finally:
            self._is_draining = False

    def _read(self) -> bool:
        """Whether something came."""
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
            self._heard(bytes(frame[: self._message_size]), frame[self._message_size :])
        return True

    def _take_small(self) -> None:
        """Hands on the frames that the buffer holds completely; begins a large one."""
        begin = 0
        while self._is_open and self._filled - begin >= HEADER.size:
            size, bulk = HEADER.unpack_from(self._small, begin)
            if size > LARGEST_MESSAGE:
                return self._end(f"sent a message of {size} bytes, more than {LARGEST_MESSAGE}")
            if bulk and bulk > (most := self._most_bulk()):
                return self._end(f"sent an answer with {bulk} bytes of outputs, more than the {most} that it may have")
            total = HEADER.size + size + bulk
            if total > _BUFFER:
                self._begin_large(size, size + bulk, begin + HEADER.size)
                return None
            if self._filled - begin < total:
                break
            frame = bytes(self._small[begin + HEADER.size : begin + total])
            begin += total
            self._heard(frame[:size] if bulk else frame, memoryview(frame)[size:])
        rest = self._filled - begin
        if begin:
            self._small[:rest] = bytes(self._small[begin : self._filled])
        self._filled = rest
        return None

    def _begin_large(self, message_size: int, size: int, begin: int) -> None:
        here = self._filled - begin
        self._large = memoryview(mmap.mmap(-1, size))  # unlike a bytearray's, its pages are made when they are filled
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
