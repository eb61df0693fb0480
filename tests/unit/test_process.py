"""Limits and priorities of child processes, read back from real ones."""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edged import process
from edged.config.child_limits import Limits
from edged.engines.child import run as do
from edged.ipc import job_messages as jobs
from tests.unit.test_child import verification
from tests.unit.test_child_misbehaviour import working
from tests.waiting import run, until, workers

_IOPRIO_GET = {"x86_64": 252, "aarch64": 31}
_SETTLE = """
import sys, time
from edged import process
process.restrain(*map(int, sys.argv[1:]))
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def restrained(*limits: int, session: bool = True) -> Iterator[int]:
    command = [sys.executable, "-c", _SETTLE, *map(str, limits)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, start_new_session=session) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child.pid
        child.communicate()


def ioprio(pid: int) -> tuple[int, int]:
    """Return I/O class and level of a process. Class 2 is best effort, with level 7 as the lowest."""
    arguments = (ctypes.c_long(n) for n in (_IOPRIO_GET[platform.machine()], 1, pid))
    value = ctypes.CDLL(None, use_errno=True).syscall(*arguments)
    assert value >= 0, os.strerror(ctypes.get_errno())
    return value >> 13, value & 0x1FFF


def autogroup(pid: int) -> str | None:
    """Return the niceness of a process's session; None if the kernel has no autogroups or it is the root group."""
    try:
        words = Path(f"/proc/{pid}/autogroup").read_text().split()
    except OSError:
        return None
    return words[-1] if words else None


def check(pid: int) -> None:
    assert os.getpriority(os.PRIO_PROCESS, pid) >= 10
    assert os.sched_getscheduler(pid) == os.SCHED_BATCH
    assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "900"
    if platform.machine() in _IOPRIO_GET:
        assert ioprio(pid) == (2, 7)
    assert autogroup(pid) in ("10", None)


def test_restrain_sets_every_limit_and_priority() -> None:
    with restrained(100, 50) as pid:
        check(pid)
        limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
        assert [line.split()[3:5] for line in limits if "Max data size" in line] == [[str(100 << 20)] * 2]
        assert [line.split()[3:5] for line in limits if "Max file size" in line] == [[str(50 << 20)] * 2]
    with restrained() as pid:
        limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
        assert [line.split()[3] for line in limits if "Max file size" in line] == ["unlimited"]


def test_restrain_examination_yields_less_than_a_build() -> None:
    with restrained(0, 0, process.EXAMINE) as pid:
        assert os.getpriority(os.PRIO_PROCESS, pid) < process.BUILD
        assert os.sched_getscheduler(pid) == os.SCHED_OTHER
        assert autogroup(pid) in (str(process.EXAMINE), None)
        assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "900"


def test_restrain_leaves_the_session_of_the_parent() -> None:
    before = autogroup(os.getpid())
    with restrained(session=False) as pid:
        assert autogroup(pid) == before
    assert autogroup(os.getpid()) == before


def test_restrain_unknown_machine_keeps_its_disk_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    monkeypatch.setattr(ctypes, "CDLL", None)
    process._yield_the_disk()


def test_restrain_covers_every_thread_of_a_build_child(tmp_path: Path) -> None:
    command = working("threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); time.sleep(60)")

    async def work() -> None:
        job = verification(tmp_path)
        task = asyncio.create_task(do(job, jobs.Verified, Limits(seconds=30, memory_mb=4096), command=command))
        await until(lambda: len(workers()) == 1, "the child")
        (pid,) = workers()
        await until(lambda: len(os.listdir(f"/proc/{pid}/task")) > 1, "its second thread")
        check(pid)
        for thread in os.listdir(f"/proc/{pid}/task"):
            assert os.getpriority(os.PRIO_PROCESS, int(thread)) >= 10
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(work())
