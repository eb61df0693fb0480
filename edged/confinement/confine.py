"""Confines the calling process for its lifetime; reports the restrictions that this kernel lacks."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
import tempfile

from edged.confinement import landlock, seccomp
from edged.confinement.rules import Reach, allowed

_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _CLEAR_ALL = 4, 24, 47, 4
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITIES_V3 = 0x2008_0522
_CAP_DAC_READ_SEARCH = 2
_LAST_CAPABILITY = 63


class Unconfined(Exception):
    """The kernel lacks a restriction, and the mode is "enforce"."""


def lacking() -> tuple[str, ...]:
    """Return the restrictions that this kernel lacks. Costs two system calls."""
    abi = landlock.version()
    found = tuple(f"Landlock for {what}" for what in landlock.missing(abi))
    return found if seccomp.is_available() else (*found, "seccomp")


def confine_files(reach: Reach) -> None:
    """Apply the first step of the confinement. Call this before any other thread exists and before the job is read.
    Refuse new privileges, capabilities, files that `rules.allowed` does not list, TCP (unless `reach.network`), and
    signals to other processes. Raises OSError if no_new_privs cannot be set, and Unconfined if another part fails in
    the mode "enforce"."""
    if reach.scratch:
        os.environ["TMPDIR"] = reach.scratch
    if reach.mode == "off":
        return
    # Libraries that ask for a temporary folder at import get one, even if nothing can be written there.
    tempfile.tempdir = reach.scratch or "/tmp"  # noqa: S108 - nothing is put there
    _require(reach, lacking())
    seccomp.no_new_privileges()
    abi = landlock.version()
    try:
        if abi:
            landlock.restrict(abi, allowed(reach), tcp=reach.network)
    except OSError as error:
        _failed(reach, "Landlock", error)
        abi = 0
    # Without this capability, a process of root could not read another user's model; Landlock limits which files can be
    # read.
    _drop_capabilities(keep=1 << _CAP_DAC_READ_SEARCH if abi else 0)


def refuse_calls(reach: Reach) -> None:
    """Apply the second step of the confinement, after all sockets are open: refuse new sockets, programs, and other
    processes' memory. Raises Unconfined if this fails in the mode "enforce"."""
    if reach.mode == "off":
        return
    try:
        if seccomp.is_available():
            seccomp.refuse()
    except OSError as error:
        _failed(reach, "seccomp", error)


def refuse_sockets(reach: Reach) -> None:
    """Apply a weaker second step of the confinement, in a process that must start other programs: refuse only to create
    and to connect sockets. Raises Unconfined if this fails in the mode "enforce"."""
    if reach.mode == "off":
        return
    try:
        if seccomp.is_available():
            seccomp.refuse(seccomp.without_sockets(platform.machine()))
    except OSError as error:
        _failed(reach, "seccomp", error)


def everything(reach: Reach) -> None:
    """Apply both steps of the confinement, in a process that needs no socket."""
    confine_files(reach)
    refuse_calls(reach)


def close_to_others() -> None:
    """Deny other processes of this user access to this process's memory, environment and open files, and disable core
    dumps of this process."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _failed(reach: Reach, what: str, error: OSError) -> None:
    """Print that the kernel offers a restriction but could not apply it; the daemon logs this output. Raises Unconfined
    in the mode "enforce"."""
    _require(reach, (f"{what} ({error.strerror})",))
    print(f"this process is not confined by {what}: {error.strerror}", file=sys.stderr, flush=True)


def _require(reach: Reach, missing: tuple[str, ...]) -> None:
    if reach.mode == "enforce" and missing:
        raise Unconfined(
            f'confinement = "enforce" ends this process, because the kernel cannot apply {", ".join(missing)};'
            " see docs/security.md"
        )


def _drop_capabilities(keep: int) -> None:
    """Drop all capabilities except `keep`, in children of a daemon that runs as root."""
    libc = ctypes.CDLL(None, use_errno=True)
    for each in range(_LAST_CAPABILITY + 1):
        if not keep >> each & 1:
            libc.prctl(_PR_CAPBSET_DROP, each, 0, 0, 0)
    libc.prctl(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    number = _CAPSET.get(os.uname().machine)
    held = _permitted()
    if number is None or held is None:
        return
    low, high = held & keep & 0xFFFF_FFFF, (held & keep) >> 32
    header, data = struct.pack("=II", _CAPABILITIES_V3, 0), struct.pack("=6I", low, low, 0, high, high, 0)
    libc.syscall(ctypes.c_long(number), header, data)


def _permitted() -> int | None:
    """Return the capabilities of this process as bits, or None if they cannot be read."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
            return next((int(line.split()[1], 16) for line in lines if line.startswith("CapPrm:")), None)
    except OSError:
        return None
