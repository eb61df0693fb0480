"""One engine that a model should have: its states, the allowed transitions, and what the daemon remembers about it."""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from edged.backends.contract import Nodes, Recipe
from edged.errors import DiskFailing, EdgedError
from edged.formatting import many
from edged.ipc.job_messages import Progress
from edged.store.key import EngineKey
from edged.store.record import EngineRecord


class EngineState(str, enum.Enum):
    """A state of an engine. Serving is not a state: a ready engine serves while a slot holds it."""

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
    STALE = "stale"  # in the store, but no model needs it on the current device


_S = EngineState

# States that an engine may enter because the same engine was made for another model of the same content.
_FOUND = frozenset({_S.READY, _S.REJECTED, _S.EVICTED})

# A ready engine that is rebuilt or verified again passes through the states of making. It returns to ready even if the
# rebuild fails, because the previous engine stays.
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

# The states in which an engine is being made.
MAKING = frozenset({_S.QUEUED, _S.BUILDING, _S.VERIFYING})


def check(old: EngineState, new: EngineState) -> EngineState:
    """Return the new state. Raises ValueError if `TRANSITIONS` does not allow the change."""
    if new not in TRANSITIONS[old]:
        raise ValueError(f"the state of an engine cannot change from {old.value} to {new.value}")
    return new


_RETRY_SECONDS = (5.0, 30.0, 120.0, 600.0, 3600.0)


class Request(str, enum.Enum):
    """A job that was requested for an engine, although the engine's state requires no job."""

    NONE = ""
    BUILD = "build"  # an operator's command
    VERIFY = "verify"  # an operator's command
    REVIEW = "review"  # as VERIFY, requested by the daemon: the standard changed, or the timings may be wrong


@dataclass
class Making:
    """Progress of making an engine. `started` is in monotonic seconds; `estimate_s` is for the whole job."""

    started: float
    estimate_s: float | None = None
    phase: str = "queued"
    reported: float | None = None  # the finished share of the phase, as the runtime reports it
    last_event: float = 0.0  # the share in the last progress event

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started

    @property
    def fraction(self) -> float | None:
        """The finished share, 0 to 1. If the runtime reports its progress, this is the share of the current phase.
        Otherwise it is the share of the whole job according to the estimate; None without an estimate."""
        if self.reported is not None or not self.estimate_s:
            return self.reported
        return min(0.99, self.elapsed_s / self.estimate_s)

    def update(self, progress: Progress) -> None:
        """Apply a progress message of the child."""
        self.phase, self.reported = progress.phase, progress.fraction


@dataclass
class PlannedEngine:
    """One engine that a model should have, and its state. Times are monotonic seconds."""

    key: EngineKey
    recipe: Recipe
    standard: str = ""
    lane: str = "cpu"  # engines of one lane are made one after the other
    problem: str = ""  # why it cannot be made with the settings that the model has
    state: EngineState = EngineState.ABSENT
    record: EngineRecord | None = None
    reason: str = ""
    is_held: bool = False  # an operator's command quarantined the engine, so no alarm is raised
    last_attempt_failed: str = ""  # why the last attempt failed, although the previous engine stays
    failures: int = 0
    failure: str = ""  # message of the last failure
    retry_at: float = 0.0
    open_at: float = 0.0  # when opening may be tried again; infinite if the runtime refused it permanently
    refusals: int = 0  # times in a row that its host refused to open it
    losses: int = 0  # builds in a row that were damaged when they were opened
    quarantined: str = ""  # why it is no longer opened: it killed its host repeatedly
    apart: str = ""  # the separate host that it is opened in; empty for the shared host
    request: Request = Request.NONE
    reviewed_at: float = -math.inf  # when the daemon last asked for a review
    adoptable: str = ""  # key of a stored engine to try first: built ahead, or for another driver
    nodes: Nodes = field(default_factory=dict)  # where its nodes ran when it was last opened, if the runtime reports it
    misplaced: tuple[str, ...] = ()  # a line for each kind of nodes that ran elsewhere than during verification
    mismatch: str = ""  # how the stored engine's answers differed from the reference's, until it is built again
    disk: str = ""  # how the disk failed when it was last made or opened
    disk_failures: int = 0  # in a row
    making: Making | None = None
    served_ms: dict[str, float] = field(default_factory=dict)  # lowest median inference time in serving, by edition
    on_change: Callable[[PlannedEngine], None] | None = None  # called after every change of state

    @property
    def digest(self) -> str:
        return self.key.digest

    @property
    def is_usable(self) -> bool:
        """Whether the store has the engine, accepted and complete."""
        return self.record is not None and self.record.is_usable

    @property
    def may_open(self) -> bool:
        """Whether the engine can be opened now or later. Only usable engines and the reference can be opened. A
        quarantined engine cannot be opened, and neither can an engine that the runtime refused permanently."""
        return (self.is_usable or self.recipe.is_reference) and self.open_at < math.inf and not self.quarantined

    @property
    def edition(self) -> str:
        """A text that distinguishes builds of the same key; empty without a record."""
        return self.record.edition if self.record is not None else ""

    @property
    def usual_ms(self) -> float | None:
        """The lowest median inference time of this build since the model was loaded, in ms; None if unknown."""
        return self.served_ms.get(self.edition)

    def paced(self, milliseconds: float) -> None:
        """Record a median inference time of the engine while it serves."""
        self.served_ms = {self.edition: min(milliseconds, self.served_ms.get(self.edition, milliseconds))}

    def move(self, state: EngineState, reason: str = "") -> None:
        """Change the state. Raises ValueError if `TRANSITIONS` does not allow the change."""
        self.state = check(self.state, state)
        self.reason = reason
        if self.on_change is not None:
            self.on_change(self)

    def finish(self, record: EngineRecord, stored: EngineRecord | None, reason: str = "") -> None:
        """Apply the outcome of making the engine. `stored` is the record that the store has now: a rejected build does
        not replace an accepted engine."""
        self.request, self.last_attempt_failed, self.refusals, self.misplaced, self.mismatch = (
            Request.NONE,
            "",
            0,
            (),
            "",
        )
        self.disk, self.disk_failures = "", 0
        if record.verdict.accepted:
            self.open_at = 0.0
        if self._is_outdated(record) and not record.verdict.accepted:
            self.lose()  # by the current standard it may pass: it is built again
        elif record.verdict.accepted:
            self.record = record
            self.request = Request.REVIEW if self._is_outdated(record) else Request.NONE
            self.move(EngineState.READY, reason)
        elif stored is not None and stored.is_usable and (not self._is_outdated(stored) or stored == self.record):
            self.record = stored
            self.request = Request.REVIEW if self._is_outdated(stored) else Request.NONE
            self._stay(f"rebuilt and rejected: {record.verdict.reason}; the previous engine stays")
        else:
            self.record = record
            self.move(EngineState.REJECTED, record.verdict.reason)

    def fail(self, error: EdgedError, most: int = 0, hopeless: str = "") -> None:
        """Record that making the engine failed. Another attempt follows after a delay that grows, until there are
        `most` failures in a row (0: no limit). If `hopeless` is not empty, it says why another attempt would fail too,
        and no attempt follows."""
        self.request = Request.NONE
        self.retry_at = time.monotonic() + _RETRY_SECONDS[min(self.failures, len(_RETRY_SECONDS) - 1)]
        self.failures, self.failure = self.failures + 1, str(error)
        if self.is_usable:
            self._stay(f"the last attempt failed: {error}; the previous engine stays")
        elif hopeless:
            self.quarantine(f"failed {hopeless}; last error: {error}")
        elif most and self.failures >= most:
            self.quarantine(f"failed {many(self.failures, 'time')}; last error: {error}")
        else:
            self.move(EngineState.FAILED, str(error))

    def unsuited(self, error: EdgedError) -> None:
        """Record that the backend cannot run the model, so that another attempt would fail again."""
        self.request = Request.NONE
        if self.is_usable:
            self._stay(str(error))
        else:
            self.move(EngineState.UNSUITABLE, str(error))

    def cancel(self, reason: str) -> None:
        """Record that a command stopped making the engine. If the store has a previous build, the engine stays ready,
        and `self.reason` is empty. Otherwise the engine is quarantined."""
        if self.is_usable:
            self._stay(reason)
            self.reason = ""
        else:
            # A reference that was not timed still serves.
            self.quarantine(f"not timed: {reason}" if self.recipe.is_reference else reason, held=True)

    def _stay(self, reason: str) -> None:
        """Keep the previous engine after a failed attempt."""
        self.last_attempt_failed = reason
        self.move(EngineState.READY, reason)

    def postpone(self, reason: str, seconds: float) -> None:
        """Try again after `seconds` without counting a failure, because the engine did not cause the failure."""
        self.retry_at = time.monotonic() + seconds
        self.move(EngineState.READY if self.is_usable else EngineState.FAILED, reason)

    def wait(self, reason: str, seconds: float) -> None:
        """Try again after `seconds`, because another box makes the engine."""
        self.retry_at = time.monotonic() + seconds
        self.move(EngineState.ABSENT, reason)

    def quarantine(self, reason: str, *, held: bool = False) -> None:
        """Do not make the engine again until a command requests it. `held`: the reason is an operator's command."""
        self.request, self.is_held = Request.NONE, held
        self.move(EngineState.QUARANTINED, reason)

    def adopt(self, record: EngineRecord) -> None:
        """Apply the record that the store already has of this engine."""
        if record.is_unproven:
            return  # such an engine is tried first, like an engine for another driver
        self.record = record
        if record.evicted:
            self._settle(EngineState.EVICTED, "its files were removed to make room")
        elif record.is_usable:
            self._settle(EngineState.READY)
            if self.request is Request.NONE and self._is_outdated(record):
                self.request = Request.REVIEW
        elif self._is_outdated(record):
            self.record = None  # by the current standard it may pass: it is built again
            self._settle(EngineState.ABSENT)
        else:
            self._settle(EngineState.REJECTED, record.verdict.reason)

    def opened(self) -> None:
        """Record that the engine serves now: reset its failures and refusals."""
        if self.refusals:
            self.reason = ""
        self.failures, self.refusals, self.losses, self.open_at = 0, 0, 0, 0.0
        self.disk, self.disk_failures = "", 0

    def met_disk(self, error: EdgedError) -> None:
        """Count a failure to make or open the engine if the disk caused this failure. If something else caused it,
        reset the count."""
        failing = isinstance(error, DiskFailing)
        self.disk, self.disk_failures = (str(error), self.disk_failures + 1) if failing else ("", 0)

    def _settle(self, state: EngineState, reason: str = "") -> None:
        """Change the state as `move` does. Do nothing if the engine is in this state already."""
        if self.state is not state:
            self.move(state, reason)

    @property
    def is_judged(self) -> bool:
        """Whether the engine has a verdict by the current standard."""
        return self.record is not None and not self._is_outdated(self.record)

    def _is_outdated(self, record: EngineRecord) -> bool:
        """Whether the verdict in a record is by a standard other than the current standard. Always false for a
        reference."""
        return record.standard != self.standard and not self.recipe.is_reference

    def damaged(self, error: EdgedError, most: int) -> None:
        """Record that the engine was found damaged when it was opened. The first time, the engine is made again at
        once. If the new build is damaged too, this counts as a failure (see `fail`). Then the next build, which may
        take an hour, starts only after a delay."""
        self.losses += 1
        if self.losses == 1:
            self.lose()
            self.reason = str(error)
        else:
            self.record, self.nodes, self.misplaced = None, {}, ()
            self.fail(error, most)

    def lose(self) -> None:
        """Record that the engine's files cannot be used, so that it is made again."""
        self.record, self.nodes, self.misplaced = None, {}, ()
        self.move(EngineState.ABSENT)
