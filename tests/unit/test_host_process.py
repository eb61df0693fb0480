"""An engine host's process: progress, deadlines of jobs, cause of its end, and the pause before a restart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable

import pytest

from edged.models.limits import Bounds
from edged.serving.host_process import End, Progress, ProgressTimes, Sign, end_of, read
from edged.serving.hosts import pause
from edged.serving.link import HostSession, Tenant
from tests.waiting import wait

IDLE = Sign("S", 1, (1, 1, 1, 1))


def looked(signs: Iterable[Sign | None], step: float = 0.2, *, is_busy: bool = True) -> Progress:
    progress = Progress()
    for number, sign in enumerate(signs):
        progress.look(number * step, sign, is_busy=is_busy)
    return progress


def looks(seconds: float, step: float = 0.2) -> int:
    return int(seconds / step) + 3


STOPPED = Sign("T", 1, IDLE.work)


@pytest.mark.parametrize(
    ("signs", "is_stopped", "is_stuck"),
    [
        ([STOPPED] * 3, False, False),
        ([STOPPED] * looks(ProgressTimes().stopped), True, False),
        ([*[STOPPED] * 4, IDLE, *[STOPPED] * 3], False, False),
        ([Sign("T", number, IDLE.work) for number in range(200)], False, True),
        ([IDLE] * looks(1), False, False),
        ([IDLE] * looks(ProgressTimes().silent), False, True),
        *(
            (
                [Sign("S", 1, tuple(number // 10 * (place == field) for place in range(4))) for number in range(200)],
                False,
                False,
            )
            for field in range(4)
        ),
        ([Sign("R", 1, IDLE.work)] * 200, False, False),
        ([Sign("D", 1, IDLE.work)] * 200, False, False),
    ],
    ids=[
        *("stopped for a moment", "stopped", "continued", "stopped and continued all the time", "silent for a moment"),
        *("silent", "minor faults", "major faults", "user time", "system time", "ready to run", "waits for a disk"),
    ],
)
def test_progress_of_a_busy_process_is_stopped_stuck_or_fine(
    signs: list[Sign], is_stopped: bool, is_stuck: bool
) -> None:
    progress = looked(signs)
    assert (progress.is_stopped, progress.is_stuck) == (is_stopped, is_stuck)


def test_progress_without_work_or_after_a_pause_of_the_daemon_is_not_judged() -> None:
    for progress in (looked([STOPPED] * 200, is_busy=False), looked([STOPPED] * 2, step=3600)):
        assert (progress.is_stopped, progress.is_stuck) == (False, False)


def test_progress_silent_process_is_pinged_and_its_answer_ends_the_silence() -> None:
    assert looked([IDLE] * looks(1)).should_ping
    progress = looked([IDLE] * looks(ProgressTimes().silent))
    progress.received()
    assert not progress.is_stuck


def test_read_returns_the_state_of_a_process_or_none() -> None:
    assert read(2**22 + 1) is None
    mine = read(os.getpid())
    assert mine is not None
    assert mine.state == "R"
    assert sum(mine.work) > 0


def test_read_with_threads_includes_the_work_of_every_thread() -> None:
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


# -- deadlines of jobs ------------------------------------------------------------------------------------------------

GRACE = 2.0


def session(*jobs: tuple[int, float], instances: int = 1) -> HostSession:
    """Return a session with a limit of 10 seconds per job, and these jobs: (number, time of submission)."""
    made = HostSession(1, Tenant(bounds=Bounds(seconds=10.0)), instances=instances)
    for job, now in jobs:
        made.give(job, now)
    return made


def test_deadline_begins_when_the_job_before_is_answered() -> None:
    one = session((5, 0), (6, 1))
    assert one.overdue(10, GRACE) == ("", 0)
    assert not one.end(5, now=10)
    assert one.overdue(20, GRACE) == ("", 0)
    assert one.late(23) == 3
    assert one.overdue(20.1, GRACE) == ("stop", 6)
    assert session().overdue(1e9, GRACE) == ("", 0)


def test_deadline_stops_a_job_once_and_gives_up_after_the_grace_period() -> None:
    one = session((5, 0), (6, 0))
    assert [one.overdue(now, GRACE)[0] for now in (10.5, 12.5, 12.6, 12.7)] == ["stop", "", "hopeless", "hopeless"]
    assert one.end(5, now=13)
    assert one.overdue(23, GRACE) == ("", 0)
    assert not one.end(6, now=23)


def test_deadline_is_not_changed_by_an_answer_out_of_order() -> None:
    one = session((5, 0), (6, 0))
    assert not one.end(6, now=9)  # its inputs were refused, which the staging thread reports earlier
    assert one.overdue(11, GRACE) == ("stop", 5)


def test_deadlines_of_several_instances_begin_as_soon_as_one_is_free() -> None:
    two = session((5, 0), (6, 1), (7, 2), instances=2)
    assert not two.end(6, now=4)  # job 7 begins
    assert two.late(10.5) == 0.5
    assert [two.overdue(now, GRACE) for now in (10.5, 14.5)] == [("stop", 5), ("hopeless", 5)]
    assert two.end(5, now=14.6)
    assert two.overdue(14.6, GRACE) == ("stop", 7)


# -- ends and restarts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "is_out_of_memory", "end"),
    [
        *((-number, False, End.WORK) for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)),
        *((-number, True, End.WORK) for number in (signal.SIGFPE, signal.SIGSYS, signal.SIGTRAP)),
        *((status, True, End.WORK) for status in (0, 1, 137, None)),
        *((-number, False, End.OUTSIDE) for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)),
        (-signal.SIGKILL, True, End.MEMORY),
        (-signal.SIGTERM, True, End.OUTSIDE),
    ],
)
def test_end_of_a_process_follows_from_status_and_kernel_kills(
    status: int | None, is_out_of_memory: bool, end: End
) -> None:
    assert end_of(status, is_out_of_memory=is_out_of_memory) is end


@pytest.mark.parametrize(("has_room", "longest"), [(True, 2.0), (False, 30.0)])
def test_pause_grows_with_deaths_up_to_a_limit(has_room: bool, longest: float) -> None:
    pauses = [pause(deaths, has_room=has_room) for deaths in range(1, 20)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.0, longest)


def test_session_job_of_several_runs_may_take_as_many_times_as_long() -> None:
    made = session()
    made.give(1, 0.0, runs=8)
    made.give(2, 0.0)
    assert made.overdue(79.0, grace=2.0) == ("", 0)
    assert made.late(79.0) < 0
    assert made.overdue(81.0, grace=2.0) == ("stop", 1)
    made.end(1, 81.0)
    assert made.overdue(92.0, grace=2.0) == ("stop", 2)
