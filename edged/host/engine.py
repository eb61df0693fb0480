"""Runs one engine in a host: its threads receive jobs, run inference and send the answers."""

from __future__ import annotations

import contextlib
import math
import queue
import re
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from edged import errors
from edged.backends.contract import Backend, Placed, Replicable, Session, Stoppable, one_line
from edged.errors import DeadlineExceeded, EdgedError, NotFinite, TooLarge
from edged.files import disk_fault, disk_fault_behind, read_through
from edged.host.pipeline import Inputs, Outcome, Pipeline, Prepared, Shot
from edged.ipc import messages as m
from edged.ipc.arena import SharedView, Span
from edged.ipc.frames import Bulk
from edged.models.limits import OUTPUT_MB
from edged.tensors import Array, to_array, to_bytes
from edged.vision.content import Content, pack

T = TypeVar("T")


class CancellableJobs:
    """The jobs that one engine has received and not finished yet. Thread-safe: the threads of the engine and the thread
    that reads messages use this object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[int] = set()
        self._unwanted: set[int] = set()
        self._running: dict[int, Stoppable | None] = {}

    def take(self, job: int) -> bool:
        """Add a received job; return whether it is the only unfinished job."""
        with self._lock:
            self._held.add(job)
            return len(self._held) == 1

    def stop(self, job: int) -> None:
        """Stop a job that waits, or a running job if its runtime can stop inferences. Do nothing for an ended job."""
        with self._lock:
            if job in self._held:
                self._unwanted.add(job)
                if (session := self._running.get(job)) is not None:
                    session.stop()

    def run(self, job: int, session: Stoppable | None, infer: Callable[[], T]) -> T:
        """Run a job, then forget it. `stop` stops the running job through `session` (None: the runtime cannot stop
        inferences). Raises DeadlineExceeded if the job was stopped before it ran, and the runtime's error if
        the job was stopped while it ran."""
        with self._lock:
            if job in self._unwanted:
                self._forget(job)
                raise DeadlineExceeded("the daemon stopped the request before the engine ran it")
            self._running[job] = session
        try:
            return infer()
        finally:
            with self._lock:
                if job in self._unwanted and session is not None:
                    session.go_on()
                self._forget(job)

    def leave(self, job: int) -> None:
        """Forget a job that will not run."""
        with self._lock:
            self._forget(job)

    def _forget(self, job: int) -> None:
        self._held.discard(job)
        self._unwanted.discard(job)
        self._running.pop(job, None)


_LONGEST_REASON = 4000  # characters of an error message: a runtime's message may have any length


class Send(Protocol):
    """Sends a message to the daemon, and the bulk bytes that follow it."""

    def __call__(self, message: m.FromHost, pieces: Sequence[bytes | memoryview] = (), /) -> None: ...


# Texts with which CUDA, TensorRT, ONNX Runtime and OpenVINO report that memory is used up, without an error class.
_NO_MEMORY = re.compile(
    r"out of (device )?memory|OUT_OF_(HOST_|DEVICE_)?MEMORY|ALLOC(ATION)?_FAIL|bad_alloc"
    r"|(failed to|cannot) allocate memory|smaller than requested bytes",
    re.IGNORECASE,
)


class EngineThreads:
    """One opened engine, its threads and the queues between them. The daemon limits the number of queued jobs.

    With one instance, one thread prepares pictures, and another thread runs all inferences. Only one thread infers, so
    that the runtime's threads stay on the other processors. When two threads took turns, the throughput was only 0.83
    times as high. If the engine has no other job, the inference thread also prepares a new job, because waking the
    other thread takes longer than most requests. But if the session stages inputs (copies them to the device in
    advance), the first thread prepares all jobs.

    With several instances, each instance has one thread, which does whole jobs.
    """

    def __init__(self, order: m.Open, backend: Backend, shared: SharedView, send: Send) -> None:
        self._open, self._backend, self._shared, self._send = order, backend, shared, send
        self._datatypes = {spec.name: spec.datatype for spec in order.order.signature.outputs}
        self._jobs = CancellableJobs()
        self._todo: queue.SimpleQueue[m.Infer | m.Detect | None] = queue.SimpleQueue()  # to prepare
        # To infer: a job, and its prepared inputs with the milliseconds that preparing took, or None if the inference
        # thread must prepare the job. None instead of such a pair ends the thread.
        self._prepared: queue.SimpleQueue[tuple[m.Infer | m.Detect, tuple[Prepared | Inputs, float] | None] | None]
        self._prepared = queue.SimpleQueue()
        self._working = order.order.parallelism.instances
        self._lock = threading.Lock()
        self._has_shortcut = False
        self.is_over = False  # the engine could not be opened
        # The opened instances, for all threads except the thread that opens; None if the engine cannot be opened.
        self._opened: queue.SimpleQueue[Pipeline | None] = queue.SimpleQueue()
        self._others = 0  # the number of these threads
        try:
            # The threads start before the engine is opened: later there may be no memory for their stacks.
            name, run = ("infer", self._infer_loop) if self._working == 1 else ("work", self._work_loop)
            for _ in range(max(1, self._working - 1)):
                self._start(name, partial(self._run_opened, run))
                self._others += 1
            self._start("open", self._run_engine)
        except (RuntimeError, MemoryError) as error:  # the system allows no further thread
            self._refuse(errors.OutOfMemory(f"the engine host cannot start a thread: {one_line(error)}"))

    def submit(self, job: m.Infer | m.Detect | None) -> None:
        """Queue a job of the opened engine. None closes the engine after the jobs that are already queued."""
        if job is not None and self._jobs.take(job.job) and self._has_shortcut:
            self._prepared.put((job, None))
        else:
            self._todo.put(job)

    def stop(self, job: int) -> None:
        """Stop a job that waits or runs."""
        self._jobs.stop(job)

    def _start(self, name: str, run: Callable[[], None]) -> None:
        threading.Thread(target=run, name=f"{name}-{self._open.session}", daemon=True).start()

    def _refuse(self, error: Exception) -> None:
        """Report that the engine cannot be opened, and end its other threads."""
        self.is_over = True
        for _ in range(self._others):
            self._opened.put(None)
        self._send(m.OpenFailed(self._open.session, *_named(error)))

    def _run_opened(self, run: Callable[[Pipeline], None]) -> None:
        if (pipeline := self._opened.get()) is not None:
            run(pipeline)

    def _run_engine(self) -> None:
        """Open the engine, pass its instances to the other threads, and run as one of them."""
        opening = self._open
        sessions: list[Session] = []
        try:
            sessions.append(self._backend.open(opening.order))
            nodes = sessions[0].nodes() if isinstance(sessions[0], Placed) else {}
            pipelines = self._open_pipelines(sessions)
        except Exception as error:
            for session in sessions:
                with contextlib.suppress(Exception):  # the reason why the engine cannot be opened is more useful
                    session.close()
            self._refuse(_behind(Path(opening.order.model), error))
            return
        first, *others = pipelines
        # Staging may wait for an inference, so the inference thread must not stage.
        self._has_shortcut = not others and not first.is_staging
        self._send(m.Opened(opening.session, nodes))
        if not others:
            self._opened.put(first)
            self._prepare_loop(first)
            return
        for pipeline in others:
            self._opened.put(pipeline)
        self._work_loop(first)

    def _open_pipelines(self, sessions: list[Session]) -> list[Pipeline]:
        """Make a pipeline for each instance. `sessions` contains the first session; append the further sessions to it,
        so that the caller can close all of them."""
        opening, first, instances = self._open, sessions[0], self._open.order.parallelism.instances
        buffers: tuple[int, ...] = ()
        if instances > 1:
            if not isinstance(first, Replicable):
                raise errors.Unsuitable(
                    f"the engine was measured with {instances} inferences at a time, but backend"
                    f" {opening.order.recipe.backend} can run only one; build the engine again with"
                    f" edged engines rebuild {opening.bounds.model} --force"
                )
            sessions += [first.replica() for _ in range(instances - 1)]
            buffers = (1,)
        about = opening.order.signature, opening.recognition, opening.batch, opening.bounds
        return [Pipeline(session, *about, *buffers) for session in sessions]

    def _prepare_loop(self, pipeline: Pipeline) -> None:
        while (job := self._todo.get()) is not None:
            if (prepared := self._prepare_or_fail(pipeline, job)) is not None:
                self._prepared.put((job, prepared))
            del prepared  # the inference thread owns it now
        self._prepared.put(None)

    def _infer_loop(self, pipeline: Pipeline) -> None:
        while (item := self._prepared.get()) is not None:
            job, prepared = item
            if prepared is not None or (prepared := self._prepare_or_fail(pipeline, job)) is not None:
                self._answer(pipeline, job, *prepared)
            del item, prepared  # a view into the arena must not outlive its job
        self._close(pipeline)

    def _work_loop(self, pipeline: Pipeline) -> None:
        while (job := self._todo.get()) is not None:
            if (prepared := self._prepare_or_fail(pipeline, job)) is not None:
                self._answer(pipeline, job, *prepared)
            del prepared
        self._todo.put(None)  # ends the next thread that reads it
        self._close(pipeline)

    def _prepare_or_fail(self, pipeline: Pipeline, job: m.Infer | m.Detect) -> tuple[Prepared | Inputs, float] | None:
        began = time.perf_counter()
        try:
            return self._prepare(pipeline, job), (time.perf_counter() - began) * 1e3
        except Exception as error:
            self._jobs.leave(job.job)
            self._send(m.JobFailed(job.job, *_named(error)))
            return None

    def _answer(
        self, pipeline: Pipeline, job: m.Infer | m.Detect, prepared: Prepared | Inputs, prepare_ms: float
    ) -> None:
        bulk = Bulk()
        try:
            answer = self._run(pipeline, job, prepared, prepare_ms, bulk)
            self._send(answer, bulk.pieces)
        except Exception as error:
            self._send(m.JobFailed(job.job, *_named(error), error.outputs if isinstance(error, NotFinite) else ()))

    def _close(self, pipeline: Pipeline) -> None:
        """Close an instance; the last one reports that the engine is closed."""
        try:
            pipeline.close()
        except Exception:
            traceback.print_exc()  # into the daemon's log
        with self._lock:
            self._working -= 1
            is_last = not self._working
        if is_last:
            self._send(m.Closed(self._open.session))

    def _prepare(self, pipeline: Pipeline, job: m.Infer | m.Detect) -> Prepared | Inputs:
        if isinstance(job, m.Detect):
            return pipeline.prepare(self._shots(job.pictures), job.most)
        inputs = {
            ref.name: to_array(ref.name, ref.datatype, ref.shape, self._shared.at(ref.span) if ref.span else ref.data)
            for ref in job.inputs
        }
        return pipeline.stage(inputs)

    def _run(
        self, pipeline: Pipeline, job: m.Infer | m.Detect, prepared: Prepared | Inputs, prepare_ms: float, bulk: Bulk
    ) -> m.Answer | m.Detected:
        if isinstance(job, m.Infer):
            assert not isinstance(prepared, Prepared)
            outputs, times = self._jobs.run(job.job, pipeline.stoppable, partial(pipeline.run, prepared, job.outputs))
            began = time.perf_counter()
            bad = pipeline.finite.bad(outputs)
            pipeline.finite.require(bad)
            refs = self._place(outputs, job.reply, bulk, job.parts)
            after_ms = (time.perf_counter() - began) * 1e3
            return m.Answer(job.job, refs, m.Times(0.0, prepare_ms, times.infer_ms, after_ms), bad)
        assert isinstance(prepared, Prepared)
        outcomes = self._jobs.run(job.job, pipeline.stoppable, partial(pipeline.infer, prepared))
        return m.Detected(job.job, tuple(self._seen(outcome, job.reply, bulk) for outcome in outcomes))

    def _shots(self, found: Sequence[m.Picture]) -> list[Shot]:
        """Return the pictures as shots. Regions of one picture share one `data` object, which is decoded once."""
        data = {picture.span: self._shared.at(picture.span) for picture in found}
        return [Shot(data[p.span], p.pixel_format, p.width, p.height, p.stride, p.roi, p.thresholds) for p in found]

    def _seen(self, outcome: Outcome | Exception, reply: Span | None, bulk: Bulk) -> m.Seen:
        if isinstance(outcome, Exception):
            return _unanswered(outcome)
        found, following = (None, 0) if outcome.detections is None else bulk.put(outcome.detections.pack())
        try:
            said, after = (None, 0) if outcome.content is None else bulk.put(self._packed(outcome.content))
            # Only a model without a family has raw outputs. Its jobs have one picture, so `reply` is used once.
            refs = self._place(outcome.outputs, reply, bulk)
        except EdgedError as error:
            return _unanswered(error)
        about = (outcome.width, outcome.height, outcome.times)
        return m.Seen(*about, found, said, refs, not_finite=outcome.not_finite, following=following or after)

    def _packed(self, content: Content) -> bytes:
        """Return the content as bytes. Raises TooLarge if they exceed the model's limit, because the daemon ends a host
        that sends more."""
        packed, bounds = pack(content), self._open.bounds
        if bounds.output_mb and len(packed) > bounds.output_mb << 20:
            raise TooLarge(
                f"the answer of model {bounds.model!r} is larger than {bounds.output_mb} MiB; raise the model's setting"
                f" {OUTPUT_MB!r}"
            )
        return packed

    def _place(
        self, outputs: dict[str, Array], reply: Span | None, bulk: Bulk, parts: int = 1
    ) -> tuple[m.TensorRef, ...]:
        """Write outputs one after the other into the span `reply`. Add an output to `bulk` if the span has no room for
        the output. If `reply` is None, add all outputs to `bulk`.

        Raises TooLarge if the outputs are larger than the model's limit for `parts` requests.
        """
        bounds, position, refs = self._open.bounds, 0, []
        room = (bounds.output_mb << 20) * parts if bounds.output_mb else math.inf
        for name, array in outputs.items():
            data = to_bytes(array) if array.nbytes <= room else b""  # nbytes of strings counts only pointers
            room -= max(array.nbytes, len(data))
            if room < 0:
                raise TooLarge(
                    f"with output {name!r} {list(array.shape)}, the outputs of model {bounds.model!r} are larger than"
                    f" {bounds.output_mb} MiB; request fewer outputs, or raise the model's setting {OUTPUT_MB!r}"
                )
            if reply is not None and position + len(data) <= reply.size:
                span = Span(reply.offset + position, len(data))
                self._shared.at(span)[:] = data
                position += -(-len(data) // 64) * 64
                refs.append(m.TensorRef(name, self._datatypes[name], array.shape, span))
            else:
                refs.append(m.TensorRef(name, self._datatypes[name], array.shape, None, *bulk.put(data)))
        return tuple(refs)


def _behind(model: Path, error: Exception) -> Exception:
    """Return the disk fault that caused an error, or the error itself if the disk is not at fault. Runtimes report a
    failing disk as an error of the model."""
    found = disk_fault_behind(model.parent, error)
    if found is None and isinstance(error, EdgedError):
        try:
            read_through(model)
        except OSError as unread:
            found = disk_fault(model.parent, unread)
    return found or error


def _unanswered(error: Exception) -> m.Seen:
    name, message = _named(error)
    return m.Seen(error=name, message=message, not_finite=error.outputs if isinstance(error, NotFinite) else ())


def _named(error: Exception) -> tuple[str, str]:
    """Return the class of `edged.errors` and the message for an exception. The message is shortened and valid UTF-8:
    file names and messages of runtimes may contain characters that cannot be encoded."""
    name, message = _class_and_message(error)
    return name, message[:_LONGEST_REASON].encode(errors="backslashreplace").decode()


def _class_and_message(error: Exception) -> tuple[str, str]:
    if type(error) is errors.EngineUnusable and _NO_MEMORY.search(str(error)):
        return errors.OutOfMemory.__name__, str(error)
    if isinstance(error, MemoryError):
        return errors.OutOfMemory.__name__, f"the engine host is out of memory: {one_line(error) or 'no details'}"
    if isinstance(error, errors.EdgedError):
        return type(error).__name__, str(error)
    return "EngineUnusable", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
