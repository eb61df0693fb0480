"""Who is to blame for the death of an engine host: every short history, against a few plain rules."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from edged.serving.blame import (
    DEATHS,
    WINDOW_SECONDS,
    Death,
    Record,
    Records,
    Suspect,
    died,
    forgiven,
    is_suspect,
    live,
)

A, B = Suspect("a", "1"), Suspect("b", "1")
OTHER = Suspect("a", "2")  # another engine of the same model


def death(at: float, *, alone: bool = True, outside: bool = False) -> Death:
    return Death(at, "died", alone, outside)


def history(deaths: Iterable[Death], suspect: Suspect = A, *, answered: bool = False) -> Records:
    records: Records = {}
    for each in deaths:
        records = died(records, [(suspect, answered)], each)
    return records


@pytest.mark.parametrize("alone", list(itertools.product((True, False), repeat=4)))
def test_deaths_in_company_count_once_and_never_suffice(alone: tuple[bool, ...]) -> None:
    for length in range(len(alone) + 1):
        told = alone[:length]
        record = history(death(i + 1.0, alone=each) for i, each in enumerate(told)).get(A, Record())
        expected = sum(told) > 0 and sum(told) + (not all(told)) >= DEATHS
        # Once it is quarantined it stays so, whatever comes: nothing of it runs that could die.
        ever = any(sum(told[:n]) > 0 and sum(told[:n]) + (not all(told[:n])) >= DEATHS for n in range(1, length + 1))
        assert record.is_quarantined is (expected or ever), told


def test_after_one_death_in_company_every_suspect_is_alone_and_only_the_one_that_goes_on_dying_is_blamed() -> None:
    records = died({}, [(A, True), (B, True)], death(1, alone=False))
    assert is_suspect(records, A, 2)
    assert is_suspect(records, B, 2)
    for at in (2, 3):
        records = died(records, [(A, False)], death(at))
    assert records[A].is_quarantined
    assert not records[B].is_quarantined


@pytest.mark.parametrize(
    ("gap", "quarantined"), [(1.0, True), (WINDOW_SECONDS / 2, True), (WINDOW_SECONDS / 2 + 1, False), (1e6, False)]
)
def test_only_deaths_within_the_window_count(gap: float, quarantined: bool) -> None:
    records = history(death(1 + gap * number) for number in range(3))
    assert records[A].is_quarantined is quarantined


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("outside", [False, True])
def test_a_death_from_outside_is_forgiven_once_it_answered_again(answered: bool, outside: bool) -> None:
    records = history((death(float(at), outside=outside) for at in (1, 2, 3, 4)), answered=answered)
    assert records[A].is_quarantined is not (answered and outside)


def test_another_engine_of_a_quarantined_model_is_given_one_death_less() -> None:
    records = history(death(float(at)) for at in (1, 2, 3))
    records = died(records, [(OTHER, False)], death(4))
    assert not records[OTHER].is_quarantined
    assert died(records, [(OTHER, False)], death(5))[OTHER].is_quarantined
    # Another model's is not.
    other_model = died(died(records, [(B, False)], death(4)), [(B, False)], death(5))
    assert not other_model[B].is_quarantined


def test_what_is_long_ago_is_forgotten_unless_it_is_quarantined() -> None:
    records = history(death(float(at)) for at in (1, 2, 3)) | history([death(1)], B)
    later = 1 + WINDOW_SECONDS + 1
    assert set(live(records, 2)) == {A, B}
    assert set(live(records, later)) == {A}
    assert not is_suspect(records, B, later)
    assert not is_suspect({}, A, 0)


def test_forgiving_a_model_or_one_of_its_engines_leaves_the_others() -> None:
    records = {A: Record((death(1),)), OTHER: Record((death(1),)), B: Record((death(1),))}
    assert set(forgiven(records, "a")) == {B}
    assert set(forgiven(records, "a", "2")) == {A, B}
    assert set(forgiven(records, "c")) == set(records)


def test_the_records_before_are_left_as_they_were() -> None:
    before: Records = {}
    died(before, [(A, False)], death(1))
    assert before == {}
