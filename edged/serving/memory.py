"""The memory that an engine host may use, and the memory that it uses."""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path

from edged.device.root import Root
from edged.device.system import read_memory

_PAGE = os.sysconf("SC_PAGE_SIZE")
_LEFT_MB, _LEFT_SHARE = 512, 0.1  # of the box, for everything that is not a host
_HOST_MB = 512  # a host with small models takes a fifth of it, and other processes need memory, too
_MOST_MORE = 4
_LEAST_SHARE = 0.5  # a box so small that this would leave nothing
# If a driver maps a GPU into a process, the memory that it reserves counts as the process's data, used or not.
_DRIVERS = ("/dev/nvidiactl", "/dev/nvmap", "/dev/nvhost-gpu")


def derived_mb(total_mb: int) -> int:
    """Mebibytes for hosts of a box with so much memory: all except what other processes need. 0, no limit, if the box
    does not report its memory."""
    left = max(_LEFT_MB, round(total_mb * _LEFT_SHARE))
    return max(total_mb - left, round(total_mb * _LEAST_SHARE))


def is_gpu_mapped() -> bool:
    """Whether processes here may map a GPU: then their data segment does not show what they use and is not limited."""
    return any(os.path.exists(path) for path in _DRIVERS)


def used_mb(pid: int) -> float:
    """Resident memory of a process, without memory shared with the daemon and mapped files; 0 once it has ended. See
    `statm` in proc(5)."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except (OSError, ValueError):
        return 0.0
    return (resident - shared) * _PAGE / (1 << 20)


def kernel_kills() -> int:
    """Processes that the kernel has killed for lack of memory: in the daemon's cgroup, or on the whole box if the
    cgroup does not count them. 0 if neither does."""
    try:
        with open(_counter(), "rb") as file:
            return next((int(line.split()[1]) for line in file if line.startswith(b"oom_kill ")), 0)
    except (OSError, ValueError):
        return 0


@functools.cache
def _counter() -> str:
    events = _group() / "memory.events"
    with contextlib.suppress(OSError):
        if "oom_kill " in events.read_text():
            return str(events)
    return "/proc/vmstat"


@functools.cache
def _group() -> Path:
    """The daemon's cgroup, as cgroup v2 shows it. Formats: cgroups(7)."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                return Path("/sys/fs/cgroup") / line[3:].lstrip("/")
    return Path("/sys/fs/cgroup")


def available_mb() -> int:
    """Mebibytes that are free on the box, or below the limit of its cgroup if that is less. 0 if unknown."""
    free, group = read_memory(Root()).free, _group()
    with contextlib.suppress(OSError, ValueError):  # without a limit memory.max holds "max"
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        free = min(free, limit - used + int(cached.get("inactive_file", 0)))
    return max(0, free) >> 20


def hosts_for(available: int) -> int:
    """The most hosts for models that are suspected of killing theirs. At least one, without which the model cannot be
    found. `available`: mebibytes."""
    return min(_MOST_MORE, max(1, available // _HOST_MB))
