"""Long-lived asyncio tasks. A task that ends with an unexpected exception is logged, counted and started again.
Otherwise its work would stop silently, because no code awaits the task."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

from edged.backoff import Backoff

_LOG = logging.getLogger("edged")
_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 30.0)  # seconds until a task is started again
_PROVEN_SECONDS = 60.0  # a task that ran for this time before it failed is started again after the first pause

FAILURES: Counter[str] = Counter()  # number of unexpected ends, by the task's name

_T = TypeVar("_T")
Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


def keep(name: str, work: Work) -> asyncio.Task[None]:
    """Run `work()` until it returns or is cancelled. If it raises an exception, start it again after growing pauses."""
    return asyncio.get_running_loop().create_task(_kept(name, work), name=name)


async def until_set(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, at most `seconds`. Use this in loops that are cancelled: before Python 3.12 `asyncio.wait_for`
    loses a cancellation that arrives together with the event."""
    waiting = asyncio.get_running_loop().create_task(event.wait())
    try:
        await asyncio.wait((waiting,), timeout=seconds)
    finally:
        waiting.cancel()


async def at_most(seconds: float | None, work: Awaitable[_T]) -> _T:
    """Wait for work, at most `seconds`; None waits without limit. After `seconds`, cancel the work and raise
    asyncio.TimeoutError. Use this instead of `asyncio.wait_for`, which before Python 3.12 loses a cancellation that
    arrives together with the result."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task,), timeout=seconds)
    except asyncio.CancelledError:
        if task.done():
            retrieve_exception(task)
        raise
    finally:
        is_late = not task.done()
        if is_late:
            task.cancel()
            await asyncio.wait((task,))
    if is_late and task.cancelled():
        raise asyncio.TimeoutError
    return task.result()


async def despite_cancelling(work: Coroutine[Any, Any, _T]) -> _T:
    """Wait for the result of short work even if this task is cancelled, and raise the cancellation afterwards. After a
    cancellation, an error of the work is dropped. If the error were raised instead of the cancellation, a caller that
    handles the error would go on although it was cancelled."""
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        retrieve_exception(task)
        raise cancelled
    return task.result()


@contextlib.asynccontextmanager
async def in_thread(make: Callable[[], contextlib.AbstractContextManager[_T]]) -> AsyncIterator[_T]:
    """Enter and leave a context in a thread, because both wait for the disk. Leave it even if this task is
    cancelled."""
    entered, given = contextlib.ExitStack(), list[_T]()
    try:
        await despite_cancelling(asyncio.to_thread(lambda: given.append(entered.enter_context(make()))))
        yield given[0]
    finally:
        await despite_cancelling(asyncio.to_thread(entered.close))


def retrieve_exception(task: asyncio.Future[Any]) -> None:
    """Retrieve the error of a task that is not awaited, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


def failed(name: str, error: BaseException) -> None:
    """Log and count the unexpected end of a task."""
    FAILURES[name] += 1
    _LOG.error("task %s ended with an unexpected error; report the traceback", name, exc_info=error)


def count_callbacks() -> None:
    """From now on, count in `FAILURES` the exceptions in callbacks of this loop and in tasks that are never awaited.
    asyncio logs these exceptions."""

    def unexpected(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        FAILURES["callback"] += 1
        loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(unexpected)


async def _kept(name: str, work: Work) -> None:
    loop, backoff = asyncio.get_running_loop(), Backoff(_PAUSES, _PROVEN_SECONDS)
    while True:
        began = loop.time()
        try:
            return await work()
        except Exception as error:
            failed(name, error)
        await asyncio.sleep(backoff.after(loop.time() - began))


class TaskGroup:
    """A set of one-shot tasks, which holds references to the running ones. Unexpected exceptions are logged and
    counted. `ended` is called after each task."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` in a new task."""
        task = asyncio.get_running_loop().create_task(work, name=getattr(work, "__qualname__", None))
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    async def stop(self) -> None:
        """Cancel every task and wait until all have ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            failed(task.get_name(), error)
        self._ended()
