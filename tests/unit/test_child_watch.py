"""The watch on a child: when it is stopped for memory or silence, and how long it may be silent."""

from __future__ import annotations

import itertools
import os
import resource
import subprocess
import sys
import threading

import msgspec
import pytest

from edged.config.child_limits import Limits
from edged.engines import child_watch as watch
from edged.engines.child_watch import Family, Usage, Watch, patience, quiet_seconds
from edged.models.model import Model
from tests.unit.control_room import model

_SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def silence(guard: Watch, seconds: int, *, used: float = 0.0) -> str:
    """Return the verdict after some silent seconds, in each of which the child used `used` s of processor time."""
    cpu, reason = 50.0, ""
    guard.judge(Usage(cpu, 1.0, 1), 1.0)
    guard.received()
    for _ in range(seconds):
        cpu += used
        reason = reason or guard.judge(Usage(cpu, 1.0, 1), 1.0)
    return reason


def test_watch_idle_child_is_stopped_at_the_limit() -> None:
    assert silence(Watch(100, 600), 599) == ""
    assert silence(Watch(100, 600), 600) == "was inactive for 600 s"


@pytest.mark.parametrize(("used", "stopped"), [(0.0005, True), (0.002, True), (0.01, False), (1.0, False)])
def test_watch_polling_thread_is_not_a_sign_of_life(used: float, stopped: bool) -> None:
    assert bool(silence(Watch(100, 600), 7200, used=used)) is stopped


def test_watch_message_is_a_sign_of_life() -> None:
    guard = Watch(100, 10)
    for _ in range(10):
        assert silence(guard, 9) == ""
    assert silence(guard, 10) != ""


@pytest.mark.parametrize(
    ("used", "wants", "stopped"),
    [
        (1.0, True, True),  # computes
        (4.0, True, True),  # computes with several threads
        (0.1, True, False),  # other processes use the processors: it got 30 s
        (0.1, False, True),  # waits for something else
    ],
)
def test_watch_silent_child_is_stopped_by_its_processor_time(used: float, wants: bool, stopped: bool) -> None:
    guard = Watch(100, 600, quiet_seconds=120)
    cpu = itertools.accumulate(itertools.repeat(used))
    reasons = [guard.judge(Usage(next(cpu), 10.0, 1, wants), 1.0) for _ in range(300)]
    assert any(reasons) is stopped
    if stopped:
        assert reasons.index(next(filter(None, reasons))) == 119


def test_watch_child_that_reports_progress_may_continue() -> None:
    guard = Watch(100, 600, quiet_seconds=120)
    for second in range(7200):
        if second % 100 == 0:
            guard.received()
        assert guard.judge(Usage(float(second), 10.0, 1, True), 1.0) == ""


def test_watch_processor_time_of_an_ended_process_is_ignored() -> None:
    guard = Watch(100, 10)
    guard.judge(Usage(1000.0, 1.0, 2), 1.0)
    guard.judge(Usage(1.0, 1.0, 1), 1.0)  # a busy grandchild was killed, and its time is not counted any more
    for second in range(30):
        assert guard.judge(Usage(1.0 + second, 1.0, 1), 1.0) == ""


def test_watch_memory_over_the_limit_in_several_processes_must_last_two_looks() -> None:
    assert Watch(100, 600).judge(Usage(0.0, 101.0, 1), 0.25) == "used more than 100 MiB of memory"
    guard = Watch(100, 600)
    assert guard.judge(Usage(0.0, 190.0, 2), 0.25) == ""  # a fork: for an instant the pages of the parent count twice
    assert guard.judge(Usage(0.0, 95.0, 1), 0.25) == ""
    assert guard.judge(Usage(0.0, 190.0, 2), 0.25) == ""
    assert "memory" in guard.judge(Usage(0.0, 190.0, 2), 0.25)


def test_read_process_matches_its_state() -> None:
    reading = watch.read(os.getpid())
    assert reading is not None
    assert (reading.parent, reading.session) == (os.getppid(), os.getsid(0))
    assert reading.cpu_seconds == pytest.approx(sum(os.times()[:4]), abs=0.1)
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    assert reading.resident_mb == pytest.approx(resident, rel=0.1)


def test_read_process_name_with_brackets_is_parsed() -> None:
    rename = "open('/proc/self/comm', 'w').write(') R 1 1 1 (')\n"
    with subprocess.Popen([sys.executable, "-c", f"{rename}print(flush=True)\n{_SLEEP[2]}"], stdout=-1) as odd:
        assert odd.stdout is not None
        odd.stdout.readline()
        reading = watch.read(odd.pid)
        odd.kill()
    assert reading is not None
    assert reading.parent == os.getpid()


def test_read_ended_process_returns_none() -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    assert watch.read(process.pid) is None
    assert Family(process.pid, 100).measure() == Usage(0.0, 0.0, 0)


def test_family_while_processes_come_and_go_is_found() -> None:
    """Processes start and end while /proc is read."""
    stop = threading.Event()

    def bustle() -> None:
        while not stop.is_set():
            subprocess.run(["true"], check=True)

    thread = threading.Thread(target=bustle)
    thread.start()
    try:
        for _ in range(50):
            assert os.getpid() in watch.family(os.getpid())
    finally:
        stop.set()
        thread.join()


def test_measure_without_free_descriptor_keeps_known_family() -> None:
    family = Family(os.getpid(), 1 << 20)
    family.measure()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/proc/self/stat", os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        for _ in range(5):  # every few calls it looks for new processes
            family.measure()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert family.measure().processes >= 1


MB = 1 << 20


def of(size_mb: int, nodes: int) -> Model:
    known = model()
    inspection = msgspec.structs.replace(known.inspection, size=size_mb * MB, operators={"Conv": nodes})
    return msgspec.structs.replace(known, inspection=inspection)


@pytest.mark.parametrize(
    ("size_mb", "nodes", "trial", "least", "most"),
    [
        (0, 75, 0.01, 120, 180),  # a few nested Ifs
        (12, 250, 0.1, 120, 300),  # a small detector
        (12, 250, 5.0, 600, 900),  # the same on a board that was slow in admission
        (1200, 3000, 4.0, 1500, 3600),  # a large transformer
    ],
)
def test_quiet_seconds_follow_size_nodes_and_trial(
    size_mb: int, nodes: int, trial: float, least: float, most: float
) -> None:
    assert least <= quiet_seconds(of(size_mb, nodes), trial) <= most


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_patience_with_a_silent_compiler_never_exceeds_the_limit(backend: str) -> None:
    short = Limits(seconds=60)
    assert patience(of(12, 250), backend, 0.1, short).quiet_seconds == 60
    usual = patience(of(12, 250), backend, 0.1, Limits())
    assert usual.quiet_seconds == usual.step_seconds < Limits().seconds / 10
    assert usual.progress_seconds == 0


@pytest.mark.parametrize("backend", ["tensorrt", "tensorrt_rtx"])
def test_patience_with_tensorrt_lasts_to_the_limit_and_longer_with_progress(backend: str) -> None:
    limits = Limits()
    given = patience(of(12, 250), backend, 0.1, limits)
    assert given.quiet_seconds == limits.seconds
    assert given.step_seconds == limits.stall_seconds
    assert given.progress_seconds >= limits.seconds
