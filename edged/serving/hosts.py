"""The living engine hosts, one for each backend and device; a lost one is started again, more slowly each time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from edged.errors import NotReady
from edged.serving.link import HostLimits, HostLink

# Seconds to wait before start number 1, 2, 3, ... of a host that keeps dying.
_BACKOFF = (0.0, 0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
_HEALTHY_SECONDS = 60.0  # living this long forgives earlier deaths


class _Record(msgspec.Struct):
    deaths: int = 0
    started: float = 0.0
    not_before: float = 0.0


class Hosts:
    """Hands out links. `on_lost` is called with a link whenever its host has gone, for whatever reason."""

    def __init__(self, limits: HostLimits, on_lost: Callable[[HostLink, str], None]) -> None:
        self._limits, self._on_lost = limits, on_lost
        self._links: dict[str, HostLink] = {}
        self._starting: dict[str, asyncio.Task[HostLink]] = {}
        self._records: dict[str, _Record] = {}

    async def get(self, backend: str) -> HostLink:
        """A living host of a backend, started if need be. NotReady while it may not be started again yet."""
        link = self._links.get(backend)
        if link is not None and not link.lost:
            return link
        task = self._starting.get(backend)
        if task is None:
            record = self._records.setdefault(backend, _Record())
            wait = record.not_before - time.monotonic()
            if wait > 0:
                raise NotReady(f"engine host {backend} keeps dying and is started again in {wait:.0f} s")
            task = asyncio.create_task(self._start(backend, record))
            self._starting[backend] = task
        return await asyncio.shield(task)

    def retry_in(self, backend: str) -> float:
        """Seconds until a lost host may be started again."""
        record = self._records.get(backend)
        return max(0.0, record.not_before - time.monotonic()) if record else 0.0

    def links(self) -> list[HostLink]:
        """The hosts that live now."""
        return [link for link in self._links.values() if not link.lost]

    async def stop(self) -> None:
        """Ends all hosts."""
        starting = list(self._starting.values())
        for task in starting:
            task.cancel()
        await asyncio.gather(*starting, return_exceptions=True)
        await asyncio.gather(*(link.stop() for link in self._links.values()), return_exceptions=True)

    async def _start(self, backend: str, record: _Record) -> HostLink:
        link = HostLink(backend, self._limits, self._lost)
        record.started = time.monotonic()
        try:
            await link.start()
        except asyncio.CancelledError:
            await link.stop()
            raise
        finally:
            self._starting.pop(backend, None)
        self._links[backend] = link  # only now: nobody may talk to a host that is not there yet
        return link

    def _lost(self, link: HostLink, why: str) -> None:
        record = self._records[link.backend]
        now = time.monotonic()
        record.deaths = 1 if now - record.started > _HEALTHY_SECONDS else record.deaths + 1
        record.not_before = now + _BACKOFF[min(record.deaths, len(_BACKOFF) - 1)]
        self._on_lost(link, why)
