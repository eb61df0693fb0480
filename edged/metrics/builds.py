"""Metrics of making engines, and of the store that they are kept in."""

from __future__ import annotations

from edged.engines.controller import Controller
from edged.metrics import names
from edged.metrics.sheet import Sheet
from edged.metrics.tally import Tally
from edged.store import sealed


def collect(sheet: Sheet, controller: Controller, tally: Tally) -> None:
    """What became of all that was made so far; what the store holds."""
    for (backend, outcome), count in tally.builds.items():
        sheet.put(names.BUILDS, count, backend, outcome)
    for backend, seconds in tally.build_seconds.items():
        sheet.spread(names.BUILD_SECONDS, seconds, backend)
    store, eviction = controller.store, controller.maker.eviction
    sheet.put(names.BUILDING, len(controller.maker.busy))
    sheet.put(names.PAUSED, bool(eviction.paused))
    sheet.put(names.CACHE_HITS, store.counts.hits)
    for reason, count in controller.misses.items():
        sheet.put(names.CACHE_MISSES, count, reason)
    sheet.put(names.CACHE_DAMAGED, store.counts.damaged)
    for what, count in sealed.DAMAGED.items():
        sheet.put(names.STATE_DAMAGED, count, what)
    records = store.records()
    sheet.put(names.STORE_ENGINES, sum(bool(record.files) for record in records.values()))
    sheet.put(names.STORE_BYTES, sum(record.size for record in records.values()))
    sheet.put(names.STORE_FREE, eviction.free_bytes)
