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
    UNSUITABLE = "unsuitable"  # the backend cannot do what this model needs, and says so
    QUARANTINED = "quarantined"  # failed too often, or cancelled: only a command tries it again
    EVICTED = "evicted"  # it was good; its files gave way to others
    STALE = "stale"  # in the store, but no model wants it on this device as it is now


_S = EngineState

# What another model of the same content has found of an engine holds for this one, too.
_FOUND = frozenset({_S.READY, _S.REJECTED, _S.EVICTED})

# An engine that is ready goes through making again when it is rebuilt, verified or measured anew, and comes back to
# ready even where that fails, since what it was before stays.
TRANSITIONS: dict[EngineState, frozenset[EngineState]] = {
    _S.ABSENT: _FOUND | {_S.QUEUED, _S.UNSUITABLE, _S.QUARANTINED},
    _S.QUEUED: frozenset({_S.BUILDING, _S.VERIFYING, _S.READY, _S.FAILED, _S.QUARANTINED, _S.ABSENT}),
    _S.BUILDING: frozenset({_S.VERIFYING, _S.READY, _S.FAILED, _S.UNSUITABLE, _S.QUARANTINED, _S.ABSENT}),
    _S.VERIFYING: frozenset({_S.READY, _S.REJECTED, _S.FAILED, _S.UNSUITABLE, _S.QUARANTINED, _S.ABSENT}),
    _S.READY: _FOUND - {_S.READY} | {_S.QUEUED, _S.FAILED, _S.QUARANTINED, _S.STALE, _S.ABSENT},
    _S.FAILED: frozenset({_S.QUEUED, _S.READY, _S.REJECTED, _S.QUARANTINED, _S.ABSENT}),
    _S.REJECTED: frozenset({_S.QUEUED, _S.READY, _S.STALE, _S.ABSENT}),
    _S.UNSUITABLE: frozenset({_S.QUEUED, _S.READY, _S.ABSENT}),
    _S.QUARANTINED: frozenset({_S.QUEUED, _S.READY, _S.ABSENT}),
    _S.EVICTED: frozenset({_S.QUEUED, _S.READY, _S.STALE, _S.ABSENT}),
    _S.STALE: frozenset({_S.READY, _S.REJECTED, _S.EVICTED, _S.ABSENT}),
}

# What is on its way to an outcome.
MAKING = frozenset({_S.QUEUED, _S.BUILDING, _S.VERIFYING})


def check(old: EngineState, new: EngineState) -> EngineState:
    """The new state, if the table allows the step; ValueError names the step it does not."""
    if new not in TRANSITIONS[old]:
        raise ValueError(f"an engine cannot go from {old.value} to {new.value}")
    return new
