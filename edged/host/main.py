"""The engine host: a process that imports one backend, owns sessions, and runs the jobs that the daemon's link sends.

Each engine has threads of its own: a slow model never holds up another. To prepare is to decode pictures and fit them
into the input tensor; the next picture is prepared while the current one runs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import queue
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from edged import errors, process
from edged.backends import registry
from edged.backends.contract import Backend, Placed, Replicable, Session, Stoppable, one_line
from edged.confinement import confine
from edged.confinement.rules import Reach
from edged.decoding import ready
from edged.errors import DeadlineExceeded, EdgedError, NotFinite, TooLarge
from edged.files import disk_fault, disk_fault_behind, read_through
from edged.host.pipeline import Inputs, Outcome, Pipeline, Prepared, Shot
from edged.ipc import messages as m
from edged.ipc.arena import SharedView, Span
from edged.ipc.frames import Bulk, HostEnd
from edged.models.limits import OUTPUT_MB
from edged.tensors import Array, to_array, to_bytes

T = TypeVar("T")


class CancellableJobs:
    """The jobs of one engine from receipt to end. Used by the threads that infer and the one that reads messages."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[int] = set()
        self._unwanted: set[int] = set()
        self._running: dict[int, Stoppable | None] = {}

    def take(self, job: int) -> None:
        """Add a job that was received."""
        with self._lock:
            self._held.add(job)

    def stop(self, job: int) -> None:
        """Stop a job that waits, or runs if its runtime can stop; no effect on an answered job."""
        with self._lock:
            if job in self._held:
                self._unwanted.add(job)
                if (session := self._running.get(job)) is not None:
                    session.stop()

    def run(self, job: int, session: Stoppable | None, infer: Callable[[], T]) -> T:
        """Run a job and forget it; DeadlineExceeded if it was stopped before. If it is stopped while it runs, it raises
        as its runtime does. `session` is the one to stop, if it can be stopped."""
        with self._lock:
            if job in self._unwanted:
                self._forget(job)
                raise DeadlineExceeded("it was stopped before it ran")
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


_LONGEST_REASON = 4000  # characters: errors are one line, and a runtime's may be anything


class Send(Protocol):
    """Sends a message to the daemon, and the bulk bytes that follow it."""

    def __call__(self, message: m.FromHost, pieces: Sequence[bytes | memoryview] = (), /) -> None: ...


# How CUDA, TensorRT, ONNX Runtime and OpenVINO say that a device has no memory left; none has a type for it.
_NO_MEMORY = re.compile(
    r"out of (device )?memory|OUT_OF_MEMORY|failed to allocate memory|bad_alloc|smaller than requested bytes",
    re.IGNORECASE,
)


class EngineThreads:
    """One opened engine, its threads and the queues between them. The daemon bounds what is queued.

    With one instance, one thread prepares and one infers. With several, each has a thread that does both, and the
    next pictures are prepared while other instances infer.
    """

    def __init__(self, order: m.Open, backend: Backend, shared: SharedView, send: Send) -> None:
        self._open, self._backend, self._shared, self._send = order, backend, shared, send
        self._datatypes = {spec.name: spec.datatype for spec in order.order.signature.outputs}
        self._jobs = CancellableJobs()
        self._todo: queue.SimpleQueue[m.Infer | m.Detect | None] = queue.SimpleQueue()
        self._prepared: queue.SimpleQueue[tuple[m.Infer | m.Detect, Prepared | Inputs, float] | None]
        self._prepared = queue.SimpleQueue()
        self._left = order.order.parallelism.instances
        self._lock = threading.Lock()
        self.is_over = False  # it could not be opened
        self._start("open", self._open_engine)

    def submit(self, job: m.Infer | m.Detect | None) -> None:
        """Queue a job of an opened engine; None closes it after the jobs before."""
        if job is not None:
            self._jobs.take(job.job)
        self._todo.put(job)

    def stop(self, job: int) -> None:
        """Stop a job that waits or runs."""
        self._jobs.stop(job)

    def _start(self, name: str, run: Callable[[], None]) -> None:
        threading.Thread(target=run, name=f"{name}-{self._open.session}", daemon=True).start()

    def _open_engine(self) -> None:
        """Open the engine, start the threads of its instances, and go on as the first of them."""
        opening, instances = self._open, self._open.order.parallelism.instances
        sessions: list[Session] = []
        try:
            first = self._backend.open(opening.order)
            sessions.append(first)
            nodes = first.nodes() if isinstance(first, Placed) else {}
            if instances > 1:
                if not isinstance(first, Replicable):
                    raise errors.Unsuitable(f"{opening.order.recipe.backend} runs one inference of an engine at a time")
                sessions += [first.replica() for _ in range(instances - 1)]
            buffers = () if instances == 1 else (1,)
            signature, batch = opening.order.signature, opening.batch
            pipelines = [
                Pipeline(each, signature, opening.recognition, batch, opening.bounds, *buffers) for each in sessions
            ]
        except Exception as error:
            self.is_over = True
            for session in sessions:
                with contextlib.suppress(Exception):  # the reason why it cannot be opened is more useful
                    session.close()
            self._send(m.OpenFailed(opening.session, *_named(_behind(Path(opening.order.model), error))))
            return
        self._send(m.Opened(opening.session, nodes))
        if instances == 1:
            self._start("infer", partial(self._infer_loop, pipelines[0]))
            self._prepare_loop(pipelines[0])
            return
        for pipeline in pipelines[1:]:
            self._start("work", partial(self._work_loop, pipeline))
        self._work_loop(pipelines[0])

    def _prepare_loop(self, pipeline: Pipeline) -> None:
        while (job := self._todo.get()) is not None:
            if (prepared := self._prepare_or_fail(pipeline, job)) is not None:
                self._prepared.put((job, *prepared))
            del prepared  # it is the other thread's now
        self._prepared.put(None)

    def _infer_loop(self, pipeline: Pipeline) -> None:
        while (item := self._prepared.get()) is not None:
            self._answer(pipeline, *item)
            del item  # a view into the arena must not outlive its job
        self._close(pipeline)

    def _work_loop(self, pipeline: Pipeline) -> None:
        while (job := self._todo.get()) is not None:
            if (prepared := self._prepare_or_fail(pipeline, job)) is not None:
                self._answer(pipeline, job, *prepared)
            del prepared
        self._todo.put(None)  # for the next thread
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
            self._left -= 1
            is_last = not self._left
        if is_last:
            self._send(m.Closed(self._open.session))

    def _prepare(self, pipeline: Pipeline, job: m.Infer | m.Detect) -> Prepared | Inputs:
        if isinstance(job, m.Detect):
            return pipeline.prepare([self._shot(picture) for picture in job.pictures])
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

    def _shot(self, picture: m.Picture) -> Shot:
        p, data = picture, self._shared.at(picture.span)
        return Shot(data, p.pixel_format, p.width, p.height, p.stride, p.roi, p.thresholds)

    def _seen(self, outcome: Outcome | Exception, reply: Span | None, bulk: Bulk) -> m.Seen:
        if isinstance(outcome, Exception):
            return _unanswered(outcome)
        found, following = (None, 0) if outcome.detections is None else bulk.put(outcome.detections.pack())
        classes = None if outcome.classes is None else outcome.classes.pack()
        try:
            refs = self._place(outcome.outputs, reply, bulk)  # a model without a family gets one at a time
        except EdgedError as error:
            return _unanswered(error)
        about = (outcome.width, outcome.height, outcome.times)
        return m.Seen(*about, found, classes, refs, not_finite=outcome.not_finite, following=following)

    def _place(
        self, outputs: dict[str, Array], reply: Span | None, bulk: Bulk, parts: int = 1
    ) -> tuple[m.TensorRef, ...]:
        """Write outputs one after the other into the reply's span; those that do not fit go with the message.

        TooLarge if they exceed what this number of requests of the model may return.
        """
        bounds, position, refs = self._open.bounds, 0, []
        room = (bounds.output_mb << 20) * parts if bounds.output_mb else math.inf
        for name, array in outputs.items():
            data = to_bytes(array) if array.nbytes <= room else b""  # text is longer than its references
            room -= max(array.nbytes, len(data))
            if room < 0:
                raise TooLarge(
                    f"the outputs of model {bounds.model!r} are larger than {bounds.output_mb} MiB at {name!r}"
                    f" {list(array.shape)}; ask for less, or raise {OUTPUT_MB} of the model"
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
    """Why a model cannot be opened: runtimes blame the model for what its disk did not deliver."""
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
    """The class of `edged.errors` and the line of text for an exception. File names and texts of runtimes may hold
    characters that cannot be encoded."""
    name, message = _class_and_message(error)
    return name, message[:_LONGEST_REASON].encode(errors="backslashreplace").decode()


def _class_and_message(error: Exception) -> tuple[str, str]:
    if type(error) is errors.EngineUnusable and _NO_MEMORY.search(str(error)):
        return errors.OutOfMemory.__name__, str(error)
    if isinstance(error, MemoryError):
        return errors.OutOfMemory.__name__, f"the engine host has no memory for this: {one_line(error) or 'no details'}"
    if isinstance(error, errors.EdgedError):
        return type(error).__name__, str(error)
    return "EngineUnusable", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def serve(backend_name: str, daemon: HostEnd, arena: int, reach: Reach) -> None:
    """Run until the daemon closes the link or ends."""
    confine.refuse_calls(reach)
    try:
        backend = registry.load(backend_name)
    except errors.EdgedError as error:
        daemon.send(m.Unfit(str(error)))
        return
    shared = SharedView(arena)
    decoder = msgspec.msgpack.Decoder(ready(m.ToHost))
    sessions: dict[int, EngineThreads] = {}
    daemon.send(m.Ready(os.getpid(), backend.version()))
    while (data := daemon.receive()) is not None:
        order = decoder.decode(data)
        if isinstance(order, m.Open):
            sessions = {number: session for number, session in sessions.items() if not session.is_over}
            sessions[order.session] = EngineThreads(order, backend, shared, daemon.send)
        elif isinstance(order, m.Close):
            sessions.pop(order.session).submit(None)
        elif isinstance(order, m.Ping):
            daemon.send(m.Pong())
        elif isinstance(order, m.Stop):
            if (session := sessions.get(order.session)) is not None:
                session.stop(order.job)
        else:
            sessions[order.session].submit(order)


def main() -> None:
    """`python -m edged.host.main PARENT_PID BACKEND SOCKET_FD ARENA_FD MEMORY_MB REACH`"""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the daemon, which stops its hosts
    faulthandler.enable()  # a crash leaves a traceback in the daemon's log
    parent, backend, daemon, arena, memory_mb, text = sys.argv[1:]
    if not process.die_with_parent(int(parent)):
        sys.exit(1)
    process.go_before_the_daemon(int(memory_mb))
    reach = Reach.parsed(text)
    confine.confine_files(reach)
    serve(backend, HostEnd(socket.socket(fileno=int(daemon))), int(arena), reach)


if __name__ == "__main__":
    main()
