"""Returns free memory to the system after large messages.

glibc keeps small freed blocks for later allocations. After a burst of large messages the daemon would hold several
times the memory that it uses, on a box whose engines need that memory.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
from pathlib import Path

_LOOK_SECONDS = 2.0
_WORTH = 16 << 20  # growth in bytes from which trimming is worth it
_AGAIN = 3  # further attempts after such growth
_STATM = Path("/proc/self/statm")
_PAGE = resource.getpagesize()  # 16 or 64 KiB on some ARM boxes
_ARENA_MAX = -8  # M_ARENA_MAX of mallopt(3)
_ARENAS = 4  # the most heaps; Python's lock lets few threads allocate at a time


class MallocTrimmer:
    """Decides when to trim, from the growth of memory since the last trimming. Pure."""

    def __init__(self, resident: int) -> None:
        self._lowest, self._again = resident, 0

    def is_worth(self, resident: int) -> bool:
        """Whether to trim. `resident` is the memory of the process in bytes. The result is True if `resident` is at
        least 16 MiB above the lowest value since the last trimming. The next three calls after such growth also return
        True, because memory that was in use before may be free by then."""
        self._lowest = min(self._lowest, resident)
        if resident >= self._lowest + _WORTH:
            self._again = _AGAIN
            return True
        self._again -= 1
        return self._again >= 0

    def trimmed(self, resident: int) -> None:
        """Record the resident memory, in bytes, after trimming. The process uses this memory, or glibc cannot return it
        to the kernel."""
        self._lowest = resident


def limit_arenas() -> None:
    """Let threads share two to four heaps. By default, glibc creates up to eight heaps per core, and each heap keeps
    freed memory."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, min(_ARENAS, max(2, os.cpu_count() or 1)))


async def run() -> None:
    """Check the memory every two seconds and trim if worthwhile, until cancelled. Return at once if the C library has
    no `malloc_trim`."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return
    trimmer = MallocTrimmer(_resident())
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        if trimmer.is_worth(_resident()):
            await asyncio.to_thread(trim, 0)  # takes some milliseconds, without Python's lock
            trimmer.trimmed(_resident())


def _resident() -> int:
    """Return the resident memory in bytes, 0 if unknown. Format: proc_pid_statm(5)."""
    try:
        return int(_STATM.read_text().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0
