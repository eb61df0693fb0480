"""Repeated records are written once a second, with their number. Pure: time is an argument.

The first of a kind is written at once. Those that follow within a second are counted; after it the newest of them is
written with their number, and another second begins. After a second without any, the next is a first one again.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Hashable
from dataclasses import dataclass

from edged.logs.formats import about, which

_MOST = 256  # kinds that are known at a time; before one more, the oldest is written
# Each line of these loggers is about one decision, not about a frame or request: only an equal line is a repetition.
_DECISIONS = frozenset(("edged", "edged.alarms", "edged.engines", "edged.device", "edged.store", "edged.config"))
_LONGEST = 500  # characters of a line that are compared
_LIGHT = (str, int, float, bool, type(None))


@dataclass(slots=True)
class _Spell:
    """One kind, for one second: when it began, and how many records are held since."""

    since: float
    held: int = 0
    newest: logging.LogRecord | None = None


class Repetition:
    """Decides which records are written. Only warnings and errors are ever held."""

    def __init__(self, seconds: float = 1.0, most: int = _MOST) -> None:
        self._seconds, self._most = seconds, most
        self._spells: dict[Hashable, _Spell] = {}  # the oldest first
        self._holding = 0  # spells that hold records

    def admit(self, record: logging.LogRecord, now: float) -> list[logging.LogRecord]:
        """Return the records to write now that this one came. `now` in monotonic seconds."""
        ready = self.due(now)
        if record.levelno < logging.WARNING:
            return [*ready, record]
        key = kind(record)
        spell = self._spells.get(key)
        if spell is None:
            self._spells[key] = _Spell(now)
            if len(self._spells) > self._most:
                ready += self._end(next(iter(self._spells)), now)
            return [*ready, record]
        self._holding += not spell.held
        spell.held += 1
        spell.newest = _without_exception(record)
        return ready

    def due(self, now: float) -> list[logging.LogRecord]:
        """Return the records that were held for long enough."""
        ready: list[logging.LogRecord] = []
        while self._spells:
            key, spell = next(iter(self._spells.items()))
            if now - spell.since < self._seconds:
                break
            ended = self._end(key, now)
            if ended:
                self._spells[key] = _Spell(now)
                ready += ended
        return ready

    def rest(self, now: float) -> list[logging.LogRecord]:
        """Return all records that are held."""
        return [record for key in list(self._spells) for record in self._end(key, now)]

    @property
    def next_due(self) -> float | None:
        """When `due` must be called at the latest; None while nothing is held."""
        return next(iter(self._spells.values())).since + self._seconds if self._holding else None

    def _end(self, key: Hashable, now: float) -> list[logging.LogRecord]:
        spell = self._spells.pop(key)
        if spell.newest is None:
            return []
        self._holding -= 1
        return [_summed(spell.newest, spell.held - 1, now - spell.since)]


def kind(record: logging.LogRecord) -> Hashable:
    """The key of similar records: `alike` if the caller gave it; the line for loggers of decisions; otherwise the
    template, model, engine, and the place where the exception was raised, but not the other arguments."""
    who = record.name, record.levelno
    alike = getattr(record, "alike", None)
    if alike is not None:
        return *who, alike
    if record.name in _DECISIONS:
        return *who, record.getMessage()[:_LONGEST], _place(record)
    return *who, str(record.msg)[:_LONGEST], which(record, "model"), which(record, "engine"), _place(record)


def _place(record: logging.LogRecord) -> Hashable:
    if not record.exc_info or record.exc_info[0] is None:
        return None
    error, _, trace = record.exc_info
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return error, (trace.tb_frame.f_code, trace.tb_lineno) if trace is not None else None


def _without_exception(record: logging.LogRecord) -> logging.LogRecord:
    """Return a record that references only its text: an exception would reference every frame."""
    if not record.exc_info and all(isinstance(value, _LIGHT) for value in record.args or ()):
        return record
    return _rendered(record, record.getMessage())


def _rendered(record: logging.LogRecord, text: str) -> logging.LogRecord:
    copied = copy.copy(record)
    for name, value in about(record).items():
        setattr(copied, name, value)
    copied.msg, copied.args, copied.exc_info, copied.exc_text = text, None, None, None
    return copied


def _summed(newest: logging.LogRecord, more: int, seconds: float) -> logging.LogRecord:
    if not more:
        return newest
    summed = _rendered(newest, f"{newest.getMessage()} ... and {more:,} more like it in the last {seconds:.1f} s")
    summed.__dict__["repeated"] = more
    return summed
