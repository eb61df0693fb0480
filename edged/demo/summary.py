"""The end of a demonstration, told in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.text import Text

from edged.demo import story
from edged.demo.life import Life
from edged.demo.report import Report
from edged.demo.runner import Outcome
from edged.demo.tally import IOU, SCORE

_LABEL = 9  # characters


def render(outcome: Outcome, files: tuple[Path, ...]) -> Text:
    """What was seen in both lives, the figures, and that everything held unless there are problems, which are told as
    errors are. `files` are those that were written."""
    report = outcome.report
    lines = [
        Text(),
        *_events("start", outcome.cold, None),
        *_events("restart", outcome.warm, outcome.cold),
        *_others(outcome.warm if outcome.warm.engines else outcome.cold),
        *_figures(report),
        *(_line("wrote", str(path)) for path in files),
        *([] if report.problems else [Text(), _verdict(report)]),
    ]
    return Text("\n").join(lines)


def _events(label: str, life: Life, before: Life | None) -> Iterator[Text]:
    for key, at in life.first_by.items():
        yield _line(label, Text.assemble((f"{at:.1f} s  ", "cyan"), story.answering(life, key, before)))
        label = ""


def _others(life: Life) -> Iterator[Text]:
    """Engines that do not serve."""
    for engine in life.engines:
        if engine.state in ("rejected", "failed"):
            yield _line("not used", Text(story.outcome(engine), "red"))
        elif engine.state == "ready":
            yield _line("reserve", story.outcome(engine))


def _figures(report: Report) -> Iterator[Text]:
    yield _line(
        "frames",
        f"{report.frames_sent} sent = {report.frames_answered} answered"
        f" + {report.frames_skipped} skipped (overtaken by newer ones) + {report.frames_failed} failed",
    )
    yield _line("rate", f"{report.fps:.1f} answers a second; {_many(report.cameras, 'camera')}, {report.seconds:.0f} s")
    if report.p50_ms is not None and report.p99_ms is not None:
        yield _line("age", f"p50 {report.p50_ms:.1f} ms, p99 {report.p99_ms:.1f} ms from capture to answer")
    if report.precision is not None and report.recall is not None:
        found = f"precision {report.precision:.3f}, recall {report.recall:.3f} against what was drawn"
        yield _line("found", f"{found} (IoU {IOU:g}, score {SCORE:g})")


def _verdict(report: Report) -> Text:
    none = "no frame failed, no engine is faster here than the unoptimised one"
    swaps = f"{_many(report.swaps, 'swap')} without a failed frame" if report.swaps else none
    return Text(f"Everything held: {swaps}, and the restart built nothing.", "bold green")


def _line(label: str, words: Text | str) -> Text:
    return Text.assemble((f"{label:<{_LABEL}}", "dim"), words)


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
