"""Work on big bodies goes to threads of its own, so that neither cameras nor the control loop wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_LARGE = 1 << 18  # bytes
T = TypeVar("T")

_threads = ThreadPoolExecutor(2, "edged-http")  # none is started before there is work


async def aside(size: int, work: Callable[[], T]) -> T:
    """Does work on so many bytes: at once where they are few."""
    if size < _LARGE:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_threads, work)
