"""Pauses before another attempt after a failure. Pure."""

from __future__ import annotations

STEPS_S = (1.0, 5.0, 10.0, 60.0)  # a camera needs about ten seconds to start after it is switched on


class Backoff:
    """Pauses between attempts. Their lengths are `steps`, in seconds; the last step repeats. After an attempt that
    worked for `good` seconds, pauses begin again with the first step."""

    def __init__(self, steps: tuple[float, ...] = STEPS_S, good: float = 10.0) -> None:
        self._steps, self._good, self._failures = steps, good, 0

    def after(self, worked: float) -> float:
        """Return the seconds to wait after an attempt that worked for `worked` seconds (0 for a failed attempt)."""
        if worked >= self._good:
            self._failures = 0
        pause = self._steps[min(self._failures, len(self._steps) - 1)]
        self._failures += 1
        return pause
