"""One execution of an engine: stage its work in shared memory, send it to the host, deliver the answers.

`stage` places the bytes, `answers` reads the reply, `InFlightBatch` is what has been sent and not answered yet, and
`Delivery` answers, retries or refuses each piece of work and counts it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

from edged.errors import EdgedError, EngineUnusable, FrameSkipped, HostLost, NotFinite, OutOfMemory, Overloaded
from edged.ipc import messages as m
from edged.ipc.arena import Arena, Span
from edged.ipc.finite import Finiteness
from edged.serving.link import HostLink, Reply, rebuild
from edged.serving.schedule import Batching
from edged.serving.session import ServingSession
from edged.serving.statistics import Statistics
from edged.serving.work import Answered, Blob, EngineRef, FrameWork, OutputTensor, OutputView, TensorWork, Work
from edged.tensors import DATATYPES, byte_size

_ALIGNED = 64  # bytes: the host places each output at a multiple


class StagedWork:
    """One piece of work with its bytes in the arena. The first of several tensor requests holds the bytes of all."""

    __slots__ = ("_arena", "queue_ms", "sent", "spans", "work")

    def __init__(self, work: Work, arena: Arena, spans: list[Span]) -> None:
        self.work, self._arena, self.spans = work, arena, spans
        self.sent = time.monotonic()
        self.queue_ms = (self.sent - work.received) * 1e3

    def release(self) -> None:
        for span in self.spans:
            self._arena.release(span)
        self.spans = []


def stage(chosen: Sequence[Work], arena: Arena, refuse: Callable[[Work, EdgedError], None]) -> list[StagedWork]:
    """Copy the bytes of a batch into the arena. Work that does not fit is refused and leaves nothing in the arena."""
    tensors = [work for work in chosen if isinstance(work, TensorWork)]
    if len(tensors) > 1:
        return _stage_rows(tensors, arena, refuse)
    batch = []
    for work in chosen:
        spans: list[Span] = []
        try:
            for blob in work.blobs():
                spans.append(arena.reserve(_size(blob)))
                _fill(arena.read(spans[-1]), blob)
        except EdgedError as error:
            _release(arena, spans)
            refuse(work, error)
        except BaseException:
            _release(arena, spans)
            raise
        else:
            batch.append(StagedWork(work, arena, spans))
    return batch


def _stage_rows(chosen: list[TensorWork], arena: Arena, refuse: Callable[[Work, EdgedError], None]) -> list[StagedWork]:
    """Concatenate the rows of each input, so that the host finds one tensor per input.

    If not all requests fit, as many go as fit; the others may come again.
    """
    works, left = list(chosen), list[TensorWork]()
    while works:
        spans: list[Span] = []
        at: TensorWork | None = None
        try:
            for blobs in zip(*(work.blobs() for work in works), strict=True):
                at = None
                spans.append(arena.reserve(sum(map(_size, blobs))))
                place, offset = arena.read(spans[-1]), 0
                for work, blob in zip(works, blobs, strict=True):
                    at = work
                    _fill(place[offset : offset + _size(blob)], blob)
                    offset += _size(blob)
        except EdgedError as error:
            _release(arena, spans)
            if at is None and len(works) > 1:
                half = len(works) // 2
                works, left = works[:half], works[half:] + left
                continue
            culprit = works[0] if at is None else at
            refuse(culprit, error)
            works = [work for work in works if work is not culprit]
            if not works and not isinstance(error, Overloaded):  # only this request was in the way
                works, left = left, []
        except BaseException:
            _release(arena, spans)
            raise
        else:
            break
    for work in left:
        refuse(work, Overloaded("the shared memory has no room for this request now; send less at a time"))
    return [StagedWork(work, arena, [] if index else spans) for index, work in enumerate(works)]


def _size(blob: Blob) -> int:
    return len(blob) if isinstance(blob, bytes | memoryview) else blob.size


def _fill(place: memoryview, blob: Blob) -> None:
    if isinstance(blob, bytes | memoryview):
        place[:] = blob
    else:
        blob.read_into(place)


def _release(arena: Arena, spans: list[Span]) -> None:
    for span in spans:
        arena.release(span)


def order(batch: Sequence[StagedWork], session: int, reply: Span | None) -> Callable[[int], m.Infer | m.Detect]:
    """Return what makes the message to the host from the job's number: tensors, or frames that go together."""

    def make(job: int) -> m.Infer | m.Detect:
        first = batch[0]
        if isinstance(first.work, TensorWork):
            rows = sum(staged.work.rows for staged in batch) if len(batch) > 1 else 0
            return first.work.message(job, session, first.spans, reply, rows, len(batch))
        pictures = [p.work.picture(p.spans[0]) for p in batch if isinstance(p.work, FrameWork)]
        return m.Detect(job, session, tuple(pictures), reply)

    return make


def answers(
    batch: Sequence[StagedWork], engine: EngineRef, reply: Reply, arena: Arena, room: Span | None
) -> list[Answered | EdgedError]:
    """Return the result of each piece of work, copied out of the arena, whose span goes to the next request.

    EngineUnusable if outputs are not those requested, are outside `room`, or have not the rows of the batch: an
    untrusted model may have taken over the host, and the rest of the arena belongs to other clients.
    """
    if isinstance(reply, m.Answer):
        first = batch[0].work
        assert isinstance(first, TensorWork)  # what goes together asks for the same
        _require(reply.outputs, engine, engine.outputs if first.outputs is None else first.outputs)
        outputs = _outputs(reply.outputs, arena, room, [staged.work.rows for staged in batch])
        return [_answered(staged, tensors, engine, reply.times) for staged, tensors in zip(batch, outputs, strict=True)]
    if len(reply.seen) != len(batch):
        return [EngineUnusable(f"the host answered {len(reply.seen)} of {len(batch)} pictures") for _ in batch]
    return [_answer(seen, staged, engine, arena, room) for seen, staged in zip(reply.seen, batch, strict=True)]


def infer_ms(reply: Reply) -> float | None:
    """Milliseconds of inference; None if the engine did not run, or for several pictures at once."""
    if isinstance(reply, m.Answer):
        return reply.times.infer_ms
    return reply.seen[0].times.infer_ms if len(reply.seen) == 1 and not reply.seen[0].error else None


def times_of(reply: Reply) -> list[m.Times]:
    """Times of a reply: one entry per picture without an error, or one for all tensors of a batch."""
    return [reply.times] if isinstance(reply, m.Answer) else [seen.times for seen in reply.seen if not seen.error]


def room_for(reply: Reply) -> int:
    """Bytes that the outputs of a reply need in the arena."""
    refs = reply.outputs if isinstance(reply, m.Answer) else [ref for seen in reply.seen for ref in seen.outputs]
    sizes = (len(ref.data) if ref.span is None else ref.span.size for ref in refs)
    return sum(-(-size // _ALIGNED) * _ALIGNED for size in sizes)


def _answered(
    staged: StagedWork, outputs: tuple[OutputView, ...], engine: EngineRef, times: m.Times
) -> Answered | EdgedError:
    """The answer of a tensor request, or the error if its outputs could not be written to their destination."""
    assert isinstance(staged.work, TensorWork)
    try:
        return Answered(engine, None, staged.work.take(outputs), 0, 0, staged.queue_ms, times)
    except EdgedError as error:
        return error


def _answer(
    seen: m.Seen, staged: StagedWork, engine: EngineRef, arena: Arena, room: Span | None
) -> Answered | EdgedError:
    if seen.error:
        return rebuild(seen.error, seen.message)
    outputs: tuple[OutputTensor, ...] = ()
    if seen.outputs:  # raw outputs: the model has no family
        try:
            _require(seen.outputs, engine, engine.outputs)
            (views,) = _outputs(seen.outputs, arena, room, [1])
        except EngineUnusable as error:
            return error
        outputs = tuple(view.kept() for view in views)
    return Answered(
        engine, seen.detections, outputs, seen.width, seen.height, staged.queue_ms, seen.times, seen.classes
    )


def _require(refs: Sequence[m.TensorRef], engine: EngineRef, wanted: Collection[str]) -> None:
    """Raise EngineUnusable unless outputs are exactly the wanted ones, each once and of the engine's datatype."""
    names = {ref.name for ref in refs}
    if len(names) != len(refs) or (wanted and names != set(wanted)):
        raise EngineUnusable(f"the host answered with other outputs than the {len(wanted)} that were asked for")
    known = engine.outputs
    if known and any(known.get(ref.name) != ref.datatype for ref in refs):
        raise EngineUnusable("the host answered with an output of another datatype than its model's")


def _data(ref: m.TensorRef, arena: Arena, room: Span | None) -> memoryview:
    """The bytes of an output, without a copy. EngineUnusable if they are outside `room` or have the wrong size."""
    if (span := ref.span) is None:
        data = memoryview(ref.data)
    elif (
        room is None or span.size < 0 or span.offset < room.offset or span.offset + span.size > room.offset + room.size
    ):
        raise EngineUnusable(f"the host answered with output {ref.name!r} in memory that the request was not given")
    else:
        data = arena.read(span)
    is_whole = min(ref.shape, default=0) >= 0
    if is_whole and ref.datatype != "BYTES":
        is_whole = ref.datatype in DATATYPES and byte_size(ref.datatype, ref.shape) == len(data)
    if not is_whole:
        raise EngineUnusable(
            f"the host answered with {len(data)} bytes as output {ref.name!r} {ref.datatype}{list(ref.shape)}"
        )
    return data


def _outputs(
    refs: Sequence[m.TensorRef], arena: Arena, room: Span | None, rows: list[int]
) -> list[tuple[OutputView, ...]]:
    """The outputs of each request, without a copy: of a batch, its rows of them."""
    found: list[list[OutputView]] = [[] for _ in rows]
    for ref in refs:
        data = _data(ref, arena, room)
        if len(rows) == 1:
            found[0].append(OutputView(ref.name, ref.datatype, ref.shape, data))
            continue
        for tensors, (count, part) in zip(found, _parts(ref, data, rows), strict=True):
            tensors.append(OutputView(ref.name, ref.datatype, (count, *ref.shape[1:]), part))
    return [tuple(tensors) for tensors in found]


def _parts(ref: m.TensorRef, data: memoryview, rows: list[int]) -> Iterator[tuple[int, memoryview]]:
    if not ref.shape or ref.shape[0] != sum(rows) or ref.datatype == "BYTES":
        raise EngineUnusable(f"output {ref.name!r} {ref.datatype}{list(ref.shape)} is not of {sum(rows)} rows")
    size, offset = len(data) // max(1, ref.shape[0]), 0
    for count in rows:
        yield count, data[offset : offset + count * size]
        offset += count * size


class InFlightBatch:
    """A batch that was sent to a host. `future` ends with the reply; outputs that fit are in the arena's span `reply`.
    If no client waits for any part of it any more, the job is stopped, if its runtime can stop."""

    __slots__ = ("_link", "batch", "future", "reply")

    def __init__(self, link: HostLink, session: int, batch: Sequence[StagedWork], reply_bytes: int) -> None:
        """Sends the batch; `reply_bytes` is the expected size of the reply. EdgedError if the host does not take
        it; the batch then still holds its spans of the arena."""
        self._link, self.batch = link, batch
        self.reply = _room(link.arena, reply_bytes)
        try:
            self.future: asyncio.Future[Reply] = link.submit(order(batch, session, self.reply))
        except BaseException:
            self._give_back()
            raise
        for staged in batch:
            staged.work.future.add_done_callback(self._abandon_if_unwanted)

    def release(self) -> None:
        """Release what it holds of the arena."""
        for staged in self.batch:
            staged.release()
        self._give_back()

    def _abandon_if_unwanted(self, waiting: asyncio.Future[Any]) -> None:
        if not waiting.cancelled() or self.future.done():
            return
        if not any(staged.work.is_wanted for staged in self.batch):
            self._link.abandon(self.future)

    def _give_back(self) -> None:
        if self.reply is not None:
            self._link.arena.release(self.reply)
            self.reply = None


def _room(arena: Arena, size: int) -> Span | None:
    """Reserve room for the answer. Without room it comes in the message, which is slower and always works."""
    try:
        return arena.reserve(size) if size else None
    except EdgedError:
        return None


class BatchSplit:
    """The parts of a failed batch, each retried alone. If all succeed, the engine cannot run them together, and
    `on_incompatible` is called. A part that fails alone too would have failed any batch, so nothing is concluded;
    neither from one whose client left before the retry."""

    def __init__(self, parts: int, on_incompatible: Callable[[], None]) -> None:
        self._open, self._on_incompatible = parts, on_incompatible
        self._has_failed_part = False

    def finished(self, outcome: asyncio.Future[Any]) -> None:
        """Record the outcome of a part: a callback of its future."""
        self._has_failed_part = self._has_failed_part or outcome.cancelled() or outcome.exception() is not None
        self._open -= 1
        if not self._open and not self._has_failed_part:
            self._on_incompatible()


def count(
    statistics: Statistics,
    batch: Sequence[StagedWork],
    results: Sequence[Answered | EdgedError],
    reply: Reply,
    now: float,
) -> None:
    """Count one execution and the requests that it answered; `now` of time.monotonic()."""
    took = times_of(reply)
    if not took:
        return
    input_ms = sum(times.decode_ms + times.prepare_ms for times in took)
    rows = sum(staged.work.rows for staged in batch)
    statistics.executed(rows, input_ms, took[0].infer_ms, sum(times.postprocess_ms for times in took))
    good = [(p, r.times) for p, r in zip(batch, results, strict=True) if isinstance(r, Answered)]
    for staged, times in good:
        if staged.work.is_wanted:
            statistics.succeeded(
                staged.work.rows,
                (now - staged.work.received) * 1e3,
                staged.queue_ms,
                times.decode_ms + times.prepare_ms,
                times.infer_ms,
                times.postprocess_ms,
            )


def count_finite(finite: Finiteness, reply: Reply | BaseException, parts: int, now: float) -> None:
    """Count answers and their outputs that were not finite. In a batch of tensor requests it is unknown whose it was,
    so it counts for each of the `parts`."""
    if isinstance(reply, m.Detected):
        for seen in reply.seen:
            if not seen.error or seen.not_finite:
                finite.answered(seen.not_finite, now)
    elif isinstance(reply, m.Answer):
        for _ in range(parts):
            finite.answered(reply.not_finite, now)
    elif isinstance(reply, NotFinite):
        finite.answered(reply.outputs, now)


_LOG = logging.getLogger("edged.serving")
_LOSSES = 5  # of hosts killed from outside; after so many, a request is suspected of causing the next


class Delivery:
    """Answers, retries or refuses the work of one slot, and counts it. `retry` queues a piece of work again."""

    def __init__(self, model: str, retry: Callable[[Work], None]) -> None:
        self._model, self._retry = model, retry
        self.statistics, self.finite = Statistics(), Finiteness()
        self.answered = self.failed = 0

    def conclude(
        self, session: ServingSession, batch: Sequence[StagedWork], room: Span | None, future: asyncio.Future[Reply]
    ) -> None:
        """Conclude a batch after the host's reply or failure; every client gets a result, even if the reply is invalid.
        The outputs are expected in `room`."""
        try:
            self._conclude(session, batch, room, future)
        except Exception:  # the event loop's exception handler logs it
            for staged in batch:
                self.fail(staged.work, EngineUnusable("the engine's answer is invalid; see the daemon's log"))
            raise

    def _conclude(
        self, session: ServingSession, batch: Sequence[StagedWork], room: Span | None, future: asyncio.Future[Reply]
    ) -> None:
        error = future.exception()
        if error is None:
            try:
                self._settle(session, batch, room, future.result())
            except EdgedError as unsettled:
                error = unsettled
        if error is None:
            return
        if isinstance(error, HostLost) or len(batch) == 1:
            session.health.failed(error)
            count_finite(self.finite, error, 1, time.monotonic())
            for staged in batch:
                self.fail(staged.work, _known(error))
        else:
            self._retry_individually(session, batch, error)

    def fail(self, work: Work, error: EdgedError) -> None:
        """Retry work that was lost with its host or found no memory next to other work; answer anything else with the
        error. Losing a host that was killed from outside is not counted as a try, up to a limit."""
        if not work.is_wanted:
            return
        if isinstance(error, HostLost) and error.is_outside and work.losses < _LOSSES:
            work.losses += 1
            self._retry(work)
        elif isinstance(error, HostLost | OutOfMemory) and not work.retried:
            work.retried = True
            self._retry(work)
        else:
            self.refuse(work, error)

    def refuse(self, work: Work, error: EdgedError) -> None:
        """Answer with an error, without a retry."""
        if not isinstance(error, FrameSkipped):
            self.failed += 1
            self.statistics.failed((time.monotonic() - work.received) * 1e3, type(error).__name__)
        work.future.set_exception(error.with_traceback(None))  # it would keep the work's bytes

    def _settle(self, session: ServingSession, batch: Sequence[StagedWork], room: Span | None, reply: Reply) -> None:
        results = answers(batch, session.engine, reply, session.link.arena, room)
        took = infer_ms(reply)
        if took is not None and (batch[0].work.is_frame or session.engine.is_static):
            session.latency.add(took)
        session.reply_bytes = max(session.reply_bytes, room_for(reply))
        now = time.monotonic()
        count(self.statistics, batch, results, reply, now)
        count_finite(self.finite, reply, len(batch), now)
        for staged, result in zip(batch, results, strict=True):
            if isinstance(result, EdgedError):
                session.health.failed(result)
                self.fail(staged.work, result)
                continue
            session.health.answered(now)
            if staged.work.is_wanted:
                staged.work.future.set_result(result)
                self.answered += 1

    def _retry_individually(self, session: ServingSession, batch: Sequence[StagedWork], error: BaseException) -> None:
        """Retry each part of a failed batch alone. If all succeed, the engine cannot run so many at a time, whatever
        its model declares, and from then on they run one by one."""
        wanted = [staged.work for staged in batch if staged.work.is_wanted]
        if not wanted:
            return
        parts = BatchSplit(len(wanted), partial(self._go_one_by_one, session, wanted[0].is_frame, str(error)))
        for work in wanted:
            work.future.add_done_callback(parts.finished)
            self._retry(work)

    def _go_one_by_one(self, session: ServingSession, are_frames: bool, why: str) -> None:
        what = "frames" if are_frames else "requests"
        _LOG.warning("model %s: running %s one by one, because a batch of them failed: %s", self._model, what, why)
        if are_frames:
            session.batching = Batching()
        else:
            session.rows = 1


def _known(error: BaseException) -> EdgedError:
    """Return an EdgedError, the only kind that links fail jobs with; raise anything else, which is a bug."""
    if isinstance(error, EdgedError):
        return error
    raise error
