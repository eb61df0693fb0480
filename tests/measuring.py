"""Helpers for benchmarks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping


def in_turns(ways: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """Return the durations of every call of each way in seconds. Calls take turns, so that load affects all alike."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for work in ways.values():
        work()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or not all(taken.values()):
        for name, work in ways.items():
            started = time.perf_counter()
            work()
            taken[name].append(time.perf_counter() - started)
    return taken


def argument(default: float) -> float:
    """Return the program's first argument as a number."""
    return float(sys.argv[1]) if sys.argv[1:] else default
