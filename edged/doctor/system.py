"""Checks of the system: memory, its limits and swap, the kernel's settings, file descriptors, shared memory, the clock.

The clock of a box without a battery starts in the past, which makes certificates, logs and times in the store wrong.
Sources: proc_meminfo(5), the kernel's `admin-guide/sysctl` and `cgroup-v2` documents, adjtimex(2),
systemd-timesyncd.service(8).
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import os
import re
import resource
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

import edged
from edged import shared_layout
from edged.device import system
from edged.device.root import Root
from edged.doctor.check import Check, Name, ok, unknown, warning, wrong
from edged.formatting import many

_SCANT_MB, _TOO_LITTLE_MB = 512, 128  # MiB that a build needs, and that a host with a small model needs
_SMALL_LIMIT_MB = 1024
_FULL = 0.9  # share of the memory limit that is too much
_SWAPPING = 0.5  # if a larger share of the swap is in use, the box counts as swapping
# By sysctl name: bad values, a better value, and why.
_BAD_VALUES = {
    "vm.overcommit_memory": ((2,), 0, "with this value the kernel refuses memory that runtimes reserve but do not use"),
    "vm.panic_on_oom": ((1, 2), 0, "with this value a build that takes too much memory restarts the whole box"),
}
_LEAST_VALUES = {
    "vm.max_map_count": (65530, "too low, because engines map many files and buffers"),  # the kernel's default
    "fs.inotify.max_user_watches": (1024, "too low, so changed libraries are noticed late"),
    "fs.inotify.max_user_instances": (32, "too low, so changed libraries are noticed late"),
}
_FEWEST_FILES, _FEW_FILES = 256, 1024  # descriptors: a camera needs 1, a host about 10, a build about 10
_NEARLY = 0.8  # share of the limit of open files
_FRAMES_MB = 64  # MiB for the rings of a few cameras; also the default size of /dev/shm in a container


def meminfo(root: Root) -> dict[str, int]:
    """Return the sizes in `/proc/meminfo`, in MiB, by their names."""
    found = re.findall(r"^(\w+):\s*([0-9]{1,15}) kB", root.read("proc/meminfo") or "", re.MULTILINE)
    return {name: int(text) >> 10 for name, text in found}


def memory(known: Mapping[str, int]) -> Check:
    """Check the available memory. `known` is `/proc/meminfo` in MiB."""
    if "MemTotal" not in known or "MemAvailable" not in known:
        return unknown(Name.MEMORY, "/proc/meminfo does not have the size of the memory")
    total, available = known["MemTotal"], known["MemAvailable"]
    message = f"{available} of {total} MiB of memory are available"
    remedy = "stop other programs that use memory (see: ps aux --sort=-rss), or use a smaller model"
    if available < _TOO_LITTLE_MB:
        return wrong(Name.MEMORY, f"only {message}; engine hosts and builds will be killed", remedy)
    if available < _SCANT_MB:
        return warning(Name.MEMORY, f"only {message}; builds may be killed", remedy)
    return ok(Name.MEMORY, message)


def swap(known: Mapping[str, int]) -> Check:
    """Check swap. A box without swap is fine; a box that uses much swap is slow, since engines wait for the disk."""
    total, free = known.get("SwapTotal"), known.get("SwapFree")
    if total is None or free is None:
        return unknown(Name.SWAP, "/proc/meminfo does not have the size of the swap")
    if total and total - free > _SWAPPING * total:
        message = f"{total - free} of {total} MiB of swap are in use; answers wait for the disk"
        return warning(Name.SWAP, message, "free some memory; use smaller or fewer models")
    return ok(Name.SWAP, f"{total - free} of {total} MiB of swap are in use" if total else "the box has no swap")


def memory_limit(root: Root) -> Check:
    """Check the memory limit of this process's cgroup, and whether the kernel killed processes because of it."""
    limit = system.probe(root).get("memory.limit_mb")
    raise_it = "raise MemoryMax of the unit, or the container's --memory"
    used, limit_mb = _used_mb(root), int(limit or 0)
    if limit is not None and used > _FULL * limit_mb:
        return wrong(Name.MEMORY_LIMIT, f"{used} of the {limit_mb} MiB that the cgroup allows are used", raise_it)
    events = system.cgroup_text(root, "memory", "memory.events", "memory.oom_control") or ""
    killed = re.search(r"^oom_kill ([1-9][0-9]{0,14})$", events, re.MULTILINE)
    if killed:  # perhaps long ago: the kernel counts until the cgroup is removed
        message = f"the kernel has killed {many(int(killed[1]), 'process')} in this cgroup because memory ran out"
        return warning(Name.MEMORY_LIMIT, message, f"{raise_it}, or lower build.memory_mb")
    if limit is None:
        return ok(Name.MEMORY_LIMIT, "no cgroup limits this process below the box's memory")
    if limit_mb < _SMALL_LIMIT_MB:
        return warning(Name.MEMORY_LIMIT, f"the cgroup allows {limit_mb} MiB; a single build can need more", raise_it)
    return ok(Name.MEMORY_LIMIT, f"the cgroup allows {limit_mb} MiB of memory")


def _used_mb(root: Root) -> int:
    """Return the MiB that the cgroup uses, without cached files, which the kernel can free at once; 0 if unknown."""
    used = (system.cgroup_text(root, "memory", "memory.current", "memory.usage_in_bytes") or "").strip()
    stat = system.cgroup_text(root, "memory", "memory.stat") or ""
    cached = re.search(r"^(?:total_)?inactive_file ([0-9]{1,18})$", stat, re.MULTILINE)
    return max(0, int(used) - (int(cached[1]) if cached else 0)) >> 20 if used.isdecimal() else 0


def kernel(root: Root) -> Iterator[Check]:
    """Check the sysctl settings in `_BAD_VALUES` and `_LEAST_VALUES`, as far as they can be read."""
    known = {}
    for name in (*_BAD_VALUES, *_LEAST_VALUES):
        text = (root.read(f"proc/sys/{name.replace('.', '/')}") or "").strip()
        if text.isdecimal():
            known[name] = int(text)
    bad = [(name, better, why) for name, (wrong_, better, why) in _BAD_VALUES.items() if known.get(name) in wrong_]
    bad += [(name, least, why) for name, (least, why) in _LEAST_VALUES.items() if known.get(name, least) < least]
    for name, better, why in bad:
        yield warning(Name.KERNEL, f"{name} is {known[name]}: {why}", f"sysctl -w {name}={better}", name)
    if not known:
        yield unknown(Name.KERNEL, "no setting below /proc/sys can be read")
    elif not bad:
        yield ok(Name.KERNEL, f"{len(known)} relevant settings have good values")


def confinement(lacking: tuple[str, ...]) -> Check:
    """Check whether this kernel supports the confinement of processes that open models."""
    if lacking:
        message = f"engine hosts and builds are confined only in part: this kernel lacks {', '.join(lacking)}"
        remedy = "use Linux 6.12 or newer, with landlock in the boot parameter lsm=; see docs/security.md"
        return warning(Name.CONFINEMENT, message, remedy)
    return ok(Name.CONFINEMENT, "Landlock and seccomp confine engine hosts and builds to their own files")


class Descriptors(msgspec.Struct, frozen=True):
    """The file descriptors of a process. `most` is the number that it can open at once. `used` is the number that is
    open; None if unknown. `whose` names the process."""

    most: int
    whose: str
    used: int | None = None

    @classmethod
    def of(cls, pid: int | None) -> Descriptors:
        """Return the descriptors of the daemon with process id `pid`, or of this process if those cannot be read."""
        text = Root().read(f"proc/{pid}/limits") if pid is not None else None
        match = re.search(r"^Max open files\s+([0-9]{1,18}|unlimited)", text or "", re.MULTILINE)
        if match is None:
            return cls(_finite(resource.getrlimit(resource.RLIMIT_NOFILE)[0]), "this process")
        used = None
        with contextlib.suppress(OSError):
            used = len(os.listdir(f"/proc/{pid}/fd"))
        return cls(_finite(int(match[1]) if match[1].isdecimal() else resource.RLIM_INFINITY), "the daemon", used)


def _finite(most: int) -> int:
    return (1 << 30) if most == resource.RLIM_INFINITY else most


def descriptors(known: Descriptors) -> Check:
    """Check how many files a process may have open at once, and how many are open."""
    message = f"{known.whose} can open at most {known.most} files at once"
    remedy = "raise it: LimitNOFILE=65536 in the unit, ulimit -n 65536 in a shell, --ulimit nofile=65536 of a container"
    if known.used is not None and known.used > _NEARLY * known.most:
        message += f" and has {known.used} open; at the limit, connections are refused"
        return wrong(Name.DESCRIPTORS, message, remedy)
    if known.most < _FEWEST_FILES:
        return wrong(Name.DESCRIPTORS, f"{message}; cameras and hosts will be refused", remedy)
    if known.most < _FEW_FILES:
        return warning(Name.DESCRIPTORS, f"{message}; many cameras need more", remedy)
    return ok(Name.DESCRIPTORS, message if known.used is None else f"{message} and has {known.used} open")


def arena(arena_mb: int) -> Check:
    """Check whether the daemon can allocate a host's arena: `arena_mb` MiB of anonymous shared memory."""
    between = "between daemon and hosts"
    try:
        handle = os.memfd_create("edged-doctor", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(handle, 0, 1 << 20)  # a lack of memory fails here, not later in a host
            os.ftruncate(handle, arena_mb << 20)
        finally:
            os.close(handle)
    except OSError as error:
        why = f"{error.strerror or error}; no engine host can be started"
        remedy = "lower hosts.arena_mb, or allow memfd_create if a sandbox forbids it"
        return wrong(Name.SHARED_MEMORY, f"cannot allocate {arena_mb} MiB of anonymous memory: {why}", remedy, between)
    return ok(Name.SHARED_MEMORY, f"{arena_mb} MiB of anonymous memory can be allocated", between)


class SharedMemory(msgspec.Struct, frozen=True):
    """The size and free space of `/dev/shm` in MiB, and whether this user may write there."""

    total_mb: int
    free_mb: int
    is_writable: bool

    @classmethod
    def read(cls) -> SharedMemory | None:
        """Read the facts of `/dev/shm`; return None if it does not exist."""
        try:
            disk = os.statvfs(shared_layout.FOLDER)
        except OSError:
            return None
        total, free = (blocks * disk.f_frsize >> 20 for blocks in (disk.f_blocks, disk.f_bavail))
        may_write = os.access(shared_layout.FOLDER, os.W_OK | os.X_OK) and not disk.f_flag & os.ST_RDONLY
        return cls(total, free, may_write)


def shared_memory(known: SharedMemory | None) -> Check:
    """Check whether clients on this machine can share pictures with the daemon through `/dev/shm`."""
    folder = str(shared_layout.FOLDER)
    enlarge = "mount -o remount,size=256m /dev/shm, or --shm-size=256m for a container"
    if known is None:
        message = "the folder is missing; clients on this machine must send pictures as bytes"
        return warning(Name.SHARED_MEMORY, message, "mount -t tmpfs -o size=256m tmpfs /dev/shm", folder)
    if not known.is_writable:
        message = f"the user that runs this command cannot write to {folder}"
        return warning(Name.SHARED_MEMORY, message, f"chmod 1777 {folder}", folder)
    if known.total_mb < _FRAMES_MB:
        message = f"a size of {known.total_mb} MiB is too small for pictures; clients must send pictures as bytes"
        return wrong(Name.SHARED_MEMORY, message, enlarge, folder)
    message = f"{known.free_mb} of {known.total_mb} MiB are free"
    if known.free_mb < _FRAMES_MB // 4:
        return warning(Name.SHARED_MEMORY, f"only {message}", f"remove unused files in it, or {enlarge}", folder)
    return ok(Name.SHARED_MEMORY, message, folder)


_SYNCHRONIZED = "run/systemd/timesync/synchronized"
_SET = "see: timedatectl status; set the clock with: timedatectl set-ntp true, or date -s"
_LEEWAY_SECONDS = 300.0  # a harmless difference between two boxes' clocks
_LAST_YEAR = 2100
_STA_UNSYNC = 0x40  # of timex.status
_STATUS_WORD = 5  # of struct timex: modes (and padding), offset, freq, maxerror, esterror, then status
_TIMEX_BYTES = 512  # more than twice the size of struct timex (208 bytes on 64-bit Linux)


def installed() -> float:
    """Return when the newest file of this package was installed, in seconds since the epoch; 0 if unknown."""
    times = [0.0]
    for file in Path(edged.__file__).parent.glob("*.py"):
        with contextlib.suppress(OSError):
            times.append(file.stat().st_ctime)  # not st_mtime, which the package's build sets
    return max(times)


def clock(installed_at: float, latest_engine: float, now: float | None = None) -> Check:
    """Check that the clock is later than `installed_at` and `latest_engine`. All times are in seconds since the epoch;
    0 means unknown. `now` replaces the time of the clock."""
    seconds = time.time() if now is None else now
    moment = _moment(seconds)
    if moment is None:
        return wrong(Name.CLOCK, f"the clock is not set ({seconds:g} seconds since 1970)", _SET)
    shown = f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    for then, what in (
        (installed_at, "before edged was installed"),
        (latest_engine, "before the newest engine of the store was built or used"),
    ):
        if seconds < then - _LEEWAY_SECONDS:
            past = _moment(then)
            date = f"{then:g} seconds since 1970" if past is None else f"{past:%Y-%m-%d}"
            return wrong(Name.CLOCK, f"the clock is at {shown}, which is {what} ({date})", _SET)
    if moment.year > _LAST_YEAR:
        return wrong(Name.CLOCK, f"the clock is at {shown}, which is far in the future", _SET)
    return ok(Name.CLOCK, f"the clock is at {shown}")


def _moment(seconds: float) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)
    except (OverflowError, ValueError, OSError):
        return None


def is_synchronized(root: Root) -> bool | None:
    """Whether the clock is synchronised, according to systemd or the kernel. None if neither reports it."""
    if root.exists(_SYNCHRONIZED):
        return True
    return _kernel_is_synchronized() if root.is_live else None


def clock_sync(synchronized: bool | None, has_battery: bool) -> Check:
    """Check whether the clock is synchronised. `has_battery` means that the box has a clock that runs while the box is
    off."""
    if synchronized is None:
        return unknown(Name.CLOCK_SYNC, "it is unknown whether NTP synchronises the clock")
    if synchronized:
        return ok(Name.CLOCK_SYNC, "NTP synchronises the clock")
    more = "" if has_battery else "; the box has no battery clock, so its clock can start in the past"
    remedy = "timedatectl set-ntp true, or install chrony"
    return warning(Name.CLOCK_SYNC, f"the clock is not synchronised{more}", remedy)


def _kernel_is_synchronized() -> bool | None:
    """Whether the kernel reports a synchronised clock; None if it cannot be asked. With `modes` 0, adjtimex(2) sets
    nothing and needs no privilege."""
    buffer = (ctypes.c_int * (_TIMEX_BYTES // ctypes.sizeof(ctypes.c_int)))()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        return None
    words = ctypes.sizeof(ctypes.c_long) // ctypes.sizeof(ctypes.c_int)
    return None if state < 0 else not buffer[_STATUS_WORD * words] & _STA_UNSYNC
