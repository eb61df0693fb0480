"""Whether a model has enough work for several inferences at the same time."""

from __future__ import annotations

import math

_SECONDS = 1.0  # over which the mean is taken, weighted towards now
_MANY, _FEW = 1.5, 1.1  # pieces of work, waiting and in progress, on average
_CALM_SECONDS = 10.0  # with few, until demand counts as low again


class Demand:
    """The mean number of pieces of work that a slot has, waiting and in progress. Times are monotonic seconds.

    One client that waits for each answer has at most one. A mean above one means that work waits for other work.
    """

    __slots__ = ("_count", "_few_since", "_is_high", "_mean", "_then")

    def __init__(self) -> None:
        self._count, self._mean, self._then = 0, 0.0, 0.0
        self._is_high, self._few_since = False, math.inf

    def note(self, count: int, now: float) -> None:
        """Record the number of pieces of work from now on."""
        self._advance(now)
        self._count = count

    def is_high(self, now: float) -> bool:
        """Whether several inferences at a time would have work. Call it regularly: it becomes true with many pieces of
        work, and false only after few for a while."""
        self._advance(now)
        if self._mean >= _MANY:
            self._is_high = True
        if self._mean >= _FEW:
            self._few_since = math.inf
        else:
            self._few_since = min(self._few_since, now)
            if now - self._few_since >= _CALM_SECONDS:
                self._is_high = False
        return self._is_high

    def _advance(self, now: float) -> None:
        passed = now - self._then
        if passed > 0:
            self._mean = self._count + (self._mean - self._count) * math.exp(-passed / _SECONDS)
            self._then = now
