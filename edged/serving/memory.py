"""The memory that an engine host may use, the memory that it uses, and the free memory of the box."""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path

from edged.device.root import Root
from edged.device.system import read_memory

_PAGE = os.sysconf("SC_PAGE_SIZE")
_LEFT_MB, _LEFT_SHARE = 512, 0.1  # left for other processes: the larger of these MiB and this share of the box
_HOST_MB = 512  # free memory per host for suspects; a host with small models uses a fifth of it
_MOST_MORE = 4  # the most hosts for suspects
_LEAST_SHARE = 0.5  # hosts get at least this share: on a small box, _LEFT_MB would leave them nothing
# When a driver maps a GPU into a process, the memory that it reserves counts as the process's data, used or not.
_DRIVERS = ("/dev/nvidiactl", "/dev/nvmap", "/dev/nvhost-gpu")


def derived_mb(total_mb: int) -> int:
    """Return the MiB that a host may use on a box with `total_mb` MiB: all except what other processes need. Return 0
    (no limit) if `total_mb` is 0, which means unknown."""
    left = max(_LEFT_MB, round(total_mb * _LEFT_SHARE))
    return max(total_mb - left, round(total_mb * _LEAST_SHARE))


def is_gpu_mapped() -> bool:
    """Whether this box has a GPU driver that may map memory of the GPU into a process. If so, the size of the process's
    data segment does not show how much memory is used, and hosts get no limit on that size."""
    return any(os.path.exists(path) for path in _DRIVERS)


def used_mb(pid: int) -> float:
    """Return the resident memory of a process in MiB, without shared memory and mapped files; 0 once it has ended.
    Format: `statm` in proc(5)."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except (OSError, ValueError):
        return 0.0
    return (resident - shared) * _PAGE / (1 << 20)


def kernel_kills() -> int:
    """Return how many processes in the daemon's cgroup the kernel has killed for lack of memory. If the cgroup does not
    count them, return the count of the whole box, or 0 if the box does not count them either."""
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
    """Return the folder of the daemon's cgroup in cgroup v2. Formats: cgroups(7)."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                return Path("/sys/fs/cgroup") / line[3:].lstrip("/")
    return Path("/sys/fs/cgroup")


def available_mb() -> int:
    """Return the free MiB of the box, or of the daemon's cgroup if that has fewer; 0 if unknown."""
    free, group = read_memory(Root()).free, _group()
    with contextlib.suppress(OSError, ValueError):  # without a limit memory.max holds "max"
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        free = min(free, limit - used + int(cached.get("inactive_file", 0)))
    return max(0, free) >> 20


def hosts_for(available: int) -> int:
    """Return how many separate hosts suspected engines may get with `available` MiB of free memory. The result is at
    least 1, because otherwise the engine that kills its host could not be found."""
    return min(_MOST_MORE, max(1, available // _HOST_MB))
