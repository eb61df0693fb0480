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
    QUARANTINED = "quarantined"  # an engine failed too often and is no longer tried
    BUILDS_PAUSED = "builds_paused"  # nothing can be stored
    REBOOT_PENDING = "reboot_pending"  # the driver's two halves differ
    UNSERVED = "unserved"  # a model that cannot be served
    NO_CANDIDATE = "no_candidate"  # a model's settings leave no engine that this box can make
    UNTRACKED = "untracked"  # cameras want their objects followed, and that does not work
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
            _LOG.warning("over: %s", alarm.message)
            self._events.tell(AlarmCleared(alarm.kind.value, alarm.message), alarm.model, alarm.engine)
        for subject, alarm in now.items():
            known = self._active.get(subject)
            since = known.since_unix_s if known else time.time()
            self._active[subject] = msgspec.structs.replace(alarm, since_unix_s=since)
            if known is None:
                _LOG.warning("%s", alarm.message)
                self._events.tell(AlarmRaised(alarm.kind.value, alarm.message), alarm.model, alarm.engine)
