"""The table of an engine's life."""

from __future__ import annotations

import itertools

import pytest

from edged.engines.engine import MAKING, TRANSITIONS, EngineState, check

S = EngineState


def test_transitions_have_every_state() -> None:
    assert set(TRANSITIONS) == set(EngineState)
    assert all(steps <= set(EngineState) for steps in TRANSITIONS.values())


@pytest.mark.parametrize(("old", "new"), itertools.product(EngineState, EngineState))
def test_check_allows_exactly_the_steps_of_the_table(old: EngineState, new: EngineState) -> None:
    if new in TRANSITIONS[old]:
        assert check(old, new) is new
    else:
        with pytest.raises(ValueError, match=f"from {old.value} to {new.value}"):
            check(old, new)


def test_transitions_never_lead_to_the_same_state() -> None:
    assert all(state not in steps for state, steps in TRANSITIONS.items())


def reachable(start: EngineState, without: EngineState | None = None) -> set[EngineState]:
    found, waiting = {start}, [start]
    while waiting:
        for state in TRANSITIONS[waiting.pop()] - found - {without}:
            found.add(state)
            waiting.append(state)
    return found


@pytest.mark.parametrize("state", EngineState)
def test_transitions_reach_every_state_and_return_to_absent(state: EngineState) -> None:
    assert state in reachable(S.ABSENT)
    assert S.ABSENT in reachable(state)


@pytest.mark.parametrize("state", EngineState)
def test_transitions_lead_from_every_state_to_ready(state: EngineState) -> None:
    assert S.READY in reachable(state)


def test_making_is_queued_building_or_verifying() -> None:
    assert {S.QUEUED, S.BUILDING, S.VERIFYING} == MAKING


def test_making_begins_with_queued() -> None:
    into = {new for old, steps in TRANSITIONS.items() if old not in MAKING for new in steps & MAKING}
    assert into == {S.QUEUED}


@pytest.mark.parametrize("state", sorted(MAKING))
def test_making_may_fail_be_cancelled_or_void_at_any_step(state: EngineState) -> None:
    assert {S.READY, S.FAILED, S.QUARANTINED, S.ABSENT} <= TRANSITIONS[state]


@pytest.mark.parametrize("state", [s for s in S if s not in MAKING | {S.STALE}])
def test_queued_is_reached_from_every_settled_state(state: EngineState) -> None:
    assert S.QUEUED in TRANSITIONS[state]


def test_rejected_follows_a_verification() -> None:
    into = {old for old, steps in TRANSITIONS.items() if S.REJECTED in steps}
    assert into - {S.FAILED} == {S.VERIFYING, S.ABSENT, S.READY, S.STALE}


@pytest.mark.parametrize("state", [S.FAILED, S.QUARANTINED, S.EVICTED, S.REJECTED, S.UNSUITABLE, S.ABSENT])
def test_ready_follows_another_models_build(state: EngineState) -> None:
    assert S.READY in TRANSITIONS[state]


def test_evicted_follows_only_what_is_stored() -> None:
    into = {old for old, steps in TRANSITIONS.items() if S.EVICTED in steps}
    assert into == {S.READY, S.ABSENT, S.STALE}
