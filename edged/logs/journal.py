"""Log records as entries of systemd's journal, with fields that `journalctl EDGED_MODEL=door` finds them by.

The protocol (https://systemd.io/JOURNAL_NATIVE_PROTOCOL) is lines of NAME=VALUE in one datagram: no library is needed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
from collections.abc import Mapping

from edged.logs.formats import about, priority

SOCKET = "/run/systemd/journal/socket"
_SECONDS = 0.05  # longest wait for a busy journal
_LONGEST = 32 << 10  # bytes of one field: an entry has to go into one datagram, and those have a limit
_TRACE = logging.Formatter()


class Journal:
    """One socket to the journal; used under the handler's lock."""

    def __init__(self, address: str = SOCKET) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        self._lost = 0  # entries, since the last one that was taken

    def write(self, record: logging.LogRecord) -> bool:
        """Return False if no journal exists or it refuses the record. A journal that is too busy loses it."""
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
                self._socket.settimeout(_SECONDS)
            if self._lost:
                self._socket.sendto(_lost_entry(self._lost), self._address)
                self._lost = 0
            self._socket.sendto(entry(record), self._address)
        except TimeoutError:
            self._lost += 1
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


def entry(record: logging.LogRecord) -> bytes:
    """Return a record in the journal's native form."""
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


def _lost_entry(count: int) -> bytes:
    message = f"the journal was too busy for {count:,} lines, which are lost"
    return entry(logging.LogRecord("edged", logging.WARNING, __file__, 0, message, None, None))


def _field(name: bytes, value: str) -> bytes:
    data = value.encode("utf-8", "backslashreplace")[:_LONGEST]
    if b"\n" in data:
        return name + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
    return name + b"=" + data + b"\n"
