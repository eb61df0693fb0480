"""What serves a model now. Work is offered to the slot; whichever engine is installed takes it, two pieces at a time.

Swapping is installing another engine: new work goes to it, the old one finishes what it has and is closed. Work that
was lost with its host is tried once more, on whatever serves by then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable
from functools import partial

from edged.errors import EdgedError, HostLost, Overloaded
from edged.serving import messages as m
from edged.serving.arena import Arena, Span
from edged.serving.link import HostLink, Reply
from edged.serving.pace import Pace
from edged.serving.schedule import Schedule
from edged.serving.work import Answered, EngineRef, OutputTensor, Work

IN_FLIGHT = 2  # one is prepared while one is inferred; more would only wait inside the host
_WAITING = 64  # tensor requests


class ServingSession:
    """An engine opened in a host, as its slot sees it."""

    def __init__(self, link: HostLink, number: int, engine: EngineRef) -> None:
        self.link, self.number, self.engine = link, number, engine
        self.in_flight = 0
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
        self.swaps = 0
        self.answered = 0
        self.failed = 0
        self._schedule: Schedule[Work] = Schedule(_WAITING)
        self._refusal: EdgedError | None = None
        self._room = asyncio.Event()

    def offer(self, lane: Hashable, frame: Work) -> Work | None:
        """Puts a camera's frame in; returns the frame that it overtook. Raises when the model cannot serve at all."""
        self._require_open()
        overtaken = self._schedule.offer(lane, frame)
        self._pump()
        return overtaken

    def push(self, request: Work) -> None:
        """Queues a request. Overloaded when too many wait; raises when the model cannot serve at all."""
        self._require_open()
        self._schedule.push(request)
        self._pump()

    async def push_when_room(self, request: Work) -> None:
        """As `push`, but waits while too many wait: for callers that can be held back."""
        while True:
            try:
                return self.push(request)
            except Overloaded:
                self._room.clear()
                await self._room.wait()

    def withdraw(self, lane: Hashable) -> Work | None:
        """Takes back a frame that has not been chosen yet."""
        return self._schedule.withdraw(lane)

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
            work.future.set_exception(self._refused())
        self._room.set()
        return previous

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
        session = self.current
        while session is not None and session.in_flight < IN_FLIGHT and not session.link.lost:
            work = self._schedule.choose()
            self._room.set()
            if work is None:
                return
            self._dispatch(session, work)

    def _dispatch(self, session: ServingSession, work: Work) -> None:
        arena, spans = session.link.arena, list[Span]()
        try:
            for blob in work.blobs():
                spans.append(arena.store(blob))
            reply = _room(arena, session.reply_bytes)
            queued = (time.monotonic() - work.received) * 1e3
            future = session.link.submit(lambda job: work.message(job, session.number, spans, reply))
        except EdgedError as error:
            for span in spans:
                arena.release(span)
            self._fail(work, error)
            return
        session.in_flight += 1
        session.idle.clear()
        future.add_done_callback(partial(self._finish, session, work, spans, reply, queued))

    def _finish(
        self,
        session: ServingSession,
        work: Work,
        spans: list[Span],
        reply: Span | None,
        queue_ms: float,
        future: asyncio.Future[Reply],
    ) -> None:
        error = future.exception()
        if error is None:
            reply_now = future.result()
            if work.is_frame or session.engine.is_static:
                session.pace.add(reply_now.times.infer_ms)
            if not work.future.done():
                work.future.set_result(_collect(session, reply_now, queue_ms))
                self.answered += 1
        elif isinstance(error, EdgedError):
            self._fail(work, error)
        for span in (*spans, *([reply] if reply else [])):
            session.link.arena.release(span)
        session.in_flight -= 1
        if not session.in_flight:
            session.idle.set()
        self._pump()

    def _fail(self, work: Work, error: EdgedError) -> None:
        """Tries once more what was lost with its host; anything else is told to whoever waits."""
        if not work.is_wanted:
            return
        if isinstance(error, HostLost) and not work.retried:
            work.retried = True
            self._retry(work)
        else:
            self.failed += 1
            work.future.set_exception(error)

    def _retry(self, work: Work) -> None:
        if self._refusal is not None:
            work.future.set_exception(self._refused())
        else:
            self._schedule.retry(work)


def _room(arena: Arena, size: int) -> Span | None:
    """Where the answer goes if there is room; otherwise it comes in the message, which is slower and always works."""
    try:
        return arena.reserve(size) if size else None
    except EdgedError:
        return None


def _collect(session: ServingSession, reply: Reply, queue_ms: float) -> Answered:
    """Copies the answer out of the arena: its span is given to the next request."""
    if isinstance(reply, m.Detected):
        return Answered(session.engine, reply.detections, (), reply.width, reply.height, queue_ms, reply.times)
    arena, outputs, total = session.link.arena, [], 0
    for ref in reply.outputs:
        data = bytes(arena.read(ref.span)) if ref.span is not None else ref.data
        outputs.append(OutputTensor(ref.name, ref.datatype, ref.shape, data))
        total += -(-len(data) // 64) * 64
    session.reply_bytes = max(session.reply_bytes, total)
    return Answered(session.engine, None, tuple(outputs), reply.width, reply.height, queue_ms, reply.times)
