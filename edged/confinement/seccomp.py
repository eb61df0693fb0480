"""seccomp: the kernel refuses certain system calls of this process with EPERM, an error that libraries handle. The
filter, in classic BPF, is assembled here.

Format: include/uapi/linux/seccomp.h, filter.h and audit.h; numbers of calls: arch/x86/entry/syscalls/syscall_64.tbl
and include/uapi/asm-generic/unistd.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator

# By name: the number on x86-64 and on aarch64, None if the machine does not have the call.
_SOCKETS: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198),
    "connect": (42, 203),
    "accept": (43, 202),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept4": (288, 242),
}
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # Other processes, other programs.
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # Calls that bypass this filter, or that expose large parts of the kernel that runtimes do not need.
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
    # Namespaces and mounts.
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    # Calls that change the whole box.
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "fanotify_init": (300, 262),
    # Not covered by Landlock: changes of a file's permissions, owner and times.
    "chmod": (90, None),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    # Named shared memory and queues, which other processes can open, too.
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
}
_CLONE, _CLONE3, _IOCTL, _PRLIMIT = (56, 220), (435, 435), (16, 29), (302, 261)
_KILL, _TGKILL = (62, 129), (234, 131)
_FCNTL, _PRCTL = (72, 25), (157, 167)
# Calls that change the scheduling of other processes of the same user. The first argument is the pid in
# sched_setscheduler, sched_setparam, sched_setattr and sched_setaffinity; setpriority and ioprio_set have it second.
_SCHEDULING = ((144, 119), (142, 118), (314, 274), (203, 122))
_NICENESS, _IO_PRIORITY = (141, 140), (251, 30)
# Calls that change the mode or an extended attribute by a descriptor are allowed: they work on open files only.

_NAMESPACES = 0x7E02_0080  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET} and NEWTIME
_THREAD = 0x0001_0000  # CLONE_THREAD
_TERMINAL = (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX: typing into another process's terminal
# FIOSETOWN, SIOCSPGRP; F_SETOWN, F_SETSIG, F_SETOWN_EX: the kernel would signal another process about a file.
_OWNERS, _FILE_OWNERS = (0x8901, 0x8902), (8, 10, 15)
_PARENT_DEATH_SIGNAL, _PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 1, 0, 1
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32 = 0x4000_0000

_LOAD, _EQUAL, _SET, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24  # in struct seccomp_data: low words of arguments, little-endian
_ALLOW, _KILL_PROCESS = 0x7FFF_0000, 0x8000_0000
_ERRNO = 0x0005_0000

_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER, _TO_ALL_THREADS = 1, 1
_GET_ACTION_AVAIL = 2


def is_available() -> bool:
    """Whether this kernel can filter system calls and the call numbers of this machine are known."""
    number = _SECCOMP.get(platform.machine())
    if number is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    action = ctypes.c_uint32(_ERRNO)
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (ctypes.c_long(_GET_ACTION_AVAIL), ctypes.c_long(0), ctypes.byref(action))
    return bool(libc.syscall(ctypes.c_long(number), *arguments) == 0)


def refuse(program: bytes = b"") -> None:
    """Install a BPF program that refuses system calls of this process and its threads. This cannot be undone. The
    default program refuses the calls that the process does not need. Raises OSError if the kernel cannot install the
    program.

    Needs no_new_privs or CAP_SYS_ADMIN. With the default program, connected sockets stay usable, but the process cannot
    create, connect or bind a socket, nor accept a connection.
    """
    machine = platform.machine()
    program = program or filter_of(machine, os.getpid())
    code = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (ctypes.c_long(_SET_MODE_FILTER), ctypes.c_long(_TO_ALL_THREADS), head)
    result = libc.syscall(ctypes.c_long(_SECCOMP[machine]), *arguments)
    if result != 0:  # the id of a thread that could not get the filter, or an error
        error = ctypes.get_errno() if result < 0 else errno.ESRCH
        raise OSError(error, os.strerror(error))


def no_new_privileges() -> None:
    """Set no_new_privs: programs that this process executes gain no privileges. Raises OSError if that fails."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs cannot be set")


def filter_of(machine: str, pid: int) -> bytes:
    """Return the BPF program for a machine. `pid` is the confined process, which may signal only itself. Pure."""
    column, architecture = _MACHINES[machine]
    code = [
        _operation(_LOAD, _ARCHITECTURE),
        _operation(_EQUAL, architecture, 1, 0),
        _operation(_RETURN, _KILL_PROCESS),  # calls of 32 bits have other numbers
        _operation(_LOAD, _NUMBER),
    ]
    refusal = _operation(_RETURN, _ERRNO | errno.EPERM)
    if column == 0:
        code += [_operation(_AT_LEAST, _X32, 0, 1), refusal]
    for _, number in calls(machine):
        code += [_operation(_EQUAL, number, 0, 1), refusal]
    # Without clone3 the C library uses clone. The filter can check the flags of clone: only new threads are allowed.
    code += [_operation(_EQUAL, _CLONE3[column], 0, 1), _operation(_RETURN, _ERRNO | errno.ENOSYS)]
    threads = [_operation(_SET, _NAMESPACES, 0, 1), refusal, _operation(_SET, _THREAD, 1, 0), refusal]
    code += _where(_CLONE[column], _FIRST, threads)
    code += _where(_IOCTL[column], _SECOND, _none_of(_TERMINAL + _OWNERS, refusal))
    code += _where(_FCNTL[column], _SECOND, _none_of(_FILE_OWNERS, refusal))
    code += _where(_PRCTL[column], _FIRST, _none_of((_PARENT_DEATH_SIGNAL,), refusal))
    for call in (_KILL, _TGKILL):
        code += _where(call[column], _FIRST, [_operation(_EQUAL, pid, 1, 0), refusal])
    own = [_operation(_EQUAL, 0, 2, 0), _operation(_EQUAL, pid, 1, 0), refusal]
    code += _where(_PRLIMIT[column], _FIRST, own)
    # The process's own threads have larger numbers than the process; the daemon has a smaller one.
    threads_too = [_operation(_EQUAL, 0, 2, 0), _operation(_AT_LEAST, pid, 1, 0), refusal]
    for call in _SCHEDULING:
        code += _where(call[column], _FIRST, threads_too)
    for call, kind in ((_NICENESS, _PRIO_PROCESS), (_IO_PRIORITY, _IOPRIO_WHO_PROCESS)):
        of_processes = [_operation(_EQUAL, kind, 1, 0), refusal, _operation(_LOAD, _SECOND)]
        code += _where(call[column], _FIRST, of_processes + threads_too)
    code.append(_operation(_RETURN, _ALLOW))
    return b"".join(code)


def without_sockets(machine: str) -> bytes:
    """Return the BPF program that refuses to create and connect sockets, and io_uring, which could do both. Pure."""
    column, architecture = _MACHINES[machine]
    refusal = _operation(_RETURN, _ERRNO | errno.EPERM)
    code = [
        _operation(_LOAD, _ARCHITECTURE),
        _operation(_EQUAL, architecture, 1, 0),
        _operation(_RETURN, _KILL_PROCESS),
        _operation(_LOAD, _NUMBER),
    ]
    if column == 0:
        code += [_operation(_AT_LEAST, _X32, 0, 1), refusal]
    for numbers in (_SOCKETS["socket"], _SOCKETS["connect"], _REFUSED["io_uring_setup"]):
        number = numbers[column]
        assert number is not None
        code += [_operation(_EQUAL, number, 0, 1), refusal]
    return b"".join([*code, _operation(_RETURN, _ALLOW)])


def calls(machine: str) -> Iterator[tuple[str, int]]:
    """Yield name and number of every call that is refused regardless of its arguments."""
    column, _ = _MACHINES[machine]
    for name, numbers in (_SOCKETS | _REFUSED).items():
        number = numbers[column]
        if number is not None:
            yield name, number


def _none_of(values: tuple[int, ...], refusal: bytes) -> list[bytes]:
    return [word for each in values for word in (_operation(_EQUAL, each, 0, 1), refusal)]


def _where(number: int, argument: int, checks: list[bytes]) -> list[bytes]:
    """Return the BPF that checks an argument of one call; if the checks pass, the call is allowed."""
    allowed = _operation(_RETURN, _ALLOW)
    return [_operation(_EQUAL, number, 0, len(checks) + 2), _operation(_LOAD, argument), *checks, allowed]


def _operation(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value & 0xFFFF_FFFF)
