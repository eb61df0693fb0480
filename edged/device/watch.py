"""Notices that drivers or libraries may have changed on disk. What really changed is for the fingerprint to say.

Folders are watched, not files: a package manager renames a new file over the old one, which a watch on the file itself
sees late or never. A slow poll backs the watch up, since a kernel module or a power mode changes without any file.
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
logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it tells of every file, edged of what they mean
_TICK_MS = 500
_SETTLE_SECONDS = 2.0  # facts that stay the same for so long are what an installation ended with
_GONE_SECONDS = 15.0  # a package that is being replaced is away for a while
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
    """The folders of this box whose content decides which runtimes and drivers there are."""
    wanted = [Path(entry) for entry in sys.path if entry] + [Path(folder) for folder in _SYSTEM]
    return tuple(dict.fromkeys(folder.resolve() for folder in wanted if folder.is_dir()))


async def changes(
    folders: Iterable[Path], quiet_seconds: float = 2.0, poll_seconds: float = 60.0
) -> AsyncGenerator[None, None]:
    """Yields once things have been quiet for a while after a change in the folders, and every `poll_seconds` anyway.

    Where the kernel's watches are used up, only the poll remains, and the log says so.
    """
    changed_at: float | None = None
    told_at = time.monotonic()
    async with contextlib.aclosing(_ticks(tuple(folders))) as ticks:
        async for changed in ticks:
            now = time.monotonic()
            if changed:
                changed_at = now
            settled = changed_at is not None and now - changed_at >= quiet_seconds
            if settled or now - told_at >= poll_seconds:
                changed_at = None if settled else changed_at
                told_at = now
                yield


async def settled(before: Fingerprint) -> Fingerprint:
    """The device's facts once they stay as they are for a while, longer where a runtime seems to have gone."""
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
    """True when something changed since the last tick; a tick at least every half second."""
    try:
        watch = awatch(*folders, watch_filter=None, recursive=False, rust_timeout=_TICK_MS, yield_on_timeout=True)
        async with contextlib.aclosing(watch) as batches:
            async for batch in batches:
                yield bool(batch)
    except OSError as error:
        _LOG.warning("library folders cannot be watched (%s); they are looked at once a minute instead", error)
        while True:
            await asyncio.sleep(_TICK_MS / 1000)
            yield False
