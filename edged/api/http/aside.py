"""Work on big bodies goes to threads of its own, so that neither cameras nor the control loop wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_LARGE = 1 << 18  # bytes
T = TypeVar("T")

_threads = ThreadPoolExecutor(1, "edged-http")  # more would only take the interpreter from the loop


async def aside(size: int, work: Callable[[], T]) -> T:
    """Does work on so many bytes: at once where they are few."""
    if size < _LARGE:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_threads, work)
