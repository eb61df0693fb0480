"""Watch the device: read its facts again when drivers or libraries may have changed, and report what did."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing

from edged.device.fingerprint import Change, Fingerprint, probe
from edged.device.nvidia import REBOOT_PENDING
from edged.device.watch import changes, library_folders, settled
from edged.events import DeviceChanged, EventLog, FactChange

_LOG = logging.getLogger("edged.engines")
_STATE = "nvidia.state"


class Surveyor:
    """Keeps the device's facts. `changed` is called with new facts that engines must be planned for."""

    def __init__(self, fingerprint: Fingerprint, events: EventLog, changed: Callable[[Fingerprint], None]) -> None:
        self._planned_for = self._seen = fingerprint
        self._events, self._changed = events, changed
        self._refreshing = asyncio.Lock()

    @property
    def fingerprint(self) -> Fingerprint:
        """The device facts that engines are planned for."""
        return self._planned_for

    @property
    def is_reboot_pending(self) -> bool:
        """Whether the driver's libraries are new and its kernel module is old: nothing that is built now would last."""
        return self._seen.facts.get(_STATE) == REBOOT_PENDING

    async def watch(self) -> None:
        """Refresh whenever drivers or libraries may have changed on disk; until cancelled."""
        async with aclosing(changes(library_folders())) as notifications:
            async for _ in notifications:
                await self.refresh(patient=True)

    async def refresh(self, patient: bool = False) -> tuple[Change, ...]:
        """Read the device's facts again and, if they changed, plan engines again. Returns the changes.

        What serves goes on serving. A patient refresh waits until an installation seems complete: while it runs,
        packages vanish and come back.
        """
        async with self._refreshing:
            facts = await settled(self._seen) if patient else await asyncio.to_thread(probe)
            changed = self._seen.diff(facts)
            if not changed:
                return ()
            self._seen = facts
            _LOG.warning("the device changed: %s", "; ".join(str(change) for change in changed))
            facts_changed = tuple(FactChange(change.name, change.old or "", change.new or "") for change in changed)
            self._events.emit(DeviceChanged(facts_changed))
            if not self.is_reboot_pending:
                self._planned_for = facts
                self._changed(facts)
            return changed
