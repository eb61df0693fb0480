"""Metrics of calls, and of who was not let in. Every reason is there, so that a rule can wait for it."""

from __future__ import annotations

from typing import get_args

from edged.api.auth.guard import Guard
from edged.api.auth.limits import Kind
from edged.metrics import names
from edged.metrics.sheet import Sheet

_STATUSES = {"unauthenticated": "UNAUTHENTICATED", "denied": "PERMISSION_DENIED"}


def collect(sheet: Sheet, guard: Guard) -> None:
    """Since the daemon started."""
    for reason, status in _STATUSES.items():
        sheet.put(names.REFUSED, guard.turned_away[status], reason)
    for kind in get_args(Kind):
        sheet.put(names.REFUSED, guard.limits.refused[kind], kind)
    together = guard.limits.together()
    sheet.put(names.CALLS_OPEN, together.streams, "streams")
    sheet.put(names.CALLS_OPEN, together.requests, "requests")
    sheet.put(names.CALL_BYTES, together.size)
    sheet.put(names.AUDIT_LOST, guard.audit.lost)
