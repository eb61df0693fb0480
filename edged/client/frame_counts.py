"""Counts of the frames of one stream: each that was sent is answered, skipped or failed, or still waits."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from edged.client.result import Result, Skips


class FrameCounts:
    """Counts frames. The sending side writes `sent`, the receiving side the rest, so that no lock is needed.

    `reasons` counts skipped frames by reason. `lost` counts the failed frames that were in flight when the daemon went
    away. `unreported` are skipped frames that no result reports, since none came after them; `skipped` is the sum over
    all results and `unreported`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.sent = 0
        self.answered = 0
        self.skipped = 0
        self.failed = 0
        self.lost = 0
        self.reasons: Counter[str] = Counter()
        self.unreported: tuple[Skips, ...] = ()
        self.gave_up = False  # set when a stream is ended because of `silence`
        self._unreported = 0
        self._clock = clock
        self._last = clock()

    @property
    def waiting(self) -> int:
        """Frames in flight."""
        return self.sent - self.answered - self.skipped - self.failed

    def on_sent(self) -> None:
        if self.waiting == 0:
            self._last = self._clock()
        self.sent += 1

    def on_skips(self, skipped: int, skips: Sequence[Skips]) -> None:
        """Count skipped frames that came without an answer; the next result reports them."""
        self._count(skipped, skips)
        self.unreported += tuple(skips)
        self._unreported += skipped

    def on_result(self, result: Result) -> Result:
        """Count a result; return it with the skipped frames that no earlier one reported."""
        self._count(result.skipped, result.skips)
        if result.error is None:
            self.answered += 1
        else:
            self.failed += 1
        if not self._unreported:
            return result
        whole = msgspec.structs.replace(
            result, skipped=self._unreported + result.skipped, skips=self.unreported + result.skips
        )
        self.unreported, self._unreported = (), 0
        return whole

    def on_lost(self) -> None:
        """The daemon went away: frames in flight are never answered."""
        lost = max(0, self.waiting)
        self.failed += lost
        self.lost += lost
        self.gave_up = False

    def silence(self) -> float:
        """Return the seconds that frames have waited without any answer; 0 while none waits."""
        return self._clock() - self._last if self.waiting > 0 else 0.0

    def _count(self, skipped: int, skips: Sequence[Skips]) -> None:
        self.skipped += skipped
        for each in skips:
            self.reasons[each.reason] += each.count
        self._last = self._clock()
