"""What the kernel lets a process have: descriptors, and memory that it shares with others.

Sources: getrlimit(2), proc(5) on `/proc/PID/limits`, memfd_create(2), shm_overview(7).
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator

import msgspec

from edged import shared_layout
from edged.device.root import Root
from edged.doctor.check import Check, Name, ok, warning, wrong

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
