"""Which job of a session runs, and which are to be stopped. Asked by the thread that infers and by the one that hears
the daemon; a job is stopped whether it waits or runs, and never another in its place."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from edged.backends.contract import Session, Stoppable
from edged.errors import DeadlineExceeded

T = TypeVar("T")


class CancellableJobs:
    """The jobs of one session, from when they are taken until they have run."""

    def __init__(self, session: Session) -> None:
        self._session = session if isinstance(session, Stoppable) else None
        self._lock = threading.Lock()
        self._held: set[int] = set()
        self._unwanted: set[int] = set()
        self._running: int | None = None

    def take(self, job: int) -> None:
        """It was given to the session."""
        with self._lock:
            self._held.add(job)

    def stop(self, job: int) -> None:
        """It is not to run, or no longer, where the runtime can be stopped; nothing happens to one that is answered."""
        with self._lock:
            if job in self._held:
                self._unwanted.add(job)
                if job == self._running and self._session is not None:
                    self._session.stop()

    def run(self, job: int, infer: Callable[[], T]) -> T:
        """Runs it, unless it is to be stopped: DeadlineExceeded. One that is stopped while it runs raises as its
        runtime does. It is held no longer then, whatever came of it."""
        with self._lock:
            if job in self._unwanted:
                self._forget(job)
                raise DeadlineExceeded("it was stopped before it ran")
            self._running = job
        try:
            return infer()
        finally:
            with self._lock:
                self._running = None
                if job in self._unwanted and self._session is not None:
                    self._session.go_on()
                self._forget(job)

    def leave(self, job: int) -> None:
        """It will not run."""
        with self._lock:
            self._forget(job)

    def _forget(self, job: int) -> None:
        self._held.discard(job)
        self._unwanted.discard(job)
