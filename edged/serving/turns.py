"""Whose turn it is in an engine host, for how long already, and what is to be done about it. Pure: no clock, no IO.

A session works on its jobs one after the other, so that a job's time begins when the one before it is answered. At its
limit it is to be stopped; what still runs after a grace is in a runtime that cannot stop, and its host has to go.
"""

from __future__ import annotations

import msgspec

GRACE_SECONDS = 2.0  # a runtime looks up between two operators, and a large one may take a second


class Overdue(msgspec.Struct, frozen=True):
    """A job at its limit: to be stopped, or past its grace (`is_hopeless`)."""

    session: int
    job: int
    is_hopeless: bool = False


class _Turn:
    __slots__ = ("jobs", "limit", "since", "stopped")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.jobs: dict[int, None] = {}  # in their order
        self.since = 0.0  # when the turn of the first began
        self.stopped: float | None = None  # when it was to be stopped


class Turns:
    """The sessions of one host. Times are any clock's, in seconds."""

    def __init__(self) -> None:
        self._turns: dict[int, _Turn] = {}

    def open(self, session: int, limit: float) -> None:
        """A session begins, each of whose jobs may take so long."""
        self._turns[session] = _Turn(limit)

    def close(self, session: int) -> None:
        self._turns.pop(session, None)

    def give(self, session: int, job: int, now: float) -> None:
        """One more job for a session."""
        turn = self._turns[session]
        if not turn.jobs:
            turn.since, turn.stopped = now, None
        turn.jobs[job] = None

    def end(self, session: int, job: int, now: float) -> bool:
        """A job is answered. Whether it had been told to stop, at its limit."""
        turn = self._turns.get(session)
        if turn is None or job not in turn.jobs:
            return False
        is_first = next(iter(turn.jobs)) == job
        was_stopped = is_first and turn.stopped is not None
        del turn.jobs[job]
        if is_first:
            turn.since, turn.stopped = now, None
        return was_stopped

    def overdue(self, now: float) -> list[Overdue]:
        """What is at its limit, each once; and what did not stop, until somebody sees to it."""
        found = []
        for session, turn in self._turns.items():
            if not turn.jobs or now - turn.since <= turn.limit:
                continue
            job = next(iter(turn.jobs))
            if turn.stopped is None:
                turn.stopped = now
                found.append(Overdue(session, job))
            elif now - turn.stopped > GRACE_SECONDS:
                found.append(Overdue(session, job, is_hopeless=True))
        return found

    def late(self, now: float) -> float:
        """Seconds for which the job that is most beyond its limit has been; 0 where none is."""
        over = (now - turn.since - turn.limit for turn in self._turns.values() if turn.jobs)
        return max(0.0, max(over, default=0.0))

    @property
    def busy(self) -> set[int]:
        """Sessions that have something to do."""
        return {session for session, turn in self._turns.items() if turn.jobs}

    @property
    def shortest(self) -> float:
        """The least that any session's jobs may take; infinity without sessions."""
        return min((turn.limit for turn in self._turns.values()), default=float("inf"))
