"""Tells systemd how the daemon is: once a second in words, and to the watchdog as long as it makes progress."""

from __future__ import annotations

import asyncio
import logging

from edged.daemon.reload import Reloader
from edged.engines import report
from edged.engines.controller import Controller
from edged.engines.headline import headline
from edged.engines.pulse import stuck
from edged.systemd import Notifier

_LOG = logging.getLogger("edged")
_PERIOD_SECONDS = 1.0
_BEATS = 4  # in the time that the watchdog waits: some may be late


class Heartbeat:
    """Beats while it runs, in the event loop: one that hangs is silent, and the watchdog ends the daemon."""

    def __init__(self, notifier: Notifier, watchdog: float | None, controller: Controller, reloader: Reloader) -> None:
        """`watchdog`: seconds that systemd waits, None where it does not watch."""
        self._notifier, self._watchdog, self._controller, self._reloader = notifier, watchdog, controller, reloader
        self._told = self._stuck = ""

    async def run(self) -> None:
        """Until cancelled."""
        if not self._notifier.is_heard:
            await asyncio.get_running_loop().create_future()  # nobody to tell
        period = _PERIOD_SECONDS if self._watchdog is None else min(_PERIOD_SECONDS, self._watchdog / _BEATS)
        since_told = _PERIOD_SECONDS
        while True:
            self._beat()
            if since_told >= _PERIOD_SECONDS:
                self._tell()
                since_told = 0.0
            await asyncio.sleep(period)
            since_told += period

    def _beat(self) -> None:
        if self._watchdog is None:
            return
        # Half of the time that the watchdog waits before it begins to wait.
        why = stuck(self._controller.pulse(), self._watchdog / 2)
        if why and why != self._stuck:
            _LOG.critical("the watchdog is no longer fed: %s", why)
        self._stuck = why
        if not why:
            self._notifier.alive()

    def _tell(self) -> None:
        line = headline(report.status(self._controller), self._reloader.problem)
        if line != self._told:
            self._told = line
            self._notifier.status(line)
