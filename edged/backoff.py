"""How long to wait before something that failed is tried again. Pure."""

from __future__ import annotations

STEPS_S = (1.0, 5.0, 10.0, 60.0)  # a camera that was just switched on takes about ten seconds


class Backoff:
    """Pauses between attempts: they grow along `steps`, in seconds, and the last one repeats. After an attempt that
    worked for `good` seconds they start over."""

    def __init__(self, steps: tuple[float, ...] = STEPS_S, good: float = 10.0) -> None:
        self._steps, self._good, self._failures = steps, good, 0

    def after(self, worked: float) -> float:
        """Return the seconds to wait after an attempt that worked for `worked` seconds, 0 for not at all."""
        if worked >= self._good:
            self._failures = 0
        pause = self._steps[min(self._failures, len(self._steps) - 1)]
        self._failures += 1
        return pause
