"""Alternatives ("ways") measured in turns, and the table of their ratios. Needs no daemon."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

Figures = Mapping[str, float]
Measured = Mapping[str, Sequence[Figures]]


@dataclass(frozen=True)
class Line:
    """One figure of one way. `value` and `reference` are medians of all rounds; `ratio` is the median of the rounds'
    ratios, `low` and `high` are their extremes. `goal` is the wanted ratio: a minimum if `more` is better, else a
    maximum; None without a goal."""

    row: str
    way: str
    figure: str
    against: str
    value: float
    reference: float
    ratio: float
    low: float
    high: float
    rounds: int
    goal: float | None
    more: bool

    @property
    def met(self) -> bool:
        return self.goal is None or (self.ratio >= self.goal if self.more else self.ratio <= self.goal)


@dataclass(frozen=True)
class Skipped:
    """A row that could not be measured, and the reason."""

    row: str
    reason: str


# Until a daemon serves in the form that suits a load: the load has to last, and another engine may have to be opened.
_LEAD_IN_SECONDS = 3.0


def steady(measure: Callable[[float], Figures], seconds: float) -> Callable[[], Figures]:
    """A way that measures for `seconds` after a lead-in with the same load, which does not count."""

    def turn() -> Figures:
        measure(_LEAD_IN_SECONDS)
        return measure(seconds)

    return turn


def in_rounds(ways: Mapping[str, Callable[[], Figures]], rounds: int, warm_up: bool = True) -> dict[str, list[Figures]]:
    """Call each way once to warm up, then once per round. Every second round runs in reverse order."""
    for measure in ways.values() if warm_up else ():
        measure()
    measured: dict[str, list[Figures]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways) if number % 2 == 0 else reversed(list(ways)):
            measured[name].append(ways[name]())
    return measured


def compare(
    row: str,
    measured: Measured,
    way: str,
    references: Sequence[str],
    figure: str,
    goal: float | None = None,
    more: bool = True,
) -> Line:
    """Compare a way with the reference that has the best median."""
    reference = best(measured, references, figure, more)
    ratios = [a[figure] / b[figure] for a, b in zip(measured[way], measured[reference], strict=True)]
    return Line(
        row,
        way,
        figure,
        reference,
        _median(measured, way, figure),
        _median(measured, reference, figure),
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        len(ratios),
        goal,
        more,
    )


def best(measured: Measured, ways: Sequence[str], figure: str, more: bool) -> str:
    """Return the way with the best median."""
    return (max if more else min)(ways, key=lambda way: _median(measured, way, figure))


def _median(measured: Measured, way: str, figure: str) -> float:
    return statistics.median(turn[figure] for turn in measured[way])


def markdown(machine: Mapping[str, str], lines: Sequence[Line | Skipped]) -> str:
    """Return the table, below the facts of the machine."""
    text = [f"- {name}: {value}" for name, value in machine.items()]
    text += ["", "| row | way | figure | value | against | its value | ratio (low to high, rounds) | goal | met |"]
    text += ["|---|---|---|---:|---|---:|---:|---:|---|"]
    for line in lines:
        if isinstance(line, Skipped):
            text.append(f"| {line.row} | not run: {line.reason} | | | | | | | |")
            continue
        goal = "" if line.goal is None else f"{'≥' if line.more else '≤'} {line.goal:g}"
        met = "" if line.goal is None else "yes" if line.met else "no"
        text.append(
            f"| {line.row} | {line.way} | {line.figure} | {line.value:.4g} | {line.against} | {line.reference:.4g}"
            f" | {line.ratio:.3f} ({line.low:.3f} to {line.high:.3f}, {line.rounds}) | {goal} | {met} |"
        )
    return "\n".join(text)


def as_json(machine: Mapping[str, str], lines: Sequence[Line | Skipped]) -> dict[str, object]:
    """Return the same data for programs."""
    done = [{**asdict(line), "met": line.met} for line in lines if isinstance(line, Line)]
    return {"machine": dict(machine), "lines": done, "skipped": [asdict(s) for s in lines if isinstance(s, Skipped)]}
