"""Whether a child may go on: its memory and signs of life, measured from outside, with all processes it started.

A child shows life by sending a message or using the processor. A little use is not enough: a thread that polls a flag
ten times a second also uses some while the working thread waits for ever on a lock.

OpenVINO and ONNX Runtime report no progress while they compile, which takes seconds unless the compiler hangs. TensorRT
may take most of an hour and reports progress from version 10 on.
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
_SHARE = 0.005  # of one processor; the slowest build gets, while the box serves, several times this
_LOOKS_PER_SEARCH = 4  # a search for new processes reads all of /proc, a look at known ones a file each


class Patience(msgspec.Struct, frozen=True):
    """Additions to a child's time: up to `starved_seconds` spent waiting for a processor, and the seconds granted
    for each phase that it reports.

    It may go `quiet_seconds` without a message, even while it computes; `step_seconds` once it has reported a fraction
    (0: no such limit). A child that reports a fraction may take `progress_seconds` longer.
    """

    starved_seconds: float = 0.0
    granted: dict[str, float] = {}
    quiet_seconds: float = 0.0
    step_seconds: float = 0.0
    progress_seconds: float = 0.0


NO_PATIENCE = Patience()


class Reading(NamedTuple):
    """One process by /proc/PID/stat: its parent and session, seconds of processor time, MiB resident.

    The time includes that of reaped children. `lives` is false for a zombie; `wants` means running or runnable.
    """

    lives: bool
    parent: int
    session: int
    cpu_seconds: float
    resident_mb: float
    wants: bool = False


class Usage(NamedTuple):
    """What a child and its family use together, how many they are, and whether the child is running or runnable."""

    cpu_seconds: float
    memory_mb: float
    processes: int
    wants: bool = False


def read(pid: int) -> Reading | None:
    """Read a process; None once it is gone."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            stat = os.read(descriptor, 4096)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    # After the name, which may hold spaces and brackets: proc(5) counts the state as field 3.
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
    """Return the leader of a session, all processes in it and their descendants, zombies included.

    A process that left the session and lost its parent is not found.
    """
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    readings = {number: reading for number in numbers if (reading := read(number))}
    members = {number for number, reading in readings.items() if reading.session == pid} | {pid}
    while found := {number for number, reading in readings.items() if reading.parent in members} - members:
        members |= found
    return members


def kill(pid: int) -> set[int]:
    """Kill a session's leader, which must not be reaped yet, and its family. Returns the family without it."""
    try:
        members = family(pid) - {pid}
    except OSError:  # no descriptor is left to look; its group ends all the same
        members = set()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # at once, so that none of the group can start another
    for member in members:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(member, signal.SIGKILL)
    return members


def any_lives(pids: set[int]) -> bool:
    return any(reading.lives for pid in pids if (reading := read(pid)))


class Family:
    """Measures a child with its family. Reads files; call it in a thread."""

    def __init__(self, pid: int, limit_mb: int) -> None:
        self._pid, self._limit_mb = pid, limit_mb
        self._members: set[int] = {pid}
        self._looks = 0

    def measure(self) -> Usage:
        if self._looks % _LOOKS_PER_SEARCH == 0:
            with contextlib.suppress(OSError):  # no descriptor is left to look for new ones
                self._members = family(self._pid)
        self._looks += 1
        readings = {pid: reading for pid in self._members if (reading := read(pid))}
        memory_mb = sum(reading.resident_mb for reading in readings.values())
        if memory_mb > self._limit_mb and len(readings) > 1:
            # Pages that processes share are resident in each of them: a forked one is not twice its parent's size.
            memory_mb = sum(_own_share_mb(pid, reading) for pid, reading in readings.items())
        leader = readings.get(self._pid)
        cpu_seconds = sum(reading.cpu_seconds for reading in readings.values())
        return Usage(cpu_seconds, memory_mb, len(readings), leader is not None and leader.wants)


def _own_share_mb(pid: int, reading: Reading) -> float:
    """Return the proportional set size (PSS) in MiB, which takes the kernel milliseconds."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return next(int(line.split()[1]) / 1024 for line in file if line.startswith(b"Pss:"))
    except (OSError, StopIteration):
        return reading.resident_mb


class Watch:
    """Decides from successive measurements whether a child must be stopped, by MiB and seconds of silence."""

    def __init__(self, memory_mb: float, stall_seconds: float, quiet_seconds: float = 0.0) -> None:
        """`quiet_seconds`: how long it may compute without a message, 0 for no limit."""
        self._memory_mb, self._stall_seconds, self.quiet_seconds = memory_mb, stall_seconds, quiet_seconds
        self._quiet = 0.0  # seconds since the last message, without those spent waiting for a processor
        self._enough = max(_SHARE * stall_seconds, _TICK)
        self._silent = 0.0  # seconds since the last sign of life
        self._used = 0.0  # seconds of processor time meanwhile
        self._last_cpu = 0.0
        self._was_large = False

    def received(self) -> None:
        """The child sent a message."""
        self._quiet = 0.0
        self._lives()

    def judge(self, usage: Usage, elapsed: float) -> str:
        """Return why the child must be stopped; empty if it may go on. `elapsed`: seconds since the previous one."""
        # A process that was just forked shares all memory with its parent, which for an instant counts twice.
        was_large, self._was_large = self._was_large, usage.memory_mb > self._memory_mb
        if self._was_large and (was_large or usage.processes == 1):
            return f"used more than {self._memory_mb:g} MiB of memory"
        self._silent += elapsed
        # The sum falls when a process ends that is not reaped within the family.
        used = max(usage.cpu_seconds - self._last_cpu, 0.0)
        self._last_cpu = usage.cpu_seconds
        self._used += used
        self._quiet += min(elapsed, used) if usage.wants else elapsed
        if self._used >= self._enough:
            self._lives()
        if 0 < self.quiet_seconds <= self._quiet:
            return f"got no further for {self.quiet_seconds:.0f} s"
        if self._silent >= self._stall_seconds:
            return f"showed no sign of life for {self._stall_seconds:g} s"
        return ""

    def _lives(self) -> None:
        self._silent = self._used = 0.0


_LEAST_SECONDS = 120.0
_PER_MB, _PER_NODE = 1.0, 0.1  # seconds
_TRIALS = 100.0  # times the trial at admission, which shows how fast the box is
_TIMES_LIMIT = 4.0  # times its limit that a builder may take if it reports a fraction


def patience(model: Model, backend: str, trial_seconds: float, limits: Limits) -> Patience:
    """Return the patience for building, verifying or asking the reference. `trial_seconds`: 0 if unknown."""
    if backend in TIMING_KERNELS:
        longer = (_TIMES_LIMIT - 1) * limits.seconds
        return Patience(quiet_seconds=limits.seconds, step_seconds=limits.stall_seconds, progress_seconds=longer)
    quiet = min(limits.seconds, quiet_seconds(model, trial_seconds))
    return Patience(quiet_seconds=quiet, step_seconds=quiet)


def quiet_seconds(model: Model, trial_seconds: float) -> float:
    """Return the allowed seconds between two messages of a child, without those spent waiting for a processor."""
    inspection = model.inspection
    size_mb = (inspection.size + sum(file.size for file in inspection.external)) / (1 << 20)
    nodes = sum(inspection.operators.values())
    return _LEAST_SECONDS + _PER_MB * size_mb + _PER_NODE * nodes + _TRIALS * trial_seconds
