"""The result of a demo: what was measured, and the problems. Pure."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from edged.client.requests import FrameCounts as StreamCounts
from edged.demo.life import UNDER_WAY, Life, is_cache_hit, title
from edged.shapes import Counts, Prediction, Truth, match

IOU, SCORE = 0.5, 0.4
"""The least IoU with the truth at which a detection is right, and the score below which a detection is ignored."""

_WINDOW_S = 2.0  # seconds over which rates and ages on the screen are means


class Totals(NamedTuple):
    """The frames of one or more streams. At the end each sent frame is answered, skipped or failed."""

    sent: int
    answered: int
    skipped: int
    failed: int


class CameraCounts:
    """Counts the frames of one camera in all its streams, and keeps its answers of the last two seconds."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.streams: list[StreamCounts] = []
        self._clock = clock
        self._recent: deque[tuple[float, float]] = deque()

    def totals(self) -> Totals:
        return Totals(*(sum(getattr(stream, field) for stream in self.streams) for field in Totals._fields))

    def on_answer(self, age_ms: float) -> None:
        self._recent.append((self._clock(), age_ms))

    def lately(self) -> tuple[float, float | None]:
        """Return the number of answers per second in the last two seconds, and the mean of their ages in milliseconds.
        Without answers, the mean is None."""
        now = self._clock()
        while self._recent and now - self._recent[0][0] > _WINDOW_S:
            self._recent.popleft()
        ages = [age for _, age in self._recent]
        return len(ages) / _WINDOW_S, sum(ages) / len(ages) if ages else None


class FrameCounts:
    """Counts the frames of all cameras. If `judged` is set, answers are compared with the ground truth."""

    def __init__(self, cameras: Iterable[str], *, judged: bool) -> None:
        self.cameras = tuple(CameraCounts(name) for name in cameras)
        self.ages: list[float] = []  # milliseconds from capture to answer, one for each answered frame
        self.error = ""  # of the last frame that failed
        self._counts = Counts() if judged else None

    def totals(self) -> Totals:
        return Totals(*map(sum, zip(*(camera.totals() for camera in self.cameras), strict=True)))

    @property
    def precision(self) -> float | None:
        """The share of detections that are right; None if the truth is unknown or no frame was answered."""
        return self._counts.precision if self._counts is not None and self.ages else None

    @property
    def recall(self) -> float | None:
        """The share of the drawn figures that were detected; None if the truth is unknown or no frame was answered."""
        return self._counts.recall if self._counts is not None and self.ages else None

    def judge(self, predictions: Iterable[Prediction], truths: Sequence[Truth]) -> None:
        """Compare one answer with the ground truth of its picture."""
        if self._counts is not None:
            self._counts += match([p for p in predictions if p.score >= SCORE], truths, IOU)


_LEAST_RECALL = 0.9


class EngineFigures(msgspec.Struct, frozen=True):
    """The engine that served at the end."""

    backend: str
    key: str
    state: str


class Report(msgspec.Struct, frozen=True):
    """The measurements of one demo.

    `seconds` is how long cameras streamed, before and after the restart; `fps` is the rate of answers of all cameras in
    that time. `p50_ms` and `p99_ms` are ages from capture to answer. `precision` and `recall` are None if the truth is
    unknown. `first_answer_s` is the time from the first launch to the first answer of any engine. `cold_start_s` (first
    run) and `warm_start_s` (second run) are the times from the launch to the first answer of the engine that served at
    the end of the run. `swaps` counts the swaps of both runs. `unfinished` names an engine that was still being built
    at the end of the first run, otherwise it is empty. `problems` has a line for each problem.
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
    unfinished: str
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """The report and the two runs of the daemon."""

    report: Report
    cold: Life
    warm: Life


def make_report(counts: FrameCounts, cold: Life, warm: Life, *, swap_due: bool) -> Report:
    """Make the report of two runs of the daemon. `swap_due` means that an engine faster than the reference is expected.
    Then it is a problem if an engine failed or was rejected and no engine was swapped in."""
    total = counts.totals()
    seconds = cold.streamed_s + warm.streamed_s
    serving = warm.serving or cold.serving
    p50, p99 = np.quantile(counts.ages, (0.5, 0.99), method="inverted_cdf").tolist() if counts.ages else (None, None)
    return Report(
        cameras=len(counts.cameras),
        seconds=round(seconds, 3),
        frames_sent=total.sent,
        frames_answered=total.answered,
        frames_skipped=total.skipped,
        frames_failed=total.failed,
        fps=round(total.answered / seconds, 3) if seconds > 0 else 0.0,
        p50_ms=_rounded(p50),
        p99_ms=_rounded(p99),
        precision=_rounded(counts.precision, 5),
        recall=_rounded(counts.recall, 5),
        first_answer_s=_rounded(cold.first_answer_s),
        engine=EngineFigures(serving.backend, serving.key, serving.state) if serving else None,
        swaps=cold.swaps + warm.swaps,
        cold_start_s=_rounded(cold.served_s),
        warm_start_s=_rounded(warm.served_s),
        cache_hit=is_cache_hit(cold, warm),
        unfinished=_unfinished(cold),
        problems=tuple(_problems(counts, cold, warm, swap_due)),
    )


def _problems(counts: FrameCounts, cold: Life, warm: Life, swap_due: bool) -> list[str]:
    """Return the problems; causes come before their effects."""
    found = [life.problem for life in (cold, warm) if life.problem]
    sent, answered, skipped, failed = counts.totals()
    if failed:
        found.append(f"{failed} of {sent} frames failed{f': {counts.error}' if counts.error else ''}")
    if sent != answered + skipped + failed:
        found.append(f"{sent} frames were sent, but {answered + skipped + failed} came back")
    if not answered:
        found.append("no frame was answered")
    if cold.problem or not answered:
        return found
    if swap_due and not cold.swaps and (why := _why_no_swap(cold)):
        found.append(f"no engine was swapped in: {why}")
    if not warm.problem and not _unfinished(cold) and not is_cache_hit(cold, warm):
        found.append("after the restart the daemon did not use the stored engine, or built a stored engine again")
    if counts.recall is not None and counts.recall < _LEAST_RECALL:
        found.append(f"the recall of {counts.recall:.3f} is too low; it must be at least {_LEAST_RECALL:g}")
    return found


def _why_no_swap(cold: Life) -> str:
    """Return the first engine that failed or was rejected, and the reason; this explains why no engine was swapped in.
    Return an empty text if no engine failed, or if an engine was still being built."""
    broken = [f"{title(e)} {e.state}: {e.reason}" for e in cold.engines if e.state in ("failed", "rejected")]
    return "" if _unfinished(cold) or not broken else broken[0]


def _unfinished(life: Life) -> str:
    """Return an engine that was still being built when a run ended, otherwise an empty text."""
    return next((f"{title(each)}: {each.state}" for each in life.engines if each.state in UNDER_WAY), "")


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)
