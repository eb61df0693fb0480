"""Memory, its limits and swap, and settings of the kernel that runtimes stumble over.

Sources: proc_meminfo(5), the kernel's `admin-guide/sysctl` and `cgroup-v2` documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from edged.device import system
from edged.device.root import Root
from edged.doctor.check import Check, Name, ok, unknown, warning, wrong

_SCANT_MB, _TOO_LITTLE_MB = 512, 128  # MiB available: a build needs the one, a host with a small model the other
_SMALL_LIMIT_MB = 1024
_FULL = 0.9  # of a limit
_SWAPPING = 0.5  # of the swap
_FEW_MAPS = 65530  # the kernel's default; a host with several engines maps some thousands
_FEW_WATCHES, _FEW_INSTANCES = 1024, 32
_STRICT_OVERCOMMIT = 2


def meminfo(root: Root) -> dict[str, int]:
    """`/proc/meminfo` in MiB by name."""
    found = re.findall(r"^(\w+):\s*([0-9]{1,15}) kB", root.read("proc/meminfo") or "", re.MULTILINE)
    return {name: int(text) >> 10 for name, text in found}


def limit(root: Root) -> dict[str, int]:
    """What our cgroup has: `limit_mb` where it is lower than the box, `used_mb`, and `killed`, how many processes died
    of it. What is not known is absent."""
    facts = system.probe(root)
    found = {}
    if "memory.limit_mb" in facts:
        found["limit_mb"] = int(facts["memory.limit_mb"])
    used = (system.cgroup_text(root, "memory", "memory.current", "memory.usage_in_bytes") or "").strip()
    if used.isdecimal():
        # Files that were read count as used, and give way at once.
        stat = system.cgroup_text(root, "memory", "memory.stat") or ""
        cached = re.search(r"^(?:total_)?inactive_file ([0-9]{1,18})$", stat, re.MULTILINE)
        found["used_mb"] = max(0, int(used) - (int(cached[1]) if cached else 0)) >> 20
    events = system.cgroup_text(root, "memory", "memory.events", "memory.oom_control") or ""
    killed = re.search(r"^oom_kill ([0-9]{1,15})$", events, re.MULTILINE)
    if killed:
        found["killed"] = int(killed[1])
    return found


def settings(root: Root) -> dict[str, int]:
    """Kernel settings by their sysctl names, those that can be read."""
    names = (
        *("vm.overcommit_memory", "vm.max_map_count", "vm.panic_on_oom"),
        *("fs.inotify.max_user_watches", "fs.inotify.max_user_instances"),
    )
    texts = {name: (root.read(f"proc/sys/{name.replace('.', '/')}") or "").strip() for name in names}
    return {name: int(text) for name, text in texts.items() if text.isdecimal()}


def examine_memory(root: Root) -> Iterator[Check]:
    """What memory there is, what of it may be used, and whether it is enough."""
    yield memory(meminfo(root))
    yield memory_limit(limit(root))
    yield swap(meminfo(root))


def memory(known: Mapping[str, int]) -> Check:
    """Judges `/proc/meminfo`, in MiB."""
    if "MemTotal" not in known or "MemAvailable" not in known:
        return unknown(Name.MEMORY, "/proc/meminfo does not tell how much memory there is")
    total, available = known["MemTotal"], known["MemAvailable"]
    said = f"{available} of {total} MiB are available"
    remedy = "stop what else uses memory (see: ps aux --sort=-rss), or take a smaller model"
    if available < _TOO_LITTLE_MB:
        return wrong(Name.MEMORY, f"only {said}; engine hosts and builds will be killed", remedy)
    if available < _SCANT_MB:
        return warning(Name.MEMORY, f"only {said}; builds may be killed", remedy)
    return ok(Name.MEMORY, said)


def memory_limit(known: Mapping[str, int]) -> Check:
    """Judges our cgroup, in MiB."""
    limit_mb, used = known.get("limit_mb"), known.get("used_mb", 0)
    raise_it = "raise MemoryMax of the unit, or the container's --memory"
    if known.get("killed"):
        return warning(
            Name.MEMORY_LIMIT,
            f"the kernel has killed {known['killed']} processes in this cgroup for want of memory",
            f"{raise_it}, or lower build.memory_mb",
        )
    if limit_mb is None:
        return ok(Name.MEMORY_LIMIT, "no cgroup limits this process below the box's memory")
    if used > _FULL * limit_mb:
        return wrong(Name.MEMORY_LIMIT, f"{used} of the {limit_mb} MiB that the cgroup allows are in use", raise_it)
    if limit_mb < _SMALL_LIMIT_MB:
        return warning(Name.MEMORY_LIMIT, f"the cgroup allows {limit_mb} MiB; a build alone may take more", raise_it)
    return ok(Name.MEMORY_LIMIT, f"the cgroup allows {limit_mb} MiB")


def swap(known: Mapping[str, int]) -> Check:
    """Judges swap: that there is none is well; that it is used is not, since engines then wait for a card."""
    total, free = known.get("SwapTotal"), known.get("SwapFree")
    if total is None or free is None:
        return unknown(Name.SWAP, "/proc/meminfo does not tell of swap")
    if total and total - free > _SWAPPING * total:
        return warning(
            Name.SWAP,
            f"{total - free} of {total} MiB of swap are in use; answers wait for the disk",
            "free some memory; take smaller or fewer models",
        )
    return ok(Name.SWAP, f"{total - free} of {total} MiB are in use" if total else "there is none")


def kernel(known: Mapping[str, int]) -> Iterator[Check]:
    """Judges settings by their sysctl names."""
    if not known:
        yield unknown(Name.KERNEL, "no setting below /proc/sys can be read")
        return
    bad = list(_bad_settings(known))
    yield from bad
    if not bad:
        yield ok(Name.KERNEL, f"{len(known)} settings that matter are as they should be")


def _bad_settings(known: Mapping[str, int]) -> Iterator[Check]:
    if known.get("vm.overcommit_memory") == _STRICT_OVERCOMMIT:
        yield _setting(
            known, "vm.overcommit_memory", 0, "runtimes reserve more memory than they use, and are refused it"
        )
    if known.get("vm.panic_on_oom"):
        yield _setting(known, "vm.panic_on_oom", 0, "a build that takes too much memory restarts the whole box")
    for name, least, why in (
        ("vm.max_map_count", _FEW_MAPS, "engines map many files and buffers"),
        ("fs.inotify.max_user_watches", _FEW_WATCHES, "changed libraries are noticed late"),
        ("fs.inotify.max_user_instances", _FEW_INSTANCES, "changed libraries are noticed late"),
    ):
        if known.get(name, least) < least:
            yield _setting(known, name, least, why)


def _setting(known: Mapping[str, int], name: str, better: int, why: str) -> Check:
    return warning(Name.KERNEL, f"{name} is {known[name]}: {why}", f"sysctl -w {name}={better}", name)
