"""Watches the device: reads its facts again when drivers or libraries may have changed on disk, and reports changed
facts.

Folders are watched instead of files, because a package manager renames a new file over the old file. A watch on the
file would miss this. A slow poll complements the watch, because a kernel module or a power mode can change although no
file changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from pathlib import Path

from watchfiles import awatch

from edged.device.fingerprint import Change, Fingerprint, probe
from edged.device.nvidia import REBOOT_PENDING
from edged.events import DeviceChanged, EventLog, FactChange

_LOG = logging.getLogger("edged.engines")
_STATE = "nvidia.state"
logging.getLogger("watchfiles").setLevel(logging.WARNING)  # at a lower level, watchfiles logs every file
_TICK_MS = 500
_STEP_MS = 500  # a change is complete after this time without another change; each step wakes a thread
_SETTLE_SECONDS = 2.0  # an installation is finished when facts are stable for this time
_GONE_SECONDS = 15.0  # a package that is being replaced is missing for a while
SYSTEM_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu/nvidia",
    "/usr/lib/aarch64-linux-gnu/tegra",
    "/usr/local/cuda/lib64",
    "/opt/nvidia/l4t-gpu-libs/nvgpu",  # JetPack 7.2
    "/opt/nvidia/l4t-gpu-libs/openrm",
    "/usr/lib/python3/dist-packages",
    "/var/lib/nvpmodel",
)


class Surveyor:
    """Keeps the device's facts. Calls `changed` with the new facts if engines must be planned again, and `looked` after
    each refresh by `watch`."""

    def __init__(
        self,
        fingerprint: Fingerprint,
        events: EventLog,
        changed: Callable[[Fingerprint], None],
        looked: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._planned_for = self._seen = fingerprint
        self._events, self._changed, self._looked = events, changed, looked
        self._refreshing = asyncio.Lock()

    @property
    def fingerprint(self) -> Fingerprint:
        """The facts about the device for which engines were last planned."""
        return self._planned_for

    @property
    def is_reboot_pending(self) -> bool:
        """Whether the driver's libraries are new and its kernel module is old. An engine that is built now becomes
        invalid at the reboot."""
        return self._seen.facts.get(_STATE) == REBOOT_PENDING

    async def watch(self) -> None:
        """Call `refresh` whenever drivers or libraries may have changed on disk. Runs until cancelled."""
        async with contextlib.aclosing(changes(library_folders())) as notifications:
            async for _ in notifications:
                await self.refresh(patient=True)
                if self._looked is not None:
                    await self._looked()

    async def refresh(self, patient: bool = False) -> tuple[Change, ...]:
        """Read the device's facts again and, if they changed, plan engines again. Returns the changes.

        Engines that serve continue to serve. A patient refresh waits until an installation seems complete, because
        packages are missing for a while during an installation.
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


def library_folders() -> tuple[Path, ...]:
    """Return the folders of this box that contain its runtimes and drivers."""
    wanted = [Path(entry) for entry in sys.path if entry] + [Path(folder) for folder in SYSTEM_FOLDERS]
    return tuple(dict.fromkeys(folder.resolve() for folder in wanted if folder.is_dir()))


async def changes(
    folders: Iterable[Path], quiet_seconds: float = 2.0, poll_seconds: float = 60.0
) -> AsyncGenerator[None, None]:
    """Yield after changes in the folders, once there was no change for `quiet_seconds`, and at least every
    `poll_seconds`.

    If the kernel's inotify watches are exhausted, only the poll remains, and a warning is logged.
    """
    changed_at: float | None = None
    yielded_at = time.monotonic()
    async with contextlib.aclosing(_ticks(tuple(folders))) as ticks:
        async for changed in ticks:
            now = time.monotonic()
            if changed:
                changed_at = now
            settled = changed_at is not None and now - changed_at >= quiet_seconds
            if settled or now - yielded_at >= poll_seconds:
                changed_at = None if settled else changed_at
                yielded_at = now
                yield


async def settled(before: Fingerprint) -> Fingerprint:
    """Return the device's facts. Return at once if they are the same as `before`. Otherwise wait until they have been
    stable for 2 s, or for 15 s if a runtime is missing."""
    now, since, waited = await asyncio.to_thread(probe), time.monotonic(), 0.0
    while before.diff(now) and waited < (_GONE_SECONDS if _lacks_a_runtime(before, now) else _SETTLE_SECONDS):
        await asyncio.sleep(_TICK_MS / 1000)
        again = await asyncio.to_thread(probe)
        if again != now:
            now, since = again, time.monotonic()
        waited = time.monotonic() - since
    return now


def _lacks_a_runtime(before: Fingerprint, now: Fingerprint) -> bool:
    return any(fact.startswith("runtime.") and fact not in now.facts for fact in before.facts)


async def _ticks(folders: tuple[Path, ...]) -> AsyncGenerator[bool, None]:
    """Yield, at least every half second, whether a file changed since the last tick."""
    try:
        watch = awatch(
            *folders, watch_filter=None, recursive=False, step=_STEP_MS, rust_timeout=_TICK_MS, yield_on_timeout=True
        )
        async with contextlib.aclosing(watch) as batches:
            async for batch in batches:
                yield bool(batch)
    except OSError as error:
        _LOG.warning("cannot watch library folders (%s); polling them once a minute instead", error)
        while True:
            await asyncio.sleep(_TICK_MS / 1000)
            yield False
