"""Run a command as on an aarch64 machine, in new namespaces: none of its processes outlives the call.

A user namespace has its own binfmt_misc (since Linux 6.7), so that child programs are emulated as well and the host's
table does not change. This needs neither root nor packages on the host.
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

TIMED_OUT = 124  # as timeout(1)

_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE, _MS_RELATIME = 1, 32, 4096, 16384, 1 << 18, 1 << 21
_KEPT_FLAGS, _ST_RELATIME = 2 | 4 | 8 | 1024 | 2048, 4096  # nosuid, nodev, noexec, noatime, nodiratime; see _flags
_PR_SET_PDEATHSIG = 1
_FORMATS = Path("/proc/sys/fs/binfmt_misc")
# The start of a 64-bit little-endian ELF file for AArch64 (machine 183). The mask omits the byte for the OS ABI and the
# bit that distinguishes programs from shared objects, since most programs are position-independent.
_MAGIC = bytes.fromhex("7f454c460201010000000000000000000200b700")
_MASK = bytes.fromhex("ffffffffffffff00fffffffffffffffffeffffff")


@dataclass(frozen=True)
class Machine:
    """A root folder with the programs of an aarch64 system, and the emulator that runs them.

    A command has empty /tmp, /work and /var/cache in memory. In the rest of the root it can write only to the folders
    in `writable`.
    """

    root: Path
    emulator: Path
    environment: Mapping[str, str]
    writable: tuple[str, ...] = ()
    copies: Mapping[str, Path] = field(default_factory=dict)  # host folders, copied to paths below /work
    binds: Mapping[str, Path] = field(default_factory=dict)  # writable host folders, mounted below /work
    folder: str = "/"  # the working directory of commands

    def run(self, command: Sequence[str], seconds: float, output: int | None = None) -> int:
        """Run a command; return its exit status, 128 + N for signal N, or TIMED_OUT if killed after `seconds`."""
        with self.start(command, output) as running:
            select.select([running], [], [], seconds)
            return running.end()

    def start(self, command: Sequence[str], output: int | None = None) -> Running:
        """Start a command. It prints to the file descriptor `output`, or to this process's output."""
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
                if complaint := lines.read().strip():  # ends once the command has started
                    raise Unavailable(complaint)
        except BaseException:
            running.end()
            raise
        finally:
            os.close(answer)
        return running


class Running:
    """A command on the machine. It is ready for reading in `select` once it has ended. The owner must call `end`."""

    def __init__(self, keeper: int) -> None:
        self._keeper, self._handle = keeper, os.pidfd_open(keeper)
        self._status: int | None = None
        self.processor_seconds = 0.0  # of the command and its children; known once it has ended

    def fileno(self) -> int:
        return self._handle

    def end(self) -> int:
        """Return the exit status, see Machine.run; kill the command if it runs. No process of it is left afterwards."""
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
    """Map users into the namespace: all of them for root, since tests drop privileges; else only root inside."""
    if os.geteuid():
        Path(f"/proc/{pid}/setgroups").write_text("deny")
    for name, number in (("uid", os.geteuid()), ("gid", os.getegid())):
        extents = [line.split() for line in Path(f"/proc/self/{name}_map").read_text().splitlines()]
        same = "".join(f"{inside} {inside} {count}\n" for inside, _, count in extents)
        Path(f"/proc/{pid}/{name}_map").write_text(f"0 {number} 1\n" if os.geteuid() else same)


def _be_oneself(user: int, group: int) -> None:
    """Become the original user again after the mounts, unless that is root. Must precede chroot, which forbids it."""
    if user:
        _check(_libc.unshare(_CLONE_NEWUSER), "unshare")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} 0 1\n")
        Path("/proc/self/gid_map").write_text(f"{group} 0 1\n")


def _keep_namespaces(machine: Machine, command: Sequence[str], tell: int, answered: int) -> NoReturn:
    """In a child process: create the namespaces, wait for their first process and exit with its status."""
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
        # If the first process of a namespace dies, the kernel kills all others before the first can be waited for.
        signal.signal(signal.SIGTERM, lambda *_: os.kill(first, signal.SIGKILL))
    except OSError as error:
        _complain(tell, "no emulation: this machine does not permit user namespaces", error)
    os.close(tell)
    _leave_as(os.waitpid(first, 0)[1])


def _be_first(machine: Machine, command: Sequence[str], tell: int, user: int, group: int) -> NoReturn:
    """As process 1 of the namespace: prepare the command's root, start it, and reap all orphans."""
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
    """Register the emulator for AArch64 programs in this namespace.

    F: the kernel opens it now, so that it works inside another root. P: it receives the original argv[0].
    """
    try:
        _mount("none", _FORMATS, "binfmt_misc")
    except OSError as error:
        if any(_FORMATS.glob("*aarch64*")):  # a registration for the whole machine works as well
            return
        raise OSError(error.errno, "no binfmt_misc in a namespace: this needs Linux 6.7 or newer") from error
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
    """Return the mount flags of the file system of a folder: a user namespace may add flags but not remove any."""
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
    os._exit(code if code >= 0 else 128 - code)  # as shells do: a signal cannot end the first process of a namespace
