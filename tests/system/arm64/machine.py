"""Runs a command as an aarch64 machine would, in namespaces of its own: nothing of it outlives the call.

A user namespace has a binfmt_misc of its own (Linux 6.7), so that programs started by programs are emulated as well and
the table of the host stays as it is. Neither root nor a package of the host is needed.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from tests.system.arm64 import Unavailable

TIMED_OUT = 124  # what timeout(1) answers

_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE, _MS_RELATIME = 1, 32, 4096, 16384, 1 << 18, 1 << 21
_KEPT_FLAGS, _ST_RELATIME = 2 | 4 | 8 | 1024 | 2048, 4096  # nosuid, nodev, noexec, noatime, nodiratime; see _flags
_PR_SET_PDEATHSIG = 1
_FORMATS = Path("/proc/sys/fs/binfmt_misc")
# How a 64-bit little-endian ELF file for AArch64 (machine 183) begins; the mask leaves out the byte that names the
# system and the bit that tells programs from shared objects, since most programs are both.
_MAGIC = bytes.fromhex("7f454c460201010000000000000000000200b700")
_MASK = bytes.fromhex("ffffffffffffff00fffffffffffffffffeffffff")


@dataclass(frozen=True)
class Machine:
    """A root folder with the programs of an aarch64 system, and the emulator that runs them.

    A command finds /tmp, /work and /var/cache in memory, empty; of the rest of the root it can change what is named in
    `writable`.
    """

    root: Path
    emulator: Path
    environment: Mapping[str, str]
    writable: tuple[str, ...] = ()
    copies: Mapping[str, Path] = field(default_factory=dict)  # host folders, copied to places below /work
    binds: Mapping[str, Path] = field(default_factory=dict)  # host folders that are written to, shown below /work
    folder: str = "/"  # where commands start

    def run(self, command: Sequence[str], seconds: float, output: int | None = None) -> int:
        """The exit status of a command; 128 + N when signal N ended it, TIMED_OUT when it took longer and was ended."""
        with self.start(command, output) as running:
            select.select([running], [], [], seconds)
            return running.end()

    def start(self, command: Sequence[str], output: int | None = None) -> Running:
        """Starts a command, which prints to a file descriptor, or where we print."""
        reported, tell = os.pipe()
        answered, answer = os.pipe()
        sys.stdout.flush()
        keeper = os.fork()
        if keeper == 0:
            os.close(reported)
            os.close(answer)
            if output is not None:
                os.dup2(output, 1)
                os.dup2(output, 2)
            _keep_namespaces(self, command, tell, answered)
        os.close(tell)
        os.close(answered)
        running = Running(keeper)
        try:
            with os.fdopen(reported) as lines:
                if lines.readline() == _UNSHARED:
                    _map_users(keeper)
                    os.write(answer, b"!")
                if complaint := lines.read().strip():  # ends when the command has been started
                    raise Unavailable(complaint)
        except BaseException:
            running.end()
            raise
        finally:
            os.close(answer)
        return running


class Running:
    """A command on the machine; in `select` it can be read from when it has ended. Somebody must end it."""

    def __init__(self, keeper: int) -> None:
        self._keeper, self._handle = keeper, os.pidfd_open(keeper)
        self._status: int | None = None
        self.processor_seconds = 0.0  # that it took with all it started; known when it has ended

    def fileno(self) -> int:
        return self._handle

    def end(self) -> int:
        """Its exit status, see Machine.run; one that runs is ended. Every process of it has gone afterwards."""
        if self._status is None:
            ended, status, usage = os.wait4(self._keeper, os.WNOHANG)
            if ended:
                self._status = os.waitstatus_to_exitcode(status)
            else:
                os.kill(self._keeper, signal.SIGTERM)
                _, _, usage = os.wait4(self._keeper, 0)
                self._status = TIMED_OUT
            self.processor_seconds = usage.ru_utime + usage.ru_stime
            os.close(self._handle)
        return self._status

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


_UNSHARED = "unshared\n"


def _map_users(pid: int) -> None:
    """The same users within as without when we are root, since tests give its rights away; else one who may mount."""
    if os.geteuid():
        Path(f"/proc/{pid}/setgroups").write_text("deny")
    for name, number in (("uid", os.geteuid()), ("gid", os.getegid())):
        extents = [line.split() for line in Path(f"/proc/self/{name}_map").read_text().splitlines()]
        same = "".join(f"{inside} {inside} {count}\n" for inside, _, count in extents)
        Path(f"/proc/{pid}/{name}_map").write_text(f"0 {number} 1\n" if os.geteuid() else same)


def _be_oneself(user: int, group: int) -> None:
    """Who is not root ceases to be it within, once everything is mounted; in a changed root that is not permitted."""
    if user:
        _check(_libc.unshare(_CLONE_NEWUSER), "unshare")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} 0 1\n")
        Path("/proc/self/gid_map").write_text(f"{group} 0 1\n")


def _keep_namespaces(machine: Machine, command: Sequence[str], tell: int, answered: int) -> NoReturn:
    """In a process of its own: makes the namespaces, waits for the first process in them and ends as it did."""
    user, group = os.geteuid(), os.getegid()
    try:
        _check(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWPID), "unshare")
        _die_with_parent()
        os.write(tell, _UNSHARED.encode())
        if not os.read(answered, 1):
            os._exit(1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command decides what Ctrl-C means
        first = os.fork()
        if first == 0:
            _be_first(machine, command, tell, user, group)
        # With the first process of a namespace the kernel ends all others, before that one can be waited for.
        signal.signal(signal.SIGTERM, lambda *_: os.kill(first, signal.SIGKILL))
    except OSError as error:
        _complain(tell, "no emulation: user namespaces are not permitted here", error)
    os.close(tell)
    _leave_as(os.waitpid(first, 0)[1])


def _be_first(machine: Machine, command: Sequence[str], tell: int, user: int, group: int) -> NoReturn:
    """As process 1 of the namespace: prepares what the command sees, starts it, and reaps whatever is orphaned."""
    try:
        _die_with_parent()
        _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
        _register(machine.emulator)
        _mount_root(machine)
        child = os.fork()
        if child == 0:
            _be_oneself(user, group)
            os.chroot(machine.root)
            os.chdir(machine.folder)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            _start(command, machine.environment, tell)
    except OSError as error:
        _complain(tell, "no emulation", error)
    os.close(tell)
    while (ended := os.wait())[0] != child:
        pass
    _leave_as(ended[1])


def _start(command: Sequence[str], environment: Mapping[str, str], tell: int) -> NoReturn:
    try:
        os.execve(command[0], list(command), dict(environment))  # closes `tell`
    except OSError as error:
        _complain(tell, f"{command[0]} does not start", error)


def _register(emulator: Path) -> None:
    """Tells the kernel of this namespace which programs the emulator runs.

    F: it is opened now, so that it is found from within another root. P: it learns the name a program was called by.
    """
    try:
        _mount("none", _FORMATS, "binfmt_misc")
    except OSError as error:
        if any(_FORMATS.glob("*aarch64*")):  # one that was registered for the whole box serves as well
            return
        raise OSError(error.errno, "binfmt_misc cannot be had in a namespace: this needs Linux 6.7 or newer") from error
    magic, mask = ("".join(f"\\x{byte:02x}" for byte in part) for part in (_MAGIC, _MASK))
    (_FORMATS / "register").write_text(f":edged-aarch64:M::{magic}:{mask}:{emulator}:FP")


def _mount_root(machine: Machine) -> None:
    root = machine.root
    inside = {where: root / where.lstrip("/") for where in (*machine.writable, *machine.copies, *machine.binds)}
    _mount(root, root, "", _MS_BIND)
    for where in machine.writable:
        _mount(inside[where], inside[where], "", _MS_BIND)
    _mount("none", root, "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _flags(root))
    _mount("proc", root / "proc", "proc")
    for name in ("sys", "dev"):
        _mount(f"/{name}", root / name, "", _MS_BIND | _MS_REC)
    for name in ("tmp", "work", "var/cache", "dev/shm"):
        _mount("tmpfs", root / name, "tmpfs", data="mode=1777")
    for where, source in machine.copies.items():
        shutil.copytree(source, inside[where], symlinks=True, dirs_exist_ok=True)
    for where, source in machine.binds.items():
        inside[where].mkdir(parents=True, exist_ok=True)
        _mount(source, inside[where], "", _MS_BIND)


def _flags(place: Path) -> int:
    """What holds for the file system below a folder: a user namespace may add to it and take nothing away."""
    flags = os.statvfs(place).f_flag
    return flags & _KEPT_FLAGS | (_MS_RELATIME if flags & _ST_RELATIME else 0)


_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _mount(source: Path | str, target: Path | str, kind: str, flags: int = 0, data: str = "") -> None:
    words = [str(word).encode() for word in (source, target, kind, data)]
    _check(_libc.mount(*words[:3], ctypes.c_ulong(flags), words[3]), f"mount {kind or source} at {target}")


def _die_with_parent() -> None:
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")


def _complain(tell: int, what: str, error: OSError) -> NoReturn:
    os.write(tell, f"{what} ({error.strerror or error})\n".encode())
    os._exit(1)


def _leave_as(status: int) -> NoReturn:
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)  # as shells do: no signal ends the first process of a namespace
