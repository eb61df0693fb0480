"""A session's threads in a host: failures while it opens or closes are reported, and stopping a job stops no other."""

from __future__ import annotations

import errno
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edged.backends.contract import Nodes, Order, Parallelism, Recipe, Signature
from edged.errors import DeadlineExceeded, EngineUnusable
from edged.host.engine import CancellableJobs, EngineThreads
from edged.ipc import messages as m
from edged.tensors import TensorSpec
from edged.vision.family import recognise

_SIGNATURE = Signature((TensorSpec("x", "UINT8", ("n",)),), (TensorSpec("y", "FP32", (1, 2)),))


class Session:
    """A session that fails at `wrong`."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong, self.closed = wrong, 0

    def nodes(self) -> Nodes:
        if self.wrong == "disk":
            raise EngineUnusable("INVALID_PROTOBUF") from OSError(errno.EIO, os.strerror(errno.EIO))
        if self.wrong == "nodes":
            raise RuntimeError("no such tensor \udcff")
        return {}

    def infer(self, inputs: Any, outputs: Any = None) -> dict[str, Any]:
        raise NotImplementedError

    def close(self) -> None:
        self.closed += 1
        if self.wrong == "close":
            raise RuntimeError("the driver is gone")


class Backend:
    def __init__(self, session: Session) -> None:
        self.session = session

    def open(self, order: Order) -> Session:
        return self.session


def opened(session: Session, instances: int = 1) -> tuple[EngineThreads, Callable[[], m.FromHost]]:
    """Threads that open a session, and what returns their next message."""
    sent: queue.SimpleQueue[m.FromHost] = queue.SimpleQueue()
    recognition = recognise(_SIGNATURE.inputs, _SIGNATURE.outputs, {}, {})
    parallelism = Parallelism(instances, 1)
    order = m.Open(1, Order("/nowhere", _SIGNATURE, Recipe("null"), parallelism=parallelism), recognition)
    backend: Any = Backend(session)
    shared: Any = None
    return EngineThreads(order, backend, shared, sent.put), lambda: sent.get(timeout=20)


@pytest.mark.parametrize(("wrong", "error"), [("nodes", "EngineUnusable"), ("disk", "DiskFailing")])
def test_open_that_fails_is_reported_and_closes_the_session(wrong: str, error: str) -> None:
    session = Session(wrong)
    threads, received = opened(session)
    answer = received()
    assert isinstance(answer, m.OpenFailed)
    assert answer.error == error
    answer.message.encode()
    assert session.closed == 1
    assert threads.is_over


@pytest.mark.parametrize("wrong", ["", "close"])
def test_close_is_reported_even_if_the_runtime_fails(wrong: str) -> None:
    session = Session(wrong)
    threads, received = opened(session)
    assert isinstance(received(), m.Opened)
    threads.submit(None)
    assert isinstance(received(), m.Closed)
    assert session.closed == 1


# -- several instances ------------------------------------------------------------------------------------------------


class Meeting(Session):
    """An instance whose inference ends only if another instance infers at the same time."""

    def __init__(self, barrier: threading.Barrier | None = None) -> None:
        super().__init__()
        self._barrier = barrier or threading.Barrier(2)
        self.instances: list[Meeting] = [self]

    def replica(self) -> Meeting:
        self.instances.append(Meeting(self._barrier))
        return self.instances[-1]

    def infer(self, inputs: Any, outputs: Any = None) -> dict[str, Any]:
        self._barrier.wait(20)
        return {"y": np.zeros((1, 2), np.float32)}


def request(job: int) -> m.Infer:
    return m.Infer(job, 1, (m.TensorRef("x", "UINT8", (2,), None, b"ab"),), None, None)


def test_instances_infer_at_the_same_time_and_are_closed_once() -> None:
    session = Meeting()
    threads, received = opened(session, 2)
    assert isinstance(received(), m.Opened)
    for job in range(6):
        threads.submit(request(job))
    answers = [received() for _ in range(6)]
    assert sorted(answer.job for answer in answers if isinstance(answer, m.Answer)) == list(range(6))
    threads.submit(None)
    assert isinstance(received(), m.Closed)
    assert [each.closed for each in session.instances] == [1, 1]


def test_instances_of_a_runtime_that_runs_one_at_a_time_are_refused() -> None:
    session = Session()
    threads, received = opened(session, 2)
    answer = received()
    assert isinstance(answer, m.OpenFailed)
    assert answer.error == "Unsuitable"
    assert session.closed == 1
    assert threads.is_over


# -- stopping jobs ----------------------------------------------------------------------------------------------------


class Endless(Session):
    """Infers until it is stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self._stopped = threading.Event(), threading.Event()
        self.calls: list[str] = []

    def infer(self, inputs: Any, outputs: Any = None) -> dict[str, Any]:
        self.began.set()
        assert self._stopped.wait(20)
        raise EngineUnusable("stopped")

    def stop(self) -> None:
        self.calls.append("stop")
        self._stopped.set()

    def go_on(self) -> None:
        self.calls.append("go on")
        self._stopped.clear()


def jobs_of(*numbers: int) -> CancellableJobs:
    jobs = CancellableJobs()
    for number in numbers:
        jobs.take(number)
    return jobs


def test_stop_running_job_ends_it_and_the_next_one_runs() -> None:
    session = Endless()
    jobs = jobs_of(1, 2)
    thread = threading.Thread(target=lambda: (session.began.wait(20), jobs.stop(1)))
    thread.start()
    with pytest.raises(EngineUnusable, match="stopped"):
        jobs.run(1, session, lambda: session.infer({}))
    thread.join()
    assert session.calls == ["stop", "go on"]
    assert jobs.run(2, session, lambda: 7) == 7


def test_stop_waiting_job_leaves_the_running_one_alone() -> None:
    session = Endless()
    jobs = jobs_of(1, 2)
    assert jobs.run(1, session, lambda: jobs.stop(2)) is None
    assert session.calls == []
    with pytest.raises(DeadlineExceeded):
        jobs.run(2, session, lambda: pytest.fail("it ran"))


def test_stop_answered_or_unknown_job_has_no_effect() -> None:
    session = Endless()
    jobs = jobs_of(1)
    jobs.run(1, session, lambda: None)
    for number in (1, 99):
        jobs.stop(number)
        jobs.take(number)
        jobs.run(number, session, lambda: None)
    assert session.calls == []


def test_stop_job_of_a_session_that_cannot_be_stopped_lets_it_end() -> None:
    jobs = jobs_of(1)
    assert jobs.run(1, None, lambda: (jobs.stop(1), "done")[1]) == "done"
