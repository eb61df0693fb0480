"""The handler of the daemon's log, which writes each record in the configured format or counts it as repeated."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Annotated, Literal, TextIO, TypeAlias

import msgspec
from msgspec import Meta

from edged.logs.formats import JsonLines, PriorityLines, TextLines, entry
from edged.logs.repetition import Repetition

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
        self.lost = 0  # entries since the last one that was taken

    def write(self, record: logging.LogRecord) -> bool:
        """Return False if no journal exists or it refuses the record. A journal that is too busy loses it."""
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
                self._socket.settimeout(_SECONDS)
            if self.lost:
                message = f"the journal was too busy for {self.lost:,} lines, which are lost"
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
    """Whether a descriptor is the journal's, as JOURNAL_STREAM of systemd.exec(5) says: device and inode."""
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
_MIN_SECONDS = 0.05  # from one flush of held records to the next


class Output(logging.Handler):
    """Writes records of any thread to `stream`, or to the journal; never raises, and waits for the journal at most."""

    def __init__(self, stream: TextIO | None = None, journal: Journal | None = None) -> None:
        super().__init__()
        self._stream = stream if stream is not None else sys.stderr
        self._journal = journal or Journal()
        self._form: Format = "text"
        self._repetition = Repetition()
        self._timer: threading.Timer | None = None
        self.shape("auto")

    def shape(self, form: Format) -> None:
        """Change the form of the records that follow."""
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
        """Write the records that are held."""
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
        # Only the text form can be changed from outside: what programs read keeps its form.
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
        """The handler's own lock, under which `emit` is called."""
        assert self.lock is not None
        return self.lock


_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_LOG = logging.getLogger("edged")


def start(options: LogOptions | None = None) -> Output:
    """Set up the daemon's process: everything logged in it goes to standard error, in one form."""
    output = Output()
    logging.basicConfig(handlers=[output], force=True)
    logging.captureWarnings(True)
    threading.excepthook = _thread_failed
    reconfigure(options or LogOptions())
    return output


def reconfigure(options: LogOptions) -> None:
    """Apply options; a process without our handler keeps its format."""
    root = logging.getLogger()
    for handler in root.handlers:
        if isinstance(handler, Output):
            handler.shape(options.format)
    # Libraries log every step at lower levels; the level is meant for edged's own lines.
    root.setLevel(max(_LEVELS[options.level], logging.INFO))
    _LOG.setLevel(_LEVELS[options.level])


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_type is SystemExit:
        return
    error: tuple[type[BaseException], BaseException, TracebackType | None] | None = None
    if failed.exc_value is not None:
        error = failed.exc_type, failed.exc_value, failed.exc_traceback
    name = failed.thread.name if failed.thread is not None else "without a name"
    _LOG.error("the thread %s ended with an unexpected error", name, exc_info=error)
