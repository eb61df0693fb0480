"""Whether a host makes progress, from looks at its process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable

import pytest

from edged.serving.host_process import Progress, ProgressTimes, Sign, read
from tests.waiting import wait

IDLE = Sign("S", 1, (1, 1, 1, 1))


def looked(signs: Iterable[Sign | None], step: float = 0.2, *, is_busy: bool = True) -> Progress:
    progress = Progress()
    for number, sign in enumerate(signs):
        progress.look(number * step, sign, is_busy=is_busy)
    return progress


def looks(seconds: float, step: float = 0.2) -> int:
    return int(seconds / step) + 3


def test_stopped_process_is_noticed_after_a_moment() -> None:
    stopped = Sign("T", 1, IDLE.work)
    assert not looked([stopped] * 3).is_stopped
    assert looked([stopped] * looks(ProgressTimes().stopped)).is_stopped
    assert not looked([*[stopped] * 4, IDLE, *[stopped] * 3]).is_stopped


def test_process_that_is_stopped_and_continued_again_and_again_is_only_slow() -> None:
    assert not looked(Sign("T", number, IDLE.work) for number in range(200)).is_stopped


def test_silent_process_that_does_nothing_is_asked_and_then_stuck() -> None:
    assert looked([IDLE] * looks(1)).should_ping
    assert not looked([IDLE] * looks(1)).is_stuck
    assert looked([IDLE] * looks(ProgressTimes().silent)).is_stuck


@pytest.mark.parametrize("field", range(4))
def test_process_that_works_is_never_stuck(field: int) -> None:
    signs = (Sign("S", 1, tuple(number // 10 * (place == field) for place in range(4))) for number in range(200))
    assert not looked(signs).is_stuck


@pytest.mark.parametrize("state", ["R", "D"])
def test_process_that_wants_a_processor_or_waits_for_a_disk_is_never_stuck(state: str) -> None:
    assert not looked([Sign(state, 1, IDLE.work)] * 200).is_stuck


def test_process_without_work_is_never_stuck_or_stopped() -> None:
    progress = looked([Sign("T", 1, IDLE.work)] * 200, is_busy=False)
    assert not progress.is_stopped
    assert not progress.is_stuck


def test_pause_of_the_daemon_itself_counts_little() -> None:
    assert not looked([Sign("T", 1, IDLE.work)] * 3, step=3600).is_stuck
    assert not looked([Sign("T", 1, IDLE.work)] * 2, step=3600).is_stopped


def test_answer_ends_the_silence() -> None:
    progress = looked([IDLE] * looks(ProgressTimes().silent))
    progress.heard()
    assert not progress.is_stuck


def test_process_that_is_gone_has_no_sign() -> None:
    assert read(2**22 + 1) is None
    mine = read(os.getpid())
    assert mine is not None
    assert mine.state == "R"
    assert sum(mine.work) > 0


def test_process_with_a_thread_that_works_is_seen_as_working() -> None:
    code = "import hashlib, threading, time\n"
    code += "threading.Thread(target=lambda: hashlib.pbkdf2_hmac('sha256', b'', b'', 1 << 30), daemon=True).start()\n"
    code += "print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()

        def is_seen() -> bool:
            first, every = read(child.pid), read(child.pid, threads=True)
            return first is not None and every is not None and (first.state, every.state) == ("S", "D")

        try:
            wait(is_seen, "its first thread sleeps and the other works")
        finally:
            child.kill()
