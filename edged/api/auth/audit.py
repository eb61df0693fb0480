"""What operators did, and who was turned away: a line of JSON for each, in files that give way to newer ones.

Written by a thread of its own, so that no call waits for a disk; what cannot be written is counted. Nothing is synced:
after a power cut the last lines may be missing, which is no worse than the box having been off.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

import msgspec
from google.protobuf.message import Message

_LOG = logging.getLogger("edged.access")
FILE = "audit.jsonl"
_FILES = 4  # the one that grows, and those before
_WAITING = 4096  # lines that a disk may be behind
_CLOSING_SECONDS = 2.0
_TOLD_SECONDS = 1.0  # between two lines about one host that is turned away
_HOSTS = 1024


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """`time` in UTC; `who` with its `roles` and, where there is one, `peer`; `method` and what it was `about`;
    `outcome` is OK or a gRPC status with its `message`; `milliseconds` that it took."""

    time: str
    who: str
    method: str
    outcome: str
    roles: tuple[str, ...] = ()
    peer: str = ""
    about: dict[str, str] = {}
    message: str = ""
    milliseconds: float = 0.0


class AuditLog:
    """`lost` counts lines that could not be written; `problem` says why the last could not, empty where it could."""

    def __init__(self, folder: Path, size: int) -> None:
        """`size` in bytes, of all files together."""
        self.size = size
        self.lost = 0
        self.problem = ""
        self._path = folder / FILE
        self._lines: queue.Queue[Line | None] = queue.Queue(_WAITING)
        self._thread: threading.Thread | None = None
        self._told: OrderedDict[str, float] = OrderedDict()  # when a peer was last told of

    def write(self, line: Line) -> None:
        """Has a line written, soon."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
            self._thread.start()
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.lost += 1
            self.problem = "the disk is too slow for it"

    def turned_away(self, line: Line, host: str) -> None:
        """Has a line written about a host that is turned away: one a second, since anybody can be, without end."""
        now = time.monotonic()
        if now - self._told.get(host, -_TOLD_SECONDS) < _TOLD_SECONDS:
            return
        self._told[host] = now
        self._told.move_to_end(host)
        if len(self._told) > _HOSTS:
            self._told.popitem(last=False)
        _LOG.warning("turned away: %s at %s, %s: %s", line.who, line.peer, line.method, line.message)
        self.write(line)

    def close(self) -> None:
        """Writes what waits, if that is soon done."""
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._lines.put_nowait(None)
            self._thread.join(_CLOSING_SECONDS)

    def _run(self) -> None:
        encoder = msgspec.json.Encoder()
        while (line := self._lines.get()) is not None:
            try:
                self._append(encoder.encode(line) + b"\n")
                self.problem = ""
            except OSError as error:
                self.lost += 1
                self.problem = f"{self._path.parent}: {error.strerror or error}"

    def _append(self, data: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            size = os.fstat(handle).st_size
            if os.write(handle, data) < len(data):  # the disk is full: half a line is none
                os.ftruncate(handle, size)
                raise OSError(28, "No space left on device")
        finally:
            os.close(handle)
        if size + len(data) >= self.size // _FILES:
            self._rotate()

    def _rotate(self) -> None:
        for number in range(_FILES - 1, 0, -1):
            before = self._path.with_name(f"{FILE}.{number - 1}") if number > 1 else self._path
            with contextlib.suppress(FileNotFoundError):
                os.replace(before, self._path.with_name(f"{FILE}.{number}"))


def now_told() -> str:
    """The time, as a line has it."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Fields that hold a name, in any message of an operator's method.
_NAMES = ("name", "model_name", "model", "engine", "everything", "force", "repository_name", "settings")
_INNER = ("selector", "header")
_LONGEST = 200


def about(message: Message) -> dict[str, str]:
    """Names by the field that they are in; of settings only which ones."""
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
