"""What serves a model now. Work is offered to the slot; whichever engine is installed takes it, two orders at a time:
tensor requests or frames, some of which go together.

Swapping is installing another engine: new work goes to it, the old one finishes what it has and is closed. Work that
was lost with its host is tried once more, on whatever serves by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Hashable, Sequence
from functools import partial

import msgspec

from edged.errors import EdgedError, FrameSkipped, HostLost, Overloaded
from edged.serving.arena import Arena, Span
from edged.serving.link import HostLink, Reply
from edged.serving.pace import Pace
from edged.serving.parcel import Parcel, answers, infer_ms, order, pack, room_for, times_of
from edged.serving.queueing import TensorBatching
from edged.serving.schedule import Batching, Schedule, Share
from edged.serving.statistics import Statistics
from edged.serving.taken_apart import TakenApart
from edged.serving.work import Answered, EngineRef, TensorWork, Work

IN_FLIGHT = 2  # one is prepared while one is inferred; more would only wait inside the host
_WAITING = 64  # requests
_EQUAL = Share()
_LAST = -(1 << 31)  # the priority of what was too late and goes all the same
_LOG = logging.getLogger("edged.serving")


class ServingSession:
    """An engine opened in a host, as its slot sees it."""

    def __init__(self, link: HostLink, number: int, engine: EngineRef) -> None:
        self.link, self.number, self.engine = link, number, engine
        self.in_flight = 0
        self.is_on_trial = False  # what is in flight may be what killed a host before
        self.batching, self.rows = engine.batching, engine.rows
        self.pace = Pace()
        self.reply_bytes = 0  # the largest answer so far, so that the next finds room in the arena
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def edition(self) -> str:
        """Which build of its key it is."""
        return self.engine.edition

    async def retire(self) -> None:
        """Finishes what it has, then closes the engine."""
        await self.idle.wait()
        await self.link.close_session(self.number)


class Slot:
    """One model's place in the daemon: its waiting work and the session that serves it."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.current: ServingSession | None = None
        self.batching_policy = TensorBatching()
        self.statistics = Statistics()
        self.swaps = 0
        self.answered = 0
        self.failed = 0
        self._schedule: Schedule[Work] = Schedule(_WAITING)
        self._refusal: EdgedError | None = None
        self._room = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None  # while frames wait for others to go with

    def offer(self, lane: Hashable, frame: Work, share: Share = _EQUAL) -> Work | None:
        """Puts a camera's frame in; returns the frame that it overtook. Raises when the model cannot serve at all."""
        self._require_open()
        overtaken = self._schedule.offer(lane, frame, share)
        self._pump()
        return overtaken

    def queue(self, lane: Hashable, frame: Work, share: Share = _EQUAL) -> None:
        """Puts a camera's frame behind those of it that wait; whoever does bounds how many."""
        self._require_open()
        self._schedule.queue(lane, frame, share)
        self._pump()

    def push(self, request: Work) -> None:
        """Queues a request. Overloaded when too many wait; raises when the model cannot serve at all."""
        self._require_open()
        level = self.batching_policy.level(request.priority) if isinstance(request, TensorWork) else 0
        policy = self.batching_policy.of(level)
        if policy.timeout:
            request.expires = min(request.expires, request.received + policy.timeout)
        self._schedule.push(request, self.batching_policy.default_level - level, policy.size)
        self._pump()

    async def push_when_room(self, request: Work) -> None:
        """As `push`, but waits while too many wait: for callers that can be held back."""
        while True:
            try:
                return self.push(request)
            except Overloaded:
                self._room.clear()
                await self._room.wait()

    def withdraw(self, lane: Hashable, frame: Work) -> bool:
        """Takes back a frame unless it has been chosen; whether it was not."""
        return self._schedule.withdraw(lane, frame)

    def install(self, session: ServingSession) -> ServingSession | None:
        """From now on `session` serves. Returns the one that did, for the caller to retire."""
        previous, self.current = self.current, session
        self.swaps += previous is not None
        self._refusal = None
        self._pump()
        return previous

    def vacate(self, link: HostLink) -> bool:
        """Takes out the session of a host that is lost; what waits, waits on. Whether there was one."""
        if self.current is None or self.current.link is not link:
            return False
        self.current = None
        return True

    def refuse(self, error: EdgedError) -> ServingSession | None:
        """Nothing can serve the model: what waits and what comes is answered with `error`. Returns what served."""
        previous, self.current = self.current, None
        self._refusal = error
        for work in self._schedule.drain():
            self._answer_with(work, self._refused())
        self._room.set()
        return previous

    def shut(self, error: EdgedError) -> None:
        """As `refuse` for what comes from now on; what waits is still answered."""
        self._refusal = error

    def reopen(self) -> None:
        """The model may serve again: work may wait for an engine."""
        self._refusal = None

    @property
    def waiting(self) -> int:
        return len(self._schedule)

    def _require_open(self) -> None:
        if self._refusal is not None:
            raise self._refused()

    def _refused(self) -> EdgedError:
        """A new error each time: one that is raised again and again would keep every caller's frames alive."""
        assert self._refusal is not None
        return type(self._refusal)(str(self._refusal))

    def _pump(self) -> None:
        """Hands work to the session as long as it takes some."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        while (session := self.current) is not None and self._has_room(session):
            choice = self._schedule.choose(time.monotonic(), session.batching, self._rows(session))
            self._room.set()
            for work in choice.late:
                self._be_late(work)
            if not choice.work:
                if choice.late:
                    continue  # some of it may go now, after all
                if choice.again_at < math.inf:
                    self._alarm = asyncio.get_running_loop().call_later(
                        max(0.0, choice.again_at - time.monotonic()), self._pump
                    )
                return
            if not self._dispatch(session, choice.work):
                return

    def _has_room(self, session: ServingSession) -> bool:
        """Work that was lost with its host is tried again with nothing beside it: if it was what killed the host, it
        takes nobody along."""
        again = self._schedule.first_again
        most = 1 if again is not None and again.retried else IN_FLIGHT
        return session.in_flight < most and not session.is_on_trial and not session.link.lost

    def _dispatch(self, session: ServingSession, chosen: Sequence[Work]) -> bool:
        """Whether there may be room for more. What finds the arena full waits until something in flight is done."""
        arena = session.link.arena
        crowded: list[tuple[Work, EdgedError]] = []

        def refuse(work: Work, error: EdgedError) -> None:
            if isinstance(error, Overloaded):
                crowded.append((work, error.with_traceback(None)))
            else:
                self._fail(work, error)

        self._submit(session, pack(chosen, arena, refuse))
        for work, error in crowded:
            if session.in_flight:
                self._retry(work)
            else:
                self._fail(work, error)
        return not (crowded and session.in_flight)

    def _submit(self, session: ServingSession, parcels: list[Parcel]) -> None:
        if not parcels:
            return
        arena = session.link.arena
        reply = _room(arena, session.reply_bytes)
        try:
            future = session.link.submit(order(parcels, session.number, reply))
        except EdgedError as error:
            _release(arena, parcels, reply)
            for parcel in parcels:
                self._fail(parcel.work, error)
            return
        session.in_flight += 1
        session.is_on_trial = parcels[0].work.retried
        session.idle.clear()
        future.add_done_callback(partial(self._finish, session, parcels, reply))

    def _finish(
        self, session: ServingSession, parcels: list[Parcel], reply: Span | None, future: asyncio.Future[Reply]
    ) -> None:
        try:
            self._conclude(session, parcels, future)
        finally:  # whatever goes wrong, the engine serves on
            _release(session.link.arena, parcels, reply)
            session.in_flight -= 1
            session.is_on_trial = False
            if not session.in_flight:
                session.idle.set()
            self._pump()

    def _conclude(self, session: ServingSession, parcels: list[Parcel], future: asyncio.Future[Reply]) -> None:
        error = future.exception()
        if error is None:
            try:
                self._settle(session, parcels, future.result())
            except EdgedError as unsettled:
                self._take_apart(session, parcels, unsettled)
        elif isinstance(error, HostLost) or len(parcels) == 1:
            for parcel in parcels:
                self._fail(parcel.work, _known(error))
        else:
            self._take_apart(session, parcels, error)

    def _settle(self, session: ServingSession, parcels: list[Parcel], reply: Reply) -> None:
        results = answers(parcels, session.engine, reply, session.link.arena)
        took = infer_ms(reply)
        if took is not None and (parcels[0].work.is_frame or session.engine.is_static):
            session.pace.add(took)
        session.reply_bytes = max(session.reply_bytes, room_for(reply))
        self._count(parcels, results, reply)
        for parcel, result in zip(parcels, results, strict=True):
            if isinstance(result, EdgedError):
                self._fail(parcel.work, result)
            elif parcel.work.is_wanted:
                parcel.work.future.set_result(result)
                self.answered += 1

    def _count(self, parcels: list[Parcel], results: Sequence[Answered | EdgedError], reply: Reply) -> None:
        """In the model's statistics: one execution, and the requests that it answered."""
        took = times_of(reply)
        if not took:
            return
        input_ms = sum(times.decode_ms + times.prepare_ms for times in took)
        rows = sum(parcel.work.rows for parcel in parcels)
        self.statistics.executed(rows, input_ms, took[0].infer_ms, sum(times.postprocess_ms for times in took))
        good = [(p, r.times) for p, r in zip(parcels, results, strict=True) if isinstance(r, Answered)]
        now = time.monotonic()
        for parcel, times in good:
            if parcel.work.is_wanted:
                self.statistics.succeeded(
                    parcel.work.rows,
                    (now - parcel.work.received) * 1e3,
                    parcel.queue_ms,
                    times.decode_ms + times.prepare_ms,
                    times.infer_ms,
                    times.postprocess_ms,
                )

    def _take_apart(self, session: ServingSession, parcels: list[Parcel], error: BaseException) -> None:
        """A batch failed, so each part of it is tried alone. If all go well the engine does not take so many at a
        time, whatever its model declares, and from then on they go one by one."""
        wanted = [parcel.work for parcel in parcels if parcel.work.is_wanted]
        if not wanted:
            return
        parts = TakenApart(len(wanted), partial(self._go_one_by_one, session, wanted[0].is_frame, str(error)))
        for work in wanted:
            work.future.add_done_callback(parts.heed)
            self._retry(work)

    def _go_one_by_one(self, session: ServingSession, are_frames: bool, why: str) -> None:
        what = "frames" if are_frames else "requests"
        _LOG.warning("model %s: %s go one by one, since they fail together: %s", self.model, what, why)
        if are_frames:
            session.batching = Batching()
        else:
            session.rows = 1

    def _fail(self, work: Work, error: EdgedError) -> None:
        """Tries once more what was lost with its host; anything else is told to whoever waits."""
        if not work.is_wanted:
            return
        if isinstance(error, HostLost) and not work.retried:
            work.retried = True
            self._retry(work)
        else:
            self._answer_with(work, error)

    def _answer_with(self, work: Work, error: EdgedError) -> None:
        if not isinstance(error, FrameSkipped):
            self.failed += 1
            self.statistics.failed((time.monotonic() - work.received) * 1e3)
        work.future.set_exception(error.with_traceback(None))  # it would keep the work's bytes

    def _be_late(self, work: Work) -> None:
        """Its time has passed: it is refused, or waits until there is nothing else to do, if not too many do."""
        if isinstance(work, TensorWork):
            policy = self.batching_policy.of(self.batching_policy.level(work.priority))
            if policy.delay:
                with contextlib.suppress(Overloaded):
                    self._schedule.push(work, _LAST, policy.size)
                    work.expires = math.inf
                    return
        self._fail(work, work.too_late())

    def _rows(self, session: ServingSession) -> Batching:
        """How many rows of tensor requests go to an engine together."""
        wanted = self.batching_policy.batching
        return wanted if wanted.limit <= session.rows else msgspec.structs.replace(wanted, limit=session.rows)

    def _retry(self, work: Work) -> None:
        if self._refusal is not None:
            self._answer_with(work, self._refused())
        else:
            self._schedule.retry(work)


def _room(arena: Arena, size: int) -> Span | None:
    """Where the answer goes if there is room; otherwise it comes in the message, which is slower and always works."""
    try:
        return arena.reserve(size) if size else None
    except EdgedError:
        return None


def _release(arena: Arena, parcels: Sequence[Parcel], reply: Span | None) -> None:
    for parcel in parcels:
        parcel.release()
    if reply is not None:
        arena.release(reply)


def _known(error: BaseException) -> EdgedError:
    """Links fail jobs with errors of ours only; anything else is a mistake that must not pass for one."""
    if isinstance(error, EdgedError):
        return error
    raise error
