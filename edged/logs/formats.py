"""Formats log records: as text, as JSON, as lines for a journal that reads standard error, and as entries of systemd's
journal.

Formats: sd-daemon(3) for `<N>`; RFC 3339 for times in JSON; https://systemd.io/JOURNAL_NATIVE_PROTOCOL for entries,
which are lines of NAME=VALUE.
"""

from __future__ import annotations

import logging
import re
import struct
from datetime import datetime, timezone
from functools import lru_cache
from types import TracebackType
from typing import TypeAlias

import msgspec

# Fields in the order in which they are written. child: the process that printed the line; repeated: the number of
# further records of the same kind for which this record stands.
NAMES = ("event", "alarm", "model", "engine", "camera", "backend", "child", "repeated")
_PLACE = re.compile(r"%(?:%|[#0\- +]*(?:\d+|\*)?(?:\.(?:\d+|\*))?[a-zA-Z])")
_WORD = re.compile(r"\b(model|engine|camera) $")


def about(record: logging.LogRecord) -> dict[str, str]:
    """Return the fields of a record (model, camera and so on) by name. They come from the record's `extra` and from its
    template: an argument after the word model, engine or camera is the value of the field with this name."""
    found: dict[str, str] = {}
    if isinstance(record.msg, str) and isinstance(record.args, tuple):
        for name, index in _named(record.msg):
            if index < len(record.args):
                found[name] = str(record.args[index])
    for name in NAMES:
        given = getattr(record, name, None)
        if given:
            found[name] = str(given)
    return {name: found[name] for name in NAMES if name in found}


@lru_cache(maxsize=512)
def _named(template: str) -> tuple[tuple[str, int], ...]:
    """Find the arguments of a template that stand after the word model, engine or camera. Return the word and the index
    of each such argument. If a word occurs twice, return the first index."""
    found: dict[str, int] = {}
    index = 0
    for place in _PLACE.finditer(template):
        if place[0] == "%%":
            continue
        if word := _WORD.search(template, 0, place.start()):
            found.setdefault(word[1], index)
        index += 1 + place[0].count("*")
    return tuple(found.items())


TEXT = "%(asctime)s %(levelname).1s %(name)s: %(message)s"
# Clients choose parts of the text, which must not look like another line or move a terminal's cursor.
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
_Failed: TypeAlias = (
    "tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]"  # as of sys.exc_info
)
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))


class _Lines(logging.Formatter):
    """Writes each record as one line, with an indented traceback below it. The text of an error may come from a client,
    so it must not look like another record."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(super().formatMessage(record))

    def formatException(self, failed: _Failed) -> str:
        return "\n".join(f"  {one_line(line)}" for line in super().formatException(failed).split("\n"))


class TextLines(_Lines):
    """Lines with a time, for people."""

    def __init__(self) -> None:
        super().__init__(TEXT)


class PriorityLines(_Lines):
    """Lines for systemd's journal. They have no time, because the journal adds it. Every line of a traceback begins
    with the priority, because the journal makes each line an entry."""

    def __init__(self) -> None:
        super().__init__("%(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{priority(record.levelno)}>"
        return "\n".join(prefix + line for line in super().format(record).splitlines())


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger, message, fields such as the model, and the traceback, if any."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **about(record),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode({name: _encodable(value) for name, value in line.items()}).decode()


def priority(level: int) -> int:
    """Return the syslog priority of a level, 2 (critical) to 7 (debug)."""
    return next((number for least, number in _PRIORITIES if level >= least), 7)


def one_line(text: str) -> str:
    """Return a text with its control characters escaped."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _encodable(text: str) -> str:
    """Escape surrogates, which stand for bytes in file names that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


_LONGEST = 32 << 10  # bytes of one field: an entry must fit into one datagram
_TRACE = logging.Formatter()


def entry(record: logging.LogRecord) -> bytes:
    """Return a record as an entry of the journal, with fields for searches such as `journalctl EDGED_MODEL=door`."""
    message = record.getMessage()
    if record.exc_info and record.exc_info[0] is not None:
        message = f"{message}\n{_TRACE.formatException(record.exc_info)}"
    fields = {
        "MESSAGE": message,
        "PRIORITY": str(priority(record.levelno)),
        "SYSLOG_IDENTIFIER": "edged",
        "EDGED_LOGGER": record.name,
        "CODE_FILE": record.pathname,
        "CODE_LINE": str(record.lineno),
        "CODE_FUNC": record.funcName or "",
        **{f"EDGED_{name.upper()}": value for name, value in about(record).items()},
    }
    return b"".join(_field(name.encode(), value) for name, value in fields.items())


def _field(name: bytes, value: str) -> bytes:
    data = value.encode("utf-8", "backslashreplace")[:_LONGEST]
    if b"\n" in data:
        return name + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
    return name + b"=" + data + b"\n"
