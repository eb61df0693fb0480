"""Engines that are not opened because they killed their host repeatedly, and engines that get a separate host.

`serving/crash_attribution.py` decides which engines are quarantined or get a separate host. This module keeps the crash
records of engines across restarts. If the file of a model changes, its engines get new keys, so they start without a
record.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import msgspec

from edged.engines.plan import PlannedModel
from edged.formatting import many
from edged.serving import crash_attribution, memory
from edged.serving.crash_attribution import Death, EngineId, Record
from edged.serving.link import Loss
from edged.store import atomic, sealed
from edged.store.sealed import Later, at_once

_LOG = logging.getLogger("edged.engines")
_KEPT = 1000  # records; the oldest are dropped


class _Entry(msgspec.Struct, frozen=True):
    suspect: EngineId
    record: Record


class _File(msgspec.Struct, frozen=True):
    entries: tuple[_Entry, ...]


class Quarantine:
    """Keeps a record of each engine that may have killed its host, in one small file. If the file cannot be written,
    the records are lost at the next restart."""

    def __init__(self, folder: Path, later: Later = at_once) -> None:
        """`later` writes the file in the background."""
        self._place, self._later = folder.absolute() / "blame.json", later
        self._records = crash_attribution.live(_read(self._place), time.time())

    def lost(self, loss: Loss) -> None:
        """Record that a host died, hung, or took too much memory."""
        if not loss.suspects:
            return
        suspects = dict(loss.suspects)  # an engine may have been open twice
        death = Death(time.time(), loss.why, is_alone=len(suspects) == 1, is_outside=loss.end.is_outside)
        before, most = self._records, memory.hosts_for(memory.available_mb())
        self._records = crash_attribution.died(before, suspects.items(), death, most)
        for suspect, record in self._records.items():
            known = before.get(suspect, Record())
            if record.is_quarantined and not known.is_quarantined:
                _LOG.warning("model %s: engine %s is quarantined: %s", *_named(suspect), self._reason(suspect))
            elif record.host and record.host != known.host:
                _LOG.info("model %s: engine %s moves to the separate host %d", *_named(suspect), record.host)
        self._write()

    def apart(self, suspect: EngineId) -> str:
        """Return the number of the separate host that an engine belongs in; empty for the shared host."""
        return str(crash_attribution.host_of(self._records, suspect, time.time()) or "")

    def forgive(self, model: str, engine: str = "") -> None:
        """Drop the crash records of all engines of a model, or only of `engine`."""
        left = crash_attribution.forgiven(self._records, model, engine)
        if left != self._records:
            self._records = left
            self._write()

    def mark(self, models: Iterable[PlannedModel]) -> None:
        """Set two fields of every engine: why the engine is quarantined, and the separate host in which it belongs. A
        serving engine returns to the shared host only if memory has room for both hosts."""
        for planned in models:
            for engine in planned.engines.values():
                suspect = EngineId(planned.entry.name, engine.digest)
                engine.quarantined = self._reason(suspect)
                apart, current = self.apart(suspect), planned.slot.current
                is_here = current is not None and current.engine.key == engine.digest
                if apart != engine.apart and (
                    apart or not is_here or current is None or _has_room_for(current.link.pid)
                ):
                    engine.apart = apart

    def _reason(self, suspect: EngineId) -> str:
        record = self._records.get(suspect)
        if record is None or not record.is_quarantined:
            return ""
        deaths = many(len(record.deaths), "time")
        return f"the engine ended its host {deaths}; the last time the host {record.deaths[-1].why}"

    def _write(self) -> None:
        self._records = crash_attribution.live(self._records, time.time())
        newest = sorted(self._records.items(), key=lambda item: item[1].deaths[-1].unix_s)[-_KEPT:]
        self._later(partial(sealed.keep, self._place, _File(tuple(_Entry(*item) for item in newest))))


def _has_room_for(pid: int) -> bool:
    """Whether another host of the same size fits into memory. An engine that moves is briefly open in both hosts."""
    return memory.available_mb() > memory.used_mb(pid)


def _named(suspect: EngineId) -> tuple[str, str]:
    return suspect.model, suspect.engine[:12]


def _read(place: Path) -> crash_attribution.Records:
    atomic.sweep(place.parent)
    file = sealed.read(place, _File, "quarantine") or _File(())
    return {entry.suspect: entry.record for entry in file.entries if entry.record.deaths}
