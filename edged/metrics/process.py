"""Metrics of the daemon's own process, under the names that every dashboard knows. Formats: proc_pid_status(5)."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from pathlib import Path

from edged import tasks
from edged.metrics import names
from edged.metrics.sheet import Sheet

_STARTED = time.time()
_PAGE = resource.getpagesize()


def collect(sheet: Sheet) -> None:
    """What cannot be read is left out."""
    memory = resident_bytes(os.getpid())
    if memory is not None:
        sheet.put(names.PROCESS_MEMORY, memory)
    spent = os.times()
    sheet.put(names.PROCESS_CPU, spent.user + spent.system)
    with contextlib.suppress(OSError):
        sheet.put(names.PROCESS_FILES, len(os.listdir("/proc/self/fd")))
    sheet.put(names.PROCESS_MOST_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    sheet.put(names.PROCESS_THREADS, threads() or threading.active_count())
    sheet.put(names.PROCESS_STARTED, _STARTED)
    for task, count in tasks.FAILURES.items():
        sheet.put(names.TASK_FAILURES, count, task)


def resident_bytes(pid: int) -> int | None:
    """Memory that a process has in use; None where there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


def threads() -> int | None:
    """Of this process, also those of libraries."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return None
