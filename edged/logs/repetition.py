"""Repeated records are written once a second, with their number. Pure: time is an argument.

The first of a kind is never held back. Those that follow within a second are counted; when it is over, the newest of
them is said with their number, and another second begins. After a second of quiet the next is a first one again.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Hashable
from dataclasses import dataclass

from edged.logs.formats import about, which

_MOST = 256  # kinds that are known at a time; before one more, the oldest has its say
# Here every line tells of a decision, made once and not for each frame or request: only the very same line is repeated.
_DECISIONS = frozenset(("edged", "edged.alarms", "edged.engines", "edged.device", "edged.store", "edged.config"))
_LONGEST = 500  # characters of a line that are compared
_LIGHT = (str, int, float, bool, type(None))


@dataclass(slots=True)
class _Spell:
    """One kind, for one second: when it began, and what was held back since."""

    since: float
    held: int = 0
    newest: logging.LogRecord | None = None


class Repetition:
    """Decides which records are written. Only warnings and errors are ever held back."""

    def __init__(self, seconds: float = 1.0, most: int = _MOST) -> None:
        self._seconds, self._most = seconds, most
        self._spells: dict[Hashable, _Spell] = {}  # the one that began longest ago first
        self._holding = 0  # spells that hold something back

    def admit(self, record: logging.LogRecord, now: float) -> list[logging.LogRecord]:
        """Return the records to write now that this one came. `now` in monotonic seconds."""
        said = self.due(now)
        if record.levelno < logging.WARNING:
            return [*said, record]
        key = kind(record)
        spell = self._spells.get(key)
        if spell is None:
            self._spells[key] = _Spell(now)
            if len(self._spells) > self._most:
                said += self._end(next(iter(self._spells)), now)
            return [*said, record]
        self._holding += not spell.held
        spell.held += 1
        spell.newest = _kept(record)
        return said

    def due(self, now: float) -> list[logging.LogRecord]:
        """Return the records that were held back for long enough."""
        said: list[logging.LogRecord] = []
        while self._spells:
            key, spell = next(iter(self._spells.items()))
            if now - spell.since < self._seconds:
                break
            ended = self._end(key, now)
            if ended:
                self._spells[key] = _Spell(now)
                said += ended
        return said

    def rest(self, now: float) -> list[logging.LogRecord]:
        """Return all records that are held back."""
        return [record for key in list(self._spells) for record in self._end(key, now)]

    @property
    def next_due(self) -> float | None:
        """When `due` must be called at the latest; None while nothing is held back."""
        return next(iter(self._spells.values())).since + self._seconds if self._holding else None

    def _end(self, key: Hashable, now: float) -> list[logging.LogRecord]:
        spell = self._spells.pop(key)
        if spell.newest is None:
            return []
        self._holding -= 1
        return [_summed(spell.newest, spell.held - 1, now - spell.since)]


def kind(record: logging.LogRecord) -> Hashable:
    """What makes two records alike: `alike`, where the caller gave it; the line, where each tells of a decision;
    otherwise template, model, engine, and the place where the exception was raised, but not the other arguments."""
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


def _kept(record: logging.LogRecord) -> logging.LogRecord:
    """Return a record that keeps only its text alive: an exception would keep every frame."""
    if not record.exc_info and all(isinstance(value, _LIGHT) for value in record.args or ()):
        return record
    return _rendered(record, record.getMessage())


def _rendered(record: logging.LogRecord, text: str) -> logging.LogRecord:
    told = copy.copy(record)
    for name, value in about(record).items():
        setattr(told, name, value)
    told.msg, told.args, told.exc_info, told.exc_text = text, None, None, None
    return told


def _summed(newest: logging.LogRecord, more: int, seconds: float) -> logging.LogRecord:
    if not more:
        return newest
    told = _rendered(newest, f"{newest.getMessage()} ... and {more:,} more like it in the last {seconds:.1f} s")
    told.__dict__["repeated"] = more
    return told
