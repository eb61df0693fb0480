"""What a demonstration came to: the figures for a file, and what did not hold. Pure."""

from __future__ import annotations

import msgspec

from edged.demo.life import Life, is_cache_hit, title
from edged.demo.tally import Tally, percentile

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


def make(tally: Tally, cold: Life, warm: Life, *, swap_due: bool) -> Report:
    """The report on two lives of the daemon. `swap_due` where an engine is known to be faster than the reference."""
    seconds = cold.streamed_s + warm.streamed_s
    serving = warm.serving or cold.serving
    return Report(
        cameras=len(tally.cameras),
        seconds=round(seconds, 3),
        frames_sent=tally.sent,
        frames_answered=tally.answered,
        frames_skipped=tally.skipped,
        frames_failed=tally.failed,
        fps=round(tally.answered / seconds, 3) if seconds > 0 else 0.0,
        p50_ms=_rounded(percentile(tally.ages, 0.5)),
        p99_ms=_rounded(percentile(tally.ages, 0.99)),
        precision=_rounded(tally.precision, 5),
        recall=_rounded(tally.recall, 5),
        first_answer_s=_rounded(cold.first_answer_s),
        engine=EngineFigures(serving.backend, serving.key, serving.state) if serving else None,
        swaps=cold.swaps + warm.swaps,
        cold_start_s=_rounded(cold.served_s),
        warm_start_s=_rounded(warm.served_s),
        cache_hit=is_cache_hit(cold, warm),
        problems=tuple(_problems(tally, cold, warm, swap_due)),
    )


def _problems(tally: Tally, cold: Life, warm: Life, swap_due: bool) -> list[str]:
    """The cause first, what may follow from it after it."""
    found = [life.problem for life in (cold, warm) if life.problem]
    if tally.failed:
        found.append(f"{tally.failed} of {tally.sent} frames failed{f': {tally.error}' if tally.error else ''}")
    if tally.sent != tally.answered + tally.skipped + tally.failed:
        found.append(f"{tally.sent} frames were sent, but {tally.answered + tally.skipped + tally.failed} came back")
    if not tally.answered:
        found.append("no frame was answered")
    if cold.problem or not tally.answered:
        return found
    if swap_due and not cold.swaps and (why := _why_no_swap(cold)):
        found.append(f"no engine was swapped in: {why}")
    if not warm.problem and not is_cache_hit(cold, warm):
        found.append("after the restart the engine was not served from the store")
    if tally.recall is not None and tally.recall < _LEAST_RECALL:
        found.append(f"recall is {tally.recall:.3f}, below {_LEAST_RECALL:g}")
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
