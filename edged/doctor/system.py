"""Memory, its limits and swap, and settings of the kernel that runtimes stumble over.

Sources: proc_meminfo(5), the kernel's `admin-guide/sysctl` and `cgroup-v2` documents.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator, Mapping

import msgspec

from edged import shared_layout
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


_LEAST, _FEW = 256, 1024  # descriptors: a camera takes one, a host some ten, a build as many again
_NEARLY = 0.8  # of the limit
_FRAMES_MB = 64  # a few cameras' rings of pictures; what a container gets unless told otherwise


class Descriptors(msgspec.Struct, frozen=True):
    """How many files one process may have open and has; `whose` says which. `used` is None where it cannot be seen."""

    most: int
    whose: str
    used: int | None = None


class SharedMemory(msgspec.Struct, frozen=True):
    """`/dev/shm` in MiB, None where there is none; whether this user may write there; why anonymous memory that is
    shared, which hosts get their pictures in, cannot be had (empty where it can)."""

    total_mb: int | None
    free_mb: int = 0
    is_writable: bool = False
    refusal: str = ""


def descriptors(pid: int | None) -> Descriptors:
    """Of the daemon with that process id where it may be seen, otherwise of this process."""
    text = Root().read(f"proc/{pid}/limits") if pid is not None else None
    match = re.search(r"^Max open files\s+([0-9]{1,18}|unlimited)", text or "", re.MULTILINE)
    if pid is None or match is None:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return Descriptors(_finite(soft), "this process")
    most = _finite(int(match[1]) if match[1].isdecimal() else resource.RLIM_INFINITY)
    return Descriptors(most, "the daemon", _open_files(pid))


def examine_shared_memory(arena_mb: int) -> Iterator[Check]:
    """Whether pictures can be shared: with hosts, and with clients on this machine. `arena_mb` is what a host gets."""
    yield from shared_memory(_shared_memory(arena_mb), arena_mb)


def judge_descriptors(known: Descriptors) -> Check:
    """Judges how many files may be open at once."""
    said = f"{known.whose} may have {known.most} files open at once"
    remedy = "raise it: LimitNOFILE=65536 in the unit, ulimit -n 65536 in a shell, --ulimit nofile=65536 of a container"
    if known.used is not None and known.used > _NEARLY * known.most:
        return wrong(Name.DESCRIPTORS, f"{said} and has {known.used}; connections will be refused", remedy)
    if known.most < _LEAST:
        return wrong(Name.DESCRIPTORS, f"{said}; cameras and hosts will be refused", remedy)
    if known.most < _FEW:
        return warning(Name.DESCRIPTORS, f"{said}; many cameras need more", remedy)
    return ok(Name.DESCRIPTORS, said if known.used is None else f"{said} and has {known.used}")


def shared_memory(known: SharedMemory, arena_mb: int) -> Iterator[Check]:
    """Judges memory that processes share."""
    host, clients = "between daemon and hosts", f"{shared_layout.FOLDER}"
    if known.refusal:
        yield wrong(
            Name.SHARED_MEMORY,
            f"{arena_mb} MiB of anonymous memory cannot be had: {known.refusal}; no host can be started",
            "lower hosts.arena_mb, or allow memfd_create where a sandbox forbids it",
            host,
        )
    else:
        yield ok(Name.SHARED_MEMORY, f"{arena_mb} MiB of anonymous memory can be had", host)
    enlarge = "mount -o remount,size=256m /dev/shm, or --shm-size=256m for a container"
    if known.total_mb is None:
        yield warning(
            Name.SHARED_MEMORY,
            "it is not there; clients on this machine have to send their pictures as bytes",
            "mount -t tmpfs -o size=256m tmpfs /dev/shm",
            clients,
        )
    elif not known.is_writable:
        yield warning(Name.SHARED_MEMORY, "this user may not write there", f"chmod 1777 {clients}", clients)
    elif known.total_mb < _FRAMES_MB:
        said = f"{known.total_mb} MiB hold few pictures; clients have to send theirs as bytes"
        yield wrong(Name.SHARED_MEMORY, said, enlarge, clients)
    elif known.free_mb < _FRAMES_MB // 4:
        said = f"only {known.free_mb} of {known.total_mb} MiB are free"
        yield warning(Name.SHARED_MEMORY, said, f"remove what is left over there, or {enlarge}", clients)
    else:
        yield ok(Name.SHARED_MEMORY, f"{known.free_mb} of {known.total_mb} MiB are free", clients)


def _shared_memory(arena_mb: int) -> SharedMemory:
    refusal = ""
    try:
        handle = os.memfd_create("edged-doctor", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(handle, 0, 1 << 20)  # a page that cannot be had is met here and not in a host
            os.ftruncate(handle, arena_mb << 20)
        finally:
            os.close(handle)
    except OSError as error:
        refusal = error.strerror or str(error)
    folder = shared_layout.FOLDER
    try:
        disk = os.statvfs(folder)
    except OSError:
        return SharedMemory(None, refusal=refusal)
    total, free = (blocks * disk.f_frsize >> 20 for blocks in (disk.f_blocks, disk.f_bavail))
    may_write = os.access(folder, os.W_OK | os.X_OK) and not disk.f_flag & os.ST_RDONLY
    return SharedMemory(total, free, may_write, refusal)


def _open_files(pid: int) -> int | None:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None


def _finite(most: int) -> int:
    return (1 << 30) if most == resource.RLIM_INFINITY else most
