"""The table of an engine's life."""

from __future__ import annotations

import itertools

import pytest

from edged.control.states import TRANSITIONS, EngineState, check


def test_every_state_is_in_the_table() -> None:
    assert set(TRANSITIONS) == set(EngineState)


@pytest.mark.parametrize(("old", "new"), itertools.product(EngineState, EngineState))
def test_a_step_is_taken_exactly_when_the_table_has_it(old: EngineState, new: EngineState) -> None:
    if new in TRANSITIONS[old]:
        assert check(old, new) is new
    else:
        with pytest.raises(ValueError, match=f"from {old.value} to {new.value}"):
            check(old, new)


def test_no_state_leads_to_itself() -> None:
    assert all(state not in steps for state, steps in TRANSITIONS.items())


def reachable(start: EngineState) -> set[EngineState]:
    found, waiting = {start}, [start]
    while waiting:
        for state in TRANSITIONS[waiting.pop()] - found:
            found.add(state)
            waiting.append(state)
    return found


@pytest.mark.parametrize("state", EngineState)
def test_every_state_can_be_reached_and_left_for_a_new_beginning(state: EngineState) -> None:
    assert state in reachable(EngineState.ABSENT)
    assert EngineState.ABSENT in reachable(state)


def test_an_engine_is_ready_only_after_it_was_verified() -> None:
    into_ready = {old for old, steps in TRANSITIONS.items() if EngineState.READY in steps}
    assert into_ready == {EngineState.VERIFYING, EngineState.STALE}


def test_a_rejected_engine_is_not_made_again() -> None:
    assert TRANSITIONS[EngineState.REJECTED].isdisjoint({EngineState.QUEUED, EngineState.BUILDING, EngineState.READY})
