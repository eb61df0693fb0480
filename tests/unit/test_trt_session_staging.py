"""A host's two threads with a session that stages: who calls what, and what happens beside what."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edged.backends.contract import Order, Recipe, Session, Signature, Staging
from edged.errors import EngineUnusable, InvalidInput, Unsupported
from edged.host.engine import EngineThreads
from edged.host.pipeline import Pipeline, Staged
from edged.ipc import messages as m
from edged.ipc.arena import SharedView, Span
from edged.tensors import Array, TensorSpec
from edged.vision.family import Recognition, Thresholds
from edged.vision.preprocess import Preprocess

SIGNATURE = Signature((TensorSpec("x", "FP32", (2, 3, 4, 4)),), (TensorSpec("y", "FP32", (1,)),))
RECOGNITION = Recognition(None, "", Preprocess(4, 4), "takes pictures", (), Thresholds(), "x")
SECONDS = 10


class Recorder:
    """A session that stages: its answer is the sum of the inputs. It notes what was called, by which thread."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float]] = []
        self.threads: dict[str, set[int]] = {}
        self.lent: list[Array] = []
        self.given: list[Array] = []
        self.staged = threading.Semaphore(0)
        self.waits_for_next = False  # whether an inference ends only when another one has been staged
        self.refuses_arrays = False
        self.closed = False

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        if self.refuses_arrays:
            raise EngineUnusable("no memory")
        self.lent.append(np.zeros(shape, dtype))
        return self.lent[-1]

    def stage(self, inputs: Mapping[str, Array]) -> object:
        total = float(inputs["x"].sum())
        if total < 0:
            raise InvalidInput("negative")
        self._note("stage", total)
        self.given.append(inputs["x"])
        self.staged.release()
        return total

    def infer_staged(self, staged: object, outputs: Sequence[str] | None = None) -> dict[str, Array]:
        assert isinstance(staged, float)
        self._note("infer", staged)
        if self.waits_for_next:
            assert self.staged.acquire(timeout=SECONDS), "nothing is staged while this is inferred"
        return {"y": np.array([staged], np.float32)}

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        raise AssertionError("a session that stages is asked to stage")

    def close(self) -> None:
        self.closed = True

    def _note(self, what: str, total: float) -> None:
        self.calls.append((what, total))
        self.threads.setdefault(what, set()).add(threading.get_ident())


class Plain:
    """A session that does not."""

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        return {"y": np.array([inputs["x"].sum()], np.float32)}

    def close(self) -> None:
        pass


class OneSession:
    """A backend that opens what it is given."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def open(self, order: Order) -> Session:
        return self.session


@pytest.fixture
def shared(tmp_path: Path) -> SharedView:
    descriptor = os.open(tmp_path / "arena", os.O_RDWR | os.O_CREAT)
    os.truncate(descriptor, 1 << 16)
    view = SharedView(descriptor)
    os.close(descriptor)
    return view


def tensor(value: float) -> bytes:
    return np.full((2, 3, 4, 4), value, np.float32).tobytes()


def request(job: int, value: float) -> m.Infer:
    return m.Infer(job, 1, (m.TensorRef("x", "FP32", (2, 3, 4, 4), None, tensor(value)),), None, None)


class Host:
    """The two threads of one session, and what they said."""

    def __init__(self, session: Session, shared: SharedView) -> None:
        self.output: queue.SimpleQueue[m.FromHost] = queue.SimpleQueue()
        opening = m.Open(1, Order("model.onnx", SIGNATURE, Recipe("null")), RECOGNITION)
        self.threads = EngineThreads(opening, OneSession(session), shared, self.output.put)  # type: ignore[arg-type]

    def next(self) -> m.FromHost:
        return self.output.get(timeout=SECONDS)


def test_a_session_is_known_to_stage_by_its_methods() -> None:
    assert isinstance(Recorder(), Staging)
    assert not isinstance(Plain(), Staging)


def test_the_next_request_is_staged_by_the_other_thread_while_one_is_inferred(shared: SharedView) -> None:
    session = Recorder()
    session.waits_for_next = True
    host = Host(session, shared)
    assert isinstance(host.next(), m.Opened)
    session.staged.release()  # the last one waits for none
    for job in range(1, 6):
        host.threads.submit(request(job, job))
    for job in range(1, 6):
        answer = host.next()
        assert isinstance(answer, m.Answer)
        assert answer.job == job
        assert np.frombuffer(answer.outputs[0].data, np.float32).tolist() == [job * 96.0]
    host.threads.submit(None)
    assert isinstance(host.next(), m.Closed)
    assert session.closed
    assert session.threads["stage"].isdisjoint(session.threads["infer"])


def test_inputs_that_staging_refuses_fail_their_own_job(shared: SharedView) -> None:
    host = Host(Recorder(), shared)
    assert isinstance(host.next(), m.Opened)
    for job, value in ((1, 1.0), (2, -1.0), (3, 2.0)):
        host.threads.submit(request(job, value))
    output = sorted((host.next() for _ in range(3)), key=lambda message: message.job)  # type: ignore[union-attr]
    assert [type(message) for message in output] == [m.Answer, m.JobFailed, m.Answer]
    assert isinstance(output[1], m.JobFailed)
    assert (output[1].error, output[1].message) == ("InvalidInput", "negative")


def test_pictures_are_fitted_into_the_sessions_own_arrays(shared: SharedView) -> None:
    session = Recorder()
    host = Host(session, shared)
    assert isinstance(host.next(), m.Opened)
    assert [array.shape for array in session.lent] == [(2, 3, 4, 4)] * 3
    span = Span(0, 48)
    for job in range(1, 5):
        shared.at(span)[:] = bytes([job]) * 48
        host.threads.submit(m.Detect(job, 1, (m.Picture(span, "rgb", 4, 4, 12),), None))
        answer = host.next()
        assert isinstance(answer, m.Detected)
        (seen,) = answer.seen
        assert np.frombuffer(seen.outputs[0].data, np.float32) == pytest.approx(48 * job / 255)
    assert all(any(given is lent for lent in session.lent) for given in session.given)
    assert session.given[0] is not session.given[1]


def test_a_session_that_cannot_lend_arrays_is_closed() -> None:
    session = Recorder()
    session.refuses_arrays = True
    with pytest.raises(EngineUnusable, match="no memory"):
        Pipeline(session, SIGNATURE, RECOGNITION)
    assert session.closed


def test_pipeline_of_an_unknown_family_closes_the_session() -> None:
    session = Recorder()
    with pytest.raises(Unsupported, match="no family"):
        Pipeline(session, SIGNATURE, msgspec.structs.replace(RECOGNITION, family="strange"))
    assert session.closed


def test_a_session_that_does_not_stage_is_used_as_before(shared: SharedView) -> None:
    host = Host(Plain(), shared)
    assert isinstance(host.next(), m.Opened)
    host.threads.submit(request(1, 1.0))
    answer = host.next()
    assert isinstance(answer, m.Answer)
    assert np.frombuffer(answer.outputs[0].data, np.float32).tolist() == [96.0]
    pipeline = Pipeline(Plain(), SIGNATURE, RECOGNITION)
    inputs = {"x": np.ones((2, 3, 4, 4), np.float32)}
    assert pipeline.stage(inputs) is inputs


def test_a_pipeline_takes_inputs_that_were_not_staged_too() -> None:
    session = Recorder()
    pipeline = Pipeline(session, SIGNATURE, RECOGNITION)
    staged = pipeline.stage({"x": np.ones((2, 3, 4, 4), np.float32)})
    assert isinstance(staged, Staged)
    assert pipeline.run(staged, None)[0]["y"].tolist() == [96.0]
