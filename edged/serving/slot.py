"""Queues the work of one model, and sends it to the engine that serves the model now.

The installed engine gets batches of tensor requests or frames from the schedule. In addition to the batches that run,
at most one batch waits in the host. A swap installs another engine. New work then goes to the new engine, and the old
engine finishes its work and is closed. Work that was lost with its host is retried once, on the engine that is then
installed. Work that was lost because its host was killed from outside is retried up to five more times.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import msgspec

from edged.errors import (
    EdgedError,
    EngineUnusable,
    FrameSkipped,
    HostLost,
    NotFinite,
    NotReady,
    OutOfMemory,
    Overloaded,
)
from edged.ipc import messages as m
from edged.ipc.finite import Finiteness
from edged.serving.batch import Batch, copy_in, read_reply, reply_bytes, times_of
from edged.serving.galleries import Galleries, embeddings_of, named
from edged.serving.link import HostLink, Reply
from edged.serving.schedule import Batching, Schedule, Share, TensorBatching
from edged.serving.session import Demand, ServingSession
from edged.serving.statistics import Statistics
from edged.serving.work import Answered, EngineRef, FrameWork, TensorWork, Work

_LOG = logging.getLogger("edged.serving")
_WAITING = 64  # the most requests that wait
_EQUAL = Share()
_LOSSES = 5  # hosts killed from outside: after losing this many, a request is suspected of causing the next loss
_COMPARED_AT_ONCE = 4 << 20  # bytes of vectors: about half a millisecond
_LAST = -(1 << 31)  # the priority of late work with the delay policy


class Slot:
    """The waiting work of one model, and the session (an open engine) that serves it."""

    def __init__(self, model: str, galleries: Galleries | None = None) -> None:
        """`galleries` has the names of embeddings."""
        self.model, self._galleries = model, galleries
        self.current: ServingSession | None = None
        self.batching_policy = TensorBatching()
        self.swaps = 0
        self.statistics, self.finite = Statistics(), Finiteness()
        self.demand = Demand()
        self._schedule: Schedule[Work] = Schedule(_WAITING)
        self._refusal: EdgedError | None = None
        self._room = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None  # runs while work waits for more work to fill a batch
        self.fallback: Slot | None = None  # serves shapes that this slot's engine was not built for
        self.on_waiting: Callable[[], None] | None = None  # called when a request is queued and no engine serves

    def offer(self, camera: Hashable, frame: Work, share: Share = _EQUAL) -> Work | None:
        """Queue a camera's newest frame, and return the waiting frame that it replaced, if any. Raises the slot's error
        if the slot refuses work."""
        self._require_open()
        overtaken = self._schedule.offer(camera, frame, share)
        self._pump()
        return overtaken

    def queue(self, camera: Hashable, frame: Work, share: Share = _EQUAL) -> None:
        """Queue a frame behind the waiting frames of its camera. The caller limits their number."""
        self._require_open()
        self._schedule.queue(camera, frame, share)
        self._pump()

    def push(self, request: Work) -> None:
        """Queue a request. Raises Overloaded if too many requests wait, and the slot's error if it refuses work."""
        if (place := self._place(request)) is not self:
            place.push(request)
            return
        self._require_open()
        level = self.batching_policy.level(request.priority) if isinstance(request, TensorWork) else 0
        policy = self.batching_policy.of(level)
        if policy.timeout:
            request.expires = min(request.expires, request.received + policy.timeout)
        self._schedule.push(request, self.batching_policy.default_level - level, policy.size)
        if self.current is None and self.on_waiting is not None:
            self.on_waiting()
        self._pump()

    async def push_when_room(self, request: Work) -> None:
        """Like `push`, but wait while the queue is full."""
        while True:
            try:
                return self.push(request)
            except Overloaded:
                place = self._place(request)
                place._room.clear()
                await place._room.wait()

    def withdraw(self, camera: Hashable, frame: Work) -> bool:
        """Remove a frame from the queue; return whether it was still waiting."""
        return self._schedule.withdraw(camera, frame)

    def install(self, session: ServingSession) -> ServingSession | None:
        """Serve from `session` from now on; return the previous session, which the caller retires."""
        previous, self.current = self.current, session
        self.swaps += previous is not None
        self._refusal = None
        self._pump()
        return previous

    def vacate(self, link: HostLink) -> bool:
        """Remove the session if its host is the lost `link`; return whether it was removed. Waiting work stays
        queued."""
        if self.current is None or self.current.link is not link:
            return False
        self.current = None
        return True

    def refuse(self, error: EdgedError) -> ServingSession | None:
        """Answer waiting and future work with `error`; return the removed session, if any."""
        previous, self.current = self.current, None
        self._refusal = error
        for work in self._schedule.drain():
            self._answer_error(work, self._refused())
        self._room.set()
        return previous

    def shut(self, error: EdgedError) -> None:
        """Refuse future work with `error`; waiting work is still answered."""
        self._refusal = error

    def set_refusal(self, refusal: EdgedError | None) -> None:
        """Refuse work with the error `refusal` while no engine serves; None lets work wait for an engine.
        Idempotent."""
        if refusal is None:
            self._refusal = None
        elif self.current is None and (self._refusal is None or str(self._refusal) != str(refusal)):
            self.refuse(refusal)

    @property
    def waiting(self) -> int:
        return len(self._schedule)

    def reset_counts(self) -> None:
        """Start new statistics, because the model was replaced."""
        self.statistics, self.finite = Statistics(), Finiteness()

    def count_with(self, other: Slot) -> None:
        """From now on, count the requests of this slot in the statistics of `other`."""
        self.statistics, self.finite = other.statistics, other.finite

    def _require_open(self) -> None:
        if self._refusal is not None:
            raise self._refused()

    def _refused(self) -> EdgedError:
        """Return a new copy of the error. A single instance that is raised repeatedly would keep every caller's stack
        frames alive."""
        assert self._refusal is not None
        return type(self._refusal)(str(self._refusal))

    def _place(self, request: Work) -> Slot:
        """Return the slot that answers a request: the fallback if the engine does not accept the request, otherwise
        this slot."""
        current = self.current
        return self if current is None or self.fallback is None or current.engine.takes(request) else self.fallback

    def _divert(self, engine: EngineRef, chosen: Sequence[Work]) -> list[Work]:
        """Return the work that the engine accepts. Send the other work, which an earlier engine accepted, to the
        fallback slot."""
        taken = []
        for work in chosen:
            if engine.takes(work):
                taken.append(work)
                continue
            try:
                if self.fallback is None:
                    raise NotReady(outside(engine))
                self.fallback.push(work)
            except EdgedError as error:
                self._retry_or_fail(work, error)
        return taken

    def _pump(self) -> None:
        """Dispatch work to the session while it has room."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        now = time.monotonic()
        while self._schedule and (session := self.current) is not None and self._has_room(session):
            choice = self._schedule.choose(now, session.batching, self._rows(session))
            self._room.set()
            for work in choice.late:
                self._be_late(work)
            if not choice.work:
                if choice.late:
                    continue  # late work that was queued again may run now
                if choice.again_at < math.inf:
                    delay = max(0.0, choice.again_at - time.monotonic())
                    self._alarm = asyncio.get_running_loop().call_later(delay, self._pump)
                break
            chosen = self._divert(session.engine, choice.work)
            if chosen and not self._dispatch(session, chosen):
                break
        self.demand.note(self._schedule.queues + (self.current.in_flight if self.current is not None else 0), now)

    def _has_room(self, session: ServingSession) -> bool:
        """Whether the session can take another batch. Work that may have killed its host is retried alone, so that no
        other work is lost if the suspected work kills this host too."""
        again = self._schedule.first_again
        most = 1 if again is not None and again.is_suspect else session.most_in_flight
        return session.in_flight < most and not session.runs_suspect and not session.link.lost

    def _dispatch(self, session: ServingSession, chosen: Sequence[Work]) -> bool:
        """Send work, and return whether more may fit. Work that does not fit in the arena is retried if other work in
        flight will release memory. Otherwise it fails."""
        crowded: list[tuple[Work, EdgedError]] = []

        def refuse(work: Work, error: EdgedError) -> None:
            if isinstance(error, Overloaded):
                crowded.append((work, error.with_traceback(None)))
            else:
                self._retry_or_fail(work, error)

        batch = copy_in(chosen, session.link, refuse)
        if batch is not None:
            self._submit(session, batch)
        for work, error in crowded:
            if session.in_flight:
                self._retry(work)
            else:
                self._retry_or_fail(work, error)
        return not (crowded and session.in_flight)

    def _submit(self, session: ServingSession, batch: Batch) -> None:
        try:
            future = batch.send(session.number, session.reply_bytes, session.batching.limit)
        except EdgedError as error:
            for work in batch.works:
                if isinstance(error, HostLost):  # the host did not receive the work, so it waits for the next host
                    self._retry(work)
                else:
                    self._retry_or_fail(work, error)
            return
        session.in_flight += 1
        session.runs_suspect = batch.works[0].is_suspect
        session.idle.clear()
        future.add_done_callback(partial(self._on_reply, session, batch))

    def _on_reply(self, session: ServingSession, batch: Batch, _: asyncio.Future[Reply]) -> None:
        try:
            self._answer_or_retry(session, batch)
        finally:  # the engine must keep serving after any error
            batch.release()
            session.in_flight -= 1
            session.runs_suspect = False
            if not session.in_flight:
                session.idle.set()
            self._pump()

    # -- answers -----------------------------------------------------------------------------------------------------

    def _answer_or_retry(self, session: ServingSession, batch: Batch) -> None:
        """Conclude a batch after the host's reply or failure. Every client gets a result or its work is retried, even
        if the reply is invalid."""
        try:
            error = batch.future.exception()
            if error is None:
                error = self._answer_batch(session, batch, batch.future.result())
            if error is None:
                return
            if not isinstance(error, HostLost) and _is_divisible(batch):
                self._retry_individually(session, batch, error)
                return
            now = time.monotonic()
            if any(work.is_wanted for work in batch.works):
                session.health.failed(error)
            else:
                session.health.cancelled(error, now)
            if isinstance(error, NotFinite):
                self.finite.answered(error.outputs, now)
            if not isinstance(error, EdgedError):  # a bug: a link fails jobs only with EdgedErrors
                raise error
            for work in batch.works:
                self._retry_or_fail(work, error)
        except Exception:  # the event loop's exception handler logs it
            for work in batch.works:
                self._retry_or_fail(work, EngineUnusable("the engine's answer is invalid; see the daemon's log"))
            raise

    def _answer_batch(self, session: ServingSession, batch: Batch, reply: Reply) -> EdgedError | None:
        """Answer the work of a batch; return an error if the whole reply is invalid."""
        try:
            results = read_reply(batch, session.engine, reply, session.link.arena)
        except EdgedError as error:
            return error
        now = time.monotonic()
        session.reply_bytes = max(session.reply_bytes, reply_bytes(reply))
        self._count(session, batch, results, reply, now)
        for work, result in zip(batch.works, results, strict=True):
            if isinstance(result, EdgedError):
                session.health.failed(result)
                self._retry_or_fail(work, result)
                continue
            session.health.answered(now)
            if work.is_wanted:
                self._deliver(work, result)
        return None

    def _deliver(self, work: Work, answer: Answered) -> None:
        """Answer work. Embeddings get their names first, in a thread if the lookups would block the event loop."""
        gallery = None if self._galleries is None else self._galleries.of(self.model, answer.engine)
        found = [] if gallery is None else embeddings_of(answer)
        if gallery is None or not found:
            work.future.set_result(answer)
            return
        given = work.thresholds if isinstance(work, FrameWork) else None
        least = (given or answer.engine.recognition.thresholds).score
        if len(found) * len(gallery.vectors) <= _COMPARED_AT_ONCE:
            work.future.set_result(named(answer, gallery, least))
            return
        naming = asyncio.get_running_loop().run_in_executor(None, named, answer, gallery, least)
        naming.add_done_callback(partial(_end, work))

    def _count(
        self,
        session: ServingSession,
        batch: Batch,
        results: Sequence[Answered | EdgedError],
        reply: Reply,
        now: float,
    ) -> None:
        """Count one execution, the requests that it answered, and outputs that are not finite."""
        runs = times_of(reply, batch.most)
        for took in runs:
            is_one = isinstance(reply, m.Answer) or min(batch.most, len(reply.seen)) == 1
            if is_one and (batch.works[0].is_frame or session.engine.is_static):
                session.latency.add(took[0].infer_ms, now)
            rows = sum(work.rows for work in batch.works) if len(runs) == 1 else len(took)
            self.statistics.executed(rows, took)
        for work, result in zip(batch.works, results, strict=True):
            if isinstance(result, Answered) and work.is_wanted:
                self.statistics.succeeded(work.rows, (now - work.received) * 1e3, result.queue_ms, result.times)
        if isinstance(reply, m.Answer):  # which request of a batch had NaN or infinity is unknown
            for _ in batch.works:
                self.finite.answered(reply.not_finite, now)
            return
        for seen in reply.seen:
            if not seen.error or seen.not_finite:
                self.finite.answered(seen.not_finite, now)

    def _retry_individually(self, session: ServingSession, batch: Batch, error: BaseException) -> None:
        """Retry each part of a failed batch alone. If all parts succeed, the batch was the cause: the engine cannot run
        batches, whatever its model declares. Later work then runs one by one.

        Batching stays on if a part also fails alone, because every batch with this part would have failed. It also
        stays on if a part is cancelled, because that proves nothing. The regions of one picture are one part; the retry
        runs them one by one.
        """
        wanted = [work for work in batch.works if work.is_wanted]
        left, has_failed, why = len(wanted), False, str(error)

        def finished(outcome: asyncio.Future[Any]) -> None:
            nonlocal left, has_failed
            left -= 1
            has_failed = has_failed or outcome.cancelled() or outcome.exception() is not None
            if left or has_failed:
                return
            what = "frames" if wanted[0].is_frame else "requests"
            _LOG.warning("model %s: running %s one by one, because a batch failed: %s", self.model, what, why)
            if wanted[0].is_frame:
                session.batching = Batching()
            else:
                session.rows = 1

        for work in wanted:
            work.is_split = True
            work.future.add_done_callback(finished)
            self._retry(work)

    def _retry_or_fail(self, work: Work, error: EdgedError) -> None:
        """Retry work once if it was lost with its host or ran out of memory. Otherwise answer it with the error. The
        loss of a host that was killed from outside does not count as a try, up to a limit."""
        if not work.is_wanted:
            return
        if isinstance(error, HostLost) and error.is_outside and work.losses < _LOSSES:
            work.losses += 1
            self._retry(work)
        elif isinstance(error, HostLost | OutOfMemory) and not work.is_suspect:
            work.is_suspect = True
            self._retry(work)
        else:
            self._answer_error(work, error)

    def _answer_error(self, work: Work, error: EdgedError) -> None:
        if not isinstance(error, FrameSkipped):
            self.statistics.failed((time.monotonic() - work.received) * 1e3, type(error).__name__)
        work.future.set_exception(error.with_traceback(None))  # a traceback would keep the work's bytes alive

    def _be_late(self, work: Work) -> None:
        """Refuse expired work. If the policy of the work says `delay`, queue the work behind all other work instead."""
        if isinstance(work, TensorWork):
            policy = self.batching_policy.of(self.batching_policy.level(work.priority))
            if policy.delay:
                with contextlib.suppress(Overloaded):
                    self._schedule.push(work, _LAST, policy.size)
                    work.expires = math.inf
                    return
        self._retry_or_fail(work, work.too_late())

    def _rows(self, session: ServingSession) -> Batching:
        """Return the batching of tensor requests, limited to the rows that the session accepts."""
        wanted = self.batching_policy.batching
        return wanted if wanted.limit <= session.rows else msgspec.structs.replace(wanted, limit=session.rows)

    def _retry(self, work: Work) -> None:
        if self._refusal is not None:
            self._answer_error(work, self._refused())
        else:
            self._schedule.retry(work)


def _end(work: Work, naming: asyncio.Future[Answered]) -> None:
    """Answer work whose embeddings were named in a thread."""
    if not work.is_wanted:
        return
    if naming.cancelled() or naming.exception() is not None:
        work.future.set_exception(EngineUnusable("the embedding could not be looked up; see the daemon's log"))
        naming.result()  # the event loop's exception handler logs the error
    else:
        work.future.set_result(naming.result())


def _is_divisible(batch: Batch) -> bool:
    """Whether parts of a failed batch could succeed alone: the batch had several frames or requests, or the engine ran
    on several regions at once."""
    return len(batch.works) > 1 or (batch.works[0].is_frame and batch.works[0].rows > 1 and batch.most > 1)


def outside(engine: EngineRef) -> str:
    """Return the message for a request that the engine does not accept, and that no fallback slot serves."""
    if not engine.profile.ranges:
        return "no engine here accepts values for optional inputs, since their defaults are built in; leave them out"
    ranges = ", ".join(f"{each.name} {list(each.minimum)} to {list(each.maximum)}" for each in engine.profile.ranges)
    return f"unsuitable shapes: the engine accepts {ranges}; no fallback engine serves other shapes"
