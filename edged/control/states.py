"""The life of an engine, in one table."""

from __future__ import annotations

import enum


class EngineState(str, enum.Enum):
    """`serving` is not a state of its own here: a ready engine serves while a slot holds it."""

    ABSENT = "absent"
    QUEUED = "queued"
    BUILDING = "building"
    VERIFYING = "verifying"
    READY = "ready"
    FAILED = "failed"  # no outcome; tried again later
    REJECTED = "rejected"  # a wrong answer; not tried again with the same key
    STALE = "stale"  # in the store, but no model wants it on this device as it is now


TRANSITIONS: dict[EngineState, frozenset[EngineState]] = {
    EngineState.ABSENT: frozenset({EngineState.QUEUED}),
    EngineState.QUEUED: frozenset({EngineState.BUILDING, EngineState.FAILED, EngineState.ABSENT}),
    EngineState.BUILDING: frozenset({EngineState.VERIFYING, EngineState.FAILED, EngineState.ABSENT}),
    EngineState.VERIFYING: frozenset({EngineState.READY, EngineState.REJECTED, EngineState.FAILED, EngineState.ABSENT}),
    EngineState.READY: frozenset({EngineState.STALE, EngineState.ABSENT}),
    EngineState.FAILED: frozenset({EngineState.QUEUED, EngineState.ABSENT}),
    EngineState.REJECTED: frozenset({EngineState.ABSENT, EngineState.STALE}),
    EngineState.STALE: frozenset({EngineState.READY, EngineState.REJECTED, EngineState.ABSENT}),
}


def check(old: EngineState, new: EngineState) -> EngineState:
    """The new state, if the table allows the step; ValueError names the step it does not."""
    if new not in TRANSITIONS[old]:
        raise ValueError(f"an engine cannot go from {old.value} to {new.value}")
    return new
