"""Work on results that takes longer than a stream may wait."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from edged.client.sinks.answered import Answered

_DEPTH = 8

_log = logging.getLogger("edged.client")


class Background:
    """A thread that does `work` on one answer after the other, and `finish` at the end. At most `depth` wait: another
    one takes the place of the oldest, counted in `dropped`, or with `lossless` whoever brings it waits."""

    def __init__(
        self,
        name: str,
        work: Callable[[Answered], None],
        finish: Callable[[], None],
        *,
        lossless: bool = False,
        depth: int = _DEPTH,
    ) -> None:
        self.dropped = 0
        self._work, self._finish = work, finish
        self._lossless, self._depth = lossless, depth
        self._waiting: deque[Answered] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, answered: Answered) -> None:
        """Raises what the work has raised meanwhile."""
        with self._changed:
            if self._lossless:
                self._changed.wait_for(lambda: len(self._waiting) < self._depth or self._failure is not None)
            self._raise_failure()
            if len(self._waiting) >= self._depth:
                self._waiting.popleft()
                self.dropped += 1
            self._waiting.append(answered)
            self._changed.notify_all()

    def close(self) -> None:
        """When all that waits is done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self._raise_failure()

    def _run(self) -> None:
        try:
            while (answered := self._next()) is not None:
                self._work(answered)
        except Exception as error:
            self._fail(error)
        try:
            self._finish()
        except Exception as error:
            self._fail(error)

    def _next(self) -> Answered | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            answered = self._waiting.popleft() if self._waiting else None
            self._changed.notify_all()
            return answered

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
