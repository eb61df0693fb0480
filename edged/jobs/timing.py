"""Times sessions of one model against each other, on the box as it is at the moment."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence

import msgspec

from edged.backends.contract import Session
from edged.device import load
from edged.tensors import Array

_WARM_UPS = 2
_RUNS = (5, 60)  # at least, at most
_SECONDS = 1.5


class Timing(msgspec.Struct, frozen=True):
    """Median milliseconds of one inference of each session, and the share of the processors, 0 to 1, that other
    processes used meanwhile."""

    medians_ms: tuple[float, ...]
    load: float


def in_turns(sessions: Sequence[Session], inputs: Mapping[str, Array]) -> Timing:
    """Lets sessions infer one after the other, again and again, so that the box's load meets all alike."""
    for session in sessions:
        for _ in range(_WARM_UPS):
            session.infer(inputs)
    times: list[list[float]] = [[] for _ in sessions]
    ticks, used, begun = load.read(), time.process_time(), time.perf_counter()
    while len(times[0]) < _RUNS[0] or (len(times[0]) < _RUNS[1] and time.perf_counter() - begun < _SECONDS):
        for session, own in zip(sessions, times, strict=True):
            started = time.perf_counter()
            session.infer(inputs)
            own.append(time.perf_counter() - started)
    elapsed = time.perf_counter() - begun
    mine = (time.process_time() - used) / (elapsed * (os.cpu_count() or 1))
    others = max(0.0, load.read().share_since(ticks) - mine)
    return Timing(tuple(round(statistics.median(own) * 1000, 4) for own in times), round(others, 3))
