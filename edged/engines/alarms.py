"""What is wrong now. Level-triggered: each look says what is wrong, and only what begins or ends is told."""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Iterable

import msgspec

from edged.events import AlarmCleared, AlarmRaised, EventLog

_LOG = logging.getLogger("edged.alarms")


class AlarmKind(str, enum.Enum):
    """Everything that raises an alarm."""

    SLOW = "slow"  # an engine takes much longer than when it was measured
    QUARANTINED = "quarantined"  # an engine failed too often, or killed its host too often, and is no longer tried
    ENGINE_MISMATCH = "engine_mismatch"  # an engine of the store did not answer as its model's reference did
    NOT_FINITE = "not_finite"  # an output of a model held NaN or infinity
    BUILDS_PAUSED = "builds_paused"  # nothing can be stored
    DISK_FAILING = "disk_failing"  # errors of the disk, again and again, while engines are made or opened
    STATE_UNWRITABLE = "state_unwritable"  # the folder of models and settings cannot be written
    REBOOT_PENDING = "reboot_pending"  # the driver's two halves differ
    UNSERVED = "unserved"  # a model that cannot be served
    NO_CANDIDATE = "no_candidate"  # a model's settings leave no engine that this box can make
    UNTRACKED = "untracked"  # cameras want their objects followed, and that does not work
    FAILING = "failing"  # an engine that serves does not answer any more
    CERTIFICATE = "certificate"  # the daemon's certificate cannot be used, or not for long
    TOKENS = "tokens"  # the file of tokens cannot be used
    AUDIT = "audit"  # what operators do cannot be written down
    FALLBACK = "fallback"  # a part of a model runs elsewhere than on the device that it is meant for


class Alarm(msgspec.Struct, frozen=True):
    """One thing that is wrong, with a model or an engine's key where it has one."""

    kind: AlarmKind
    message: str
    model: str = ""
    engine: str = ""
    since_unix_s: float = 0.0

    @property
    def subject(self) -> tuple[AlarmKind, str, str]:
        """What it is about: the message may change while it lasts."""
        return self.kind, self.model, self.engine


class Alarms:
    """The alarms that are raised now."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._active: dict[tuple[AlarmKind, str, str], Alarm] = {}

    def active(self) -> tuple[Alarm, ...]:
        """Every alarm that is raised, the oldest first."""
        return tuple(self._active.values())

    def update(self, wrong: Iterable[Alarm]) -> None:
        """Everything that is wrong now; what is not among it is over."""
        now = {alarm.subject: alarm for alarm in wrong}
        for subject in [subject for subject in self._active if subject not in now]:
            alarm = self._active.pop(subject)
            _LOG.info("over: %s", alarm.message, extra=_about(alarm, AlarmCleared))
            self._events.tell(AlarmCleared(alarm.kind.value, alarm.message), alarm.model, alarm.engine)
        for subject, alarm in now.items():
            known = self._active.get(subject)
            since = known.since_unix_s if known else time.time()
            self._active[subject] = msgspec.structs.replace(alarm, since_unix_s=since)
            if known is None:
                _LOG.warning("%s", alarm.message, extra=_about(alarm, AlarmRaised))
                self._events.tell(AlarmRaised(alarm.kind.value, alarm.message), alarm.model, alarm.engine)


def _about(alarm: Alarm, event: type[AlarmRaised | AlarmCleared]) -> dict[str, str]:
    """What the log says of it beside its message; the event is called as in the stream of events."""
    named = {"event": str(event.__struct_config__.tag), "alarm": alarm.kind.value}
    return {**named, "model": alarm.model, "engine": alarm.engine[:12]}
