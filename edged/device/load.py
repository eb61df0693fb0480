"""The CPU load, and whether it has been low for 20 seconds (format: proc_stat(5))."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

_STAT = Path("/proc/stat")
_IDLE = (3, 4)  # columns after the name: idle, iowait
_LOW = 0.3  # the load is low if a smaller share of the processors is busy
_LOW_SECONDS = 20.0
_LOADED = 0.3  # if other processes used this share while an engine was timed, its times may be wrong


class Ticks(msgspec.Struct, frozen=True):
    """Clock ticks of all processors since boot: the busy ticks, and all ticks."""

    busy: int = 0
    total: int = 0

    def share_since(self, earlier: Ticks) -> float:
        """Return the share of time, from 0 to 1, that the processors worked since the ticks `earlier` were read; 0 if
        no time has passed."""
        total = self.total - earlier.total
        return min(1.0, max(0.0, (self.busy - earlier.busy) / total)) if total > 0 else 0.0


def read(stat: Path = _STAT) -> Ticks:
    """Read the current ticks; zeros if the file cannot be read."""
    try:
        first = stat.read_text(encoding="ascii", errors="replace").partition("\n")[0].split()
        columns = [int(word) for word in first[1:9]]  # guest time, which follows, is part of user time
    except (OSError, ValueError):
        return Ticks()
    if first[:1] != ["cpu"] or len(columns) < 4:
        return Ticks()
    idle = sum(columns[i] for i in _IDLE if i < len(columns))
    return Ticks(sum(columns) - idle, sum(columns))


class LoadMonitor:
    """Samples the processors' load, at most once a second, with `read_ticks`."""

    def __init__(self, read_ticks: Callable[[], Ticks] = read) -> None:
        self._read = read_ticks
        self.busy = 0.0  # the share of the processors that was in use between the last two samples
        self._ticks: Ticks | None = None
        self._at = 0.0
        self._since: float | None = None

    def sample(self, now: float) -> None:
        """Take a sample, unless the last one is less than a second old; `now` is in monotonic seconds."""
        if self._ticks is not None and now - self._at < 1.0:
            return
        ticks = self._read()
        if self._ticks is not None:
            self.busy = ticks.share_since(self._ticks)
            if self.busy >= _LOW:
                self._since = None
            elif self._since is None:
                self._since = now
        self._ticks, self._at = ticks, now

    def is_low(self, now: float) -> bool:
        """Whether the load has been low for 20 seconds, so that measurements can be repeated."""
        return self._since is not None and now - self._since >= _LOW_SECONDS


def was_loaded(load: float | None) -> bool:
    """Whether an engine's times may be wrong, because other processes used much of the box while it was timed."""
    return load is not None and load > _LOADED
