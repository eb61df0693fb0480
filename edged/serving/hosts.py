"""Starts the engine hosts, one for each backend and generation of libraries. A lost host is started again, at once
after its first death. After repeated deaths it starts after a pause that grows to 30 s. The pause grows only to 2 s if
the host had started and the box has memory.

When libraries change on disk, hosts of the new generation run in parallel with the old hosts until these have no
sessions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container
from pathlib import Path

import msgspec

from edged.backends import registry
from edged.config.child_limits import HostLimits
from edged.errors import NotReady, Superseded
from edged.serving import memory
from edged.serving.host_process import End
from edged.serving.link import HostLink

# Seconds to wait before the next start, by the number of deaths in a row.
_BACKOFF = (0.0, 0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
_SHORT = 2.0  # the longest wait if the host had started and the box has memory for it
_ROOM_MB = 512
_HEALTHY_SECONDS = 60.0  # once a host has run this long, its earlier deaths no longer count
_IDLE_SECONDS = 60.0  # an empty host is kept this long, because it may be needed again soon


class HostKind(msgspec.Struct, frozen=True):
    """A kind of host. `generation` is a digest of the box's libraries and devices (`store/key.py`). `version` is the
    runtime version that the host must load ("" for any). `apart` names a separate host ("" for the shared host)."""

    backend: str
    generation: str = ""
    version: str = ""
    apart: str = ""


class _Record(msgspec.Struct):
    deaths: int = 0
    started: float = 0.0
    not_before: float = 0.0
    used: float = 0.0


class Hosts:
    """Starts hosts when they are needed. Calls `on_lost` with the link of each host that has ended, and the reason."""

    def __init__(
        self,
        limits: HostLimits,
        on_lost: Callable[[HostLink, str], None],
        reads: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        """`reads` returns the folders and files with models and engines that a host may open. It is called in a thread
        before the host starts."""
        self._reads = reads
        self._limits, self._on_lost = limits, on_lost
        self._links: dict[HostKind, HostLink] = {}
        self._starting: dict[HostKind, asyncio.Task[HostLink]] = {}
        self._records: dict[HostKind, _Record] = {}

    def reconfigure(self, limits: HostLimits) -> None:
        """Change the limits of hosts that start from now on."""
        self._limits = limits

    async def get(self, kind: HostKind, *paths: Path) -> HostLink:
        """Return a running host that may read the paths of a model and of an engine. Start a host if necessary. A host
        that was started before the model was added, or before the folder of engines was created, may lack the
        permission. Then a separate host is started.
        Raises NotReady during the pause before a lost host is started again. Raises HostLost if the host cannot be
        started, and Superseded if the runtime on disk is not the version that the host must load.
        """
        while (link := self._links.get(kind)) is not None and not link.lost and not link.stopping:
            lacking = await asyncio.to_thread(link.lacks, paths) if paths else ""
            if lacking and lacking not in kind.apart:
                return await self.get(msgspec.structs.replace(kind, apart=f"{kind.apart}{lacking}"), *paths)
            if not link.lost and not link.stopping:  # it may have ended while the disk was read
                return link
        task = self._starting.get(kind)
        if task is None:
            record = self._records.setdefault(kind, _Record())
            wait = record.not_before - time.monotonic()
            if wait > 0:
                raise NotReady(f"engine host {kind.backend} ended repeatedly; the next start is in {wait:.0f} s")
            task = asyncio.create_task(self._start(kind, record))
            self._starting[kind] = task
        return await asyncio.shield(task)

    def retry_in(self, kind: HostKind) -> float:
        """Return the seconds until a lost host may be started again."""
        record = self._records.get(kind)
        return max(0.0, record.not_before - time.monotonic()) if record else 0.0

    def empty(self, wanted: Container[HostKind]) -> list[HostLink]:
        """Return the hosts to stop: hosts without sessions whose kind is not in `wanted`, and hosts that have had no
        session for a minute."""
        now, found = time.monotonic(), []
        for kind, link in self._links.items():
            record = self._records[kind]
            if link.sessions or link.lost:
                record.used = now
            elif kind not in wanted or now - record.used > _IDLE_SECONDS:
                found.append(link)
        return found

    def links(self) -> list[HostLink]:
        """Return the links of the running hosts."""
        return [link for link in self._links.values() if not link.lost]

    async def stop(self) -> None:
        """End all hosts."""
        starting = list(self._starting.values())
        for task in starting:
            task.cancel()
        await asyncio.gather(*starting, return_exceptions=True)
        await asyncio.gather(*(link.stop() for link in self._links.values()), return_exceptions=True)

    async def _start(self, kind: HostKind, record: _Record) -> HostLink:
        try:
            reads = await asyncio.to_thread(self._reads)
            link = HostLink(kind.backend, self._limits, lambda lost, why: self._lost(kind, lost, why), reads)
            record.started = record.used = time.monotonic()
            try:
                await link.start()
                if kind.version and not registry.agree(link.version, kind.version):
                    what = f"{kind.backend} is now installed in version {link.version}"
                    raise Superseded(f"{what}, but the engine was planned for version {kind.version}")
            except BaseException:
                await link.stop()
                raise
        finally:
            self._starting.pop(kind, None)
        self._links[kind] = link  # only now: no request may reach a host that has not started
        return link

    def _lost(self, kind: HostKind, link: HostLink, why: str) -> None:
        now = time.monotonic()
        record = self._records.setdefault(kind, _Record())
        if not link.stopping and link.loss.end is not End.OUTSIDE:
            has_started = bool(link.version)
            was_healthy = has_started and now - record.started > _HEALTHY_SECONDS
            record.deaths = 1 if was_healthy else record.deaths + 1
            has_room = has_started and memory.available_mb() >= _ROOM_MB
            record.not_before = now + pause(record.deaths, has_room=has_room)
        if self._links.get(kind) is link:
            del self._links[kind]
        self._prune(now)
        self._on_lost(link, why)

    def _prune(self, now: float) -> None:
        """Drop the records of hosts that neither run nor start, once their pause is over and their last start is long
        ago. Otherwise records of hosts with older libraries would accumulate."""
        there = self._links.keys() | self._starting.keys()
        self._records = {
            kind: record
            for kind, record in self._records.items()
            if kind in there or now < max(record.not_before, record.started + _HEALTHY_SECONDS)
        }


def pause(deaths: int, *, has_room: bool) -> float:
    """Return the seconds to wait before a host is started again. `deaths`: how often in a row the host crashed or died
    for lack of memory. `has_room`: the host had started, and the box has memory for it. Pure."""
    seconds = _BACKOFF[min(deaths, len(_BACKOFF) - 1)]
    return min(seconds, _SHORT) if has_room else seconds
