"""Detects that drivers or libraries may have changed on disk; the fingerprint shows what changed.

Folders are watched, not files: a package manager renames a new file over the old one, which a watch on the file itself
misses. A slow poll complements the watch, since a kernel module or a power mode changes without a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path

from watchfiles import awatch

from edged.device.fingerprint import Fingerprint, probe

_LOG = logging.getLogger("edged.device")
logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it logs every file
_TICK_MS = 500
_SETTLE_SECONDS = 2.0  # an installation is finished when facts are stable for so long
_GONE_SECONDS = 15.0  # a package that is being replaced is missing for a while
_SYSTEM = (
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


def library_folders() -> tuple[Path, ...]:
    """Return the folders of this box that hold its runtimes and drivers."""
    wanted = [Path(entry) for entry in sys.path if entry] + [Path(folder) for folder in _SYSTEM]
    return tuple(dict.fromkeys(folder.resolve() for folder in wanted if folder.is_dir()))


async def changes(
    folders: Iterable[Path], quiet_seconds: float = 2.0, poll_seconds: float = 60.0
) -> AsyncGenerator[None, None]:
    """Yield when a change in the folders is followed by `quiet_seconds` without one, and every `poll_seconds` anyway.

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
    """Return the device's facts when they have been stable for a while, longer if a runtime is missing."""
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
    """Yield at least every half second whether something changed since the last tick."""
    try:
        watch = awatch(*folders, watch_filter=None, recursive=False, rust_timeout=_TICK_MS, yield_on_timeout=True)
        async with contextlib.aclosing(watch) as batches:
            async for batch in batches:
                yield bool(batch)
    except OSError as error:
        _LOG.warning("cannot watch library folders (%s); polling them once a minute instead", error)
        while True:
            await asyncio.sleep(_TICK_MS / 1000)
            yield False
