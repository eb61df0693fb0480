"""Decides whether served answers have drifted away from the reference's. Pure: a call receives one comparison and
returns the new state.

Two tests run side by side, because engines fail in two ways:

- `Tally`: how often a check is bad, that is, a figure is beyond the bound that engines of this precision must meet.
  This is a CUSUM test of a rate. A few bad checks in a row raise the alarm, single bad checks do not.
- the shift: a small difference in one direction that no single picture shows. Scores of the same detections are
  compared, and their mean difference is added up (a CUSUM test of a mean). An engine that computes in float32 has no
  shift. Other engines may have a shift, so the first checks of an engine determine which shift is usual.

If an answer has no detections but describes the whole picture, the distance of its figure from perfect agreement counts
as the shift.
"""

from __future__ import annotations

import math
import statistics

import msgspec

from edged.verification.served import Comparison
from edged.verification.standard import Tolerance
from edged.verification.verify import FLOORS

_FIRST = 20  # checks after which the usual shift of an engine is known
_KEPT = 20  # checks whose mean agreement is reported
_SPREADS = 5.0  # standard deviations of the first checks that are added to `ShiftTest.raised`


class ShiftTest(msgspec.Struct, frozen=True):
    """A test of a mean. The unit of a shift is the largest difference that the precision allows for the figure. For
    example, float32 allows a difference of 0.01 between two scores, so this difference is a shift of 1. `allowed`: a
    smaller shift does not count. `raised`: the shift counts as real once the sum of the parts above `allowed` reaches
    this value. A single check adds at most 60 % of `raised`."""

    allowed: float
    raised: float

    @property
    def most(self) -> float:
        return 0.6 * self.raised


_EXACT, _EXACT_FIGURES = "fp32", ("box_score", "class_score")
# Scores in float32 differ by 1e-6, which is 0.0001 units, so a shift of 0.03 units is not noise. In maps and texts,
# rounding may change a cell or a character, so more is allowed.
_EXACT_SHIFT, _SHIFT = ShiftTest(0.03, 0.15), ShiftTest(0.1, 0.5)


class Rule(msgspec.Struct, frozen=True):
    """A test of a rate. `quiet`: the share of bad checks that is normal. `drifted`: the share of bad checks that must
    be detected. `raise_after` bad checks in a row raise the alarm, and `clear_after` good checks in a row clear it.
    Good checks between bad checks delay the alarm. A larger `raise_after` makes false alarms rarer."""

    quiet: float
    drifted: float
    raise_after: int
    clear_after: int


# With 2 % bad checks, which is far more than an unchanged engine has, one check in about 85,000 raises a false alarm.
BAD_ANSWERS = Rule(quiet=0.02, drifted=0.5, raise_after=3, clear_after=5)


class Tally(msgspec.Struct, frozen=True):
    """The state of the test of a rate; `level` is the sum of the log-likelihood ratios."""

    level: float = 0.0
    is_raised: bool = False

    def after(self, is_bad: bool, rule: Rule) -> Tally:
        """Return the state after one more check."""
        bad, good = math.log(rule.drifted / rule.quiet), math.log((1 - rule.drifted) / (1 - rule.quiet))
        top = rule.raise_after * bad
        level = min(max(0.0, self.level + (bad if is_bad else good)), top)
        if self.is_raised:
            return Tally(level, level > top + rule.clear_after * good + 1e-9)
        return Tally(level, level >= top - 1e-9)


class Answers(msgspec.Struct, frozen=True):
    """The results of the checks of one engine.

    `first` has the shifts of the first checks, which determine the usual shift. `above` and `below` are the sums of
    shifts in each direction (see `ShiftTest`). `shift` is the mean shift of the last checks, in the unit of the figure
    that `figure` names. `allowed` is the largest mean shift that counts as usual. `problem` describes the last bad
    check.
    """

    checks: int = 0
    tally: Tally = Tally()
    first: tuple[float, ...] = ()
    above: float = 0.0
    below: float = 0.0
    is_shifted: bool = False
    shift: float = 0.0
    allowed: float = 0.0
    figure: str = ""
    agreements: tuple[float, ...] = ()
    problem: str = ""

    @property
    def agreement(self) -> float | None:
        """The mean agreement of the last checks, 0 to 1; None before the first check that had something to compare."""
        return statistics.fmean(self.agreements) if self.agreements else None

    @property
    def is_suspect(self) -> bool:
        """Whether one more check may raise an alarm."""
        return bool(self.tally.level or self.above or self.below)

    @property
    def is_drifted(self) -> bool:
        return self.tally.is_raised or self.is_shifted

    @property
    def reason(self) -> str:
        """How the answers have drifted, with the figure and its bound; empty if the answers have not drifted."""
        if self.tally.is_raised:
            return f"several of the last checked answers differ from the reference's; the last one: {self.problem}"
        if not self.is_shifted:
            return ""
        if self.figure == "box_score":
            word = "higher" if self.shift > 0 else "lower"
            return f"scores are {abs(self.shift):.2g} {word} on average; at most {self.allowed:.2g} is usual"
        return f"{self.figure} is off by {self.shift:.2g} on average; at most {self.allowed:.2g} is usual"


def after(answers: Answers, found: Comparison, held: Tolerance, usual: Tolerance, precision: str) -> Answers:
    """Return the state after one more check.

    `held` has the bounds with which the engine was verified, `usual` the bounds of `precision`. `precision` is the
    coarser of the engine's and the model's precision.
    """
    if not found.figures:  # for example, a picture without objects shows nothing
        return answers
    problem = worst(found, held)
    answers = msgspec.structs.replace(
        answers,
        checks=answers.checks + 1,
        tally=answers.tally.after(bool(problem), BAD_ANSWERS),
        agreements=(*answers.agreements, agreement(found))[-_KEPT:],
        problem=problem or answers.problem,
    )
    return _shifted(answers, found, usual, precision)


def worst(found: Comparison, held: Tolerance) -> str:
    """Describe the first figure that is beyond its bound, with the bound; empty if all figures are within their
    bounds."""
    for figure, value in found.figures.items():
        bound: float = getattr(held, figure)
        if not (value >= bound if figure in FLOORS else value <= bound):  # NaN is beyond
            return f"{figure} {value:.3g} is {'below' if figure in FLOORS else 'above'} the bound {bound:g}"
    return ""


def agreement(found: Comparison) -> float:
    """Return how well two answers agree, from 0 to 1. This is the share of detections that both answers have. If the
    answers are about the whole picture, this is their similarity."""
    figure, value = next(iter(found.figures.items()))
    return min(1.0, max(0.0, value if figure in FLOORS else 1 - value))


def _shifted(answers: Answers, found: Comparison, usual: Tolerance, precision: str) -> Answers:
    figure, shift = _shift(found)
    if not figure:
        return answers
    is_exact = precision == _EXACT and figure in _EXACT_FIGURES
    bound: float = getattr(usual, figure)
    unit, test = 1 - bound if figure in FLOORS else bound, _EXACT_SHIFT if is_exact else _SHIFT
    moved = min(test.most, max(-test.most, shift / unit))
    weight = max(1 / answers.checks, 1 / _KEPT)
    answers = msgspec.structs.replace(answers, shift=answers.shift + weight * (shift - answers.shift), figure=figure)
    if not is_exact and len(answers.first) < _FIRST:
        return msgspec.structs.replace(answers, first=(*answers.first, moved))
    level, spread = _level_and_spread(answers.first)
    allowed, raised = test.allowed + spread, test.raised + _SPREADS * spread
    above = min(max(0.0, answers.above + moved - level - allowed), raised)
    below = min(max(0.0, answers.below - moved + level - allowed), raised)
    is_shifted = max(above, below) >= raised if not answers.is_shifted else max(above, below) > raised / 2
    most = (abs(level) + allowed) * unit
    return msgspec.structs.replace(answers, above=above, below=below, is_shifted=is_shifted, allowed=most)


def _level_and_spread(values: tuple[float, ...]) -> tuple[float, float]:
    """Return the mean and the standard deviation; zeros for no values."""
    if not values:
        return 0.0, 0.0
    level = statistics.fmean(values)
    return level, math.sqrt(statistics.fmean((value - level) ** 2 for value in values))


def _shift(found: Comparison) -> tuple[str, float]:
    """Return the figure in which the shift is measured, and the shift. The figure is empty if the check has nothing to
    measure."""
    if "boxes" in found.figures:
        return ("box_score", found.shift) if found.common else ("", 0.0)
    figure, value = next(iter(found.figures.items()))
    return figure, 1 - value if figure in FLOORS else value
