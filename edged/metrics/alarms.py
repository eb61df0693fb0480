"""Metrics of what is wrong: every kind of alarm is there, so that a rule can wait for it."""

from __future__ import annotations

from edged.engines.alarms import Alarm, AlarmKind
from edged.metrics import names
from edged.metrics.sheet import Sheet
from edged.metrics.tally import Tally


def collect(sheet: Sheet, alarms: tuple[Alarm, ...], tally: Tally) -> None:
    """Those that are raised, and how many were."""
    for kind in AlarmKind:
        sheet.put(names.ALARMS, sum(alarm.kind is kind for alarm in alarms), kind.value)
        sheet.put(names.ALARMS_RAISED, tally.alarms[kind.value], kind.value)
