"""Starts and ends the process of an engine host, forwards its output, and observes its progress."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import signal
import sys

import msgspec

from edged import process
from edged.confinement.rules import Reach
from edged.ipc.arena import Arena
from edged.ipc.sockets import HostSocket
from edged.logs.child_output import ChildLogForwarder, Pipe
from edged.serving import memory

HOST_MODULE = "edged.host.main"  # run with `python -m`; its first arguments are the parent's pid and the backend

_STOP_SECONDS = 3.0
# Signals that a process's own fault raises. Other signals come from another process.
_FAULTS = {
    *(signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE),
    *(signal.SIGSYS, signal.SIGTRAP),
}


class End(str, enum.Enum):
    """Why a process ended."""

    WORK = "work"  # it crashed or exited: its work may have caused that
    OUTSIDE = "outside"  # a signal from an operator, a service manager or a test
    MEMORY = "memory"  # the kernel's OOM killer: other processes may have used the memory

    @property
    def is_outside(self) -> bool:
        """Whether a cause outside the process ended it. If so, this single death does not suffice to blame the work of
        the process."""
        return self is not End.WORK


def end_of(status: int | None, *, is_out_of_memory: bool) -> End:
    """Return why a process ended, from its exit status (negative: a signal). Pure. `is_out_of_memory`: the kernel
    killed some process for lack of memory at that time."""
    if status is None or status >= 0 or -status in _FAULTS:
        return End.WORK
    return End.MEMORY if status == -signal.SIGKILL and is_out_of_memory else End.OUTSIDE


class HostProcess:
    """The running process of an engine host."""

    def __init__(self, child: asyncio.subprocess.Process, printed: Pipe) -> None:
        self._child, self._printed, self._kernel_kills = child, printed, memory.kernel_kills()
        self.pid = child.pid
        self.ended = asyncio.ensure_future(child.wait())

    @classmethod
    async def start(
        cls, backend: str, connection: HostSocket, arena: Arena, memory_mb: int, reach: Reach, module: str = HOST_MODULE
    ) -> HostProcess:
        """Start a host, which may allocate `memory_mb` MiB (0: no limit) and open the files in `reach`. Raises OSError
        if the host cannot be started."""
        printed = Pipe(ChildLogForwarder(f"host {backend}", backend=backend))
        allowed = -1
        try:
            # A file, because the kernel limits an argument to 128 KiB, and a reach may name thousands of files.
            allowed = os.memfd_create("edged-reach", os.MFD_CLOEXEC)
            os.pwrite(allowed, reach.argument().encode(), 0)
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", module, str(os.getpid()), backend),
                *(str(connection.child.fileno()), str(arena.handle), str(memory_mb)),
                pass_fds=(connection.child.fileno(), arena.handle),
                stdin=allowed,
                stdout=printed.child,
                stderr=printed.child,
                env=process.environment(),
                **process.ISOLATED,
            )
        except BaseException:
            printed.close()
            raise
        finally:
            if allowed >= 0:
                os.close(allowed)
            connection.started()
        printed.started()
        return cls(child, printed)

    @property
    def status(self) -> int | None:
        """The exit status, or the negative number of the signal that ended the process; None while it runs."""
        return self._child.returncode

    @property
    def end(self) -> End:
        """Why the process ended; valid once it has ended."""
        return end_of(self.status, is_out_of_memory=memory.kernel_kills() != self._kernel_kills)

    def look(self) -> None:
        """Record that the process is alive. If the kernel has killed other processes for lack of memory so far, these
        kills then do not count as the cause of this process's end."""
        self._kernel_kills = memory.kernel_kills()

    async def stop(self) -> None:
        """Send SIGTERM and wait a few seconds for the process to end."""
        if self.status is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(self.ended), _STOP_SECONDS)

    def kill(self) -> None:
        """Kill the process if it still runs."""
        if self.status is None:
            self._signal(signal.SIGKILL)

    def close_output(self) -> None:
        """Read the rest of the process's output, then stop reading."""
        self._printed.close()

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal by pid. The process object would reap a process that has just died, and report a wrong
        status."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


_LONGEST_STEP = 0.5  # seconds: a longer gap between looks is the daemon's own delay, not the host's


class Sign(msgspec.Struct, frozen=True):
    """One observation of a process: its state, and counters that grow only while one of its threads works."""

    state: str  # as `ps` shows it
    turns: int  # how often its first thread was scheduled on a processor
    work: tuple[int, ...]  # page faults of both kinds, clock ticks in user and system mode


def read(pid: int, *, threads: bool = False) -> Sign | None:
    """Return an observation of a process, or None if the process is gone. With `threads`, a sleeping process gets the
    state D if any of its threads runs or waits for a disk. Format: proc_pid_stat(5)."""
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
    """Return how often the first thread was scheduled; 0 if the kernel does not count it. Format: the kernel's
    sched-stats."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[2])
    except (OSError, ValueError, IndexError):
        return 0


def _fields(path: str) -> list[bytes]:
    """Return the fields of a `stat` file after the process name. The name may contain spaces and brackets."""
    with open(path, "rb") as file:
        return file.read().rpartition(b")")[2].split()


class ProgressTimes(msgspec.Struct, frozen=True):
    """How many seconds a busy host may make no progress before the daemon acts."""

    ping: float = 1.0  # of silence before it is pinged
    silent: float = 5.0  # of silence before it counts as stuck
    stopped: float = 1.0  # in the stopped state before it counts as stopped: a debugger may pause it briefly


_PROGRESS_TIMES = ProgressTimes()


class Progress:
    """Judges whether one host makes progress. Times are seconds of any one clock."""

    def __init__(self, limits: ProgressTimes = _PROGRESS_TIMES) -> None:
        self._limits = limits
        self.stopped = self.silent = 0.0  # seconds
        self._seen: Sign | None = None
        self._at: float | None = None

    def received(self) -> None:
        """Record that the host sent a message."""
        self.silent = 0.0

    def look(self, now: float, sign: Sign | None, *, is_busy: bool) -> None:
        """Compare an observation with the previous one, and update the times without progress. A host that is not busy
        need not make progress."""
        step = 0.0 if self._at is None else min(now - self._at, _LONGEST_STEP)
        before, self._seen, self._at = self._seen, sign, now
        if not is_busy or sign is None:
            self.stopped = self.silent = 0.0
            return
        has_worked = sign.state in "RD" or before is None or sign.work != before.work
        # A process may be stopped and continued many times a second, to slow it down. Its `turns` then still grow.
        is_still = before is not None and (sign.turns, sign.work) == (before.turns, before.work)
        self.stopped = self.stopped + step if sign.state == "T" and is_still else 0.0
        self.silent = 0.0 if has_worked else self.silent + step

    @property
    def should_ping(self) -> bool:
        """Whether the host has made no progress for at least `limits.ping` seconds."""
        return self.silent >= self._limits.ping

    @property
    def is_stopped(self) -> bool:
        """Whether the host has been stopped by a signal for at least `limits.stopped` seconds."""
        return self.stopped >= self._limits.stopped

    @property
    def is_stuck(self) -> bool:
        """Whether the host neither works nor answers."""
        return self.silent >= self._limits.silent
