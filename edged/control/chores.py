"""Tasks of the control loop: kept alive while they run, complained about when they end as nobody expected."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

_LOG = logging.getLogger("edged.control")


class Chores:
    """Starts tasks; `ended` is called after each, since something may be different then."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs it beside everything else."""
        task = asyncio.get_running_loop().create_task(work)
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
            _LOG.error("a control task ended with an error nobody expected", exc_info=error)
        self._ended()
