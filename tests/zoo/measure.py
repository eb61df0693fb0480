"""What a process and everything it starts take while something is done: memory, and what is left of it afterwards."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection
from pathlib import Path
from types import TracebackType

_PAUSE = 0.05  # seconds between two looks
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Tree:
    """Watches what a process starts, in a `with`: `peak` is the most bytes that all of it had for itself at one look,
    memory that is shared or backed by files left out. Children that are there from the start are not looked at."""

    def __init__(self, root: int) -> None:
        self.root, self.peak = root, 0
        self._others = descendants(root)
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
            self.peak = max(self.peak, sum(map(own_bytes, self.started())))

    def started(self) -> set[int]:
        """What lives now and was started since."""
        return descendants(self.root, self._others) - self._others


def descendants(root: int, without: Collection[int] = ()) -> set[int]:
    """All processes that descend from one, itself left out, and those that descend by way of others."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it ended while it was read
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                parents[int(stat.parent.name)] = int(parent)
    found: set[int] = set()
    while more := {pid for pid, parent in parents.items() if parent in (found - {*without}) | {root}} - found:
        found |= more
    return found


def own_bytes(pid: int) -> int:
    """Resident memory of a process, without what it shares and what lies in files; 0 when it is gone."""
    try:
        _, resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[:3])
    except (OSError, ValueError):
        return 0
    return (resident - shared) * _PAGE


def descriptors(pid: int) -> int:
    """How many files a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))
