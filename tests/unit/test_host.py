"""The threads of a session in an engine host: opening, closing, stopping of jobs, and staging of the next inputs."""

from __future__ import annotations

import errno
import itertools
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edged.backends.contract import Nodes, Order, Parallelism, Recipe, Signature
from edged.errors import DeadlineExceeded, EngineUnusable, InvalidInput, Unsupported
from edged.host.engine import CancellableJobs, EngineThreads
from edged.host.pipeline import Pipeline
from edged.ipc import messages as m
from edged.ipc.arena import SharedView, Span
from edged.models.limits import Bounds
from edged.tensors import Array, TensorSpec
from edged.vision.family import Recognition, Thresholds, recognise
from edged.vision.preprocess import Preprocess
from tests.waiting import wait

_SIGNATURE = Signature((TensorSpec("x", "UINT8", ("n",)),), (TensorSpec("y", "FP32", (1, 2)),))

_UNLIMITED = Bounds()


class Session:
    """A session that fails in the step named by `wrong`."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong, self.closed = wrong, 0

    def nodes(self) -> Nodes:
        if self.wrong.isupper():
            raise EngineUnusable(f"CUDA error: {self.wrong}")
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


def opened(
    session: Session,
    instances: int = 1,
    signature: Signature = _SIGNATURE,
    recognition: Recognition | None = None,
    shared: Any = None,
    bounds: Bounds = _UNLIMITED,
) -> tuple[EngineThreads, Callable[[], m.FromHost]]:
    """Return threads that open a session, and a function that returns their next message."""
    sent: queue.SimpleQueue[m.FromHost] = queue.SimpleQueue()
    recognition = recognition or recognise(signature.inputs, signature.outputs, {}, {})
    parallelism = Parallelism(instances, 1)
    order = m.Open(1, Order("/nowhere", signature, Recipe("null"), parallelism=parallelism), recognition, bounds=bounds)
    backend: Any = Backend(session)

    def send(message: m.FromHost, pieces: Sequence[bytes | memoryview] = ()) -> None:
        sent.put(message)

    return EngineThreads(order, backend, shared, send), lambda: sent.get(timeout=20)


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


@pytest.mark.parametrize("instances", [1, 3])
@pytest.mark.parametrize("most", [0, 1])
def test_open_without_threads_is_out_of_memory_and_leaves_none(
    most: int, instances: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, start, count = set(threading.enumerate()), threading.Thread.start, itertools.count()

    def limited(thread: threading.Thread) -> None:
        if next(count) >= most:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", limited)
        threads, received = opened(Session(), instances=instances)
    answer = received()
    assert isinstance(answer, m.OpenFailed)
    assert answer.error == "OutOfMemory"
    assert threads.is_over
    wait(lambda: set(threading.enumerate()) <= others, "the end of the threads")


@pytest.mark.parametrize(
    "wrong",
    ["OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED", "CL_MEM_OBJECT_ALLOCATION_FAILURE", "CL_OUT_OF_HOST_MEMORY"],
)
def test_open_that_fails_for_lack_of_device_memory_is_out_of_memory(wrong: str) -> None:
    _, received = opened(Session(wrong))
    answer = received()
    assert isinstance(answer, m.OpenFailed)
    assert answer.error == "OutOfMemory"


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
    """An instance whose inference ends only while another instance also infers."""

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


def test_instances_of_a_runtime_without_replicas_are_refused() -> None:
    session = Session()
    threads, received = opened(session, 2)
    answer = received()
    assert isinstance(answer, m.OpenFailed)
    assert answer.error == "Unsuitable"
    assert session.closed == 1
    assert threads.is_over


# -- stopping jobs ----------------------------------------------------------------------------------------------------


class Endless(Session):
    """A session that infers until it is stopped."""

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


# -- staging ----------------------------------------------------------------------------------------------------------

PICTURES = Signature((TensorSpec("x", "FP32", (2, 3, 4, 4)),), (TensorSpec("y", "FP32", (1,)),))
RECOGNITION = Recognition(None, "", Preprocess(4, 4), "takes pictures", (), Thresholds(), "x")


class Recorder(Session):
    """A session that stages inputs and answers with their sum. It records the threads that call it."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: dict[str, set[int]] = {}
        self.lent: list[Array] = []
        self.given: list[Array] = []
        self.staged = threading.Semaphore(0)
        self.waits_for_next = False  # whether an inference ends only after the next inputs were staged

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        if self.wrong == "memory":
            raise EngineUnusable("no memory")
        self.lent.append(np.zeros(shape, dtype))
        return self.lent[-1]

    def stage(self, inputs: Mapping[str, Array]) -> object:
        total = float(inputs["x"].sum())
        if total < 0:
            raise InvalidInput("negative")
        self.threads.setdefault("stage", set()).add(threading.get_ident())
        self.given.append(inputs["x"])
        self.staged.release()
        return total

    def infer_staged(self, staged: object, outputs: Sequence[str] | None = None) -> dict[str, Array]:
        self.threads.setdefault("infer", set()).add(threading.get_ident())
        if self.waits_for_next:
            assert self.staged.acquire(timeout=20), "no inputs were staged during this inference"
        return {"y": np.array([staged], np.float32)}


@pytest.fixture
def shared(tmp_path: Path) -> SharedView:
    descriptor = os.open(tmp_path / "arena", os.O_RDWR | os.O_CREAT)
    os.truncate(descriptor, 1 << 16)
    view = SharedView(descriptor)
    os.close(descriptor)
    return view


def full_of(job: int, value: float) -> m.Infer:
    data = np.full((2, 3, 4, 4), value, np.float32).tobytes()
    return m.Infer(job, 1, (m.TensorRef("x", "FP32", (2, 3, 4, 4), None, data),), None, None)


def value_of(output: m.TensorRef) -> list[float]:
    return np.frombuffer(output.data, np.float32).tolist()


def test_staging_of_the_next_request_runs_in_another_thread_during_an_inference() -> None:
    session = Recorder()
    session.waits_for_next = True
    threads, received = opened(session, 1, PICTURES, RECOGNITION)
    assert isinstance(received(), m.Opened)
    session.staged.release()  # the last inference has no next inputs
    for job in range(1, 6):
        threads.submit(full_of(job, job))
    for job in range(1, 6):
        answer = received()
        assert isinstance(answer, m.Answer)
        assert (answer.job, value_of(answer.outputs[0])) == (job, [job * 96.0])
    threads.submit(None)
    assert isinstance(received(), m.Closed)
    assert session.closed == 1
    assert session.threads["stage"].isdisjoint(session.threads["infer"])


def test_staging_refused_inputs_fail_only_their_job() -> None:
    threads, received = opened(Recorder(), 1, PICTURES, RECOGNITION)
    assert isinstance(received(), m.Opened)
    for job, value in ((1, 1.0), (2, -1.0), (3, 2.0)):
        threads.submit(full_of(job, value))
    output = sorted((received() for _ in range(3)), key=lambda message: message.job)  # type: ignore[union-attr]
    assert [type(message) for message in output] == [m.Answer, m.JobFailed, m.Answer]
    assert isinstance(output[1], m.JobFailed)
    assert (output[1].error, output[1].message) == ("InvalidInput", "negative")


def test_staging_pictures_are_prepared_in_the_sessions_arrays(shared: SharedView) -> None:
    session = Recorder()
    threads, received = opened(session, 1, PICTURES, RECOGNITION, shared)
    assert isinstance(received(), m.Opened)
    assert [array.shape for array in session.lent] == [(2, 3, 4, 4)] * 3
    span = Span(0, 48)
    for job in range(1, 5):
        shared.at(span)[:] = bytes([job]) * 48
        threads.submit(m.Detect(job, 1, (m.Picture(span, "rgb", 4, 4, 12),), None))
        answer = received()
        assert isinstance(answer, m.Detected)
        (seen,) = answer.seen
        assert value_of(seen.outputs[0]) == pytest.approx([48 * job / 255])
    assert all(any(given is lent for lent in session.lent) for given in session.given)
    assert session.given[0] is not session.given[1]


@pytest.mark.parametrize(("wrong", "family"), [("memory", None), ("", "strange")], ids=["no arrays", "unknown family"])
def test_pipeline_that_cannot_be_created_closes_its_session(wrong: str, family: str | None) -> None:
    session = Recorder()
    session.wrong = wrong
    with pytest.raises(EngineUnusable if wrong else Unsupported):
        Pipeline(session, PICTURES, msgspec.structs.replace(RECOGNITION, family=family))
    assert session.closed == 1


# -- answers --------------------------------------------------------------------------------------------------------


class Depths(Session):
    """A session that answers every picture with a depth map of 1024 x 1024 cells."""

    def infer(self, inputs: Any, outputs: Any = None) -> dict[str, Any]:
        return {"predicted_depth": np.zeros((1, 1024, 1024), np.float32)}


@pytest.mark.parametrize(("output_mb", "error"), [(1, "TooLarge"), (3, ""), (0, "")])
def test_content_larger_than_the_limit_is_an_error_of_the_picture(
    shared: SharedView, output_mb: int, error: str
) -> None:
    inputs, outputs = TensorSpec("x", "FP32", (1, 3, 4, 4)), TensorSpec("predicted_depth", "FP32", ("n", "h", "w"))
    signature = Signature((inputs,), (outputs,))
    depth = recognise((inputs,), (outputs,), {}, {"family": "depth"})
    threads, received = opened(Depths(), 1, signature, depth, shared, Bounds("depths", output_mb=output_mb))
    assert isinstance(received(), m.Opened)
    threads.submit(m.Detect(1, 1, (m.Picture(Span(0, 48), "rgb", 4, 4, 12),), None))
    answer = received()
    assert isinstance(answer, m.Detected)
    (seen,) = answer.seen
    assert seen.error == error
    assert not error or "limits.output_mb" in seen.message
