"""Bounded waits for asynchronous events."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import os
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

import pytest

Value = TypeVar("Value")
_PATIENCE = 30.0


def run(work: Coroutine[Any, Any, Value], seconds: float = _PATIENCE) -> Value:
    """Run a coroutine in a new event loop; TimeoutError instead of a hang.

    An error in a callback, which asyncio only logs, fails the test. An error of a task that is never awaited does not.
    """
    unexpected: list[dict[str, Any]] = []

    def record(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "never retrieved" not in context["message"]:
            unexpected.append(context)

    async def bounded() -> Value:
        asyncio.get_running_loop().set_exception_handler(record)
        return await asyncio.wait_for(work, seconds)

    result = asyncio.run(bounded())
    assert not unexpected, unexpected
    return result


def play(test: pytest.Function, seconds: float = _PATIENCE) -> bool | None:
    """Run a test that is a coroutine function in a new event loop; return None, as in pytest's hook, for others."""
    if not inspect.iscoroutinefunction(test.obj):
        return None
    run(test.obj(**{name: test.funcargs[name] for name in inspect.signature(test.obj).parameters}), seconds)
    return True


def within(
    make: Callable[..., AbstractAsyncContextManager[Any]], **options: Any
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Make a test of a coroutine function. Its first argument is the value of the context manager `make(**options)`."""

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @functools.wraps(test)
        def runs(*arguments: Any, **fixtures: Any) -> None:
            async def play() -> None:
                async with make(**options) as value:
                    await test(value, *arguments, **fixtures)

            run(play(), 60)

        _, *others = inspect.signature(test).parameters.values()
        runs.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]
        return runs

    return decorate


async def until(condition: Callable[[], bool], what: str = "the condition", seconds: float = _PATIENCE) -> None:
    """Run the event loop until a condition is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen"
        await asyncio.sleep(0.005)


def wait(condition: Callable[[], bool], what: str = "the condition", seconds: float = _PATIENCE) -> None:
    """As `until`, without an event loop: nothing else runs meanwhile."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.005)


def together(work: Callable[[int], None], count: int) -> None:
    """Do the work in `count` threads at the same time, each with its number."""
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def ends_despite_fifo(function: Callable[[], object], fifo: Path, seconds: float = 1.0) -> bool:
    """Return True if a function that may read a FIFO returns in time; otherwise unblock it."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(seconds)
    hung = thread.is_alive()
    if hung:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        thread.join(_PATIENCE)
    return not hung


def children(pid: int | None = None) -> set[int]:
    """Return the children of a process, including those that have exited but are not reaped. Its job server does not
    count, because it stays for a while; the job server's children do."""
    found = _children(pid or os.getpid())
    for server in filter(is_job_server, list(found)):
        found = found - {server} | _children(server)
    return found


def _children(pid: int) -> set[int]:
    found: set[int] = set()
    with contextlib.suppress(FileNotFoundError):  # the process has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # The thread ended while it was listed.
                found.update(int(child) for child in (task / "children").read_text().split())
    return found


def workers(pid: int | None = None) -> set[int]:
    """Return the one-shot children of a process: those of its job server."""
    return set().union(*map(_children, filter(is_job_server, _children(pid or os.getpid()))))


def is_job_server(pid: int) -> bool:
    """Whether a process is a job server. Its children have the same command line, but it is the parent of them."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    except (OSError, IndexError):
        return False
    return b"edged.jobs.server" in words and parent.encode() in words


def is_running(pid: int) -> bool:
    """Return True if a process exists and has not exited (a zombie has exited)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def descriptors() -> int:
    """Count this process's open descriptors, without those that threads of libraries (gRPC, obstore) open and close at
    any time: TCP sockets, event polls and event counters, and without the socket to the job server and the file of its
    errors, because that server starts and ends at any time. Objects of earlier tests are collected first."""
    gc.collect()
    return sum(not _is_of_a_library(int(number)) for number in os.listdir("/proc/self/fd"))


def _is_of_a_library(descriptor: int) -> bool:
    try:
        kind = os.readlink(f"/proc/self/fd/{descriptor}")
        if not kind.startswith("socket:"):
            return kind.startswith(("anon_inode:[eventpoll]", "anon_inode:[eventfd]", "/memfd:edged-job-server"))
        with socket.socket(fileno=os.dup(descriptor)) as found:
            return found.family in (socket.AF_INET, socket.AF_INET6) or found.type == socket.SOCK_SEQPACKET
    except OSError:  # it was closed meanwhile, such as that of the folder itself
        return False
