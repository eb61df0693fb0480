"""The account of one stream: every frame sent is answered, skipped or failed, or still waits."""

from __future__ import annotations

import time
from collections.abc import Callable

from edged.client.result import Result


class Ledger:
    """Counts frames. The sending side writes `sent`, the receiving side the rest, so that no lock is needed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.sent = 0
        self.answered = 0
        self.skipped = 0
        self.failed = 0
        self.gave_up = False  # set by whoever ends the stream because of `silence`
        self._clock = clock
        self._last = clock()

    @property
    def waiting(self) -> int:
        """Frames whose fate is not known yet."""
        return self.sent - self.answered - self.skipped - self.failed

    def on_sent(self) -> None:
        if self.waiting == 0:
            self._last = self._clock()
        self.sent += 1

    def on_result(self, result: Result) -> None:
        self.skipped += result.skipped
        if result.error is None:
            self.answered += 1
        else:
            self.failed += 1
        self._last = self._clock()

    def silence(self) -> float:
        """Seconds that frames have waited without any answer; 0 while none waits."""
        return self._clock() - self._last if self.waiting > 0 else 0.0
