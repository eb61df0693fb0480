"""Metrics of the engine hosts, by backend: while libraries change there are two generations of one."""

from __future__ import annotations

from collections.abc import Iterable

from edged.metrics import names
from edged.metrics.process import resident_bytes
from edged.metrics.sheet import Sheet
from edged.metrics.tally import Tally
from edged.serving.link import HostLink


def collect(sheet: Sheet, links: Iterable[HostLink], tally: Tally) -> None:
    """Those that live now, and how many were lost."""
    for link in links:
        sheet.add(names.HOST_UP, 1, link.backend)
        sheet.add(names.HOST_SESSIONS, len(link.sessions), link.backend)
        sheet.add(names.HOST_MEMORY, resident_bytes(link.pid) or 0, link.backend)
        sheet.put(names.HOST_LIMIT, link.memory_mb << 20, link.backend)
        sheet.put(names.HOST_LOSSES, 0, link.backend)
    for backend, count in tally.losses.items():
        sheet.add(names.HOST_UP, 0, backend)
        sheet.put(names.HOST_LOSSES, count, backend)
