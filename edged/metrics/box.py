"""Metrics of the box: what it feels like now, read below a root and kept for a moment, since sensors may be slow.

Formats: the kernel's Documentation/driver-api/thermal/sysfs-api.rst (millidegrees) and admin-guide/pm/cpufreq.rst
(kilohertz).
"""

from __future__ import annotations

import time

import msgspec

from edged.device.root import Root
from edged.metrics import names
from edged.metrics.sheet import Sheet

_KEPT_SECONDS = 2.0
_MOST = 128  # of one kind of sensor
_ZONES = "sys/class/thermal"
_CPUS = "sys/devices/system/cpu"


class Readings(msgspec.Struct, frozen=True):
    """Degrees Celsius by zone; hertz by processor, now and at most."""

    temperatures: dict[str, float] = {}
    clocks: dict[str, float] = {}
    highest: dict[str, float] = {}


class Sensors:
    """Reads what a box tells; blocks, so it is asked from a thread."""

    def __init__(self, root: Root | None = None) -> None:
        self._root = root or Root()
        self._kept, self._until = Readings(), 0.0

    def read(self) -> Readings:
        """As it was at most a moment ago."""
        if time.monotonic() >= self._until:
            self._kept = Readings(
                self._temperatures(), self._clocks("scaling_cur_freq"), self._clocks("cpuinfo_max_freq")
            )
            self._until = time.monotonic() + _KEPT_SECONDS
        return self._kept

    def _temperatures(self) -> dict[str, float]:
        """Several zones may be of one type; each is called by both."""
        found = {}
        for place in self._root.glob(f"{_ZONES}/thermal_zone*")[:_MOST]:
            value, kind = self._number(f"{place}/temp"), (self._root.read(f"{place}/type") or "").strip()
            if value is not None and abs(value) < 1e6:  # a zone that is off tells something absurd
                found[f"{kind or 'zone'}-{place.removeprefix(f'{_ZONES}/thermal_zone')}"] = value / 1e3
        return found

    def _clocks(self, file: str) -> dict[str, float]:
        found = {}
        for place in self._root.glob(f"{_CPUS}/cpu[0-9]*")[:_MOST]:
            value = self._number(f"{place}/cpufreq/{file}")
            if value is not None and value > 0:
                found[place.removeprefix(f"{_CPUS}/cpu")] = value * 1e3
        return found

    def _number(self, place: str) -> float | None:
        try:
            return float(self._root.read(place) or "")
        except ValueError:
            return None


def collect(sheet: Sheet, busy: float, power_mode: str, readings: Readings) -> None:
    """`busy`: share of the processors; `power_mode` is empty where the box has none."""
    sheet.put(names.BUSY, busy)
    if power_mode:
        sheet.put(names.POWER_MODE, 1, power_mode)
    for zone, celsius in readings.temperatures.items():
        sheet.put(names.TEMPERATURE, celsius, zone)
    for cpu, hertz in readings.clocks.items():
        sheet.put(names.CLOCK, hertz, cpu)
    for cpu, hertz in readings.highest.items():
        sheet.put(names.CLOCK_MOST, hertz, cpu)
