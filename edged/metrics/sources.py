"""Data for metrics and `edged top`: the box's sensors, the memory of processes, counts of events.

Needs no Prometheus library. Formats: the kernel's Documentation/driver-api/thermal/sysfs-api.rst (millidegrees),
admin-guide/pm/cpufreq.rst (kilohertz), proc_pid_statm(5).
"""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from edged.device.root import Root
from edged.engines.engine import MAKING
from edged.events import AlarmRaised, EngineMoved, Event, EventLog, HostLost, ModelRemoved
from edged.serving.statistics import Histogram

STARTED = time.time()
_CACHE_SECONDS = 2.0
_MAX_SENSORS = 128  # the most sensors of one kind that are read
_ZONES = "sys/class/thermal"
_CPUS = "sys/devices/system/cpu"
_PAGE = resource.getpagesize()
_BUILD_BUCKETS = (1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)  # seconds
_MAKING = frozenset(state.value for state in MAKING)


class Readings(msgspec.Struct, frozen=True):
    """`temperatures` maps thermal zones to degrees Celsius. `clocks` and `highest` map processors to their current and
    their maximum clock frequency in hertz."""

    temperatures: dict[str, float] = {}
    clocks: dict[str, float] = {}
    highest: dict[str, float] = {}


class Sensors:
    """Reads a box's sensors below `root`, at most every two seconds. Blocks: call it in a thread."""

    def __init__(self, root: Root | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._clock = root or Root(), clock
        self._cached, self._until = Readings(), 0.0

    def read(self) -> Readings:
        """Return the readings, from the cache if they are recent."""
        if self._clock() >= self._until:
            self._cached = Readings(
                self._temperatures(), self._clocks("scaling_cur_freq"), self._clocks("cpuinfo_max_freq")
            )
            self._until = self._clock() + _CACHE_SECONDS
        return self._cached

    def _temperatures(self) -> dict[str, float]:
        """Return a mapping from thermal zones to temperatures. The name of a zone is its type and number, because
        several zones may have the same type."""
        found = {}
        for place in self._root.glob(f"{_ZONES}/thermal_zone*")[:_MAX_SENSORS]:
            value, kind = self._number(f"{place}/temp"), (self._root.read(f"{place}/type") or "").strip()
            if value is not None and abs(value) < 1e6:  # a zone that is off reports an absurd value
                found[f"{kind or 'zone'}-{place.removeprefix(f'{_ZONES}/thermal_zone')}"] = value / 1e3
        return found

    def _clocks(self, file: str) -> dict[str, float]:
        found = {}
        for place in self._root.glob(f"{_CPUS}/cpu[0-9]*")[:_MAX_SENSORS]:
            value = self._number(f"{place}/cpufreq/{file}")
            if value is not None and value > 0:
                found[place.removeprefix(f"{_CPUS}/cpu")] = value * 1e3
        return found

    def _number(self, place: str) -> float | None:
        try:
            return float(self._root.read(place) or "")
        except ValueError:
            return None


def resident_bytes(pid: int) -> int | None:
    """Return the resident memory of a process; None if no such process exists."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


class EventCounts:
    """Counts of events since the daemon started.

    An engine is identified by its model and its key together, because models with the same content share keys.
    """

    def __init__(self, events: EventLog, clock: Callable[[], float] = time.monotonic) -> None:
        self.builds: Counter[tuple[str, str]] = Counter()  # backend, outcome
        self.build_seconds: dict[str, Histogram] = {}  # by backend
        self.losses: Counter[str] = Counter()  # of hosts, by backend
        self.alarms: Counter[str] = Counter()  # by kind
        self._clock = clock
        self._began: dict[tuple[str, str], float] = {}  # when the making of each engine began
        events.hearers.append(self._count)

    def _count(self, event: Event) -> None:
        what = event.what
        if isinstance(what, EngineMoved):
            self._count_move((event.model, event.engine), what)
        elif isinstance(what, HostLost):
            self.losses[what.backend] += 1
        elif isinstance(what, AlarmRaised):
            self.alarms[what.alarm] += 1
        elif isinstance(what, ModelRemoved):
            self._began = {engine: began for engine, began in self._began.items() if engine[0] != event.model}

    def _count_move(self, engine: tuple[str, str], move: EngineMoved) -> None:
        if move.state in _MAKING:
            self._began.setdefault(engine, self._clock())
        elif (began := self._began.pop(engine, None)) is not None:
            self.builds[move.backend, move.state] += 1
            self.build_seconds.setdefault(move.backend, Histogram(_BUILD_BUCKETS)).add(self._clock() - began)
