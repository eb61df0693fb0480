"""Stopping one job of a session, and never another in its place."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from edged.errors import DeadlineExceeded, EngineUnusable
from edged.host.main import CancellableJobs
from edged.tensors import Array


class Plain:
    """A session that cannot be stopped."""

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        return {}

    def close(self) -> None:
        pass


class Endless(Plain):
    """Infers until it is stopped."""

    def __init__(self) -> None:
        self.began, self._stopped = threading.Event(), threading.Event()
        self.calls: list[str] = []

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        self.began.set()
        assert self._stopped.wait(20)
        raise EngineUnusable("it was told to stop")

    def stop(self) -> None:
        self.calls.append("stop")
        self._stopped.set()

    def go_on(self) -> None:
        self.calls.append("go on")
        self._stopped.clear()


def test_a_job_that_runs_is_stopped_and_the_next_one_runs() -> None:
    session = Endless()
    runs = CancellableJobs(session)
    for job in (1, 2):
        runs.take(job)
    thread = threading.Thread(target=lambda: (session.began.wait(20), runs.stop(1)))
    thread.start()
    with pytest.raises(EngineUnusable, match="told to stop"):
        runs.run(1, lambda: session.infer({}))
    thread.join()
    runs.leave(1)
    assert session.calls == ["stop", "go on"]
    assert runs.run(2, lambda: np.int64(7)) == 7


def test_a_job_that_waits_does_not_run_and_the_one_before_it_is_left_alone() -> None:
    session = Endless()
    runs = CancellableJobs(session)
    runs.take(1)
    runs.take(2)
    assert runs.run(1, lambda: runs.stop(2)) is None
    runs.leave(1)
    assert session.calls == []
    with pytest.raises(DeadlineExceeded):
        runs.run(2, lambda: pytest.fail("it ran"))


def test_a_job_that_is_answered_or_unknown_is_not_stopped() -> None:
    session = Endless()
    runs = CancellableJobs(session)
    runs.take(1)
    runs.run(1, lambda: None)
    runs.leave(1)
    for job in (1, 99):
        runs.stop(job)
        runs.take(job)
        runs.run(job, lambda: None)
    assert session.calls == []


def test_a_session_that_cannot_be_stopped_ends_what_it_does() -> None:
    runs = CancellableJobs(Plain())
    runs.take(1)
    assert runs.run(1, lambda: (runs.stop(1), "done")[1]) == "done"
