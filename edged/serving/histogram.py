"""How often something took how long, by ranges with fixed bounds. Adding costs one search among a dozen numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

# Seconds: from the fastest engine on a GPU to a camera that is minutes behind.
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Histogram:
    """`bounds` are the largest values of all ranges but the last, which has none."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[float, int]]:
        """For each range its largest value, infinite for the last, and how many were not above it."""
        found, count = [], 0
        for bound, here in zip((*self.bounds, float("inf")), self.counts, strict=True):
            count += here
            found.append((bound, count))
        return found
