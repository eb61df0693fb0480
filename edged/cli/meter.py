"""The figures of a running stream in one line of text."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edged.client.frame_counts import FrameCounts
    from edged.client.result import Result
    from edged.client.sources import Source

_WINDOW_S = 2.0


class Meter:
    """Looks at results as they pass. Rate and age are means over the last two seconds. `line` may be called by
    another thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._busy = threading.Lock()
        self._recent: deque[tuple[float, float]] = deque()
        self._skipped = self._failed = 0
        self._last: Result | None = None
        self.error = ""

    def on_result(self, result: Result) -> None:
        self._skipped += result.skipped
        if result.error is not None:
            self._failed += 1
            self.error = f"{result.error[1]} ({result.error[0]})"
            return
        with self._busy:
            self._last = result
            self._recent.append((self._clock(), result.age_ms))

    def line(self) -> str:
        now = self._clock()
        with self._busy:
            while self._recent and now - self._recent[0][0] > _WINDOW_S:
                self._recent.popleft()
            ages = [age for _, age in self._recent]
        if self._last is None:
            return f"failed {self._failed}: {self.error}" if self.error else "waiting for the first result"
        rate = len(ages) / max(0.001, min(_WINDOW_S, now - self._start))
        age = sum(ages) / max(1, len(ages))
        parts = [f"{rate:.1f} fps", f"age {age:.0f} ms", f"skipped {self._skipped}"]
        parts += [f"{len(self._last.detections)} detections", *([self._last.backend] if self._last.backend else [])]
        if self._failed:
            parts.append(f"failed {self._failed}: {self.error}")
        return "  ".join(parts)

    def summary(self, counts: FrameCounts, source: Source) -> str:
        """The account at the end; the parts that are usually zero only where they are not."""
        took = self._clock() - self._start
        parts = [
            f"{counts.sent} frames sent",
            f"{counts.answered} answered",
            f"{counts.skipped} skipped",
            f"{counts.failed} failed",
        ]
        if counts.waiting > 0:
            parts.append(f"{counts.waiting} without an answer")
        if source.skipped:
            parts.append(f"{source.skipped} skipped at the source")
        if source.damaged:
            parts.append(f"{source.damaged} damaged")
        return f"{', '.join(parts)} in {took:.1f} s ({counts.answered / max(took, 0.001):.1f} fps)"
