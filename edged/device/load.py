"""How busy the processors are (format: proc_stat(5))."""

from __future__ import annotations

from pathlib import Path

import msgspec

_STAT = Path("/proc/stat")
_IDLE = (3, 4)  # columns after the name: idle, iowait


class Ticks(msgspec.Struct, frozen=True):
    """Clock ticks of all processors since the box started: in which they worked, and all."""

    busy: int = 0
    total: int = 0

    def share_since(self, earlier: Ticks) -> float:
        """Share of the time since an earlier reading, 0 to 1, in which the processors worked; 0 if no time passed."""
        total = self.total - earlier.total
        return min(1.0, max(0.0, (self.busy - earlier.busy) / total)) if total > 0 else 0.0


def read(stat: Path = _STAT) -> Ticks:
    """The ticks until now; none where the file cannot be read."""
    try:
        first = stat.read_text(encoding="ascii", errors="replace").partition("\n")[0].split()
        columns = [int(word) for word in first[1:9]]  # guest time, which follows, is part of user time
    except (OSError, ValueError):
        return Ticks()
    if first[:1] != ["cpu"] or len(columns) < 4:
        return Ticks()
    idle = sum(columns[i] for i in _IDLE if i < len(columns))
    return Ticks(sum(columns) - idle, sum(columns))
