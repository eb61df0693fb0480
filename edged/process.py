"""Limits and priorities of edged's child processes. The child processes die with their parent."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import platform
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, BinaryIO

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_MOST_GENERATIONS = 100
# The system call's number by machine, and its arguments: the C library has no function for ioprio_set(2).
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IOPRIO_WHO_PROCESS = 1
_IOPRIO_BEST_EFFORT_LOWEST = 2 << 13 | 7  # in the idle class, a child would wait forever while a camera is recorded
# Niceness of children. IDLE: no work waits for the child. BUILD: the child builds. EXAMINE: a model waits for the child
# before it can answer. MEASURE: the child times engines, so its priority must be that of the hosts.
IDLE, BUILD, EXAMINE, MEASURE = 19, 10, 5, 0

# Children do not start in the caller's folder, since Python would import modules from there first.
ISOLATED: dict[str, Any] = {"cwd": "/"}

_SECRET = re.compile(r"(?i)token|secret|passw|credential|(api|access|private|account)_?key|^(aws|azure|google)_")


def environment() -> dict[str, str]:
    """Return this process's variables without those that may hold secrets, such as the keys of a shared store. Children
    run models and decode streams, which may come from attackers."""
    return {name: value for name, value in os.environ.items() if not _SECRET.search(name)}


def die_with_parent(parent: int) -> bool:
    """Make the kernel kill this process when its parent ends, so that a killed daemon leaves no processes.

    Return False if the process `parent` has already ended; the caller should then exit.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def become_child(parent: int) -> BinaryIO:
    """Set up this process as a child of the daemon. The child answers on standard output; return that stream. Text that
    libraries print goes to standard error. Exits with status 1 if the process `parent` has already ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches the daemon, which ends its children
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    faulthandler.enable()  # a crash leaves a traceback in the daemon's log
    if not die_with_parent(parent):
        sys.exit(1)
    return answers


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that `kill_children` finds them."""
    with contextlib.suppress(AttributeError, OSError):  # not Linux's C library
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_children(but: Collection[int] = ()) -> None:
    """Kill the children of this process except `but`, and then the descendants that this process adopts from the killed
    children."""
    for _ in range(_MOST_GENERATIONS):
        found = children() - set(but)
        if not found:
            return
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def children() -> set[int]:
    """Return the ids of this process's children."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(stat.parent.name))
    return found


def restrain(memory_mb: int = 0, disk_mb: int = 0, niceness: int = BUILD) -> None:
    """Lower the priorities of this process. It gets the lowest priority for the disk. If memory runs out, the kernel
    kills this process before others.

    niceness: with IDLE or BUILD the process gets only processor time that no other process needs, with EXAMINE a small
    share of a busy box, with MEASURE a normal share.

    memory_mb: limit in MiB of writable data (RLIMIT_DATA), 0 for no limit. Address space is not limited, since runtimes
    reserve much of it. disk_mb: limit in MiB of one file, 0 for no limit; larger writes fail with OSError, EFBIG.

    Priorities apply to the calling thread and to threads and processes that it starts later: call this before imports
    that start threads. Settings that the kernel or a container does not permit are skipped.
    """
    with contextlib.suppress(OSError):
        os.nice(niceness)
    _yield_as_a_session(niceness)
    if niceness >= BUILD:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    _yield_the_disk()
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("900")
    _limit(resource.RLIMIT_DATA, memory_mb)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # otherwise the process would die without an error message
    _limit(resource.RLIMIT_FSIZE, disk_mb)


def yield_resources(niceness: int) -> None:
    """Lower the priorities of this process's session and of its disk accesses, but not of the processes that it starts
    in other sessions."""
    _yield_as_a_session(niceness)
    _yield_the_disk()


def go_before_the_daemon(memory_mb: int = 0) -> None:
    """If memory runs out, let the kernel kill this serving child before the daemon, but after children that build.

    `memory_mb` limits writable data in MiB, 0 for no limit. A larger allocation fails, which costs one request and not
    the process.
    """
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")
    _limit(resource.RLIMIT_DATA, memory_mb)


def end_within(seconds: float, last_words: Callable[[], None]) -> None:
    """Exit with status 1 after `seconds`, even if the event loop, a thread or the interpreter's exit hangs.

    `last_words` is called first, in another thread.
    """

    def end() -> None:
        last_words()
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _yield_as_a_session(niceness: int) -> None:
    """Set the niceness of this process's session. With autogroups (sched(7)) a process's niceness counts only within
    its session, and sessions have their own niceness.

    Nothing is done if this process does not lead its session, because the session then belongs to the parent, which
    serves.
    """
    if os.getsid(0) != os.getpid():
        return
    for _ in range(5):
        try:
            with open("/proc/self/autogroup", "w") as file:
                file.write(str(niceness))
            return
        except BlockingIOError:  # the kernel accepts one such change per 0.1 s on the whole box
            time.sleep(0.1)
        except OSError:
            return  # this kernel has no autogroups


def _yield_the_disk() -> None:
    number = _IOPRIO_SET.get(platform.machine())
    if number is None or ctypes.sizeof(ctypes.c_void_p) != 8:  # 32-bit programs have other call numbers
        return
    with contextlib.suppress(OSError, AttributeError):
        arguments = (number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_BEST_EFFORT_LOWEST)
        ctypes.CDLL(None, use_errno=True).syscall(*map(ctypes.c_long, arguments))


def _limit(kind: int, mb: int) -> None:
    if mb:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (mb << 20, mb << 20))
