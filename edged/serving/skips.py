"""Which frames of a camera were skipped, and why: runs of frame numbers instead of a list of them. Pure."""

from __future__ import annotations

import msgspec

# Reasons; `errors.FrameSkipped` has those that are found when a frame's turn comes.
OVERTAKEN = "overtaken"
RATE = "rate"
FULL = "full"
_SEVERAL = "several"
_MOST_RUNS = 256


class Skips(msgspec.Struct, frozen=True):
    """Frames that came one after the other and were skipped for the same reason, by the numbers their client gave."""

    first: int
    last: int
    count: int
    reason: str


class SkipLedger:
    """Skipped frames that nobody was told of yet."""

    def __init__(self) -> None:
        self._runs: list[Skips] = []
        self._last = -1  # place, among all frames of the camera, of the one that was added last

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, place: int, sequence: int, reason: str) -> None:
        """One frame, the `place`-th of its camera, with its client's number."""
        run = self._runs[-1] if self._runs else None
        if run is not None and run.reason == reason and place == self._last + 1:
            self._runs[-1] = Skips(run.first, sequence, run.count + 1, reason)
        else:
            self._runs.append(Skips(sequence, sequence, 1, reason))
            if len(self._runs) > _MOST_RUNS:  # nobody has listened for long
                first, second = self._runs[:2]
                self._runs[:2] = [Skips(first.first, second.last, first.count + second.count, _SEVERAL)]
        self._last = place

    def take(self) -> tuple[Skips, ...]:
        """All of them; from now on somebody was told."""
        runs, self._runs = tuple(self._runs), []
        return runs
