"""Crash attribution: which engine killed its host. Short histories of deaths are checked against simple rules."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from edged.serving.crash_attribution import (
    APART_SECONDS,
    DEATHS,
    WINDOW_SECONDS,
    Death,
    EngineId,
    Record,
    Records,
    died,
    forgiven,
    host_of,
    live,
)

A, B = EngineId("a", "1"), EngineId("b", "1")
OTHER = EngineId("a", "2")  # another engine of the same model


def death(at: float, *, alone: bool = True, outside: bool = False) -> Death:
    return Death(at, "died", alone, outside)


def history(deaths: Iterable[Death], suspect: EngineId = A, *, answered: bool = False) -> Records:
    records: Records = {}
    for each in deaths:
        records = died(records, [(suspect, answered)], each)
    return records


@pytest.mark.parametrize("alone", list(itertools.product((True, False), repeat=4)))
def test_died_deaths_with_other_engines_count_as_one_and_never_suffice(alone: tuple[bool, ...]) -> None:
    for length in range(len(alone) + 1):
        deaths = alone[:length]
        record = history(death(i + 1.0, alone=each) for i, each in enumerate(deaths)).get(A, Record())
        expected = sum(deaths) > 0 and sum(deaths) + (not all(deaths)) >= DEATHS
        # A quarantined engine stays quarantined, because it does not run any more.
        ever = any(
            sum(deaths[:n]) > 0 and sum(deaths[:n]) + (not all(deaths[:n])) >= DEATHS for n in range(1, length + 1)
        )
        assert record.is_quarantined is (expected or ever), deaths


@pytest.mark.parametrize("most_hosts", [1, 2, 4])
@pytest.mark.parametrize("killer", range(13))
def test_bisection_of_13_busy_engines_quarantines_the_killer_alone_with_few_hosts(killer: int, most_hosts: int) -> None:
    engines, records = [EngineId(f"m{number:02}", "1") for number in range(13)], Records()
    for at in range(1, 9):
        together = [each for each in engines if host_of(records, each, at) == host_of(records, engines[killer], at)]
        records = died(
            records,
            [(each, each != engines[killer]) for each in together],
            death(at, alone=len(together) == 1),
            most_hosts,
        )
        apart = {number for each in engines if (number := host_of(records, each, at))}
        assert len(apart) <= most_hosts
        if records[engines[killer]].is_quarantined:
            break
    assert [each for each in engines if records.get(each, Record()).is_quarantined] == [engines[killer]]


def test_bisection_first_death_moves_half_of_the_suspects() -> None:
    engines = [EngineId(name, "1") for name in "abcde"]
    records = died({}, [(each, True) for each in engines], death(1, alone=False))
    assert [host_of(records, each, 1) for each in engines] == [1, 1, 0, 0, 0]


def test_bisection_second_death_moves_half_of_those_with_most_deaths() -> None:
    engines = [EngineId(name, "1") for name in "vwxyz"]
    records = died({}, [(each, True) for each in engines], death(1, alone=False))
    records = died(records, [(each, True) for each in (*engines[2:], B)], death(2, alone=False), 2)
    assert [host_of(records, each, 2) for each in (*engines, B)] == [1, 1, 2, 0, 0, 0]


def test_suspect_without_another_death_returns_to_the_shared_host() -> None:
    records = died({}, [(A, True)], death(1))
    assert host_of(records, A, 1 + APART_SECONDS) == 1
    assert host_of(records, A, 2 + APART_SECONDS) == 0


def test_suspect_that_is_alone_already_stays_in_its_host() -> None:
    records = died(died({}, [(A, True)], death(1)), [(A, True)], death(2))
    assert host_of(records, A, 2) == 1


@pytest.mark.parametrize("count", [1, 13])
def test_death_from_outside_moves_no_engine(count: int) -> None:
    engines = [EngineId(f"m{number}", "1") for number in range(count)]
    records = Records()
    for at in range(1, 20):  # each engine answered before each death
        records = died(records, [(each, True) for each in engines], death(at, alone=count == 1, outside=True), 4)
        assert not any(host_of(records, each, at) for each in engines)
        assert not any(record.is_quarantined for record in records.values())


def test_death_from_outside_that_repeats_without_an_answer_makes_suspects() -> None:
    records = died({}, [(A, False), (B, True)], death(1, alone=False, outside=True))
    records = died(records, [(A, False), (B, True)], death(2, alone=False, outside=True))
    assert (host_of(records, A, 2), host_of(records, B, 2)) == (1, 0)


def test_suspect_of_deaths_from_outside_returns_after_an_answer() -> None:
    records = history(death(at, outside=True) for at in (1.0, 2.0))
    assert host_of(records, A, 2) == 1
    records = died(records, [(A, True)], death(3, outside=True))
    assert host_of(records, A, 3) == 0


@pytest.mark.parametrize(
    ("gap", "quarantined"), [(1.0, True), (WINDOW_SECONDS / 2, True), (WINDOW_SECONDS / 2 + 1, False), (1e6, False)]
)
def test_died_counts_deaths_within_the_window(gap: float, quarantined: bool) -> None:
    records = history(death(1 + gap * number) for number in range(3))
    assert records[A].is_quarantined is quarantined


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("outside", [False, True])
def test_died_from_outside_is_forgiven_after_an_answer(answered: bool, outside: bool) -> None:
    records = history((death(float(at), outside=outside) for at in (1, 2, 3, 4)), answered=answered)
    assert records[A].is_quarantined is not (answered and outside)


def test_died_another_engine_of_a_quarantined_model_has_one_death_less() -> None:
    records = history(death(float(at)) for at in (1, 2, 3))
    records = died(records, [(OTHER, False)], death(4))
    assert not records[OTHER].is_quarantined
    assert died(records, [(OTHER, False)], death(5))[OTHER].is_quarantined
    # An engine of another model has no death less.
    other_model = died(died(records, [(B, False)], death(4)), [(B, False)], death(5))
    assert not other_model[B].is_quarantined


def test_live_forgets_old_deaths_unless_quarantined() -> None:
    records = history(death(float(at)) for at in (1, 2, 3)) | history([death(1)], B)
    later = 1 + WINDOW_SECONDS + 1
    assert set(live(records, 2)) == {A, B}
    assert set(live(records, later)) == {A}
    assert not host_of(records, B, later)
    assert not host_of({}, A, 0)


def test_died_after_the_clock_was_set_back_forgets_deaths_in_the_future() -> None:
    later = 10 * WINDOW_SECONDS
    records = history([death(later), death(later + 1)])
    assert host_of(records, A, 1) == 0
    assert live(records, 1) == {}
    assert len(died(records, [(A, False)], death(1))[A].deaths) == 1


def test_forgiven_model_or_engine_leaves_the_others() -> None:
    records = {A: Record((death(1),)), OTHER: Record((death(1),)), B: Record((death(1),))}
    assert set(forgiven(records, "a")) == {B}
    assert set(forgiven(records, "a", "2")) == {A, B}
    assert set(forgiven(records, "c")) == set(records)
