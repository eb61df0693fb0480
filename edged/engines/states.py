"""The states of an engine and the allowed transitions."""

from __future__ import annotations

import enum


class EngineState(str, enum.Enum):
    """A state of an engine. Serving is not one of them: a ready engine serves while a slot holds it."""

    ABSENT = "absent"
    QUEUED = "queued"
    BUILDING = "building"
    VERIFYING = "verifying"
    READY = "ready"
    FAILED = "failed"  # no outcome; tried again later
    REJECTED = "rejected"  # a wrong answer; not tried again with the same key
    UNSUITABLE = "unsuitable"  # the backend reports that it cannot do what this model needs
    QUARANTINED = "quarantined"  # failed too often, or cancelled: only a command tries it again
    EVICTED = "evicted"  # accepted; its files were removed to make room
    STALE = "stale"  # in the store, but no model wants it on this device as it is now


_S = EngineState

# Outcomes that another model of the same content may have found.
_FOUND = frozenset({_S.READY, _S.REJECTED, _S.EVICTED})

# A ready engine that is rebuilt or verified again goes through making and returns to ready even if that fails, since
# the engine from before stays.
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

# On the way to an outcome.
MAKING = frozenset({_S.QUEUED, _S.BUILDING, _S.VERIFYING})


def check(old: EngineState, new: EngineState) -> EngineState:
    """Return the new state; ValueError for a transition that the table does not allow."""
    if new not in TRANSITIONS[old]:
        raise ValueError(f"an engine cannot go from {old.value} to {new.value}")
    return new
