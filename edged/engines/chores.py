"""One-shot tasks of the control loop: referenced while they run, logged and counted if they end unexpectedly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from edged import tasks


class Chores:
    """Starts tasks; `ended` is called after each, since something may be different then."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs it beside everything else."""
        task = asyncio.get_running_loop().create_task(work, name=getattr(work, "__qualname__", None))
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    async def stop(self) -> None:
        """Cancels what runs and waits for its end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            tasks.failed(task.get_name(), error)
        self._ended()
