"""Counts what happens, from the events that tell of it: nothing else has to count for the sake of metrics."""

from __future__ import annotations

import time
from collections import Counter

from edged.engines.states import MAKING
from edged.events import AlarmRaised, EngineMoved, Event, EventLog, HostLost, ModelRemoved
from edged.serving.histogram import Histogram

_SECONDS = (1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
_MAKING = frozenset(state.value for state in MAKING)


class Tally:
    """Since the daemon started. An engine is known by model and key: models of one content share keys."""

    def __init__(self, events: EventLog) -> None:
        self.builds: Counter[tuple[str, str]] = Counter()  # backend, outcome
        self.build_seconds: dict[str, Histogram] = {}  # by backend
        self.losses: Counter[str] = Counter()  # of hosts, by backend
        self.alarms: Counter[str] = Counter()  # by kind
        self._began: dict[tuple[str, str], float] = {}  # of what is being made, in monotonic seconds
        events.hearers.append(self.hear)

    def hear(self, event: Event) -> None:
        """Something happened."""
        what = event.what
        if isinstance(what, EngineMoved):
            self._moved((event.model, event.engine), what)
        elif isinstance(what, HostLost):
            self.losses[what.backend] += 1
        elif isinstance(what, AlarmRaised):
            self.alarms[what.alarm] += 1
        elif isinstance(what, ModelRemoved):
            self._began = {who: began for who, began in self._began.items() if who[0] != event.model}

    def _moved(self, who: tuple[str, str], step: EngineMoved) -> None:
        if step.state in _MAKING:
            self._began.setdefault(who, time.monotonic())
        elif (began := self._began.pop(who, None)) is not None:
            self.builds[step.backend, step.state] += 1
            self.build_seconds.setdefault(step.backend, Histogram(_SECONDS)).add(time.monotonic() - began)
