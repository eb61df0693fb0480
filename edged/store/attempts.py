"""How often making an engine has failed, kept on disk: a build that takes the whole box down must not be tried anew
at every start. An attempt is noted before it begins and forgotten when it ends well. One that was cut off counts as a
failure when the box has been started anew since; a daemon that was merely killed may try again at once. Failures of
another edged count no more. What an operator cancelled stays cancelled.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Literal

import msgspec

from edged.store import atomic, sealed
from edged.version import __version__

_CUT_OFF = "the box stopped while it was being made"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_CHANGING = threading.Lock()  # one thread reads and writes a file at a time
_KEPT = 1000  # engines that failed; the oldest are forgotten


class Attempts(msgspec.Struct, frozen=True):
    """Failures in a row of making one engine, and the reason of the last."""

    failures: int = 0
    reason: str = ""
    running: str = ""  # the boot of the box in which an attempt began that nothing more was heard of
    stopped: Literal["", "hopeless", "cancelled"] = ""  # why it is not tried again before it failed too often
    by: str = __version__  # the edged that failed


class AttemptLog:
    """One small file for each engine that has failed. A disk that cannot be written only makes it forget."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute() / "attempts"
        with contextlib.suppress(OSError):
            self._root.mkdir(parents=True, exist_ok=True, mode=0o750)
        atomic.prune(self._root, _KEPT)

    def of(self, key: str) -> Attempts:
        """What is known of an engine; none where nothing is, or it cannot be read."""
        known = self._read(key)
        if known.by != __version__ and known.stopped != "cancelled":
            known = Attempts(running=known.running)
        if known.running and known.running != _boot():
            return Attempts(known.failures + 1, _CUT_OFF, stopped=known.stopped)
        return Attempts(known.failures, known.reason, stopped=known.stopped)

    def begin(self, key: str) -> None:
        """An attempt begins. Should nothing more be heard of it, and the box be started anew, it has failed."""
        with _CHANGING:
            before = self.of(key)
            self._write(key, msgspec.structs.replace(before, running=_boot()))

    def failed(self, key: str, reason: str, *, is_hopeless: bool = False) -> None:
        """The attempt that began has failed; `is_hopeless` if another would end alike."""
        with _CHANGING:
            stopped: Literal["", "hopeless"] = "hopeless" if is_hopeless else ""
            self._write(key, Attempts(self._read(key).failures + 1, reason, stopped=stopped))

    def cancelled(self, key: str, reason: str) -> None:
        """An operator does not want it made, until it is forgotten."""
        with _CHANGING:
            self._write(key, Attempts(self._read(key).failures, reason, stopped="cancelled"))

    def undone(self, key: str) -> None:
        """The attempt that began counts for nothing: it was cancelled, or what it was for has changed."""
        with _CHANGING:
            before = self._read(key)
            if before.failures or before.stopped:
                self._write(key, msgspec.structs.replace(before, running=""))
            else:
                self.forget(key)

    def forget(self, key: str) -> None:
        """It was made, or is to have a new start."""
        with contextlib.suppress(OSError):
            self._place(key).unlink(missing_ok=True)

    def _read(self, key: str) -> Attempts:
        return sealed.read(self._place(key), Attempts, "attempts") or Attempts()

    def _place(self, key: str) -> Path:
        return self._root / f"{key}.json"

    def _write(self, key: str, attempts: Attempts) -> None:
        with contextlib.suppress(OSError):
            sealed.write(self._place(key), attempts)


def _boot() -> str:
    """Names this run of the box, from its start to its end."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return "unknown"
