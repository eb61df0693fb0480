"""Whether the daemon makes progress: what its watchdog is told by. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Pulse(msgspec.Struct, frozen=True):
    """Signs of life.

    idle_s: seconds since the control loop last turned; it turns every second, also while engines are built for hours.
    overdue_s: of each host, by backend, the seconds for which it has been hanging beyond its limits; 0 for one within.
    """

    idle_s: float
    overdue_s: Mapping[str, float] = {}


def stuck(pulse: Pulse, patience: float) -> str:
    """Why no progress is made, in a few words; empty while it is.

    A host that hangs is no reason in itself: it is replaced within a second or two. One that is still there after
    `patience` seconds says that nobody replaces it. That the event loop answers is known by whoever could ask this.
    """
    if pulse.idle_s > patience:
        return f"the control loop has not turned for {pulse.idle_s:.0f} s"
    for backend, seconds in sorted(pulse.overdue_s.items()):
        if seconds > patience:
            return f"engine host {backend} has been hanging for {seconds:.0f} s beyond its limit and is not replaced"
    return ""
