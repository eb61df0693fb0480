"""What serves a model now. Work is offered to the slot; whichever engine is installed takes it, two orders at a time:
tensor requests or frames, some of which go together. What comes back is `delivery`'s.

Swapping is installing another engine: new work goes to it, the old one finishes what it has and is closed. Work that
was lost with its host is tried once more, on whatever serves by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial

import msgspec

from edged.errors import EdgedError, HostLost, NotReady, Overloaded
from edged.ipc.finite import Finiteness
from edged.serving.delivery import Delivery
from edged.serving.flight import Flight
from edged.serving.link import HostLink, Reply
from edged.serving.parcel import Parcel, pack
from edged.serving.queueing import TensorBatching
from edged.serving.schedule import Batching, Schedule, Share
from edged.serving.session import ServingSession
from edged.serving.statistics import Statistics
from edged.serving.work import EngineRef, TensorWork, Work

IN_FLIGHT = 2  # one is prepared while one is inferred; more would only wait inside the host
_WAITING = 64  # requests
_EQUAL = Share()
_LAST = -(1 << 31)  # the priority of what was too late and goes all the same


class Slot:
    """One model's place in the daemon: its waiting work and the session that serves it."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.current: ServingSession | None = None
        self.batching_policy = TensorBatching()
        self.swaps = 0
        self._delivery = Delivery(model, self._retry)
        self._schedule: Schedule[Work] = Schedule(_WAITING)
        self._refusal: EdgedError | None = None
        self._room = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None  # while frames wait for others to go with
        self.fallback: Slot | None = None  # of an engine that takes what the one here was not built for
        self.awaited: Callable[[], None] | None = None  # told of a request that nothing serves yet

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
        if (place := self._place(request)) is not self:
            place.push(request)
            return
        self._require_open()
        level = self.batching_policy.level(request.priority) if isinstance(request, TensorWork) else 0
        policy = self.batching_policy.of(level)
        if policy.timeout:
            request.expires = min(request.expires, request.received + policy.timeout)
        self._schedule.push(request, self.batching_policy.default_level - level, policy.size)
        if self.current is None and self.awaited is not None:
            self.awaited()
        self._pump()

    async def push_when_room(self, request: Work) -> None:
        """As `push`, but waits while too many wait: for callers that can be held back."""
        while True:
            try:
                return self.push(request)
            except Overloaded:
                place = self._place(request)
                place._room.clear()
                await place._room.wait()

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
            self._delivery.refuse(work, self._refused())
        self._room.set()
        return previous

    def shut(self, error: EdgedError) -> None:
        """As `refuse` for what comes from now on; what waits is still answered."""
        self._refusal = error

    def hold(self, refusal: EdgedError | None) -> None:
        """Refuses with this error while nothing serves; without one, work may wait for an engine. May be said again."""
        if refusal is None:
            self._refusal = None
        elif self.current is None and (self._refusal is None or str(self._refusal) != str(refusal)):
            self.refuse(refusal)

    @property
    def waiting(self) -> int:
        return len(self._schedule)

    @property
    def statistics(self) -> Statistics:
        return self._delivery.statistics

    @property
    def finite(self) -> Finiteness:
        return self._delivery.finite

    @property
    def answered(self) -> int:
        """Requests and frames that got an answer."""
        return self._delivery.answered

    @property
    def failed(self) -> int:
        """Requests and frames that got an error."""
        return self._delivery.failed

    def count_anew(self) -> None:
        """The model is another one from now on, and so are its figures."""
        self._delivery.statistics, self._delivery.finite = Statistics(), Finiteness()

    def count_with(self, other: Slot) -> None:
        """What is counted of requests is counted together with another slot's."""
        self._delivery.statistics, self._delivery.finite = other.statistics, other.finite

    def _require_open(self) -> None:
        if self._refusal is not None:
            raise self._refused()

    def _refused(self) -> EdgedError:
        """A new error each time: one that is raised again and again would keep every caller's frames alive."""
        assert self._refusal is not None
        return type(self._refusal)(str(self._refusal))

    def _place(self, request: Work) -> Slot:
        """Where a request is answered: an engine with a range of shapes never sees one outside it."""
        current = self.current
        return self if current is None or self.fallback is None or current.engine.takes(request) else self.fallback

    def _divert(self, engine: EngineRef, chosen: Sequence[Work]) -> list[Work]:
        """What the engine takes of work that was accepted while another served; the rest goes to the fallback slot."""
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
                self._delivery.fail(work, error)
        return taken

    def _pump(self) -> None:
        """Hands work to the session as long as it takes some."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        while self._schedule and (session := self.current) is not None and self._has_room(session):
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
            chosen = self._divert(session.engine, choice.work)
            if chosen and not self._dispatch(session, chosen):
                return

    def _has_room(self, session: ServingSession) -> bool:
        """Work that was lost with its host is tried again alone: if it was what killed the host, it
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
                self._delivery.fail(work, error)

        self._submit(session, pack(chosen, arena, refuse))
        for work, error in crowded:
            if session.in_flight:
                self._retry(work)
            else:
                self._delivery.fail(work, error)
        return not (crowded and session.in_flight)

    def _submit(self, session: ServingSession, parcels: list[Parcel]) -> None:
        if not parcels:
            return
        try:
            flight = Flight(session.link, session.number, parcels, session.reply_bytes)
        except HostLost:  # noticed just now: it has not got the work, which waits for the next
            for parcel in parcels:
                parcel.release()
                self._retry(parcel.work)
            return
        except EdgedError as error:
            for parcel in parcels:
                parcel.release()
                self._delivery.fail(parcel.work, error)
            return
        session.in_flight += 1
        session.is_on_trial = parcels[0].work.retried
        session.idle.clear()
        flight.future.add_done_callback(partial(self._finish, session, parcels, flight))

    def _finish(
        self, session: ServingSession, parcels: list[Parcel], flight: Flight, future: asyncio.Future[Reply]
    ) -> None:
        try:
            self._delivery.conclude(session, parcels, flight.reply, future)
        finally:  # whatever goes wrong, the engine serves on
            flight.land()
            session.in_flight -= 1
            session.is_on_trial = False
            if not session.in_flight:
                session.idle.set()
            self._pump()

    def _be_late(self, work: Work) -> None:
        """Its time has passed: it is refused, or waits until there is nothing else to do, if not too many do."""
        if isinstance(work, TensorWork):
            policy = self.batching_policy.of(self.batching_policy.level(work.priority))
            if policy.delay:
                with contextlib.suppress(Overloaded):
                    self._schedule.push(work, _LAST, policy.size)
                    work.expires = math.inf
                    return
        self._delivery.fail(work, work.too_late())

    def _rows(self, session: ServingSession) -> Batching:
        """How many rows of tensor requests go to an engine together."""
        wanted = self.batching_policy.batching
        return wanted if wanted.limit <= session.rows else msgspec.structs.replace(wanted, limit=session.rows)

    def _retry(self, work: Work) -> None:
        if self._refusal is not None:
            self._delivery.refuse(work, self._refused())
        else:
            self._schedule.retry(work)


def outside(engine: EngineRef) -> str:
    """What a request is told that the engine was not built for where no other can be had."""
    if not engine.profile.ranges:
        return "the engine that serves has the defaults of optional inputs built in, and no other is there"
    ranges = ", ".join(f"{each.name} {list(each.minimum)} to {list(each.maximum)}" for each in engine.profile.ranges)
    return f"the engine that serves takes {ranges}, and no other is there for other shapes"
