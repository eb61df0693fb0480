"""Failed attempts to make engines, on disk: a build that crashes the whole box must not be repeated at every start.

An attempt is recorded before it begins. The record is removed when the attempt succeeds. An interrupted attempt counts
as failed if the box restarted since.

If only the daemon was killed, the attempt is repeated at once. But the build may be the cause, for example if a
container kills all its processes when memory runs out. So the first such interruption does not count as a failure, but
further ones in a row do.

Failures of another version of edged do not count. An engine that an operator cancelled stays cancelled.
"""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from edged.store import atomic, sealed
from edged.store.sealed import Later, at_once
from edged.version import __version__

_CUT_OFF = "the box stopped while the engine was being made"
_ENDED = "edged ended while the engine was being made"
_FREE = 1  # this many consecutive ends of edged, such as kills by an operator, are no failures
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_CHANGING = threading.Lock()  # one thread reads and changes at a time
_PATIENCE_SECONDS = 30.0
_KEPT = 1000  # engines that failed; the oldest are dropped


class Attempts(msgspec.Struct, frozen=True):
    """The number of consecutive failures to make one engine, and the reason of the last failure."""

    failures: int = 0
    reason: str = ""
    running: str = ""  # the boot id when an unfinished attempt began
    stopped: Literal["", "hopeless", "cancelled"] = ""  # why no attempt follows, apart from too many failures
    by: str = __version__  # the version of edged that failed
    cut: int = 0  # attempts in a row during which edged ended, but not the box


class AttemptLog:
    """Keeps a small file for each engine that has failed. If the disk cannot be written, failures are lost at a
    restart.

    All files are read at the start. After that, failures are looked up in memory. The function `later` is called with
    each write, and may do the write in the background. With `is_read_only`, opening the log changes nothing on disk.
    """

    def __init__(self, root: Path, later: Later = at_once, *, is_read_only: bool = False) -> None:
        self._root, self._later = root.absolute() / "attempts", later
        self._known: dict[str, Attempts] = {}
        if not is_read_only:
            with contextlib.suppress(OSError):
                self._root.mkdir(parents=True, exist_ok=True, mode=0o750)
            atomic.prune(self._root, _KEPT)
        boot = _boot()
        with contextlib.suppress(OSError):
            for place in self._root.glob("[!.]*.json"):
                known = sealed.read(place, Attempts, "attempts")
                if known is not None:
                    is_cut = known.running == boot
                    self._known[place.stem] = replace(known, running="", cut=known.cut + 1) if is_cut else known

    def of(self, key: str) -> Attempts:
        """Return the failures of an engine. Interrupted attempts are included if they count as failures."""
        known = self._counted(key)
        more = max(0, known.cut - _FREE)
        return Attempts(known.failures + more, _ENDED if more else known.reason, stopped=known.stopped)

    def _counted(self, key: str) -> Attempts:
        """Return the failures of an engine. If the box restarted during an attempt, that attempt is included. If only
        edged ended, the attempt is counted in `cut`, not in `failures`."""
        known = self._known.get(key, Attempts())
        if known.by != __version__ and known.stopped != "cancelled":
            known = Attempts(running=known.running)
        if known.running and known.running != _boot():
            return Attempts(known.failures + 1, _CUT_OFF, stopped=known.stopped, cut=known.cut)
        return Attempts(known.failures, known.reason, stopped=known.stopped, cut=known.cut)

    def begin(self, key: str) -> None:
        """Record that an attempt begins. If the box restarts before the attempt ends, the attempt counts as failed. If
        only edged ends, the first such attempt in a row does not count.

        Waits until the record is on disk, at most 30 s.
        """
        written = threading.Event()
        with _CHANGING:
            self._write(key, replace(self._counted(key), running=_boot()))
            self._later(written.set)
        written.wait(_PATIENCE_SECONDS)

    def failed(self, key: str, reason: str, *, is_hopeless: bool = False) -> None:
        """Record a failed attempt. `is_hopeless`: another attempt would fail in the same way."""
        with _CHANGING:
            stopped: Literal["", "hopeless"] = "hopeless" if is_hopeless else ""
            self._write(key, Attempts(self._failures(key) + 1, reason, stopped=stopped))

    def cancelled(self, key: str, reason: str) -> None:
        """Record that an operator cancelled an engine. The record stays until `forget`."""
        with _CHANGING:
            self._write(key, Attempts(self._failures(key), reason, stopped="cancelled"))

    def undone(self, key: str) -> None:
        """Remove an attempt that began, without counting a failure. For example, the attempt was cancelled, or the
        model changed."""
        with _CHANGING:
            before = self._known.get(key, Attempts())
            if before.failures or before.stopped:
                self._write(key, replace(before, running="", cut=0))
            else:
                self.forget(key)

    def forget(self, key: str) -> None:
        """Remove all records of an engine: the engine was made, or its failures no longer count."""
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
        self._later(partial(sealed.keep, self._place(key), attempts))


def _remove(place: Path) -> None:
    with contextlib.suppress(OSError):
        place.unlink(missing_ok=True)


def _boot() -> str:
    """Return the kernel's boot id."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return "unknown"
