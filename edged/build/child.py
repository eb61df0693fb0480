"""The parent's end of a one-shot child: starts it, feeds it, watches time and memory, and tells how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import Annotated, TypeVar

import msgspec

from edged import errors, process
from edged.build import jobs
from edged.errors import BuildFailed, EdgedError

_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)
_POLL_SECONDS = 0.2
_FAILED = 3  # the worker's exit status that comes with a Failure

Answer = TypeVar("Answer", bound=msgspec.Struct)


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a child may use: wall-clock seconds, and mebibytes of resident memory."""

    seconds: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 3600.0
    memory_mb: Annotated[int, msgspec.Meta(gt=0, le=1 << 30)] = 8192


async def run(job: jobs.Job, answer: type[Answer], limits: Limits) -> Answer:
    """Does a job in a child of its own.

    Raises the error that the child named, or BuildFailed when it crashed or went beyond a limit. Cancelling kills it.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "edged.build.worker",
        str(os.getpid()),
        str(limits.memory_mb),
        **process.ISOLATED,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    what = type(job).__name__.lower()
    watch = asyncio.create_task(_watch_memory(child, limits.memory_mb))
    try:
        talk = child.communicate(msgspec.json.encode(job))
        out, noise = await asyncio.wait_for(talk, limits.seconds)
    except asyncio.TimeoutError:
        raise BuildFailed(f"{what} child took longer than {limits.seconds:g} s and was stopped") from None
    finally:
        exceeded = watch.done() and not watch.cancelled()
        watch.cancel()
        await _kill(child)
    if child.returncode == 0:
        return msgspec.json.decode(out, type=answer)
    if child.returncode == _FAILED:
        raise _failure(out)
    if exceeded:
        raise BuildFailed(f"{what} child used more than {limits.memory_mb} MiB of memory and was stopped")
    raise BuildFailed(f"{what} child {_ending(child.returncode)}{_last_words(noise)}")


async def _watch_memory(child: asyncio.subprocess.Process, limit_mb: int) -> None:
    """Returns only after it has killed the child for its memory."""
    while True:
        await asyncio.sleep(_POLL_SECONDS)
        if _resident_mb(child.pid) > limit_mb:
            child.kill()
            return


def _resident_mb(pid: int) -> float:
    """Resident memory of a process in mebibytes; 0 once it is gone."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * _PAGE_MB
    except (OSError, IndexError):
        return 0.0


async def _kill(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


def _failure(out: bytes) -> EdgedError:
    failure = msgspec.json.decode(out, type=jobs.Failure)
    kind = getattr(errors, failure.error, BuildFailed)
    error: EdgedError = kind(failure.message)
    return error


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"ended with status {code}"


def _last_words(noise: bytes) -> str:
    lines = [line for line in noise.decode(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1].strip()[:300]}" if lines else ""
