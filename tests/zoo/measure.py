"""Measure memory, processes and open files of a process and everything that it starts."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection
from pathlib import Path
from types import TracebackType

from tests.waiting import is_job_server

_PAUSE = 0.05  # seconds between two measurements
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Tree:
    """Watches what a process starts, in a `with`. `peak` is the largest total of private memory in bytes, without
    shared and file-backed memory. Children from before the start are not included, nor is a fork before its exec, which
    has the pages of its parent."""

    def __init__(self, root: int) -> None:
        self.root, self.peak = root, 0
        self._others = _without_job_server(descendants(root))
        self._command = _command(root)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Tree:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_PAUSE):
            started = (pid for pid in self.started() if _command(pid) != self._command)
            self.peak = max(self.peak, sum(map(own_bytes, started)))

    def started(self) -> set[int]:
        """Return the processes that were started since and still run. The job server does not count."""
        return _without_job_server(descendants(self.root, self._others) - self._others)


def _without_job_server(pids: set[int]) -> set[int]:
    return {pid for pid in pids if not is_job_server(pid)}


def descendants(root: int, without: Collection[int] = ()) -> set[int]:
    """Return all descendants of a process, except those that descend through one of `without`."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it exited while it was read
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                parents[int(stat.parent.name)] = int(parent)
    found: set[int] = set()
    while more := {pid for pid, parent in parents.items() if parent in (found - {*without}) | {root}} - found:
        found |= more
    return found


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def own_bytes(pid: int) -> int:
    """Return a process's resident memory without shared and file-backed memory; 0 if it has exited."""
    try:
        _, resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[:3])
    except (OSError, ValueError):
        return 0
    return (resident - shared) * _PAGE


def descriptors(pid: int) -> int:
    """Return the number of files that a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))
