"""Whether a child may go on: its memory and signs of life, measured from outside, with all the processes it started.

A child is alive when it says something or uses the processor. Using it a little is not enough: a thread that wakes ten
times a second to look at a flag also uses some while the thread that works waits for ever on a lock.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import NamedTuple

import msgspec

from edged.config.limits import Limits
from edged.models.model import Model

_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)
_TICK = 1 / os.sysconf("SC_CLK_TCK")  # seconds; the kernel tells processor time in these
_SHARE = 0.005  # of one processor; a build at the lowest priority beside busy serving still gets several times this
_LOOKS_PER_SEARCH = 4  # looking for new processes reads all of /proc, looking at known ones reads a file each


class Patience(msgspec.Struct, frozen=True):
    """What is added to a child's time: at most `starved_seconds`, as far as it waited for a processor that others had,
    and for each phase that it says to have begun the seconds that are granted for it.

    `quiet_seconds` are the most that it may go without a word, even if it computes; `step_seconds` the same once it has
    said how far it is. 0: no limit of their own. One that says how far it is may take `progress_seconds` longer.
    """

    starved_seconds: float = 0.0
    granted: dict[str, float] = {}
    quiet_seconds: float = 0.0
    step_seconds: float = 0.0
    progress_seconds: float = 0.0


NO_PATIENCE = Patience()


class Reading(NamedTuple):
    """One process as /proc/PID/stat tells: its parent and session, seconds of processor time, mebibytes resident.

    The time includes that of children which it has waited for. One that ended and was not waited for lives no more. It
    `wants` a processor, whether or not it has one.
    """

    lives: bool
    parent: int
    session: int
    cpu_seconds: float
    resident_mb: float
    wants: bool = False


class Usage(NamedTuple):
    """What a child and the processes it started use together, how many they are, and whether the child itself has or
    waits for a processor."""

    cpu_seconds: float
    memory_mb: float
    processes: int
    wants: bool = False


def read(pid: int) -> Reading | None:
    """None once the process is gone."""
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
    """The leader of a session, all processes in it and all that descend from them, living or not yet waited for.

    A process that left the session and lost its parent is not found.
    """
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    readings = {number: reading for number in numbers if (reading := read(number))}
    members = {number for number, reading in readings.items() if reading.session == pid} | {pid}
    while found := {number for number, reading in readings.items() if reading.parent in members} - members:
        members |= found
    return members


def kill(pid: int) -> set[int]:
    """Kills a session's leader, which has not been waited for yet, and its family. Returns the family without it."""
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
    """Measures a child with all it started. Reads files, so it is asked in a thread."""

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
    """Resident memory with shared pages counted in parts (PSS); it takes the kernel milliseconds to count."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return next(int(line.split()[1]) / 1024 for line in file if line.startswith(b"Pss:"))
    except (OSError, StopIteration):
        return reading.resident_mb


class Watch:
    """Decides, from one measurement to the next, whether a child must be stopped: mebibytes, and seconds of silence."""

    def __init__(self, memory_mb: float, stall_seconds: float, quiet_seconds: float = 0.0) -> None:
        """`quiet_seconds` is how long it may compute without a word, 0 for any time."""
        self._memory_mb, self._stall_seconds, self.quiet_seconds = memory_mb, stall_seconds, quiet_seconds
        self._quiet = 0.0  # seconds since the last word, without those that it waited for a processor
        self._enough = max(_SHARE * stall_seconds, _TICK)
        self._silent = 0.0  # seconds since the last sign of life
        self._used = 0.0  # seconds of processor time meanwhile
        self._last_cpu = 0.0
        self._was_large = False

    def received(self) -> None:
        """The child said something."""
        self._quiet = 0.0
        self._lives()

    def judge(self, usage: Usage, elapsed: float) -> str:
        """Why the child must be stopped; empty while it may go on. `elapsed` is seconds since the last measurement."""
        # While a process is being forked it shares all memory with its parent, which for an instant looks like twice.
        was_large, self._was_large = self._was_large, usage.memory_mb > self._memory_mb
        if self._was_large and (was_large or usage.processes == 1):
            return f"used more than {self._memory_mb:g} MiB of memory"
        self._silent += elapsed
        # The sum falls when a process ends that nobody in the family waits for.
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
_TRIALS = 100.0  # times what opening and asking it took when it was admitted, which knows how fast the box is
_LONG = ("tensorrt", "tensorrt_rtx")
_TIMES_LIMIT = 4.0  # as long as its limit a builder may take that says how far it is


def patience(model: Model, backend: str, trial_seconds: float, limits: Limits) -> Patience:
    """For building one engine, asking the reference or verifying. `trial_seconds` is 0 if it is not known."""
    if backend in _LONG:
        longer = (_TIMES_LIMIT - 1) * limits.seconds
        return Patience(quiet_seconds=limits.seconds, step_seconds=limits.stall_seconds, progress_seconds=longer)
    quiet = min(limits.seconds, quiet_seconds(model, trial_seconds))
    return Patience(quiet_seconds=quiet, step_seconds=quiet)


def quiet_seconds(model: Model, trial_seconds: float) -> float:
    """Seconds of processor time, or of waiting for anything but a processor, between two words of a child."""
    inspection = model.inspection
    size_mb = (inspection.size + sum(file.size for file in inspection.external)) / (1 << 20)
    nodes = sum(inspection.operators.values())
    return _LEAST_SECONDS + _PER_MB * size_mb + _PER_NODE * nodes + _TRIALS * trial_seconds
