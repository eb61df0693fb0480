"""Plan the engines that a model should have on this device, with what the store and earlier attempts say of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from edged.config import Engines
from edged.device.fingerprint import Fingerprint
from edged.engines.desired import DesiredEngine, below, desired, key_below, lowered
from edged.engines.plan import PlannedEngine, PlannedModel
from edged.engines.shape_book import ShapeBook
from edged.engines.states import EngineState
from edged.models.model import Model
from edged.store.attempts import AttemptLog
from edged.store.key import changes, differ_by_driver, may_be_for, nearest
from edged.store.record import EngineRecord
from edged.store.store import Store


class Planner:
    """Plans models. `attempts`: failures in a row before an engine is given up; `tries_drivers`: whether an engine for
    another driver is tried before one is built."""

    def __init__(
        self, store: Store, log: AttemptLog, fingerprint: Fingerprint, *, attempts: int, tries_drivers: bool
    ) -> None:
        self.fingerprint = fingerprint
        self.book = ShapeBook(store.root)
        self.misses: Counter[str] = Counter()  # planned engines that the store did not have, by reason
        self._store, self._log, self._attempts, self._tries_drivers = store, log, attempts, tries_drivers

    @classmethod
    def of(cls, store: Store, fingerprint: Fingerprint, settings: Engines, log: AttemptLog | None = None) -> Planner:
        """Create a planner from the configuration."""
        tries = settings.on_driver_change == "verify"
        return cls(store, log or AttemptLog(store.root), fingerprint, attempts=settings.attempts, tries_drivers=tries)

    def reconfigure(self, settings: Engines) -> None:
        """Apply other settings from the next plan on."""
        self._attempts, self._tries_drivers = settings.attempts, settings.on_driver_change == "verify"

    def plan(
        self, planned: PlannedModel, model: Model, on_change: Callable[[PlannedEngine], None] | None = None
    ) -> None:
        """Plan a model for the current device. `on_change` is called when an
        engine changes state."""
        name, model = planned.entry.name, self.book.applied(model)
        stored = self._store.records()
        wanted = desired(self.fingerprint, {name: model})[name]
        for engine in planned.plan(model, lowered(wanted, lambda each: _is_rejected(each, planned, stored))):
            engine.on_change = on_change
            record = self._store.find(engine.digest)
            if engine.problem:
                engine.move(EngineState.UNSUITABLE, engine.problem)
            elif record is not None:
                engine.adopt(record)
            else:
                self.misses[missing(engine.key.parts, stored)] += 1
            if engine.state is EngineState.ABSENT:
                self._recall(engine, stored)

    def _recall(self, engine: PlannedEngine, stored: Mapping[str, EngineRecord]) -> None:
        """Apply earlier failures to an engine that is not in the store, and find another that may do instead."""
        before = self._log.of(engine.digest)
        engine.failures, engine.failure = before.failures, before.reason
        if before.stopped == "cancelled":
            engine.quarantine(before.reason, held=True)
            return
        if before.stopped or before.failures >= self._attempts:
            engine.quarantine(f"failed {before.failures} times, the last time: {before.reason}")
            return
        if before.failures:  # a trial may have taken the box down
            return
        engine.trial = trial(engine, stored, self._tries_drivers)
        if engine.trial:
            how = "was built ahead" if stored[engine.trial].ahead else "differs only by the driver"
            engine.reason = f"engine {engine.trial[:12]} {how} and is tried first"


def is_lowering_due(planned: PlannedModel) -> bool:
    """Whether an engine was rejected and the one that is optimised less is not planned yet."""
    return any(
        key_below(engine.key, lower).digest not in planned.engines
        for engine in planned.engines.values()
        if engine.state is EngineState.REJECTED and (lower := below(engine.recipe)) is not None
    )


def _is_rejected(each: DesiredEngine, planned: PlannedModel, stored: Mapping[str, EngineRecord]) -> bool:
    """Whether an engine's answers were found wrong by its current standard, now or before."""
    known = planned.engines.get(each.key.digest)
    if known is not None and known.standard == each.standard and known.state is EngineState.REJECTED:
        return True
    record = stored.get(each.key.digest)
    if record is None or record.is_unproven:
        return False
    return not record.verdict.accepted and record.standard == each.standard


def missing(wanted: Mapping[str, str], stored: Mapping[str, EngineRecord]) -> str:
    """Return in a word why the store has no such engine: the kind of key parts in which the nearest one of the model
    differs (`recipe`, `runtime`, `cpu`, ...), `several` for more than one kind, `new` if the model has none."""
    kin = {key: record.parts for key, record in stored.items() if record.parts.get("model") == wanted["model"]}
    near = nearest(wanted, kin.items())
    if near is None:
        return "new"
    kinds = {change.part.partition(".")[0] for change in changes(kin[near], wanted)}
    return kinds.pop() if len(kinds) == 1 else "several"


def trial(engine: PlannedEngine, stored: Mapping[str, EngineRecord], drivers: bool = True) -> str:
    """Return the key of the newest stored engine that may do: built ahead, or, if `drivers`, for another driver.

    Empty if the store has none.
    """
    model = engine.key.parts["model"]  # compared first: the store may hold thousands of others
    kin = {
        key: record
        for key, record in stored.items()
        if record.parts.get("model") == model and record.files
        if _may_do(record, engine.key.parts, drivers)
    }
    return max(kin, key=lambda key: kin[key].build.created_unix_s, default="")


def _may_do(record: EngineRecord, wanted: Mapping[str, str], drivers: bool) -> bool:
    if record.is_unproven:
        return may_be_for(record.parts, wanted)
    return drivers and record.is_usable and differ_by_driver(record.parts, wanted)
