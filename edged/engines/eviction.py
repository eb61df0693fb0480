"""Disk space for engines: finds how much space the budget and the disk leave, and evicts engines if more is needed."""

from __future__ import annotations

import asyncio
import enum
import logging
import os
from collections.abc import Callable, Iterable, Mapping

import msgspec

from edged.config import Engines
from edged.engines import views
from edged.engines.engine import EngineState, Request
from edged.engines.plan import PlannedModel
from edged.errors import OutOfSpace
from edged.events import EngineEvicted, EventLog
from edged.store.record import EngineRecord
from edged.store.store import Store

_LOG = logging.getLogger("edged.engines")
_MB = 1 << 20


class EvictionManager:
    """Evicts stored engines when space is needed. `busy` returns the keys of the engines that running jobs need."""

    def __init__(
        self,
        store: Store,
        settings: Engines,
        models: Mapping[str, PlannedModel],
        events: EventLog,
        busy: Callable[[], set[str]],
    ) -> None:
        self._store, self._settings, self._models = store, settings, models
        self._events, self._busy = events, busy
        self.problem = ""  # why nothing can be stored
        self.free_bytes = 0  # free bytes on the store's disk for this user; 0 if unknown
        self.look()

    def reconfigure(self, settings: Engines) -> None:
        """Apply new settings."""
        self._settings = settings

    def look(self) -> None:
        """Read the state of the disk, which may take long. All other methods use the last result."""
        self.problem = self._store.problem
        try:
            status = os.statvfs(self._store.root)
        except OSError:
            self.free_bytes = 0
        else:
            self.free_bytes = status.f_bavail * status.f_frsize

    @property
    def budget_bytes(self) -> int:
        """The maximum size of all engines together, in bytes; 0 for no limit."""
        return self._settings.budget_mb * _MB

    @property
    def paused(self) -> str:
        """Why no engine can be made, in one line; empty if engines can be made."""
        if self.problem:
            return f"builds stopped: {self.problem}; existing engines continue to serve"
        least = max(1, self._settings.keep_free_mb) * _MB
        if self.free_bytes < least and not self._evictable():
            return (
                f"builds stopped: {self._store.root} has {self.free_bytes // _MB} MiB free, and at least "
                f"{least // _MB} MiB must stay free; free some space or lower engines.keep_free_mb"
            )
        return ""

    async def wait_for_capacity(self, need: int, replacing: str = "") -> int:
        """Evict engines until `need` bytes fit. Return the maximum number of bytes that may be written.

        `replacing`: the key of the engine that the new one replaces. Until the old engine is replaced, it takes space
        on the disk, but it does not count as part of the budget. If `need` bytes cannot fit, evicts nothing and raises
        OutOfSpace.
        """
        await asyncio.to_thread(self.look)
        choice = choose(self._held(), need, self._left(replacing))
        if choice.short:
            raise OutOfSpace(
                f"an engine of about {_mb(need)} does not fit: {_mb(choice.short)} more are needed, and all other "
                "engines serve or are pinned; free some space, unpin an engine or raise engines.budget_mb"
            )
        for key in choice.evict:
            await self.evict(key, "to make room")
        await asyncio.to_thread(self.look)
        return max(need, self._left(replacing))

    async def evict(self, key: str, reason: str) -> bool:
        """Remove an engine's files. Do nothing if the engine has become needed meanwhile, or if another task has
        removed it. Return whether this call removed the files.

        The record stays if a model's plan has the engine, because without the record the engine would be built and
        evicted again at once.
        """
        record = self._store.records().get(key)
        if record is None or self.eviction_class(key) is EvictionClass.NEEDED:
            return False
        wanting = [planned.engines[key] for planned in self._models.values() if key in planned.engines]
        message, about = "engine %s of model %s is evicted %s: %d bytes", {"event": "engine_evicted"}
        _LOG.info(message, key[:12], record.model, reason, record.size, extra=about)
        for engine in (engine for engine in wanting if engine.state is EngineState.READY):
            # Changed before the files are removed, so that the engine is not opened meanwhile.
            engine.record = _evicted(record)
            engine.request = Request.BUILD if engine.request is Request.BUILD else Request.NONE
            engine.move(EngineState.EVICTED, f"its files were removed {reason}")
        if wanting and not record.is_unproven:
            await asyncio.to_thread(self._store.strip, _evicted(record))
        else:
            await asyncio.to_thread(self._store.remove, key)
        self._events.emit(EngineEvicted(record.size, reason), record.model, key)
        return True

    def eviction_class(self, key: str) -> EvictionClass:
        """Return the eviction class of a stored engine."""
        return self._eviction_classes([key])[key]

    def _held(self) -> list[StoredEngine]:
        records = self._store.records()
        classes = self._eviction_classes(records)
        return [StoredEngine(key, record.size, self._store.used(key), classes[key]) for key, record in records.items()]

    def _eviction_classes(self, keys: Iterable[str]) -> dict[str, EvictionClass]:
        needed, wanted = self._busy(), set[str]()
        for planned in self._models.values():
            needed |= {planned.serving or "", planned.opening_key, _best(planned)}
            wanted |= planned.engines.keys() | {engine.adoptable for engine in planned.engines.values()}
        classes = {}
        for key in keys:
            is_needed = key in needed or self._store.is_pinned(key)
            spare = EvictionClass.SPARE if key in wanted else EvictionClass.STALE
            classes[key] = EvictionClass.NEEDED if is_needed else spare
        return classes

    def _evictable(self) -> bool:
        return any(held.size and held.eviction_class is not EvictionClass.NEEDED for held in self._held())

    def _left(self, replacing: str) -> int:
        """Return the bytes that may still be written; negative if a limit is exceeded already."""
        left = self.free_bytes - self._settings.keep_free_mb * _MB
        if not self.budget_bytes:
            return left
        record = self._store.records().get(replacing)
        return min(left, self.budget_bytes - self._store.size + (record.size if record is not None else 0))


def _evicted(record: EngineRecord) -> EngineRecord:
    return msgspec.structs.replace(record, files={}, evicted=True)


def _best(planned: PlannedModel) -> str:
    """Return the key of the engine that would be opened if no engine served, as after a start; empty if no engine can
    be opened."""
    engines = planned.engines.values()
    usable = [engine for engine in engines if engine.is_usable and views.may_serve(engine, engines)]
    costs = {engine.digest: views.cost(planned, engine) for engine in usable}
    return min(costs, key=lambda key: (costs[key] is None, costs[key] or 0.0, key), default="")


def _mb(size: int) -> str:
    return f"{size / _MB:.1f} MiB"


class EvictionClass(enum.IntEnum):
    """The order of eviction; the lowest class is evicted first."""

    STALE = 0  # no model needs it on the current device
    SPARE = 1  # a model's plan has it, but the model has a better one
    NEEDED = 2  # never evicted: it serves or is about to, a job needs it, or an operator pinned it


class StoredEngine(msgspec.Struct, frozen=True):
    """One engine in the store. `size` is in bytes; `used` is the time of the last use in seconds since the epoch."""

    key: str
    size: int
    used: float
    eviction_class: EvictionClass


class Choice(msgspec.Struct, frozen=True):
    """The keys of the engines to evict, in order. If all engines that may be evicted would free too little, `evict` is
    empty and `short` is the number of missing bytes."""

    evict: tuple[str, ...]
    short: int = 0


def choose(held: Iterable[StoredEngine], need: int, free: int) -> Choice:
    """Choose the engines to evict so that `need` bytes fit. `free`: the free bytes, negative if a limit is exceeded.

    The lowest class is evicted first, and in each class the least recently used engine. Engines without files free no
    space and stay.
    """
    chosen: list[str] = []
    able = [h for h in held if h.eviction_class is not EvictionClass.NEEDED and h.size > 0]
    for candidate in sorted(able, key=lambda h: (h.eviction_class, h.used, h.key)):
        if free >= need:
            break
        chosen.append(candidate.key)
        free += candidate.size
    return Choice(tuple(chosen)) if free >= need else Choice((), need - free)
