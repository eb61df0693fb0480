"""The log handler of the daemon. It writes each record in the configured format, or counts it as repeated."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Annotated, Literal, TextIO, TypeAlias

import msgspec
from msgspec import Meta

from edged.logs.formats import JsonLines, PriorityLines, TextLines, about, entry

_SPELL_SECONDS = 1.0  # how long records of a kind are counted before the newest is written
_MOST = 256  # kinds of records that are remembered; a further kind displaces the oldest, whose held record is written
# Lines of these loggers report decisions, not frames or requests, so only an equal line counts as a repetition.
_DECISIONS = frozenset(("edged", "edged.alarms", "edged.engines", "edged.device", "edged.store", "edged.config"))
_LONGEST = 500  # characters of a line that are compared
_LIGHT = (str, int, float, bool, type(None))


@dataclass(slots=True)
class _Spell:
    """The records of one kind during one second: when the second began, how many records were held back, and the newest
    one of them."""

    since: float
    held: int = 0
    newest: logging.LogRecord | None = None


class Repetition:
    """Decides which records are written. Pure: time is an argument. Only warnings and errors are ever held back.

    The first record of a kind is written at once. Records that follow within a second are counted. After that second
    the newest counted record is written with the count, and another second begins. After a second without records of
    the kind, the next record is written at once again.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._spells: dict[Hashable, _Spell] = {}  # the oldest first
        self._holding = 0  # spells that hold records

    def admit(self, record: logging.LogRecord, now: float) -> list[logging.LogRecord]:
        """Process a new record; return the records to write. `now` is in monotonic seconds."""
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
        """Return the held records whose second is over."""
        ready: list[logging.LogRecord] = []
        while self._spells:
            key, spell = next(iter(self._spells.items()))
            if now - spell.since < _SPELL_SECONDS:
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
        """The time at which `due` must be called next; None while no record is held."""
        return next(iter(self._spells.values())).since + _SPELL_SECONDS if self._holding else None

    def _end(self, key: Hashable, now: float) -> list[logging.LogRecord]:
        spell = self._spells.pop(key)
        if spell.newest is None:
            return []
        self._holding -= 1
        return [_summed(spell.newest, spell.held - 1, now - spell.since)]


def kind(record: logging.LogRecord) -> Hashable:
    """Return a key that is equal for similar records. If the caller set `alike`, the key consists of the logger, the
    level and `alike`.

    Otherwise the key contains the logger, the level and the place where the exception was raised. For the loggers in
    `_DECISIONS`, the key also contains the line. For other loggers, the key also contains the template of the line, the
    model and the engine, but no other arguments.
    """
    who = record.name, record.levelno
    alike = getattr(record, "alike", None)
    if alike is not None:
        return *who, alike
    if record.name in _DECISIONS:
        return *who, record.getMessage()[:_LONGEST], _place(record)
    subject = about(record)
    return *who, str(record.msg)[:_LONGEST], subject.get("model"), subject.get("engine"), _place(record)


def _place(record: logging.LogRecord) -> Hashable:
    if not record.exc_info or record.exc_info[0] is None:
        return None
    error, _, trace = record.exc_info
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return error, (trace.tb_frame.f_code, trace.tb_lineno) if trace is not None else None


def _without_exception(record: logging.LogRecord) -> logging.LogRecord:
    """Return a record that keeps no objects alive: without its exception, and with its arguments rendered."""
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


Format: TypeAlias = Literal["auto", "text", "json", "journal"]
Level: TypeAlias = Literal["debug", "info", "warning", "error"]


class LogOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The format and level of the daemon's log."""

    format: Annotated[
        Format,
        Meta(
            description='"text": for people; "json": one object per line; "journal": systemd\'s journal, with fields to'
            ' search by; "auto": "journal" if standard error is connected to it, otherwise "text".'
        ),
    ] = "auto"
    level: Annotated[
        Level, Meta(description='Lowest level that is logged; "debug" adds every call with its outcome and duration.')
    ] = "info"


_SOCKET = "/run/systemd/journal/socket"
_SECONDS = 0.05  # longest wait for a busy journal


class Journal:
    """A socket to systemd's journal; used under the handler's lock."""

    def __init__(self, address: str = _SOCKET) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        self.lost = 0  # entries lost since the last one that the journal accepted

    def write(self, record: logging.LogRecord) -> bool:
        """Write a record; return False if no journal exists or it refuses the record. If the journal is too busy, the
        record is lost."""
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
                self._socket.settimeout(_SECONDS)
            if self.lost:
                message = f"{self.lost:,} lines were lost from this log: the journal was too busy"
                lost = logging.LogRecord("edged", logging.WARNING, __file__, 0, message, None, None)
                self._socket.sendto(entry(lost), self._address)
                self.lost = 0
            self._socket.sendto(entry(record), self._address)
        except TimeoutError:
            self.lost += 1
        except OSError:
            return False
        return True

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def goes_there(environment: Mapping[str, str], descriptor: int) -> bool:
    """Whether a descriptor is connected to the journal, according to JOURNAL_STREAM of systemd.exec(5) (device and
    inode)."""
    device, _, inode = environment.get("JOURNAL_STREAM", "").partition(":")
    with contextlib.suppress(OSError, ValueError):
        found = os.fstat(descriptor)
        return (found.st_dev, found.st_ino) == (int(device), int(inode))
    return False


_FORMATTERS: dict[Format, Callable[[], logging.Formatter]] = {
    "text": TextLines,
    "json": JsonLines,
    "journal": PriorityLines,
}
_MIN_SECONDS = 0.05  # between two flushes of held records


class Output(logging.Handler):
    """Writes records of any thread to `stream` or to the journal. Never raises; may wait briefly for a busy journal."""

    def __init__(self, stream: TextIO | None = None, journal: Journal | None = None) -> None:
        super().__init__()
        self._stream = stream if stream is not None else sys.stderr
        self._journal = journal or Journal()
        self._form: Format = "text"
        self._repetition = Repetition()
        self._timer: threading.Timer | None = None
        self.shape("auto")

    def shape(self, form: Format) -> None:
        """Change the format of later records."""
        with self._guard():
            self._form = self._resolve(form)
            self._own = _FORMATTERS[self._form]()
            self.setFormatter(self._own)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            for held in self._repetition.admit(record, time.monotonic()):
                self._write(held)
            self._schedule_flush()
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Write the held records and close the handler."""
        with self._guard():
            if self._timer is not None:
                self._timer.cancel()
            for held in self._repetition.rest(time.monotonic()):
                self._write(held)
            self._journal.close()
        super().close()

    def _write(self, record: logging.LogRecord) -> None:
        if self._form == "journal" and self._journal.write(record):
            return
        # `setFormatter` affects only the text format, because programs read the other formats.
        formatter = (self.formatter if self._form == "text" else None) or self._own
        self._stream.write(formatter.format(record) + "\n")
        self._stream.flush()

    def _resolve(self, form: Format) -> Format:
        if form != "auto":
            return form
        try:
            is_journal = goes_there(os.environ, self._stream.fileno())
        except (OSError, ValueError):  # a stream without a file
            is_journal = False
        return "journal" if is_journal else "text"

    def _schedule_flush(self) -> None:
        due = self._repetition.next_due
        if due is None or self._timer is not None:
            return
        self._timer = threading.Timer(max(_MIN_SECONDS, due - time.monotonic()), self._flush)
        self._timer.daemon = True
        self._timer.start()

    def _flush(self) -> None:
        with self._guard():
            self._timer = None
            for held in self._repetition.due(time.monotonic()):
                self._write(held)
            self._schedule_flush()

    def _guard(self) -> threading.RLock:
        """Return the handler's own lock, under which `emit` is called."""
        assert self.lock is not None
        return self.lock


_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_LOG = logging.getLogger("edged")


def start(options: LogOptions | None = None) -> Output:
    """Set up logging of the daemon's process: all records go to standard error or the journal, in one format."""
    output = Output()
    logging.basicConfig(handlers=[output], force=True)
    logging.captureWarnings(True)
    threading.excepthook = _thread_failed
    reconfigure(options or LogOptions())
    return output


def reconfigure(options: LogOptions) -> None:
    """Apply options to the log of this process. A process without edged's handler keeps its format."""
    root = logging.getLogger()
    for handler in root.handlers:
        if isinstance(handler, Output):
            handler.shape(options.format)
    # Libraries log every step below INFO, so level debug applies only to edged's own lines.
    root.setLevel(max(_LEVELS[options.level], logging.INFO))
    _LOG.setLevel(_LEVELS[options.level])


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_type is SystemExit:
        return
    error: tuple[type[BaseException], BaseException, TracebackType | None] | None = None
    if failed.exc_value is not None:
        error = failed.exc_type, failed.exc_value, failed.exc_traceback
    name = failed.thread.name if failed.thread is not None else "without a name"
    _LOG.error(
        "the thread %s ended with an unexpected error; its work may be missing until the daemon is restarted",
        name,
        exc_info=error,
    )
