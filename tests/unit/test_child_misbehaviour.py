"""Children that stall, flood, grow, or leave processes behind. Each child is a script."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import textwrap
import time
import tracemalloc
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from edged.backends.contract import Order, Recipe, Signature
from edged.config.child_limits import Limits
from edged.confinement import rules
from edged.engines import child
from edged.errors import BuildFailed, EngineUnusable
from edged.ipc import job_messages as jobs
from tests.unit.test_child import TENSORS
from tests.waiting import children, descriptors, is_running, run, until

ENOUGH = Limits(seconds=30, memory_mb=4096)
ORDER = Order("/none", Signature((), ()), Recipe("null"))
_BEGIN = """
import os, signal, subprocess, sys, threading, time
from edged.ipc import job_messages as jobs
from edged.jobs import main as worker, tasks
from edged.errors import EngineUnusable
PYTHON = [sys.executable, "-c"]
NAP = [*PYTHON, "import time; time.sleep(60)"]
def note(*pids):
    with open(job.path, "w") as file: file.write(" ".join(map(str, pids)))
"""
_END = """
def do(asked, tell):
    global job
    job = asked
    return work(tell) or jobs.Done()
tasks.do = do
worker.run(sys.argv[1:])
"""


def working(body: str) -> list[str]:
    """Return the command of a worker with this body. It can report with `tell`, and `note` numbers in `job.path`."""
    body = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    return [sys.executable, "-c", f"{_BEGIN}def work(tell):\n{body}\n{_END}"]


def raw(body: str) -> list[str]:
    """Return the command of a child without the worker's protocol; `send(kind, payload)` writes one frame."""
    frame = "send = lambda kind, payload: os.write(1, kind + len(payload).to_bytes(4, 'little') + payload)"
    return [sys.executable, "-c", f"import os, time\n{frame}\n{textwrap.dedent(body).strip()}"]


def do(
    command: list[str], limits: Limits = ENOUGH, tell: child.OnProgress | None = None, path: Path = Path("/none")
) -> Coroutine[Any, Any, jobs.Done]:
    return child.run(jobs.Inspect(str(path)), jobs.Done, limits, on_progress=tell, command=command)


def failure(command: list[str], limits: Limits = ENOUGH, path: Path = Path("/none")) -> str:
    """Return the message of the child's BuildFailed. Check that no task, process or descriptor is left."""
    before = descriptors(), children()

    async def fail() -> str:
        tasks = asyncio.all_tasks()
        with pytest.raises(BuildFailed) as raised:
            await do(command, limits, path=path)
        assert asyncio.all_tasks() == tasks
        assert children() <= before[1]
        return str(raised.value)

    message = run(fail())
    assert descriptors() <= before[0]  # fewer if the garbage collector closed some of an earlier test
    return message


def noted(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()] if path.exists() else []


@pytest.fixture(autouse=True)
def unconfined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn confinement off, as on a kernel without seccomp, so that children can start processes."""
    monkeypatch.setattr(rules, "_mode", "off")


# -- messages -------------------------------------------------------------------------------------------------------


def test_run_reports_progress_at_once_and_at_a_bounded_rate() -> None:
    received: list[tuple[float, jobs.Progress]] = []
    body = """
        for phase in ("parsing", "building"):
            for count in range(20000):
                tell(jobs.Progress(phase, count / 19999))
        time.sleep(0.6)
        tell(jobs.Progress("checking"))
        time.sleep(0.6)
    """
    run(do(working(body), tell=lambda progress: received.append((time.monotonic(), progress))))
    phases = [progress.phase for _, progress in received]
    assert list(dict.fromkeys(phases)) == ["parsing", "building", "checking"]
    assert len(received) < 30
    for phase in ("parsing", "building"):
        assert [progress.fraction for _, progress in received if progress.phase == phase][-1] == 1.0
    assert received[-1][0] - received[0][0] > 0.4  # not all of them at the end


def test_run_child_that_floods_with_progress_is_stopped() -> None:
    received: list[jobs.Progress] = []
    flood = raw('word = b\'{"type":"Progress","phase":"x"}\'\nwhile True: send(b\'P\', word)')
    with pytest.raises(child.ChildLost):
        run(do(flood, tell=received.append))
    assert 0 < len(received) < 2000


def test_run_error_in_on_progress_is_raised_and_stops_the_child() -> None:
    def tell(_: jobs.Progress) -> None:
        raise ZeroDivisionError("mine")

    before = children()
    with pytest.raises(ZeroDivisionError, match="mine"):
        run(do(working("tell(jobs.Progress('x')); time.sleep(60)"), tell=tell))
    assert children() <= before


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("print('Loading plugin...')", "was stopped, because it sent byte 0x4c instead of the start of a message"),
        ("os.write(1, bytes(200))", "sent byte 0x00"),
        ("os.write(1, b'P' + (65537).to_bytes(4, 'little')); time.sleep(60)", "sent a message of 65537 bytes"),
        ("os.write(1, b'A\\xff\\xff\\xff\\xff')\nwhile True: os.write(1, bytes(4096))", "of 4294967295 bytes"),
        ("send(b'P', b'{')", "sent an invalid progress"),
        ("send(b'P', b'[' * 60000)", "sent an invalid progress"),
        ('send(b\'P\', b\'{"type":"Progress","phase":"x","more":\' + b\'[\' * 60000)', "invalid progress"),
        ("send(b'A', b'')", "cannot parse the answer"),
        ("send(b'A', b'[1, 2]')", "cannot parse the answer"),
        ("send(b'A', b'{\"x\":' + b'[' * 1000000)", "cannot parse the answer"),
        ("send(b'A', b'\\xff\\xfe')", "cannot parse the answer"),
        ("send(b'F', b'null')", "cannot parse the answer"),
        ('send(b\'F\', b\'{"error": "annotations", "message": "odd"}\')', "odd"),
        ('send(b\'F\', b\'{"error": "__doc__", "message": "odd"}\')', "odd"),
        ("os.write(1, b'A\\x10\\0\\0\\0half'); os._exit(0)", "ended with status 0"),
        ("os._exit(0)", "ended with status 0"),
        ("os._exit(3)", "ended with status 3"),
        ("os.close(1); time.sleep(60)", "because it closed its channel without an answer"),
    ],
)
def test_run_invalid_message_is_a_failed_build(body: str, words: str) -> None:
    message = failure(raw(body))
    assert words in message
    assert "\n" not in message


def test_run_ends_with_the_answer_even_if_the_child_continues() -> None:
    begun = time.monotonic()
    assert run(do(raw("send(b'A', b'{}'); os.write(1, b'garbage'); time.sleep(60)"))) == jobs.Done()
    assert time.monotonic() - begun < 10


def test_run_answer_over_the_size_limit_is_a_failed_build() -> None:
    body = "return jobs.Failure('x', 'y' * (65 << 20))"
    assert failure(working(body)) == (
        "a message of the child process (Failure) has 68157466 bytes, more than the limit of 4194304 bytes"
    )


def test_run_large_output_is_read_without_blocking_or_keeping_it() -> None:
    noise = "for _ in range(160): sys.stderr.buffer.write(b'w' * 65536)\nprint('noise on descriptor one')"
    assert run(do(working(noise))) == jobs.Done()
    tracemalloc.start()
    try:
        message = failure(working(f"{noise}\nraise RuntimeError('the ' + 'last ' * 3 + 'words')"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert message == "inspect child ended with status 1: RuntimeError: the last last last words"
    assert peak < 2 << 20


# -- signs of life --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "lock = threading.Lock(); lock.acquire(); lock.acquire()",
        """
        def tick():
            while True: time.sleep(0.1)
        threading.Thread(target=tick, daemon=True).start()
        lock = threading.Lock(); lock.acquire(); lock.acquire()
        """,
        "os.read(os.pipe()[0], 1)",
        "subprocess.run(NAP)",
    ],
    ids=[
        "stopped",
        "deadlocked",
        "deadlocked next to a thread that ticks",
        "waits for ever",
        "waits for one that waits",
    ],
)
def test_run_inactive_child_is_stopped(body: str) -> None:
    begun = time.monotonic()
    message = failure(working(body), Limits(seconds=60, stall_seconds=3))
    assert message == "inspect child was stopped, because it was inactive for 3 s"
    assert time.monotonic() - begun < 15


@pytest.mark.parametrize(
    "body",
    [
        "end = time.monotonic() + 3.5\nwhile time.monotonic() < end: pass",
        "sum(range(2 * 10 ** 8))",  # in C code that holds the GIL all the time
        "for count in range(35):\n    tell(jobs.Progress(str(count)))\n    time.sleep(0.1)",
        "subprocess.run([*PYTHON, 'import time\\nwhile time.process_time() < 3.5: pass'])",
    ],
    ids=["busy", "holds the lock", "tells", "waits for one that works"],
)
def test_run_child_that_works_or_reports_is_alive(body: str) -> None:
    assert run(do(working(body), Limits(seconds=30, stall_seconds=2))) == jobs.Done()


# -- limits ---------------------------------------------------------------------------------------------------------

_THREE = """
grow = [*PYTHON, "import time; kept = b'x' * (250 << 20); time.sleep(60)"]
started = [subprocess.Popen(grow) for _ in range(3)]
note(*(process.pid for process in started))
time.sleep(60)
"""


def test_run_counts_the_memory_of_processes_that_the_child_starts(tmp_path: Path) -> None:
    message = failure(working(_THREE), Limits(seconds=30, memory_mb=600), tmp_path / "pids")
    assert message == "inspect child was stopped, because it used more than 600 MiB of memory"
    assert len(noted(tmp_path / "pids")) == 3
    assert not any(is_running(pid) for pid in noted(tmp_path / "pids"))


def test_run_counts_shared_memory_once() -> None:
    body = """
        kept = b"x" * (300 << 20)
        for _ in range(3):
            if os.fork() == 0:
                time.sleep(60)
        time.sleep(1.5)
    """
    assert run(do(working(body), Limits(seconds=30, memory_mb=600))) == jobs.Done()


@pytest.mark.parametrize(
    "write",
    [
        "open(file, 'wb').write(bytes(2 << 20))",
        "try: open(file, 'wb').write(bytes(2 << 20))\nexcept OSError: raise EngineUnusable('no') from None",
        "subprocess.run(['sh', '-c', f'head -c 2000000 /dev/zero > {file}'], stderr=subprocess.DEVNULL)",
    ],
    ids=["raised", "raised as another error", "not raised"],
)
def test_run_file_beyond_the_limit_is_a_failed_build(tmp_path: Path, write: str) -> None:
    command = working(f"file = job.out + '/engine'\n{write}")
    job = jobs.Build(ORDER, str(tmp_path), TENSORS)
    with pytest.raises(BuildFailed, match=r"its limit of 1 MiB; if build\.disk_mb is 1"):
        run(child.run(job, jobs.Done, Limits(seconds=30, disk_mb=1), command=command))
    assert run(child.run(job, jobs.Done, Limits(seconds=30, disk_mb=3), command=command)) == jobs.Done()


def test_run_file_beyond_a_fixed_limit_names_no_setting(tmp_path: Path) -> None:
    command = working("open(job.out + '/0.jpg', 'wb').write(bytes(2 << 20))")
    with pytest.raises(BuildFailed) as raised:
        run(child.run(jobs.Sift(str(tmp_path), ()), jobs.Done, Limits(seconds=30, disk_mb=1), command=command))
    assert "its limit of 1 MiB" in str(raised.value)
    assert "build.disk_mb" not in str(raised.value)


# -- processes of the child -----------------------------------------------------------------------------------------

_FAMILY = """
plain, apart = subprocess.Popen(NAP), subprocess.Popen(NAP, start_new_session=True)
orphan = subprocess.run(
    [*PYTHON, f"import subprocess; print(subprocess.Popen({NAP!r}, stdout=-3, stderr=-3).pid)"], capture_output=True)
note(plain.pid, apart.pid, int(orphan.stdout))
"""


@pytest.mark.parametrize(
    ("rest", "limits", "error"),
    [
        ("pass", ENOUGH, None),
        ("raise EngineUnusable('no')", ENOUGH, EngineUnusable),
        ("time.sleep(60)", Limits(seconds=6), BuildFailed),
        ("time.sleep(60)", Limits(seconds=60, stall_seconds=3), BuildFailed),
        ("time.sleep(60)", ENOUGH, asyncio.CancelledError),
    ],
    ids=["answer", "failure", "time", "stall", "cancelled"],
)
async def test_run_leaves_no_process_that_the_child_started(
    tmp_path: Path, rest: str, limits: Limits, error: type[BaseException] | None
) -> None:
    path = tmp_path / "pids"
    task = asyncio.create_task(do(working(_FAMILY + rest), limits, path=path))
    if error is asyncio.CancelledError:
        await until(lambda: len(noted(path)) == 3, "the family")
        task.cancel()
    with pytest.raises(error) if error is not None else contextlib.nullcontext():
        await task
    assert len(noted(path)) == 3
    await until(lambda: not any(is_running(pid) for pid in noted(path)), "the end of the family", seconds=10)


def test_run_child_that_crashes_logs_a_traceback_and_raises_its_last_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "edged")
    command = [sys.executable, "-c", f"{_BEGIN}tasks.do = lambda *job: (os.write(2, b'last words\\n'), crash())\n"]
    command[2] += "def crash(): os.kill(os.getpid(), signal.SIGSEGV)\nworker.run(sys.argv[1:])"
    assert failure(command).endswith("was killed by SIGSEGV: last words")
    reported = [record.getMessage() for record in caplog.records]
    assert "Fatal Python error: Segmentation fault" in reported
    assert any(line.endswith("in crash") for line in reported)


@pytest.mark.parametrize("end", ["os._exit(5)", "os.kill(os.getpid(), signal.SIGSEGV)"])
def test_run_crashed_child_leaves_no_process_of_its_session(tmp_path: Path, end: str) -> None:
    """A process in another session is found only through its parent, which is missing after a crash."""
    body = "plain = subprocess.Popen(NAP)\nnote(plain.pid)\nif os.fork() == 0: time.sleep(60)\n" + end
    begun = time.monotonic()
    message = failure(working(body), path=tmp_path / "pids")
    assert ("ended with status 5" if "exit" in end else "was killed by SIGSEGV") in message
    assert not any(is_running(pid) for pid in noted(tmp_path / "pids"))
    assert time.monotonic() - begun < 10  # although the forked process held the channel open


def test_run_does_not_wait_for_a_daemonized_process_that_holds_the_pipes(tmp_path: Path) -> None:
    body = """
        first, second = os.pipe()
        if os.fork() == 0:
            os.setsid()
            note(os.getpid())
            os.write(second, b".")
            time.sleep(60)
        os.read(first, 1)
        print("bye", flush=True)
        os._exit(7)
    """
    begun = time.monotonic()
    try:
        assert failure(working(body), path=tmp_path / "pids") == "inspect child ended with status 7: bye"
        assert time.monotonic() - begun < 10
    finally:
        for pid in noted(tmp_path / "pids"):
            os.kill(pid, signal.SIGKILL)
