"""One-shot child processes: limits, ends, and cleanup."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import uvloop

from edged import process
from edged.backends import registry
from edged.backends.artefact import Artefact, FileRecord
from edged.backends.contract import Order, Recipe, Signature
from edged.config.child_limits import Limits
from edged.confinement.rules import Reach
from edged.engines import job_server
from edged.engines.child import ChildLost, sweep_scratch
from edged.engines.child import run as do
from edged.engines.child_watch import Patience
from edged.errors import (
    BuildFailed,
    EdgedError,
    EngineDamaged,
    EngineUnusable,
    InvalidInput,
    ModelRefused,
    Unsuitable,
    Unsupported,
)
from edged.ipc import job_messages as jobs
from edged.jobs import tasks
from edged.models.inspection import Inspection
from edged.tensors import Array, TensorSpec
from edged.verification import golden
from edged.verification.golden import Sample
from edged.verification.standard import TOLERANCES
from edged.vision.family import Recognition, Thresholds
from tests import models
from tests.waiting import children, descriptors, is_running, run, until, wait, workers

ENOUGH = Limits(seconds=30, memory_mb=4096)
SLOW = 60_000  # the null backend reads `threads` as milliseconds per inference

_PARENT = """
import asyncio, sys
import msgspec
from edged.ipc import job_messages as jobs
from edged.config.child_limits import Limits
from edged.engines.child import run
job = msgspec.json.decode(sys.argv[1], type=jobs.Job)
asyncio.run(run(job, jobs.Verified, Limits()))
"""


def order(folder: Path, *, milliseconds: int = 0, artefact: Artefact | None = None) -> Order:
    proto = models.identity()
    path = models.save(proto, folder / "model.onnx")
    return Order(str(path), models.signature(proto), Recipe("null", threads=milliseconds), artefact)


TENSORS = Recognition(None, "", None, "", (), Thresholds())  # no pictures


def checking(order: Order, golden_file: Path, reference: Order) -> jobs.Verify:
    return jobs.Verify(order, str(golden_file), reference, TOLERANCES["fp32"], TENSORS)


def verification(folder: Path, *, milliseconds: int = 0, artefact: Artefact | None = None) -> jobs.Verify:
    """Return a verification job of the null backend, which answers the mean of its inputs: correct for zeros."""
    zeros = np.zeros((1, 4), np.float32)
    golden.save(folder / "golden", [Sample({"x": zeros}, {"y": zeros})])
    mine = order(folder, milliseconds=milliseconds, artefact=artefact)
    return checking(mine, folder / "golden", order(folder))


@contextlib.asynccontextmanager
async def running(job: jobs.Job, answer: type[msgspec.Struct]) -> AsyncIterator[tuple[asyncio.Task[Any], int]]:
    """Run a job. Yield its task and the pid of its child; check that the child has ended."""
    before = children()
    task = asyncio.create_task(do(job, answer, ENOUGH))
    await until(lambda: len(workers()) == 1, "the child")
    (pid,) = workers()
    yield task, pid
    assert task.done()
    assert children() == before
    assert not is_running(pid)


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_run_returns_the_answer(tmp_path: Path) -> None:
    job = verification(tmp_path)
    assert run(do(job, jobs.Verified, ENOUGH)).verdict.accepted
    timed = run(do(jobs.Time(**msgspec.structs.asdict(job)), jobs.Timed, ENOUGH))
    assert [(speed.instances, speed.threads) for speed in timed.speeds] == [(1, 0)], "the null backend has one instance"
    (tmp_path / "out").mkdir()
    built = run(do(jobs.Build(order(tmp_path), str(tmp_path / "out"), TENSORS), jobs.Built, ENOUGH))
    assert built.artefact.load("engine.null") == b"all"
    assert built.peak_memory_mb > 1


def test_verify_engine_that_refuses_a_shape_is_unsuitable_and_names_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Narrow:
        def infer(self, inputs: object) -> dict[str, Array]:
            raise InvalidInput("input 'x' is 1x64, the engine takes 1x128")

    class Fixed:
        def open(self, order: Order) -> Narrow:
            return Narrow()

    monkeypatch.setattr(registry, "load", lambda name: Fixed())
    inputs = {"x": np.ones((1, 64), np.float32), "y": np.ones((7,), np.float32)}
    golden.save(tmp_path / "golden", [Sample(inputs, inputs)])
    specs = (TensorSpec("x", "FP32", ("n", "m")), TensorSpec("y", "FP32", (7,)))
    mine = msgspec.structs.replace(order(tmp_path), signature=Signature(specs, specs))
    with pytest.raises(Unsuitable) as refusal:
        tasks.do(checking(mine, tmp_path / "golden", mine), lambda progress: None)
    assert str(refusal.value) == (
        "the engine refuses shapes that the reference accepts, x 1x64, y 7: "
        "input 'x' is 1x64, the engine takes 1x128; change profile.x to accept these shapes"
    )


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ModelRefused, "gone.onnx"),
        (EngineUnusable, "NoSuchExecutionProvider"),
        (EngineDamaged, "engine.null"),
        (Unsupported, "unknown backend"),
        (BuildFailed, "golden answers"),
    ],
)
def test_run_error_of_the_child_keeps_its_class(tmp_path: Path, error: type[EdgedError], words: str) -> None:
    altered = Artefact(str(tmp_path), {"engine.null": FileRecord("0" * 64, 5)})
    work: dict[type[EdgedError], tuple[jobs.Job, type[msgspec.Struct]]] = {
        ModelRefused: (jobs.Inspect(str(tmp_path / "gone.onnx")), Inspection),
        EngineUnusable: (jobs.TryProvider("NoSuchExecutionProvider"), jobs.Done),
        EngineDamaged: (verification(tmp_path, artefact=altered), jobs.Verified),
        Unsupported: (jobs.LoadRuntime("tensorflow"), jobs.LoadedRuntime),
        BuildFailed: (checking(order(tmp_path), tmp_path / "no-golden", order(tmp_path)), jobs.Verified),
    }
    with pytest.raises(error, match=words) as raised:
        run(do(*work[error], ENOUGH))
    assert type(raised.value) is error


def test_run_silent_child_is_stopped_before_its_time_limit(tmp_path: Path) -> None:
    job = verification(tmp_path, milliseconds=SLOW)
    with pytest.raises(ChildLost) as lost:
        run(do(job, jobs.Verified, Limits(seconds=3600), patience=Patience(quiet_seconds=0.5)))
    assert lost.value.how == "late"


def test_run_child_over_its_time_limit_is_stopped_and_leaves_nothing(tmp_path: Path) -> None:
    job = verification(tmp_path, milliseconds=SLOW)
    before: list[tuple[int, set[int]]] = []
    for _ in range(2):  # descriptors that only the first run opens, such as the loop's child watcher, are no leak
        with pytest.raises(BuildFailed, match=r"took longer than 0\.5 s"):
            run(do(job, jobs.Verified, Limits(seconds=0.5)))
        before.append((descriptors(), children()))
    assert before[0] == before[1]


def test_run_child_over_its_memory_limit_is_a_failed_build() -> None:
    big = TensorSpec("x", "FP64", (1 << 28,))  # two gibibytes
    signature = Signature((big,), (TensorSpec("y", "FP32", (1,)),))
    job = jobs.MakeGolden(Order("", signature, Recipe("null")), "never", TENSORS)
    with pytest.raises(BuildFailed, match="memory"):
        run(do(job, jobs.Done, Limits(seconds=30, memory_mb=1500)))
    assert not Path("never").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
async def test_run_child_killed_by_a_signal_is_reported_by_its_name(tmp_path: Path, number: signal.Signals) -> None:
    async with running(verification(tmp_path, milliseconds=SLOW), jobs.Verified) as (task, pid):
        os.kill(pid, number)
        memory = ", perhaps by the kernel because memory ran out (see: journalctl -k)"
        perhaps = memory if number == signal.SIGKILL else ""
        with pytest.raises(BuildFailed, match=f"{re.escape(f'verify child was killed by {number.name}{perhaps}')}$"):
            await task


@pytest.mark.parametrize(("examines", "niceness"), [(True, process.EXAMINE), (False, process.BUILD)])
async def test_run_child_has_the_priority_of_its_job(tmp_path: Path, examines: bool, niceness: int) -> None:
    check = jobs.Check(order(tmp_path, milliseconds=SLOW), {"": 17}, 8, {}, TENSORS)
    job = check if examines else verification(tmp_path, milliseconds=SLOW)
    async with running(job, jobs.Checked if examines else jobs.Verified) as (task, pid):
        wanted = os.getpriority(os.PRIO_PROCESS, 0) + niceness
        await until(lambda: os.getpriority(os.PRIO_PROCESS, pid) == wanted, "a child that yields")
        await cancel(task)


@pytest.mark.parametrize("pause", [0.0, 0.001, 0.02, 0.2, None])
def test_run_cancelled_twice_or_early_leaves_nothing(tmp_path: Path, pause: float | None) -> None:
    job = verification(tmp_path, milliseconds=SLOW)

    async def cancelled() -> None:
        before, tasks = children(), asyncio.all_tasks()
        task = asyncio.create_task(do(job, jobs.Verified, ENOUGH))
        if pause is None:
            await until(lambda: bool(workers()), "the child")
        else:
            await asyncio.sleep(pause)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        await cancel(task)
        assert not any(is_running(pid) for pid in children() - before)
        await until(lambda: asyncio.all_tasks() == tasks, "the end of all tasks")

    run(cancelled())
    before = descriptors()
    run(cancelled())
    assert descriptors() <= before  # fewer if something of an earlier test was closed


def test_run_works_in_the_daemons_loop(tmp_path: Path) -> None:
    loop = uvloop.new_event_loop()
    try:
        for _ in range(2):
            assert loop.run_until_complete(do(verification(tmp_path), jobs.Verified, ENOUGH)).verdict.accepted
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def test_run_process_that_cannot_be_started_is_a_failed_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    job_server.SERVER.close()
    monkeypatch.setattr(subprocess, "Popen", refuse)
    before = descriptors()
    with pytest.raises(BuildFailed, match="cannot start the verify child: Resource temporarily unavailable"):
        run(do(verification(tmp_path), jobs.Verified, ENOUGH))
    assert descriptors() <= before  # fewer if something of an earlier test was closed


@contextlib.contextmanager
def parent_of(job: jobs.Job, **more: Any) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a job in another process. Yield that process and its child's pid; check that the child ends with it."""
    command = [sys.executable, "-c", _PARENT, msgspec.json.encode(job).decode()]
    with subprocess.Popen(command, **more) as parent:
        try:
            wait(lambda: bool(workers(parent.pid)), "the child")
            (child,) = workers(parent.pid)
            yield parent, child
        finally:
            parent.kill()
    wait(lambda: not is_running(child), "the end of the child", seconds=5)


def settle(child: int) -> None:
    """Wait until the child has set its priority. Before that, it has asked for a signal when its parent dies."""
    wait(lambda: os.getpriority(os.PRIO_PROCESS, child) >= 10, "the child's first steps")


def test_child_ends_with_its_killed_parent(tmp_path: Path) -> None:
    with parent_of(verification(tmp_path, milliseconds=SLOW)) as (_, child):
        settle(child)


@pytest.mark.parametrize("settled", [False, True])
def test_child_ends_after_ctrl_c_in_a_terminal(tmp_path: Path, settled: bool) -> None:
    """Ctrl-C signals the terminal's foreground group. The child is in another group, so the parent must stop it."""
    job = verification(tmp_path, milliseconds=SLOW)
    with parent_of(job, stderr=subprocess.PIPE, start_new_session=True) as (parent, child):
        if settled:
            settle(child)
        wait(lambda: os.getpgid(child) == child, "its own group")
        os.killpg(parent.pid, signal.SIGINT)
        parent.wait(10)


def test_run_unexpected_error_is_a_failed_build_with_the_last_line_of_its_output(tmp_path: Path) -> None:
    unknown = Order(str(tmp_path), Signature((TensorSpec("x", "NO_SUCH", (1,)),), ()), Recipe("null"))
    with pytest.raises(BuildFailed, match="makegolden child ended with status 1: KeyError"):
        run(do(jobs.MakeGolden(unknown, str(tmp_path / "out"), TENSORS), jobs.Done, ENOUGH))


async def test_child_with_an_invalid_job_ends_without_an_answer() -> None:
    arguments = ("1024", "1024", "0", Reach("off").argument())
    async with job_server.SERVER.child(b"nonsense", arguments) as child:
        assert child.stdout.read() == b""
        assert b"DecodeError" in child.stderr.read()
    assert child.returncode not in (0, 3)


@pytest.mark.parametrize(
    "text",
    [
        "stall_seconds = 0.0",
        "stall_seconds = -1",
        "stall_seconds = nan",
        "stall_seconds = inf",
        "disk_mb = -1",
        "x = 1",
    ],
)
def test_limits_refuse_values_out_of_range_and_unknown_names(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.toml.decode(text, type=Limits)


def test_temporary_folders_of_an_earlier_process_with_this_id_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container, the daemon has the same process id after each start."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for owner in (os.getpid(), os.getppid(), 1 << 30):
        (tmp_path / f"edged-{owner}-abc").mkdir()
    sweep_scratch()
    assert [path.name for path in tmp_path.iterdir()] == [f"edged-{os.getppid()}-abc"]
