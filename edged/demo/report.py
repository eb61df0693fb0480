"""What a demonstration came to: the figures for a file, and what did not hold. Pure."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from edged.demo.life import Life, is_cache_hit, title
from edged.shapes import Counts, Prediction, Truth, match

IOU, SCORE = 0.5, 0.4
"""A detection is right from this overlap with the truth on; one below this score is not looked at. 0..1."""

_WINDOW_S = 2.0  # rates and ages on the screen are means over this long


class CameraCounts:
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


class FrameCounts:
    """All cameras together. With `judged` answers are compared with the truth."""

    def __init__(self, cameras: Iterable[str], *, judged: bool) -> None:
        self.cameras = tuple(CameraCounts(name) for name in cameras)
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


_LEAST_RECALL = 0.9


class EngineFigures(msgspec.Struct, frozen=True):
    """The engine that served at the end."""

    backend: str
    key: str
    state: str


class Report(msgspec.Struct, frozen=True):
    """The figures of one demonstration.

    `seconds` is how long cameras streamed, before and after the restart; `fps` counts answers of all cameras over
    that time. `p50_ms` and `p99_ms` are ages from capture to answer. `precision` and `recall` are None without a known
    truth. `first_answer_s` and `cold_start_s` count from the first launch to the first answer of any engine, and of
    the engine that served in the end; `warm_start_s` is the latter from the second launch. `swaps` counts both lives.
    `problems` says what did not hold, one line each.
    """

    cameras: int
    seconds: float
    frames_sent: int
    frames_answered: int
    frames_skipped: int
    frames_failed: int
    fps: float
    p50_ms: float | None
    p99_ms: float | None
    precision: float | None
    recall: float | None
    first_answer_s: float | None
    engine: EngineFigures | None
    swaps: int
    cold_start_s: float | None
    warm_start_s: float | None
    cache_hit: bool
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """The report, and the two lives it is about."""

    report: Report
    cold: Life
    warm: Life


def make_report(counts: FrameCounts, cold: Life, warm: Life, *, swap_due: bool) -> Report:
    """The report on two lives of the daemon. `swap_due` where an engine is known to be faster than the reference."""
    seconds = cold.streamed_s + warm.streamed_s
    serving = warm.serving or cold.serving
    return Report(
        cameras=len(counts.cameras),
        seconds=round(seconds, 3),
        frames_sent=counts.sent,
        frames_answered=counts.answered,
        frames_skipped=counts.skipped,
        frames_failed=counts.failed,
        fps=round(counts.answered / seconds, 3) if seconds > 0 else 0.0,
        p50_ms=_rounded(percentile(counts.ages, 0.5)),
        p99_ms=_rounded(percentile(counts.ages, 0.99)),
        precision=_rounded(counts.precision, 5),
        recall=_rounded(counts.recall, 5),
        first_answer_s=_rounded(cold.first_answer_s),
        engine=EngineFigures(serving.backend, serving.key, serving.state) if serving else None,
        swaps=cold.swaps + warm.swaps,
        cold_start_s=_rounded(cold.served_s),
        warm_start_s=_rounded(warm.served_s),
        cache_hit=is_cache_hit(cold, warm),
        problems=tuple(_problems(counts, cold, warm, swap_due)),
    )


def _problems(counts: FrameCounts, cold: Life, warm: Life, swap_due: bool) -> list[str]:
    """The cause first, what may follow from it after it."""
    found = [life.problem for life in (cold, warm) if life.problem]
    if counts.failed:
        found.append(f"{counts.failed} of {counts.sent} frames failed{f': {counts.error}' if counts.error else ''}")
    if counts.sent != counts.answered + counts.skipped + counts.failed:
        found.append(
            f"{counts.sent} frames were sent, but {counts.answered + counts.skipped + counts.failed} came back"
        )
    if not counts.answered:
        found.append("no frame was answered")
    if cold.problem or not counts.answered:
        return found
    if swap_due and not cold.swaps and (why := _why_no_swap(cold)):
        found.append(f"no engine was swapped in: {why}")
    if not warm.problem and not is_cache_hit(cold, warm):
        found.append("after the restart the engine was not served from the store")
    if counts.recall is not None and counts.recall < _LEAST_RECALL:
        found.append(f"recall is {counts.recall:.3f}, below {_LEAST_RECALL:g}")
    return found


def _why_no_swap(cold: Life) -> str:
    """Empty if every engine was timed and none is faster than the unoptimised model on this box as it is now."""
    broken = [f"{title(e)} {e.state}: {e.reason}" for e in cold.engines if e.state in ("failed", "rejected")]
    if broken:
        return broken[0]
    pending = [f"{title(e)} is {e.state}" for e in cold.engines if e.state not in ("ready", "serving")]
    if pending:
        return f"{pending[0]} still; give it longer with --seconds"
    return ""


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)
