"""Limits and priorities of edged's child processes, which die with their parent and yield to serving."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1
# ioprio_set(2) has no function in the C library: its number by machine, and its arguments.
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IOPRIO_WHO_PROCESS = 1
_IOPRIO_BEST_EFFORT_LOWEST = 2 << 13 | 7  # the idle class would wait for ever while a camera is being recorded
# Niceness of children that build, of those that a model waits for before it can answer, and of those that time engines,
# for which processors have to be as they are for the hosts.
BUILD, EXAMINE, MEASURE = 10, 5, 0

# Children do not start in the caller's folder, from which Python would import modules first.
ISOLATED: dict[str, Any] = {"cwd": "/"}


def die_with_parent(parent: int) -> bool:
    """Have the kernel kill this process when its parent ends, so that a killed daemon leaves no process.

    False if the process `parent` has ended already; the caller then exits.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def restrain(memory_mb: int = 0, disk_mb: int = 0, niceness: int = BUILD) -> None:
    """Give way to all other processes on the box: last for the disk, first to be killed when memory runs out.

    niceness: BUILD takes only processor time that no other process wants. EXAMINE gets a small share of a busy box,
    MEASURE a process's own.

    memory_mb: mebibytes of data, 0 for no limit. It counts what the process may write to (RLIMIT_DATA), not the address
    space, which runtimes reserve freely.
    disk_mb: mebibytes of one file, 0 for no limit; writing more is an OSError, EFBIG.

    Priorities are those of a thread, and of the threads and processes that it starts from then on: call this before
    anything is imported that starts any. What the kernel or a container does not permit is left as it is.
    """
    with contextlib.suppress(OSError):
        os.nice(niceness)
    _yield_as_a_session(niceness)
    if niceness == BUILD:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    _yield_the_disk()
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("900")
    _limit(resource.RLIMIT_DATA, memory_mb)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # otherwise the process dies without an error message
    _limit(resource.RLIMIT_FSIZE, disk_mb)


def go_before_the_daemon(memory_mb: int = 0) -> None:
    """For children that serve: if memory runs out they are killed after children that build and before the daemon.

    memory_mb as for `restrain`: an allocation beyond it fails, which costs one request and not the process.
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
    """With autogroups (sched(7)) niceness counts only within a session; sessions compete by a niceness of their own.

    Only a session that this process leads is made to yield: any other is its parent's, which serves.
    """
    if os.getsid(0) != os.getpid():
        return
    for _ in range(5):
        try:
            with open("/proc/self/autogroup", "w") as file:
                file.write(str(niceness))
            return
        except BlockingIOError:  # the kernel takes one such change in a tenth of a second, on the whole box
            time.sleep(0.1)
        except OSError:
            return  # this kernel has none


def _yield_the_disk() -> None:
    number = _IOPRIO_SET.get(platform.machine())
    if number is None or ctypes.sizeof(ctypes.c_void_p) != 8:  # 32-bit programs number the calls otherwise
        return
    with contextlib.suppress(OSError, AttributeError):
        arguments = (number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_BEST_EFFORT_LOWEST)
        ctypes.CDLL(None, use_errno=True).syscall(*map(ctypes.c_long, arguments))


def _limit(kind: int, mb: int) -> None:
    if mb:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (mb << 20, mb << 20))
