"""When served answers count as drifted away from the reference's: false alarms, delay, and the end of the alarm."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from edged.engines.drift_answers import BAD_ANSWERS, Answers, Tally, after, agreement, worst
from edged.verification.served import Comparison
from edged.verification.standard import TOLERANCES

QUIET_CHECKS = 10_000


def boxes(share: float = 1.0, score: float = 0.0, shift: float = 0.0) -> Comparison:
    return Comparison({"boxes": share, "box_score": score}, 5, shift)


def run(checks: Iterator[Comparison] | list[Comparison], precision: str = "fp32", held: str = "") -> list[Answers]:
    """Return the state after each check."""
    states, state = [], Answers()
    for check in checks:
        state = after(state, check, TOLERANCES[held or precision], TOLERANCES[precision], precision)
        states.append(state)
    return states


def alarms(states: list[Answers]) -> int:
    """Return how often an alarm was raised."""
    raised = [False, *(state.is_drifted for state in states)]
    return sum(now and not before for before, now in itertools.pairwise(raised))


# By precision: an assumed mean and spread of the shift of scores from check to check. It is also correlated with the
# check before: a scene hardly changes in ten minutes.
QUIET = {"fp32": (0.0, 2e-5), "fp16": (1e-4, 5e-4), "bf16": (-1e-3, 4e-3), "int8": (-0.02, 0.015)}


@pytest.mark.parametrize("precision", QUIET)
@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_unchanged_engine_has_no_alarm_in_10_000_checks(precision: str, correlation: float) -> None:
    rng = np.random.default_rng(11)
    mean, spread = QUIET[precision]

    def checks() -> Iterator[Comparison]:
        state = 0.0
        for _ in range(QUIET_CHECKS):
            state = correlation * state + np.sqrt(1 - correlation**2) * rng.normal()
            shift = mean + spread * state
            yield boxes(score=abs(shift), shift=shift)

    assert alarms(run(checks(), precision)) == 0


@pytest.mark.parametrize(("rate", "most"), [(0.001, 0), (0.01, 0), (0.02, 2)])
def test_rare_bad_checks_raise_hardly_any_alarm(rate: float, most: int) -> None:
    rng = np.random.default_rng(12)
    bad = rng.random(QUIET_CHECKS) < rate
    assert alarms(run([boxes(0.5 if each else 1.0) for each in bad])) <= most


def test_false_alarms_of_the_rule_are_as_rare_as_documented() -> None:
    """With 2 % bad checks, one in about 85,000 checks."""
    rng, tally, raised, count = np.random.default_rng(13), Tally(), 0, 300_000
    for bad in rng.random(count) < BAD_ANSWERS.quiet:
        was_raised, tally = tally.is_raised, tally.after(bool(bad), BAD_ANSWERS)
        raised += tally.is_raised and not was_raised
    assert raised <= count / 25_000


@pytest.mark.parametrize(("rate", "most"), [(1.0, 3), (0.7, 12), (0.4, 40)])
def test_bad_answers_are_noticed_after_few_checks(rate: float, most: int) -> None:
    rng = np.random.default_rng(14)
    delays = []
    for _ in range(50):
        states = run([boxes(0.5 if bad else 1.0) for bad in rng.random(200) < rate])
        delays.append(next(n for n, state in enumerate(states, 1) if state.is_drifted))
    assert np.median(delays) <= most


def test_alarm_ends_after_five_good_checks() -> None:
    states = run([boxes(0.5)] * 10 + [boxes()] * 5)
    assert [state.is_drifted for state in states] == [False] * 2 + [True] * 12 + [False]
    assert states[5].reason.endswith("boxes 0.5 is below the bound 0.999")


@pytest.mark.parametrize(
    ("precision", "before", "now", "most"),
    [
        ("fp32", 0.0, 0.001, 4),  # far below the bound of 0.01
        ("fp32", 0.0, -0.004, 4),
        ("fp16", 0.0005, 0.012, 6),
        ("int8", -0.02, -0.12, 15),
        ("int8", -0.02, 0.05, 15),
    ],
)
def test_small_shift_that_no_single_check_shows_is_noticed(
    precision: str, before: float, now: float, most: int
) -> None:
    rng, spread = np.random.default_rng(15), QUIET[precision][1]
    checks = [boxes(score=abs(mean), shift=mean + rng.normal(0, spread)) for mean in [before] * 100 + [now] * 30]
    states = run(checks, precision)
    assert not any(worst(check, TOLERANCES[precision]) for check in checks)
    assert not states[99].is_drifted
    assert states[100 + most].is_drifted
    assert "higher on average" in states[-1].reason or "lower on average" in states[-1].reason


def test_shift_of_an_exact_engine_is_noticed_from_the_first_check() -> None:
    states = run([boxes(score=0.004, shift=0.003)] * 10)
    assert states[4].is_drifted, "nothing is learned from an engine that was wrong from the start"


def test_shift_that_ends_clears_the_alarm() -> None:
    states = run([boxes(shift=0.004)] * 5 + [boxes()] * 10)
    assert states[4].is_drifted
    assert not states[-1].is_drifted


def test_wide_verification_bounds_do_not_hide_a_shift() -> None:
    """A model's settings may accept any engine; the shift is measured with the bounds of the precision."""
    states = run([boxes(score=0.02, shift=0.02)] * 10, held="int8")
    assert not states[-1].tally.is_raised
    assert states[-1].is_shifted


@pytest.mark.parametrize(
    ("figure", "usual", "drifted"),
    [("class_score", 1e-5, 0.004), ("embedding", 0.999999, 0.99995), ("class_map", 1.0, 0.995), ("depth", 1e-6, 4e-3)],
)
def test_contents_that_differ_slightly_all_the_time_are_noticed(figure: str, usual: float, drifted: float) -> None:
    quiet, wrong = Comparison({figure: usual}, 1), Comparison({figure: drifted}, 1)
    states = run([quiet] * 100 + [wrong] * 10)
    assert not states[99].is_drifted
    assert states[-1].is_shifted
    assert figure in states[-1].reason


def test_check_with_nothing_to_compare_changes_nothing() -> None:
    states = run([boxes(0.5), boxes(0.5), Comparison()])
    assert states[2] == states[1]


def test_agreement_is_a_share_whatever_the_figure() -> None:
    assert agreement(boxes(0.75)) == 0.75
    assert agreement(Comparison({"class_score": 0.1})) == pytest.approx(0.9)
    assert agreement(Comparison({"embedding": -0.5})) == 0.0
    assert run([boxes(1.0), boxes(0.5)])[-1].agreement == pytest.approx(0.75)
    assert Answers().agreement is None


def test_nan_is_beyond_every_bound() -> None:
    assert worst(Comparison({"class_score": float("nan")}), TOLERANCES["int8"])
