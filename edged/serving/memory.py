"""How much memory an engine host may have, and how much it has."""

from __future__ import annotations

import functools
import os

from edged.device import system
from edged.device.root import Root

_PAGE = os.sysconf("SC_PAGE_SIZE")
_LEFT_MB, _LEFT_SHARE = 512, 0.1  # of the box, for everything that is not a host
_LEAST_SHARE = 0.5  # a box so small that this would leave nothing
# Where a driver maps a GPU into a process, what it reserves counts as the process's data, whatever it uses of it.
_DRIVERS = ("/dev/nvidiactl", "/dev/nvmap", "/dev/nvhost-gpu")


def derived_mb(total_mb: int) -> int:
    """Mebibytes for hosts of a box that has so many: all but what the rest of it needs; 0, no limit, where the box does
    not tell."""
    left = max(_LEFT_MB, round(total_mb * _LEFT_SHARE))
    return max(total_mb - left, round(total_mb * _LEAST_SHARE))


@functools.cache
def box_mb() -> int:
    """What this box has, or its cgroup allows where that is less; 0 when unknown."""
    facts = system.probe(Root())
    return int(facts.get("memory.limit_mb") or facts.get("memory.total_mb") or 0)


def is_gpu_mapped() -> bool:
    """Whether processes here may map a GPU: their data says nothing of what they use then, and is not limited."""
    return any(os.path.exists(path) for path in _DRIVERS)


def used_mb(pid: int) -> float:
    """Memory that is resident and a process's own, which leaves out what it shares with the daemon and files that it
    mapped; 0 once it is gone. See `statm` in proc(5)."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except (OSError, ValueError):
        return 0.0
    return (resident - shared) * _PAGE / (1 << 20)


def kernel_kills() -> int:
    """How many processes the kernel has killed on this box for want of memory; 0 where it does not tell."""
    try:
        with open("/proc/vmstat", "rb") as file:
            return next((int(line.split()[1]) for line in file if line.startswith(b"oom_kill ")), 0)
    except (OSError, ValueError):
        return 0
