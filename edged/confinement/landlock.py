"""Landlock: the kernel limits the use of files, TCP and signals by a thread and its later children. Needs no privilege.

Format: include/uapi/linux/landlock.h; https://docs.kernel.org/userspace-api/landlock.html.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every machine
_VERSION = 1  # flag: return the version of the ABI instead of a ruleset
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_CHANGES = sum(1 << bit for bit in range(4, 13))  # removing and creating files of every kind
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

READ = _READ_FILE | _READ_DIR | _EXECUTE  # execution is needed to map libraries
USE = _READ_FILE | _READ_DIR | _WRITE_FILE | _IOCTL_DEV  # rights on a device
# Without REFER, the right to move files between folders, and without the rights to make devices, sockets and FIFOs.
WRITE = READ | _WRITE_FILE | _TRUNCATE | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 12

_TCP = 3  # bind and connect
_SCOPES = 3  # abstract unix sockets, signals


def version() -> int:
    """Return the version of the kernel's Landlock ABI, or 0 if the kernel has no Landlock or disables it."""
    try:
        return _call(_CREATE_RULESET, None, 0, _VERSION)
    except OSError:
        return 0


def missing(abi: int) -> tuple[str, ...]:
    """Return the kinds of access that Landlock cannot restrict in this version of the ABI."""
    since = ((1, "files"), (3, "truncating files"), (4, "TCP"), (5, "devices"), (6, "signals and abstract sockets"))
    return tuple(what for first, what in since if abi < first)


def restrict(abi: int, allowed: Iterable[tuple[str, int]], *, tcp: bool = False) -> None:
    """Restrict the calling thread, and threads and processes that it starts later, to the paths in `allowed`. The
    rights of a path apply to everything below it too. Unless `tcp` is set, also forbid TCP.

    Skips paths that do not exist. Needs no_new_privs or CAP_SYS_ADMIN. Raises OSError if the kernel refuses.
    """
    handled = _EXECUTE | _WRITE_FILE | _READ_FILE | _READ_DIR | _CHANGES
    handled |= (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0) | (_IOCTL_DEV if abi >= 5 else 0)
    attributes = struct.pack("=QQQ", handled, _TCP if abi >= 4 and not tcp else 0, _SCOPES if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24  # of the struct in this version of the ABI
    ruleset = _call(_CREATE_RULESET, attributes[:size], size, 0)
    try:
        for path, rights in allowed:
            _allow(ruleset, path, rights & handled)
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            rights &= _OF_FILES
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, handle), 0)
    finally:
        os.close(handle)


def _call(number: int, *arguments: int | bytes | None) -> int:
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *words))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
