"""Whether the box has been calm for a while: then what was timed under load is worth timing again."""

from __future__ import annotations

from edged.device.load import Ticks, read

_CALM = 0.3  # share of the processors in use
_LOADED = 0.3  # share that others used while an engine was timed: its figures may be off
_CALM_SECONDS = 20.0


class Calm:
    """Looks at the processors, at most once a second."""

    def __init__(self) -> None:
        self.busy = 0.0  # share of the processors in use lately
        self._ticks: Ticks | None = None
        self._at = 0.0
        self._since: float | None = None

    def look(self, now: float) -> None:
        """Takes a reading; `now` in monotonic seconds."""
        if self._ticks is not None and now - self._at < 1.0:
            return
        ticks = read()
        if self._ticks is not None:
            self.busy = ticks.share_since(self._ticks)
            calm = self.busy < _CALM
            self._since = (self._since if self._since is not None else now) if calm else None
        self._ticks, self._at = ticks, now

    def has_lasted(self, now: float) -> bool:
        """Whether the box has been calm long enough to be believed."""
        return self._since is not None and now - self._since >= _CALM_SECONDS


def was_loaded(load: float | None) -> bool:
    """Whether others used so much of the box while an engine was timed that the figures may be off."""
    return load is not None and load > _LOADED
