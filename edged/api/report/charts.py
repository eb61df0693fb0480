"""The charts of a report as inline SVG, in the colours of the page. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from edged.store.judgement import Point

_WIDTH, _LEFT, _RIGHT = 360, 40, 12
_MOST_DOTS = 60


def score_curves(points: Sequence[Point]) -> str:
    """Return a chart of an engine's precision and recall over the score threshold; empty without points."""
    if not points:
        return ""
    height, top, bottom = 230, 14, 40

    def x(score: float) -> float:
        return _LEFT + score * (_WIDTH - _LEFT - _RIGHT)

    def y(share: float) -> float:
        return top + (1 - min(max(share, 0.0), 1.0)) * (height - top - bottom)

    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(share):.1f}" y2="{y(share):.1f}"/>'
        )
        parts.append(f'<text class="end" x="{_LEFT - 6}" y="{y(share) + 4:.1f}">{share:g}</text>')
    parts += [f'<text class="mid" x="{x(s):.1f}" y="{height - bottom + 16}">{s:g}</text>' for s in (0.0, 0.5, 1.0)]
    parts.append(f'<text class="mid" x="{x(0.5):.1f}" y="{height - 6}">score of the engine</text>')
    for kind, values in (("recall", [p.recall for p in points]), ("precision", [p.precision for p in points])):
        line = " ".join(f"{x(p.score):.1f},{y(value):.1f}" for p, value in zip(points, values, strict=True))
        parts.append(f'<polyline class="{kind}" points="{line}"/>')
    parts.append(_key(_LEFT + 8, height - bottom - 10, "recall") + _key(_LEFT + 88, height - bottom - 10, "precision"))
    return _svg(height, "Precision and recall over the score", parts)


def _key(x: int, y: int, kind: str) -> str:
    return f'{_line(kind, (x, y - 4), (x + 18, y - 4))}<text x="{x + 22}" y="{y}">{kind}</text>'


def _line(kind: str, start: tuple[float, float], end: tuple[float, float]) -> str:
    (x1, y1), (x2, y2) = start, end
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def latencies(engine: Sequence[float], reference: Sequence[float]) -> str:
    """Return a chart of the inference times of the engine and of the reference, in milliseconds. Each has a row of dots
    and a box plot, on the same logarithmic axis. Empty without times."""
    every = [time for time in (*engine, *reference) if time > 0 and math.isfinite(time)]
    if not every:
        return ""
    low, high = min(every) / 1.1, max(every) * 1.1
    left, row, top = 76, 46, 8
    height = top + 2 * row + 34

    def x(time: float) -> float:
        return left + math.log(time / low) / math.log(high / low) * (_WIDTH - left - _RIGHT)

    parts = []
    for tick in _ticks(low, high):
        parts.append(_line("grid", (x(tick), top), (x(tick), height - 32)))
        parts.append(f'<text class="mid" x="{x(tick):.1f}" y="{height - 18}">{tick:g}</text>')
    parts.append(
        f'<text class="mid" x="{(left + _WIDTH) / 2:.1f}" y="{height - 3}">milliseconds of one inference</text>'
    )
    for number, (name, times) in enumerate((("engine", engine), ("reference", reference))):
        middle = top + row * number + row / 2
        parts.append(f'<text class="end" x="{left - 8}" y="{middle + 4:.1f}">{name}</text>')
        known = sorted(time for time in times if time > 0 and math.isfinite(time))
        if len(known) >= 2:
            lower, median, upper = (x(time) for time in statistics.quantiles(known, n=4, method="inclusive"))
            parts.append(_line("whisker", (x(known[0]), middle), (x(known[-1]), middle)))
            place = f'x="{lower:.1f}" y="{middle - 11:.1f}" width="{max(upper - lower, 1.0):.1f}" height="22"'
            parts.append(f'<rect class="box" {place}/>')
            parts.append(_line("median", (median, middle - 11), (median, middle + 11)))
        parts += [
            f'<circle class="dot" cx="{x(time):.1f}" cy="{middle + 16 - 4 * (order % 2):.1f}" r="1.6"/>'
            for order, time in enumerate(known[:: max(1, len(known) // _MOST_DOTS)])
        ]
    return _svg(height, "Times of one inference of the engine and of the reference", parts)


def _ticks(low: float, high: float) -> list[float]:
    """Return 2 to 8 round numbers between two numbers; if that is impossible, two numbers near the ends."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8), tuple(n / 10 for n in range(10, 100))):
        found = [value for power in powers for step in steps if low <= (value := round(step * 10.0**power, 9)) <= high]
        if 2 <= len(found) <= 8:
            return found
    return [float(f"{low * 1.1:.3g}"), float(f"{high / 1.1:.3g}")]


def _svg(height: int, title: str, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{title}">{"".join(parts)}</svg>'
