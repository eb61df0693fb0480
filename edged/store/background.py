"""Writes that nothing waits for: done one after the other, in the order in which they were given, by one thread.

What is in memory is the truth; the disk follows. Of two writes of one file the later one stays.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import TypeAlias

_LOG = logging.getLogger("edged.store")

Work: TypeAlias = Callable[[], object]
Later: TypeAlias = Callable[[Work], None]


def at_once(work: Work) -> None:
    """Does it now, for programs that have nothing else to do meanwhile."""
    work()


class Background:
    """The thread starts with the first work and does not keep the process alive."""

    def __init__(self) -> None:
        self._works: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, work: Work) -> None:
        """Has it done after everything that was put before."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="disk", daemon=True)
                self._thread.start()
        self._works.put(work)

    def flush(self, seconds: float) -> bool:
        """Waits until everything that was put is done; whether it was in time."""
        done = threading.Event()
        self.put(done.set)
        return done.wait(seconds)

    def _run(self) -> None:
        while True:
            work = self._works.get()
            try:
                work()
            except OSError as error:  # as when the disk is full: the daemon forgets it at its end
                _LOG.info("something could not be written: %s", error)
            except Exception:
                _LOG.exception("a write ended with an unexpected error")
