"""Memory that the daemon shares with one engine host: a picture or tensor is written once and read without a copy.

The memory is anonymous (memfd): no file can be left behind, and it is freed when the last process that maps it ends.
Only the daemon allocates; the host only reads and writes the spans named in its jobs.
"""

from __future__ import annotations

import bisect
import fcntl
import mmap
import os

import msgspec

from edged.errors import Overloaded, TooLarge

_ALIGN = 64  # a cache line, and the best alignment for vector loads


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A piece of the arena, in bytes."""

    offset: int
    size: int


class FreeList:
    """First-fit allocation in [0, capacity). Pure: it computes offsets only."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._holes: list[tuple[int, int]] = [(0, capacity)]  # (offset, size), by offset, never adjacent
        self._taken: dict[int, int] = {}

    def take(self, size: int) -> int:
        """Allocate `size` bytes and return their offset. Raises TooLarge if they can never fit, Overloaded if they do
        not fit now."""
        room = max(_ALIGN, -(-size // _ALIGN) * _ALIGN)
        if room > self.capacity:
            raise TooLarge(
                f"{size} bytes do not fit into an engine host's shared memory of {self.capacity} bytes;"
                " raise hosts.arena_mb"
            )
        for index, (offset, free) in enumerate(self._holes):
            if free >= room:
                self._holes[index : index + 1] = [(offset + room, free - room)] if free > room else []
                self._taken[offset] = room
                return offset
        raise Overloaded(
            f"the engine host's shared memory of {self.capacity} bytes is full; send less at a time, or raise"
            " hosts.arena_mb"
        )

    def give(self, offset: int) -> None:
        """Free the bytes at an offset that `take` returned. Raises KeyError if they are not allocated."""
        size = self._taken.pop(offset)
        index = bisect.bisect_left(self._holes, (offset, 0))
        if index < len(self._holes) and self._holes[index][0] == offset + size:
            size += self._holes.pop(index)[1]
        if index and sum(self._holes[index - 1]) == offset:
            offset, before = self._holes[index - 1]
            self._holes[index - 1] = (offset, before + size)
        else:
            self._holes.insert(index, (offset, size))

    @property
    def taken(self) -> int:
        return sum(self._taken.values())


class Arena:
    """The daemon's end: creates the memory and allocates spans. Pages that were never written use no memory."""

    def __init__(self, capacity: int) -> None:
        self.handle = os.memfd_create("edged-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.handle, capacity)
        # If a host could shrink the file, the daemon would die with SIGBUS.
        fcntl.fcntl(self.handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._map = mmap.mmap(self.handle, capacity)
        self._view = memoryview(self._map)
        self._free = FreeList(capacity)

    def reserve(self, size: int) -> Span:
        return Span(self._free.take(size), size)

    def read(self, span: Span) -> memoryview:
        """Return a writable view of a span. The view is valid until the span is released."""
        return self._view[span.offset : span.offset + span.size]

    def release(self, span: Span) -> None:
        self._free.give(span.offset)

    @property
    def taken(self) -> int:
        return self._free.taken

    def close(self) -> None:
        self._view.release()
        self._map.close()
        os.close(self.handle)


class SharedView:
    """The host's end: maps the same memory through the inherited file descriptor."""

    def __init__(self, handle: int) -> None:
        self._map = mmap.mmap(handle, os.fstat(handle).st_size)
        self.memory = memoryview(self._map)

    def at(self, span: Span) -> memoryview:
        """Return a writable view of a span. Raises ValueError if the span is outside the arena."""
        if span.offset < 0 or span.size < 0 or span.offset + span.size > len(self.memory):
            raise ValueError(f"{span} is outside the shared memory of {len(self.memory)} bytes")
        return self.memory[span.offset : span.offset + span.size]
