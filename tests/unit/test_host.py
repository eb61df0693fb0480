"""A session's threads in a host: failures while it opens or closes are reported, and stopping a job stops no other."""

from __future__ import annotations

import errno
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest

from edged.backends.contract import Nodes, Order, Recipe, Signature
from edged.errors import DeadlineExceeded, EngineUnusable
from edged.host.main import CancellableJobs, SessionThreads
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


def opened(session: Session) -> tuple[SessionThreads, Callable[[], m.FromHost]]:
    """Threads that open a session, and what returns their next message."""
    sent: queue.SimpleQueue[m.FromHost] = queue.SimpleQueue()
    recognition = recognise(_SIGNATURE.inputs, _SIGNATURE.outputs, {}, {})
    order = m.Open(1, Order("/nowhere", _SIGNATURE, Recipe("null")), recognition)
    backend: Any = Backend(session)
    shared: Any = None
    return SessionThreads(order, backend, shared, sent.put), lambda: sent.get(timeout=20)


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


def jobs_of(session: Session, *numbers: int) -> CancellableJobs:
    jobs = CancellableJobs(session)
    for number in numbers:
        jobs.take(number)
    return jobs


def test_stop_running_job_ends_it_and_the_next_one_runs() -> None:
    session = Endless()
    jobs = jobs_of(session, 1, 2)
    thread = threading.Thread(target=lambda: (session.began.wait(20), jobs.stop(1)))
    thread.start()
    with pytest.raises(EngineUnusable, match="stopped"):
        jobs.run(1, lambda: session.infer({}))
    thread.join()
    assert session.calls == ["stop", "go on"]
    assert jobs.run(2, lambda: 7) == 7


def test_stop_waiting_job_leaves_the_running_one_alone() -> None:
    session = Endless()
    jobs = jobs_of(session, 1, 2)
    assert jobs.run(1, lambda: jobs.stop(2)) is None
    assert session.calls == []
    with pytest.raises(DeadlineExceeded):
        jobs.run(2, lambda: pytest.fail("it ran"))


def test_stop_answered_or_unknown_job_has_no_effect() -> None:
    session = Endless()
    jobs = jobs_of(session, 1)
    jobs.run(1, lambda: None)
    for number in (1, 99):
        jobs.stop(number)
        jobs.take(number)
        jobs.run(number, lambda: None)
    assert session.calls == []


def test_stop_job_of_a_session_that_cannot_be_stopped_lets_it_end() -> None:
    jobs = jobs_of(Session(), 1)
    assert jobs.run(1, lambda: (jobs.stop(1), "done")[1]) == "done"
