"""Gives back memory that large messages leave behind.

glibc keeps what is freed in pieces for the next allocation, and gRPC receives a message in pieces: after a burst of
large ones a daemon holds several times what it uses, for ever, on a box where engines need it.
"""

from __future__ import annotations

import asyncio
import ctypes
import resource
from pathlib import Path

_LOOK_SECONDS = 2.0
_WORTH = 32 << 20  # bytes by which memory has grown
_AGAIN = 3  # times more, after the first
_STATM = Path("/proc/self/statm")
_PAGE = resource.getpagesize()  # 16 or 64 KiB on some ARM boxes


class MallocTrimmer:
    """When to give back, by how much memory there was after the last time. Pure."""

    def __init__(self, resident: int) -> None:
        self._lowest, self._again = resident, 0

    def is_worth(self, resident: int) -> bool:
        """Whether so many bytes, that the process has now, are many more than it had, or were a moment ago: what was in
        use then may be free by now."""
        self._lowest = min(self._lowest, resident)
        if resident >= self._lowest + _WORTH:
            self._again = _AGAIN
            return True
        self._again -= 1
        return self._again >= 0

    def given_back(self, resident: int) -> None:
        """What is left then is in use, or cannot be given back."""
        self._lowest = resident


async def run() -> None:
    """Looks every few seconds, until cancelled; at once done where the C library has no such call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return
    trimmer = MallocTrimmer(_resident())
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        if trimmer.is_worth(_resident()):
            await asyncio.to_thread(trim, 0)  # it takes some milliseconds, without Python's lock
            trimmer.given_back(_resident())


def _resident() -> int:
    """Bytes; format: proc_pid_statm(5)."""
    try:
        return int(_STATM.read_text().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0
