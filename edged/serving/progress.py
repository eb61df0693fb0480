"""Whether an engine host still makes progress. Pure, but for `read`.

A stopped process is certain from its state. A host that is only slow, because the box is busy or swaps, uses processor
time, takes page faults, or waits for a disk; one that does none of that and does not answer a ping either is stuck.
"""

from __future__ import annotations

import os

import msgspec

STOPPED_SECONDS = 1.0  # as long as this, a debugger may hold it
SILENT_SECONDS = 5.0
PING_SECONDS = 1.0  # of silence, after which it is asked
_LONGEST_STEP = 0.5  # a longer pause was the daemon's own, and says nothing about the host


class Sign(msgspec.Struct, frozen=True):
    """A look at a process: its state, and what only grows while any of its threads works."""

    state: str  # as `ps` shows it
    turns: int  # of its first thread on a processor
    work: tuple[int, ...]  # page faults of both kinds, clock ticks in user and system mode


def read(pid: int, *, threads: bool = False) -> Sign | None:
    """None if the process is gone. With `threads`, its state is that of any thread that works or waits for a disk.
    Format: proc_pid_stat(5)."""
    try:
        fields = _fields(f"/proc/{pid}/stat")
        state, work = fields[0].decode(), tuple(int(fields[place]) for place in (7, 9, 11, 12))
        if threads and state == "S":
            states = [_fields(f"/proc/{pid}/task/{thread}/stat")[0] for thread in os.listdir(f"/proc/{pid}/task")]
            state = "D" if b"D" in states or b"R" in states else state
        return Sign(state, _turns(pid), work)
    except (OSError, ValueError, IndexError):
        return None


def _turns(pid: int) -> int:
    """0 if this kernel does not count them. Format: the kernel's sched-stats."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[2])
    except (OSError, ValueError, IndexError):
        return 0


def _fields(path: str) -> list[bytes]:
    """Those behind the name, which may hold anything."""
    with open(path, "rb") as file:
        return file.read().rpartition(b")")[2].split()


class Progress:
    """Of one host. Times are any clock's, in seconds."""

    def __init__(self) -> None:
        self.stopped = self.silent = 0.0  # seconds
        self._seen: Sign | None = None
        self._at: float | None = None

    def heard(self) -> None:
        """It said something."""
        self.silent = 0.0

    def look(self, now: float, sign: Sign | None, *, is_busy: bool) -> None:
        """Take a look. Nothing is expected of a host that is not busy."""
        step = 0.0 if self._at is None else min(now - self._at, _LONGEST_STEP)
        before, self._seen, self._at = self._seen, sign, now
        if not is_busy or sign is None:
            self.stopped = self.silent = 0.0
            return
        has_worked = sign.state in "RD" or before is None or sign.work != before.work
        # One that is stopped and continued many times a second, to keep it slow, has turns in between.
        is_still = before is not None and (sign.turns, sign.work) == (before.turns, before.work)
        self.stopped = self.stopped + step if sign.state == "T" and is_still else 0.0
        self.silent = 0.0 if has_worked else self.silent + step

    @property
    def should_ping(self) -> bool:
        """Whether to ask it for a sign of life."""
        return self.silent >= PING_SECONDS

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped by a signal, and not for a moment only."""
        return self.stopped >= STOPPED_SECONDS

    @property
    def is_stuck(self) -> bool:
        """Whether it neither works nor answers."""
        return self.silent >= SILENT_SECONDS
