"""What becomes of work that an engine had: it is answered, tried once more, taken apart or refused, and counted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from edged.errors import EdgedError, EngineUnusable, FrameSkipped, HostLost, OutOfMemory
from edged.ipc.arena import Span
from edged.ipc.finite import Finiteness
from edged.serving.counting import count, count_finite
from edged.serving.link import Reply
from edged.serving.parcel import Parcel, answers, infer_ms, room_for
from edged.serving.schedule import Batching
from edged.serving.session import ServingSession
from edged.serving.statistics import Statistics
from edged.serving.taken_apart import TakenApart
from edged.serving.work import Work

_LOG = logging.getLogger("edged.serving")
_LOSSES = 5  # of hosts that were killed from outside, until a request counts as what may have caused the next


class Delivery:
    """Of one slot. `retry` has a piece of work done once more."""

    def __init__(self, model: str, retry: Callable[[Work], None]) -> None:
        self._model, self._retry = model, retry
        self.statistics, self.finite = Statistics(), Finiteness()
        self.answered = self.failed = 0

    def conclude(
        self, session: ServingSession, parcels: Sequence[Parcel], room: Span | None, future: asyncio.Future[Reply]
    ) -> None:
        """The host has replied, or failed to: everybody gets what is theirs, also of a reply that makes no sense. Its
        outputs were to go to `room`."""
        try:
            self._conclude(session, parcels, room, future)
        except Exception:  # which whoever looks after callbacks tells of
            for parcel in parcels:
                self.fail(parcel.work, EngineUnusable("the engine's answer makes no sense; see the daemon's log"))
            raise

    def _conclude(
        self, session: ServingSession, parcels: Sequence[Parcel], room: Span | None, future: asyncio.Future[Reply]
    ) -> None:
        error = future.exception()
        if error is None:
            try:
                self._settle(session, parcels, room, future.result())
            except EdgedError as unsettled:
                error = unsettled
        if error is None:
            return
        if isinstance(error, HostLost) or len(parcels) == 1:
            session.vitals.failed(error)
            count_finite(self.finite, error, 1, time.monotonic())
            for parcel in parcels:
                self.fail(parcel.work, _known(error))
        else:
            self._take_apart(session, parcels, error)

    def fail(self, work: Work, error: EdgedError) -> None:
        """Tries once more what was lost with its host, or found no memory beside others; anything else is told to
        whoever waits. A host that was killed from outside costs no try, unless that goes on and on."""
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
        """It is answered with an error, and nothing else is tried."""
        if not isinstance(error, FrameSkipped):
            self.failed += 1
            self.statistics.failed((time.monotonic() - work.received) * 1e3, type(error).__name__)
        work.future.set_exception(error.with_traceback(None))  # it would keep the work's bytes

    def _settle(self, session: ServingSession, parcels: Sequence[Parcel], room: Span | None, reply: Reply) -> None:
        results = answers(parcels, session.engine, reply, session.link.arena, room)
        took = infer_ms(reply)
        if took is not None and (parcels[0].work.is_frame or session.engine.is_static):
            session.pace.add(took)
        session.reply_bytes = max(session.reply_bytes, room_for(reply))
        now = time.monotonic()
        count(self.statistics, parcels, results, reply, now)
        count_finite(self.finite, reply, len(parcels), now)
        for parcel, result in zip(parcels, results, strict=True):
            if isinstance(result, EdgedError):
                session.vitals.failed(result)
                self.fail(parcel.work, result)
                continue
            session.vitals.answered(now)
            if parcel.work.is_wanted:
                parcel.work.future.set_result(result)
                self.answered += 1

    def _take_apart(self, session: ServingSession, parcels: Sequence[Parcel], error: BaseException) -> None:
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
        _LOG.warning("model %s: %s go one by one, since they fail together: %s", self._model, what, why)
        if are_frames:
            session.batching = Batching()
        else:
            session.rows = 1


def _known(error: BaseException) -> EdgedError:
    """Links fail jobs with errors of ours only; anything else is a mistake that must not pass for one."""
    if isinstance(error, EdgedError):
        return error
    raise error
