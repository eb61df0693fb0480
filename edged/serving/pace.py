"""How long inference takes while serving: the newest times of one session, and whether they have become too long."""

from __future__ import annotations

import statistics
import time
from collections import deque

_KEPT = 128
_FEWEST = 5  # answers that a median needs
_MOMENT = 1e-9  # seconds: slow, but only just
_OLD_SECONDS = 30.0  # what happened before says nothing about now


class Pace:
    """Milliseconds of inference, each with the moment it was met. Adding costs one append."""

    def __init__(self) -> None:
        self._times: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self._slow_since: float | None = None

    def add(self, milliseconds: float) -> None:
        """One inference took so long."""
        self._times.append((time.monotonic(), milliseconds))

    def median(self, now: float) -> float | None:
        """Milliseconds, over the newest answers of the last half minute; None where there were too few."""
        recent = [milliseconds for moment, milliseconds in self._times if now - moment <= _OLD_SECONDS]
        return statistics.median(recent) if len(recent) >= _FEWEST else None

    def slow_for(self, now: float, limit_ms: float) -> float:
        """For how many seconds, without a break, the median was found above a limit; 0 when it is not now.

        Asked regularly. While nothing is inferred nothing is known: what was found before stands and grows no older.
        """
        median = self.median(now)
        if median is not None and median <= limit_ms:
            self._slow_since = None
        elif median is not None and self._slow_since is None:
            self._slow_since = now
        if self._slow_since is None:
            return 0.0
        return max(self._times[-1][0] - self._slow_since, _MOMENT)
