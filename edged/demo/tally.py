"""The account of a demonstration: every frame that was sent is answered, skipped or failed. Pure."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from edged.shapes import Counts, Prediction, Truth, match

IOU, SCORE = 0.5, 0.4
"""A detection is right from this overlap with the truth on; one below this score is not looked at. 0..1."""

_WINDOW_S = 2.0  # rates and ages on the screen are means over this long


class CameraTally:
    """One camera's frames, over all the streams it has opened one after the other."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._clock = clock
        self.sent = self.answered = self.skipped = self.failed = 0
        self._recent: deque[tuple[float, float]] = deque()

    def on_answer(self, age_ms: float, skipped: int) -> None:
        """A frame was answered, and so many before it were skipped."""
        self.answered += 1
        self.skipped += skipped
        self._recent.append((self._clock(), age_ms))

    def on_failure(self, skipped: int) -> None:
        """A frame was answered with an error."""
        self.failed += 1
        self.skipped += skipped

    def on_closed(self, sent: int) -> int:
        """A stream is over after `sent` frames. Returns how many of them were never heard of; they failed."""
        self.sent += sent
        lost = max(0, self.sent - self.answered - self.skipped - self.failed)
        self.failed += lost
        return lost

    def lately(self) -> tuple[float, float | None]:
        """Answers a second, and the mean of their ages in milliseconds; None where there was none."""
        now = self._clock()
        while self._recent and now - self._recent[0][0] > _WINDOW_S:
            self._recent.popleft()
        ages = [age for _, age in self._recent]
        return len(ages) / _WINDOW_S, sum(ages) / len(ages) if ages else None


class Tally:
    """All cameras together. With `judged` answers are compared with the truth."""

    def __init__(self, cameras: Iterable[str], *, judged: bool) -> None:
        self.cameras = tuple(CameraTally(name) for name in cameras)
        self.ages: list[float] = []  # milliseconds from capture to answer, one for each answered frame
        self.error = ""  # of the last frame that failed
        self._counts = Counts() if judged else None

    @property
    def sent(self) -> int:
        return sum(camera.sent for camera in self.cameras)

    @property
    def answered(self) -> int:
        return sum(camera.answered for camera in self.cameras)

    @property
    def skipped(self) -> int:
        return sum(camera.skipped for camera in self.cameras)

    @property
    def failed(self) -> int:
        return sum(camera.failed for camera in self.cameras)

    @property
    def precision(self) -> float | None:
        """Share of the detections that are right; None where the truth is not known or nothing was answered."""
        return self._counts.precision if self._counts is not None and self.ages else None

    @property
    def recall(self) -> float | None:
        """Share of the figures that were found; None as above."""
        return self._counts.recall if self._counts is not None and self.ages else None

    def judge(self, predictions: Iterable[Prediction], truths: Sequence[Truth]) -> None:
        """Compares one answer with the truth about its picture."""
        if self._counts is not None:
            self._counts += match([p for p in predictions if p.score >= SCORE], truths, IOU)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` (0..1) of all do not exceed; None of nothing."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
