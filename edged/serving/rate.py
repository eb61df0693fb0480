"""How often something happens, and how to hold that to a limit. Pure."""

from __future__ import annotations

from collections import deque

_WINDOW = 10.0  # seconds
_KEPT = 1024


class Rate:
    """Events a second, over the last ten seconds. Adding costs one append."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_KEPT)

    def add(self, now: float) -> None:
        self._times.append(now)

    def per_second(self, now: float) -> float:
        """0 where nothing happened lately; the first event only starts the clock."""
        recent = [time for time in self._times if now - time <= _WINDOW]
        if len(recent) < 2 or recent[-1] <= recent[0]:
            return 0.0
        gap = (recent[-1] - recent[0]) / (len(recent) - 1)
        # Silence that is longer than the usual gap counts too, so that a camera that stopped fades instead of standing.
        return (len(recent) - 1) / max(recent[-1] - recent[0], now - recent[0] - gap)


class Limit:
    """Lets at most so many through a second, on the average: one that came late may be followed a little early."""

    def __init__(self, per_second: float) -> None:
        self._period = 1 / per_second if per_second > 0 else 0.0
        self._due: float | None = None

    def admits(self, now: float) -> bool:
        """Whether one that comes now goes through; if so it is counted."""
        if not self._period:
            return True
        if self._due is not None and now < self._due:
            return False
        # One period is made up for, so that a camera whose frames fall between gets its share all the same.
        self._due = (now if self._due is None else max(self._due, now - self._period)) + self._period
        return True
