"""How often making an engine has failed, kept on disk: a build that takes the whole box down must not be tried anew
at every start. An attempt is noted before it begins and forgotten when it ends well. One that was cut off counts as a
failure when the box has been started anew since; a daemon that was merely killed may try again at once. Failures of
another edged count no more. What an operator cancelled stays cancelled.
"""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from edged.store import atomic, sealed
from edged.store.sealed import Later, at_once
from edged.version import __version__

_CUT_OFF = "the box stopped while it was being made"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_CHANGING = threading.Lock()  # one thread reads and changes what is known at a time
_PATIENCE_SECONDS = 30.0
_KEPT = 1000  # engines that failed; the oldest are forgotten


class Attempts(msgspec.Struct, frozen=True):
    """Failures in a row of making one engine, and the reason of the last."""

    failures: int = 0
    reason: str = ""
    running: str = ""  # the boot of the box in which an attempt began that nothing more was heard of
    stopped: Literal["", "hopeless", "cancelled"] = ""  # why it is not tried again before it failed too often
    by: str = __version__  # the edged that failed


class AttemptLog:
    """One small file for each engine that has failed. A disk that cannot be written only makes it forget.

    It is read whole when it is opened; then only memory is asked, and `later` has it written.
    """

    def __init__(self, root: Path, later: Later = at_once) -> None:
        self._root, self._later = root.absolute() / "attempts", later
        self._known: dict[str, Attempts] = {}
        with contextlib.suppress(OSError):
            self._root.mkdir(parents=True, exist_ok=True, mode=0o750)
        atomic.prune(self._root, _KEPT)
        with contextlib.suppress(OSError):
            for place in self._root.glob("[!.]*.json"):
                known = sealed.read(place, Attempts, "attempts")
                if known is not None:
                    self._known[place.stem] = known

    def of(self, key: str) -> Attempts:
        """What is known of an engine; none where nothing is, or it cannot be read."""
        known = self._known.get(key, Attempts())
        if known.by != __version__ and known.stopped != "cancelled":
            known = Attempts(running=known.running)
        if known.running and known.running != _boot():
            return Attempts(known.failures + 1, _CUT_OFF, stopped=known.stopped)
        return Attempts(known.failures, known.reason, stopped=known.stopped)

    def begin(self, key: str) -> None:
        """An attempt begins. Should nothing more be heard of it, and the box be started anew, it has failed.

        Waits until that is on the disk, or the disk is too slow for it.
        """
        written = threading.Event()
        with _CHANGING:
            self._write(key, msgspec.structs.replace(self.of(key), running=_boot()))
            self._later(written.set)
        written.wait(_PATIENCE_SECONDS)

    def failed(self, key: str, reason: str, *, is_hopeless: bool = False) -> None:
        """The attempt that began has failed; `is_hopeless` if another would end alike."""
        with _CHANGING:
            stopped: Literal["", "hopeless"] = "hopeless" if is_hopeless else ""
            self._write(key, Attempts(self._failures(key) + 1, reason, stopped=stopped))

    def cancelled(self, key: str, reason: str) -> None:
        """An operator does not want it made, until it is forgotten."""
        with _CHANGING:
            self._write(key, Attempts(self._failures(key), reason, stopped="cancelled"))

    def undone(self, key: str) -> None:
        """The attempt that began counts for nothing: it was cancelled, or what it was for has changed."""
        with _CHANGING:
            before = self._known.get(key, Attempts())
            if before.failures or before.stopped:
                self._write(key, msgspec.structs.replace(before, running=""))
            else:
                self.forget(key)

    def forget(self, key: str) -> None:
        """It was made, or is to have a new start."""
        if self._known.pop(key, None) is not None:
            self._later(partial(_remove, self._place(key)))

    def _failures(self, key: str) -> int:
        return self._known.get(key, Attempts()).failures

    def _place(self, key: str) -> Path:
        return self._root / f"{key}.json"

    def _write(self, key: str, attempts: Attempts) -> None:
        self._known[key] = attempts
        if len(self._known) > _KEPT:
            self._known.pop(next(iter(self._known)))
        self._later(partial(_keep, self._place(key), attempts))


def _keep(place: Path, attempts: Attempts) -> None:
    with contextlib.suppress(OSError):
        sealed.write(place, attempts)


def _remove(place: Path) -> None:
    with contextlib.suppress(OSError):
        place.unlink(missing_ok=True)


def _boot() -> str:
    """Names this run of the box, from its start to its end."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return "unknown"
