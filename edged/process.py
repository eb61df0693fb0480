"""How edged's own child processes behave: they die with their parent, yield to serving, and keep to their limits."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from typing import Any

_PR_SET_PDEATHSIG = 1

# How children are started: not in the caller's folder, since Python would import modules from there before its own.
ISOLATED: dict[str, Any] = {"cwd": "/"}


def die_with_parent(parent: int) -> bool:
    """Asks the kernel to kill this process when its parent goes, so that a killed daemon leaves nothing running.

    False when the process `parent` has gone already, before the kernel was asked: then the caller leaves.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def restrain(memory_mb: int = 0) -> None:
    """For children that build: low priority, first to go when memory runs out, at most `memory_mb` of data (0: any).

    The limit counts what the process may write to (RLIMIT_DATA), not the address space, which runtimes reserve freely.
    """
    with contextlib.suppress(OSError):
        os.nice(10)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("900")
    if memory_mb:
        limit = memory_mb << 20
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
