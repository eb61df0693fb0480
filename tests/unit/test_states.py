"""The table of an engine's life."""

from __future__ import annotations

import itertools

import pytest

from edged.engines.states import MAKING, TRANSITIONS, EngineState, check

S = EngineState


def test_every_state_is_in_the_table() -> None:
    assert set(TRANSITIONS) == set(EngineState)
    assert all(steps <= set(EngineState) for steps in TRANSITIONS.values())


@pytest.mark.parametrize(("old", "new"), itertools.product(EngineState, EngineState))
def test_a_step_is_taken_exactly_when_the_table_has_it(old: EngineState, new: EngineState) -> None:
    if new in TRANSITIONS[old]:
        assert check(old, new) is new
    else:
        with pytest.raises(ValueError, match=f"from {old.value} to {new.value}"):
            check(old, new)


def test_no_state_leads_to_itself() -> None:
    assert all(state not in steps for state, steps in TRANSITIONS.items())


def reachable(start: EngineState, without: EngineState | None = None) -> set[EngineState]:
    found, waiting = {start}, [start]
    while waiting:
        for state in TRANSITIONS[waiting.pop()] - found - {without}:
            found.add(state)
            waiting.append(state)
    return found


@pytest.mark.parametrize("state", EngineState)
def test_every_state_can_be_reached_and_left_for_a_new_beginning(state: EngineState) -> None:
    assert state in reachable(S.ABSENT)
    assert S.ABSENT in reachable(state)


@pytest.mark.parametrize("state", EngineState)
def test_every_state_has_a_way_to_an_engine_that_serves(state: EngineState) -> None:
    assert S.READY in reachable(state)


def test_what_is_on_its_way_is_queued_built_or_verified_and_nothing_else() -> None:
    assert {S.QUEUED, S.BUILDING, S.VERIFYING} == MAKING


def test_making_is_entered_through_the_queue_alone() -> None:
    into = {new for old, steps in TRANSITIONS.items() if old not in MAKING for new in steps & MAKING}
    assert into == {S.QUEUED}


@pytest.mark.parametrize("state", sorted(MAKING))
def test_what_is_being_made_may_fail_be_cancelled_or_void_at_any_moment(state: EngineState) -> None:
    assert {S.READY, S.FAILED, S.QUARANTINED, S.ABSENT} <= TRANSITIONS[state]


@pytest.mark.parametrize("state", [s for s in S if s not in MAKING | {S.STALE}])
def test_a_command_may_have_everything_made_that_is_wanted_and_not_being_made(state: EngineState) -> None:
    assert S.QUEUED in TRANSITIONS[state]


def test_an_engine_is_rejected_by_a_verification_its_own_or_another_models() -> None:
    into = {old for old, steps in TRANSITIONS.items() if S.REJECTED in steps}
    assert into - {S.FAILED} == {S.VERIFYING, S.ABSENT, S.READY, S.STALE}


@pytest.mark.parametrize("state", [S.FAILED, S.QUARANTINED, S.EVICTED, S.REJECTED, S.UNSUITABLE, S.ABSENT])
def test_what_another_model_had_made_is_there_for_this_one_too(state: EngineState) -> None:
    assert S.READY in TRANSITIONS[state]


def test_only_what_is_there_gives_way() -> None:
    into = {old for old, steps in TRANSITIONS.items() if S.EVICTED in steps}
    assert into == {S.READY, S.ABSENT, S.STALE}
