"""Facts about the system: `memory.* os.* libc.version python.version board.model` and cgroup limits; free memory.

Sources: proc(5), os-release(5), the kernel's `cgroup-v1/` and `cgroup-v2` documents, and the device tree's `model`.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator

import msgspec

from edged.device.cpu import threads
from edged.device.libraries import as_numbers, package_versions, upstream
from edged.device.root import Root

_CGROUP = "sys/fs/cgroup"
_NUMBER = re.compile(r"[0-9]{1,18}")


def probe(root: Root) -> dict[str, str]:
    """Read the memory in MiB, versions, the board's name, and the limits of the daemon's cgroup if they are lower."""
    return {
        **_os(root),
        **_limits(root, total_memory_mb(root)),
        "libc.version": _libc(root),
        "python.version": _python(root),
        "board.model": " ".join(root.strings("proc/device-tree/model")),
    }


def total_memory_mb(root: Root) -> int:
    """Return `MemTotal` in MiB, the memory that the kernel manages (a little less than is installed); 0 if unknown."""
    return read_memory(root).total >> 20


def cgroup_text(root: Root, controller: str, *names: str) -> str | None:
    """Return the text of the first file among `names` that exists in this process's cgroup or, nearest first, in a
    cgroup above it; None without such a file."""
    paths = (f"{directory}/{name}" for directory in _directories(root, controller) for name in names)
    return next((text for text in map(root.read, paths) if text is not None), None)


def _os(root: Root) -> dict[str, str]:
    text = root.read("etc/os-release") or root.read("usr/lib/os-release") or ""
    fields = dict(re.findall(r"""^([A-Z_]+)=["']?([^"'\n]*)["']?$""", text, re.MULTILINE))
    return {
        "os.name": fields.get("ID", ""),
        "os.version": fields.get("VERSION_ID", ""),
        "os.kernel": root.read("proc/sys/kernel/osrelease") or "",
    }


def _limits(root: Root, total_mb: int) -> dict[str, str]:
    facts = {"memory.total_mb": str(total_mb)} if total_mb else {}
    limits = [int(text) >> 20 for text in _values(root, "memory", "memory.max", "memory.limit_in_bytes")]
    # Without a limit, cgroup v1 reports nearly 2^63 bytes, which is never lower than the memory of the box.
    if limits and min(limits) < (total_mb or 1 << 40):
        facts["memory.limit_mb"] = str(min(limits))
    quotas = [*_quotas_v2(root), *_quotas_v1(root)]
    online = threads(root)
    if quotas and min(quotas) < (online or 1 << 20):
        facts["cpu.quota"] = f"{min(quotas):.2f}"
    return facts


def _values(root: Root, controller: str, *names: str) -> Iterator[str]:
    """Yield the limits in the files `names` of this process's cgroup and of all cgroups above it. "max" and -1 mean
    that there is no limit, so they are left out."""
    for directory in _directories(root, controller):
        for name in names:
            text = (root.read(f"{directory}/{name}") or "").strip()
            if _NUMBER.fullmatch(text):
                yield text


def _quotas_v2(root: Root) -> Iterator[float]:
    """Yield quotas in CPUs. `cpu.max` has a quota and a period in microseconds; `150000 100000` means 1.5 CPUs."""
    for directory in _directories(root, "cpu"):
        match = re.match(r"([0-9]{1,15}) ([1-9][0-9]{0,14})\b", root.read(f"{directory}/cpu.max") or "")
        if match:
            yield int(match[1]) / int(match[2])


def _quotas_v1(root: Root) -> Iterator[float]:
    """Yield quotas in CPUs: `cpu.cfs_quota_us` / `cpu.cfs_period_us`; -1 sets no quota."""
    for directory in _directories(root, "cpu"):
        parts = [(root.read(f"{directory}/cpu.cfs_{name}_us") or "").strip() for name in ("quota", "period")]
        if all(_NUMBER.fullmatch(part) for part in parts) and int(parts[1]) > 0:
            yield int(parts[0]) / int(parts[1])


def _directories(root: Root, controller: str) -> Iterator[str]:
    """Yield the directories that may have the files of a controller (v1 and v2), for this process's cgroup and those
    above.

    `/proc/self/cgroup` has lines `id:controllers:path`; the line of v2 has no controller. In a container, the path may
    be a path of the host. Then only some of the directories above this path exist in the container.
    """
    for line in (root.read("proc/self/cgroup") or "0::/").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            mounts = [_CGROUP, f"{_CGROUP}/unified"]
        elif controller in controllers.split(","):
            mounts = [f"{_CGROUP}/{controllers}", f"{_CGROUP}/{controller}"]
        else:
            continue
        for mount in mounts:
            yield from _upwards(mount, [part for part in path.split("/") if part not in ("", ".", "..")])


def _upwards(mount: str, parts: list[str]) -> Iterator[str]:
    for depth in range(min(len(parts), 32), -1, -1):
        yield "/".join((mount, *parts[:depth]))


def _libc(root: Root) -> str:
    """Return the name and version of the C library, such as `glibc 2.36`; empty if unknown. The version decides which
    wheels can be installed."""
    if root.is_live:
        return _confstr("CS_GNU_LIBC_VERSION") or ""  # None if the libc is not glibc
    version = package_versions(root, ["libc6"]).get("libc6", "")
    return f"glibc {upstream(version)}" if version else ""


def _confstr(name: str) -> str | None:
    try:
        return os.confstr(name)
    except (OSError, ValueError):
        return None


def _python(root: Root) -> str:
    """Return the first two numbers of the interpreter's version, such as `3.11`. Wheels do not depend on the third
    number. In a recorded tree, return the version of the tree's newest interpreter."""
    if root.is_live:
        return ".".join(platform.python_version_tuple()[:2])
    found = [path.rpartition("python")[2] for path in root.glob("usr/lib/python3.[0-9]*")]
    return max(found, key=as_numbers, default="")


_MEMINFO = re.compile(r"^(MemTotal|MemAvailable):\s*([0-9]{1,15}) kB$", re.MULTILINE)


class Memory(msgspec.Struct, frozen=True):
    """The memory of a box in bytes, 0 if unknown. `free` can be allocated without swapping (MemAvailable)."""

    total: int = 0
    free: int = 0


def read_memory(root: Root) -> Memory:
    """Read the current memory of the box (format: proc_meminfo(5))."""
    found = {name: int(number) << 10 for name, number in _MEMINFO.findall(root.read("proc/meminfo") or "")}
    return Memory(found.get("MemTotal", 0), found.get("MemAvailable", 0))
