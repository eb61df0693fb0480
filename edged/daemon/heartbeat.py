"""Sends systemd the daemon's status once a second if it changed, and watchdog notifications while the daemon makes
progress."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from edged.api_types import EngineProgress, StatusInfo
from edged.daemon.reload import Reloader
from edged.engines import report
from edged.engines.controller import Controller, Liveness
from edged.systemd import Notifier

_LOG = logging.getLogger("edged")
_PERIOD_SECONDS = 1.0
_BEATS = 4  # reports per watchdog timeout, since some may be late


class Heartbeat:
    """Sends the notifications from the event loop, so that the watchdog ends the daemon if the loop hangs."""

    def __init__(self, notifier: Notifier, watchdog: float | None, controller: Controller, reloader: Reloader) -> None:
        """`watchdog`: seconds that systemd waits for a report; None without a watchdog."""
        self._notifier, self._watchdog, self._controller, self._reloader = notifier, watchdog, controller, reloader
        self._line = self._stuck = ""

    async def run(self) -> None:
        """Send notifications until cancelled."""
        if not self._notifier.is_usable:
            await asyncio.get_running_loop().create_future()  # never done
        period = _PERIOD_SECONDS if self._watchdog is None else min(_PERIOD_SECONDS, self._watchdog / _BEATS)
        since_status = _PERIOD_SECONDS
        while True:
            self._beat()
            if since_status >= _PERIOD_SECONDS:
                self._report_status()
                since_status = 0.0
            await asyncio.sleep(period)
            since_status += period

    def _beat(self) -> None:
        if self._watchdog is None:
            return
        # A stall may last only half the timeout, because systemd waits a whole timeout after the last notification.
        why = stalled(self._controller.liveness(), self._watchdog / 2)
        if why and why != self._stuck:
            _LOG.critical(
                "the daemon no longer reports to the watchdog: %s; systemd restarts it if this continues", why
            )
        self._stuck = why
        if not why:
            self._notifier.alive()

    def _report_status(self) -> None:
        line = headline(report.status(self._controller), self._reloader.problem)
        if line != self._line:
            self._line = line
            self._notifier.status(line)


def headline(report: StatusInfo, problem: str = "") -> str:
    """Describe the state of the daemon in one line for `systemctl status`. `problem` is a problem of the daemon as a
    whole, such as a refused configuration, or empty."""
    return "; ".join(_parts(report, problem))


def _parts(report: StatusInfo, problem: str) -> Iterator[str]:
    yield f"{report.serving} of {report.models} models answer" if report.models else "no models yet"
    if problem:
        yield problem
    if report.alarms:
        more = f" and {len(report.alarms) - 1} more" if len(report.alarms) > 1 else ""
        yield f"alarm: {report.alarms[-1].message}{more}"
    if report.building:
        more = f" and {len(report.building) - 1} more" if len(report.building) > 1 else ""
        yield f"engine {_made(report.building[0])}{more}"


def _made(engine: EngineProgress) -> str:
    share = f" {engine.fraction:.0%}" if engine.fraction is not None else ""
    return f"{engine.backend}/{engine.precision} of {engine.model}: {engine.phase or engine.state}{share}"


def stalled(liveness: Liveness, patience: float) -> str:
    """Return why the daemon makes no progress, or an empty string if it makes progress. `patience` is in seconds.

    The daemon makes no progress if its control loop has not run for `patience`, or if a host exceeds its time limit by
    `patience`. Normally the daemon kills such a host about two seconds after the limit, so a longer delay is a fault of
    the daemon.
    """
    if liveness.idle_s > patience:
        return f"the control loop has not run for {liveness.idle_s:.0f} s"
    for backend, seconds in sorted(liveness.overdue_s.items()):
        if seconds > patience:
            return f"engine host {backend} has been hanging for {seconds:.0f} s beyond its limit and is not replaced"
    return ""
