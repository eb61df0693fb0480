"""Decides whether a child must be stopped, from the memory and activity of the child and all processes it started.

A child is active if it sends a message or uses enough processor time. A little time is not enough: a thread that polls
a flag also uses some, while the working thread waits forever on a lock.

OpenVINO and ONNX Runtime report no progress while they compile, which takes seconds unless the compiler hangs. TensorRT
may take almost an hour, and reports progress from version 10 on.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import NamedTuple

import msgspec

from edged.backends.registry import TIMING_KERNELS
from edged.config.child_limits import Limits
from edged.models.model import Model

_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)
_TICK = 1 / os.sysconf("SC_CLK_TCK")  # seconds; the unit of processor time in /proc
_SHARE = 0.005  # of one processor, less is inactivity; the slowest build on a serving box uses several times this
_LOOKS_PER_SEARCH = 4  # a search for new processes reads all of /proc; a look at known ones reads a file each


class Patience(msgspec.Struct, frozen=True):
    """Extensions of a child's time limit, and limits of the time between two messages, in seconds.

    starved_seconds: the maximum extension for the time of waiting for a processor. granted: a mapping from a phase to
    an extension. If the child has reported several phases, the longest of their extensions applies. progress_seconds:
    the extension for a child that reports which fraction of its work is done. quiet_seconds: the longest time without a
    message, even while the child computes. step_seconds: replaces quiet_seconds once the child has reported a fraction.
    For quiet_seconds and step_seconds, 0 means no limit.
    """

    starved_seconds: float = 0.0
    granted: dict[str, float] = {}
    quiet_seconds: float = 0.0
    step_seconds: float = 0.0
    progress_seconds: float = 0.0


NO_PATIENCE = Patience()


class Reading(NamedTuple):
    """One process as in /proc/PID/stat: its parent and session, seconds of processor time, resident MiB.

    The processor time includes that of reaped children. `lives` is false for a zombie. `wants` is true if the process
    is running or runnable.
    """

    lives: bool
    parent: int
    session: int
    cpu_seconds: float
    resident_mb: float
    wants: bool = False


class Usage(NamedTuple):
    """The processor time in seconds, memory in MiB and number of processes of a child with the processes that it
    started. `wants` is true if the child itself is running or runnable."""

    cpu_seconds: float
    memory_mb: float
    processes: int
    wants: bool = False


def read(pid: int) -> Reading | None:
    """Read the state of a process; None if the process has ended or cannot be read."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            stat = os.read(descriptor, 4096)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    # The name may contain spaces and brackets, so split after it. proc(5) counts the state as field 3.
    fields = stat.rpartition(b")")[2].split()
    cpu_seconds = sum(map(int, fields[11:15])) * _TICK
    return Reading(
        fields[0] not in (b"Z", b"X"),
        int(fields[1]),
        int(fields[3]),
        cpu_seconds,
        int(fields[21]) * _PAGE_MB,
        fields[0] == b"R",
    )


def family(pid: int) -> set[int]:
    """Return the process ids of the session that process `pid` leads: the leader, all processes in the session, and all
    their descendants. Zombies are included.

    A process that left the session and lost its parent is not found.
    """
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    readings = {number: reading for number in numbers if (reading := read(number))}
    members = {number for number, reading in readings.items() if reading.session == pid} | {pid}
    while found := {number for number, reading in readings.items() if reading.parent in members} - members:
        members |= found
    return members


def kill(pid: int) -> set[int]:
    """Kill a session's leader and its family. The leader must not be reaped yet. Returns the ids of the family without
    the leader."""
    try:
        members = family(pid) - {pid}
    except OSError:  # no file descriptor is left for the search; killpg still kills the group
        members = set()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # all at once, so that no process of the group can start another
    for member in members:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(member, signal.SIGKILL)
    return members


def any_lives(pids: set[int]) -> bool:
    return any(reading.lives for pid in pids if (reading := read(pid)))


class Family:
    """Measures a child together with the processes that it started. `measure` reads files, so call it in a thread."""

    def __init__(self, pid: int, limit_mb: int) -> None:
        self._pid, self._limit_mb = pid, limit_mb
        self._members: set[int] = {pid}
        self._looks = 0

    def measure(self) -> Usage:
        if self._looks % _LOOKS_PER_SEARCH == 0:
            with contextlib.suppress(OSError):  # no file descriptor is left for the search
                self._members = family(self._pid)
        self._looks += 1
        readings = {pid: reading for pid in self._members if (reading := read(pid))}
        memory_mb = sum(reading.resident_mb for reading in readings.values())
        if memory_mb > self._limit_mb and len(readings) > 1:
            # Shared pages count as resident in each process, so the sum after a fork would be too large.
            memory_mb = sum(_own_share_mb(pid, reading) for pid, reading in readings.items())
        leader = readings.get(self._pid)
        cpu_seconds = sum(reading.cpu_seconds for reading in readings.values())
        return Usage(cpu_seconds, memory_mb, len(readings), leader is not None and leader.wants)


def _own_share_mb(pid: int, reading: Reading) -> float:
    """Return the proportional set size (PSS) in MiB. The kernel needs milliseconds to compute it."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return next(int(line.split()[1]) / 1024 for line in file if line.startswith(b"Pss:"))
    except (OSError, StopIteration):
        return reading.resident_mb


class Watch:
    """Decides from successive measurements whether a child exceeds its memory limit or has been inactive too long."""

    def __init__(self, memory_mb: float, stall_seconds: float, quiet_seconds: float = 0.0) -> None:
        """`quiet_seconds`: how long the child may compute without a message; 0 for no limit."""
        self._memory_mb, self._stall_seconds, self.quiet_seconds = memory_mb, stall_seconds, quiet_seconds
        self._quiet = 0.0  # seconds since the last message, without the time of waiting for a processor
        self._enough = max(_SHARE * stall_seconds, _TICK)
        self._silent = 0.0  # seconds since the last sign of life
        self._used = 0.0  # seconds of processor time since the last sign of life
        self._last_cpu = 0.0
        self._was_large = False

    def received(self) -> None:
        """Record that the child sent a message, and reset the silence timers."""
        self._quiet = 0.0
        self._lives()

    def judge(self, usage: Usage, elapsed: float) -> str:
        """Return why the child must be stopped; empty if it may continue. `elapsed`: seconds since the last call."""
        # Memory that a forked process shares may briefly count twice, so several processes must exceed the limit twice.
        was_large, self._was_large = self._was_large, usage.memory_mb > self._memory_mb
        if self._was_large and (was_large or usage.processes == 1):
            return f"used more than {self._memory_mb:g} MiB of memory"
        self._silent += elapsed
        # The sum decreases if a process ends and its parent is not in the family.
        used = max(usage.cpu_seconds - self._last_cpu, 0.0)
        self._last_cpu = usage.cpu_seconds
        self._used += used
        self._quiet += min(elapsed, used) if usage.wants else elapsed
        if self._used >= self._enough:
            self._lives()
        if 0 < self.quiet_seconds <= self._quiet:
            return f"reported no progress for {self.quiet_seconds:.0f} s"
        if self._silent >= self._stall_seconds:
            return f"was inactive for {self._stall_seconds:g} s"
        return ""

    def _lives(self) -> None:
        self._silent = self._used = 0.0


_LEAST_SECONDS = 120.0
_PER_MB, _PER_NODE = 1.0, 0.1  # seconds
_TRIALS = 100.0  # times the seconds of the trial at admission, which show how fast the box is
_TIMES_LIMIT = 4.0  # a builder that reports a fraction may take this many times its limit


def patience(model: Model, backend: str, trial_seconds: float, limits: Limits) -> Patience:
    """Return the patience with a child that builds or verifies an engine, or makes golden answers. `trial_seconds`: the
    duration of the trial at admission; 0 if unknown."""
    if backend in TIMING_KERNELS:
        longer = (_TIMES_LIMIT - 1) * limits.seconds
        return Patience(quiet_seconds=limits.seconds, step_seconds=limits.stall_seconds, progress_seconds=longer)
    quiet = min(limits.seconds, quiet_seconds(model, trial_seconds))
    return Patience(quiet_seconds=quiet, step_seconds=quiet)


def quiet_seconds(model: Model, trial_seconds: float) -> float:
    """Return the maximum number of seconds between two messages of a child, without the time spent waiting for a
    processor."""
    inspection = model.inspection
    size_mb = (inspection.size + sum(file.size for file in inspection.external)) / (1 << 20)
    nodes = sum(inspection.operators.values())
    return _LEAST_SECONDS + _PER_MB * size_mb + _PER_NODE * nodes + _TRIALS * trial_seconds
