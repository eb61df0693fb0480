"""No more than so many frames a second."""

from __future__ import annotations


class RateLimit:
    """Decides which of the frames of a camera are kept, by their times in seconds; `fps` 0 keeps all.

    Of a camera of 30 a second and a limit of 10 it keeps each third, whatever the jitter: those that come a bit early
    for their turn are taken, and a pause earns no burst.
    """

    _EARLY = 0.1  # of a period

    def __init__(self, fps: float) -> None:
        self._period = 1 / fps if fps > 0 else 0.0
        self._due: float | None = None

    def admits(self, at: float) -> bool:
        if not self._period:
            return True
        due = self._due
        if due is not None and -2 * self._period < at - due < -self._EARLY * self._period:
            return False
        on_time = due is not None and abs(at - due) < self._period
        self._due = (due if on_time and due is not None else at) + self._period
        return True
