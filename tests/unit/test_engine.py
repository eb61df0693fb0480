"""The table of an engine's states and transitions."""

from __future__ import annotations

import itertools

import pytest

from edged.engines.engine import MAKING, TRANSITIONS, EngineState, check

S = EngineState


@pytest.mark.parametrize(("old", "new"), itertools.product(EngineState, EngineState))
def test_check_allows_exactly_the_transitions_of_the_table(old: EngineState, new: EngineState) -> None:
    if new in TRANSITIONS[old]:
        assert check(old, new) is new is not old
    else:
        with pytest.raises(ValueError, match=f"from {old.value} to {new.value}"):
            check(old, new)


def reachable(start: EngineState) -> set[EngineState]:
    found, waiting = {start}, [start]
    while waiting:
        new = TRANSITIONS[waiting.pop()] - found
        found |= new
        waiting += new
    return found


@pytest.mark.parametrize("state", EngineState)
def test_transitions_reach_every_state_and_lead_back_to_absent_and_ready(state: EngineState) -> None:
    assert state in reachable(S.ABSENT)
    assert {S.ABSENT, S.READY} <= reachable(state)


@pytest.mark.parametrize("state", sorted(MAKING))
def test_making_may_fail_be_cancelled_or_void_at_any_step(state: EngineState) -> None:
    assert {S.READY, S.FAILED, S.QUARANTINED, S.ABSENT} <= TRANSITIONS[state]
