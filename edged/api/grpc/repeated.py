"""Warnings about what may happen at every frame: told at once, then counted, and told again once a second at most."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter


class RepeatedWarning:
    """Used on one event loop. `counts` holds how often each reason was given since the start."""

    def __init__(self, log: logging.Logger, what: str, seconds: float = 1.0) -> None:
        self.counts: Counter[str] = Counter()
        self._log, self._what, self._seconds = log, what, seconds
        self._since: Counter[str] = Counter()
        self._last: dict[str, str] = {}
        self._timer: asyncio.TimerHandle | None = None

    def tell(self, reason: str, detail: str) -> None:
        """Something happened once more; `reason` is a word to count by, `detail` the one line about it."""
        self.counts[reason] += 1
        self._since[reason] += 1
        self._last[reason] = detail
        if self._timer is None:
            self._flush()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _flush(self) -> None:
        self._timer = None
        if not self._since:
            return
        for reason, count in self._since.items():
            # The log holds back what is alike: here each reason is a thing of its own, and counted already.
            alike = {"alike": f"{self._what} {reason}"}
            self._log.warning("%s (%d times %s): %s", self._what, count, reason, self._last[reason], extra=alike)
        self._since.clear()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._flush)
