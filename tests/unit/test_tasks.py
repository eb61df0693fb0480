"""Long-lived tasks: an unexpected end is logged and counted, and the work is started again."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

import edged
from edged import tasks
from edged.tasks import TaskGroup
from tests.waiting import run, until

# Modules that start tasks without `tasks.keep`, with the reason: the task is awaited or cancelled where it is started,
# it answers one client or peer and reports every error to it, or its owner handles its end.
_OTHERS = {
    "engines/child.py": "one child, awaited",
    "cli": "a program of its own",
    "client": "a program of its own",
    "demo": "a program of its own",
    "tasks.py": "one-shot tasks, counted there",
    "engines/loader.py": "shielded, awaited by its command",
    "doctor/check.py": "a program of its own",
    "api/grpc/cameras.py": "the reader of a call, awaited with it",
    "api/endpoints/frigate.py": "one request; logs unexpected errors",
    "api/inference/service.py": "one request of a call",
    "serving/ensemble_run.py": "the steps of one request, awaited with it",
    "api/grpc/listener.py": "one connection or call",
    "api/http/app.py": "one request",
    "api/http/bodies.py": "one request",
    "api/page/app.py": "one request",
    "api/http/server.py": "awaited by the listener",
    "api/grpc/server.py": "closing of a listener, gathered at the stop",
    "api/endpoints/zmq_frames.py": "one peer; logs unexpected errors",
    "serving/host_process.py": "the end of a process",
    "serving/hosts.py": "shielded, awaited by its callers",
    "fleet/leases.py": "renewals of one lease, which fail without harm; ended by its release",
    "language/model.py": "requests of a host that no longer serves, and waits; a failure is that of the host",
    "language/host.py": "the watcher of a host, which ends with it",
    "api/http/streamed.py": "the body of one response; its error is the end of the body",
    "serving/tracking.py": "one process, from start to end; started again by the next frame",
}


def test_keep_work_that_fails_is_counted_and_started_again() -> None:
    began: list[int] = []

    async def work() -> None:
        began.append(1)
        if len(began) < 3:
            raise RuntimeError("a bug")

    async def story() -> None:
        before = tasks.FAILURES["test"]
        await asyncio.wait_for(tasks.keep("test", work), 20)
        assert len(began) == 3
        assert tasks.FAILURES["test"] == before + 2

    run(story())


def test_keep_cancelled_task_ends() -> None:
    async def story() -> None:
        task = tasks.keep("test", lambda: asyncio.sleep(3600))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    run(story())


def test_task_group_unexpected_end_is_counted_by_name() -> None:
    async def broken() -> None:
        raise RuntimeError("a bug")

    async def story() -> None:
        ended: list[int] = []
        TaskGroup(lambda: ended.append(1)).start(broken())
        await until(lambda: ended != [], "the task has ended")
        assert any(name.endswith("broken") for name in tasks.FAILURES)

    run(story())


def test_count_callbacks_failure_in_a_callback_is_counted() -> None:
    def broken() -> None:
        raise RuntimeError("a bug")

    async def story() -> None:
        tasks.count_callbacks()
        before = tasks.FAILURES["callback"]
        asyncio.get_running_loop().call_soon(broken)
        await until(lambda: tasks.FAILURES["callback"] > before, "the failure is counted")

    run(story())


def test_tasks_without_keep_have_a_reason() -> None:
    root = Path(edged.__file__).parent
    starts = re.compile(r"\b(create_task|ensure_future)\(")
    found = {str(file.relative_to(root)) for file in root.rglob("*.py") if starts.search(file.read_text())}
    unknown = {file for file in found if file not in _OTHERS and file.partition("/")[0] not in _OTHERS}
    assert not unknown, "start it by edged.tasks.keep, or add the reason to _OTHERS"


def test_until_set_cancelled_together_with_its_event_is_cancelled() -> None:
    async def scenario(turns: int) -> None:
        event = asyncio.Event()
        waiting = asyncio.create_task(tasks.until_set(event, 60))
        await asyncio.sleep(0.001)
        event.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        is_asked = waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled() is is_asked

    for turns in range(5):
        run(scenario(turns))


def test_until_set_of_an_event_that_is_never_set_ends_in_time() -> None:
    run(tasks.until_set(asyncio.Event(), 0.01))


@pytest.mark.parametrize("fails", [False, True])
def test_despite_cancelling_raises_the_cancellation_after_the_work(fails: bool) -> None:
    async def scenario() -> None:
        ended: list[int] = []

        async def work() -> None:
            await asyncio.sleep(0.05)
            ended.append(1)
            if fails:
                raise OSError("the work failed")

        waiting = asyncio.create_task(tasks.despite_cancelling(work()))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert ended == [1]

    run(scenario())


def test_despite_cancelling_raises_the_error_of_the_work() -> None:
    async def work() -> None:
        raise OSError("the work failed")

    with pytest.raises(OSError, match="failed"):
        run(tasks.despite_cancelling(work()))


def test_at_most_cancels_late_work_and_returns_the_result_of_other_work() -> None:
    async def scenario() -> None:
        assert await tasks.at_most(20, asyncio.sleep(0, "done")) == "done"
        assert await tasks.at_most(None, asyncio.sleep(0, "done")) == "done"
        with pytest.raises(OSError, match="failed"):
            await tasks.at_most(20, failing())
        late = asyncio.ensure_future(asyncio.sleep(3600))
        with pytest.raises(asyncio.TimeoutError):
            await tasks.at_most(0.01, late)
        assert late.cancelled()

    async def failing() -> None:
        raise OSError("the work failed")

    run(scenario())


def test_at_most_cancelled_together_with_the_result_is_cancelled() -> None:
    async def scenario(turns: int) -> None:
        result = asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(tasks.at_most(60, result))
        await asyncio.sleep(0.001)
        result.set_result(1)
        for _ in range(turns):
            await asyncio.sleep(0)
        is_asked = waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled() is is_asked

    for turns in range(5):
        run(scenario(turns))
