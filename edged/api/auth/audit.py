"""Writes the audit log to rotated files, one line of JSON for each record. Each call that needs the role `operate` has
a record. Refused calls have at most one record per second and host.

A thread writes the lines, so that no call waits for the disk. `AuditLog.lost` counts lines that cannot be written. The
thread does not call fsync: after a power cut the last lines may be missing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf.message import Message

_LOG = logging.getLogger("edged.access")
FILE = "audit.jsonl"
_FILES = 4  # the current file and the older ones
_WAITING = 4096  # limit of the lines that wait for the disk
_CLOSING_SECONDS = 2.0
_REFUSAL_SECONDS = 1.0  # least time between two lines about refused calls of one host
_HOSTS = 1024


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One record. `time` is in UTC. `who` is the caller's name, `peer` is the caller's address as gRPC names it.
    `about` has the recorded fields of the request, by name. `outcome` is OK or another gRPC status, `message` is the
    error's message. `milliseconds` is the duration of the call."""

    time: str
    who: str
    method: str
    outcome: str
    roles: tuple[str, ...] = ()
    peer: str = ""
    about: dict[str, str] = {}
    message: str = ""
    milliseconds: float = 0.0

    @classmethod
    def of(
        cls, who: str, roles: Iterable[str], method: str, peer: str, outcome: str, message: str, **more: Any
    ) -> Line:
        """Return a line with the current time."""
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return cls(now, who, method, outcome, tuple(sorted(roles)), peer, message=message, **more)


class AuditLog:
    """The audit log. `lost` counts lines that could not be written. `problem` says why the last line could not be
    written, or why the files could not be rotated before it was written. It is empty if neither failed."""

    def __init__(
        self, folder: Path, size: int, *, waiting: int = _WAITING, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`size` is the limit of all files together, in bytes. `waiting` limits the lines that wait for the disk."""
        self.size, self._clock = size, clock
        self.lost = 0
        self.problem = ""
        self._path = folder / FILE
        self._lines: queue.Queue[Line | None] = queue.Queue(waiting)
        self._thread: threading.Thread | None = None
        self._refusals: OrderedDict[str, float] = OrderedDict()  # when each host last got a line

    def write(self, line: Line) -> None:
        """Queue a line for the thread. If the queue is full, drop the line and count it in `lost`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
            self._thread.start()
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.lost += 1
            self.problem = "the disk is too slow"

    def refused(self, line: Line, host: str) -> None:
        """Log and queue a line about a refused call. Any client can cause such lines, so further lines about the same
        host are dropped for a second."""
        now = self._clock()
        if now - self._refusals.get(host, -_REFUSAL_SECONDS) < _REFUSAL_SECONDS:
            return
        self._refusals[host] = now
        self._refusals.move_to_end(host)
        if len(self._refusals) > _HOSTS:
            self._refusals.popitem(last=False)
        _LOG.warning("refused call %s by %s from %s: %s", line.method, line.who, line.peer, line.message)
        self.write(line)

    def close(self) -> None:
        """Write the waiting lines, for at most two seconds."""
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._lines.put_nowait(None)
            self._thread.join(_CLOSING_SECONDS)
            self._thread = None

    def _run(self) -> None:
        encoder = msgspec.json.Encoder()
        while (line := self._lines.get()) is not None:
            try:
                self.problem = self._append(encoder.encode(line) + b"\n")
            except OSError as error:
                self.lost += 1
                self.problem = self._failed(error)

    def _append(self, data: bytes) -> str:
        """Write a line, and return why the files could not be rotated before; empty if they need not be, or were. If
        rotation fails, the current file grows until all files together reach their limit."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        problem, size = "", _size(self._path)
        if size and size + len(data) > self.size // _FILES:
            try:
                self._rotate()
            except OSError as error:
                failure = OSError(error.errno, f"the files cannot be rotated: {error.strerror or error}")
                if sum(map(_size, self._files())) + len(data) > self.size:
                    raise failure from error
                problem = self._failed(failure)
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            size = os.fstat(handle).st_size
            if os.write(handle, data) < len(data):  # the disk is full: remove the incomplete line
                os.ftruncate(handle, size)
                raise OSError(28, "No space left on device")
        finally:
            os.close(handle)
        return problem

    def _rotate(self) -> None:
        """Move each file to the next number, up to the first number that is free. So a repeated attempt after a failure
        overwrites no older file."""
        files = self._files()
        free = next((number for number, file in enumerate(files) if not file.exists()), _FILES - 1)
        for number in range(free, 0, -1):
            os.replace(files[number - 1], files[number])

    def _files(self) -> list[Path]:
        """Return the paths of the current file and the older ones, the newest first."""
        return [self._path, *(self._path.with_name(f"{FILE}.{number}") for number in range(1, _FILES))]

    def _failed(self, error: OSError) -> str:
        return f"{self._path.parent}: {error.strerror or error}"


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0


# The fields of requests that the log records, also within the messages in `_INNER`. No other field is recorded.
_NAMES = ("name", "model_name", "model", "engine", "everything", "force", "repository_name", "settings")
_INNER = ("selector", "header")
_LONGEST = 200


def about(message: Message) -> dict[str, str]:
    """Return the recorded fields (`_NAMES`) of a request that are set, by name. Values are cut to 200 characters. For a
    map, such as `settings`, the value is the list of keys."""
    found: dict[str, str] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.name in _INNER and isinstance(value, Message):
            found.update(about(value))
        elif field.name in _NAMES and value:
            found[field.name] = _word(value)
    return found


def _word(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(sorted(map(str, value)))[:_LONGEST]
    return str(value).lower() if isinstance(value, bool) else str(value)[:_LONGEST]
