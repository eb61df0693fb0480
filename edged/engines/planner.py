"""Gives a model the engines it should have on the device as it is now, each with what is known of it already."""

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
    """`attempts` is how many failures in a row an engine is forgiven; `tries_drivers` says whether an engine for
    another driver may be tried before one is built."""

    def __init__(
        self, store: Store, log: AttemptLog, fingerprint: Fingerprint, *, attempts: int, tries_drivers: bool
    ) -> None:
        self.fingerprint = fingerprint
        self.book = ShapeBook(store.root)
        self.misses: Counter[str] = Counter()  # engines that the store did not have when they were planned, by reason
        self._store, self._log, self._attempts, self._tries_drivers = store, log, attempts, tries_drivers

    @classmethod
    def of(cls, store: Store, fingerprint: Fingerprint, settings: Engines, log: AttemptLog | None = None) -> Planner:
        """As the settings want it."""
        tries = settings.on_driver_change == "verify"
        return cls(store, log or AttemptLog(store.root), fingerprint, attempts=settings.attempts, tries_drivers=tries)

    def heed(self, settings: Engines) -> None:
        """As other settings want it, from the next plan on."""
        self._attempts, self._tries_drivers = settings.attempts, settings.on_driver_change == "verify"

    def plan(self, planned: PlannedModel, model: Model, told: Callable[[PlannedEngine], None] | None = None) -> None:
        """Plans a model as it was just read, for the device as it is now. `told` hears of every step of its engines."""
        name, model = planned.entry.name, self.book.applied(model)
        stored = self._store.records()
        wanted = desired(self.fingerprint, {name: model})[name]
        for engine in planned.plan(model, lowered(wanted, lambda each: _is_rejected(each, planned, stored))):
            engine.told = told
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
        """What is known of an engine that is not there: how often making it failed, and whether another might do."""
        before = self._log.of(engine.digest)
        engine.failures, engine.failure = before.failures, before.reason
        if before.stopped == "cancelled":
            engine.quarantine(before.reason, held=True)
            return
        if before.stopped or before.failures >= self._attempts:
            engine.quarantine(f"failed {before.failures} times, the last time: {before.reason}")
            return
        if before.failures:  # a trial may be what took the box down
            return
        engine.trial = trial(engine, stored, self._tries_drivers)
        if engine.trial:
            how = "was built ahead" if stored[engine.trial].ahead else "differs only by the driver"
            engine.reason = f"engine {engine.trial[:12]} {how} and is tried first"


def is_lowering_due(planned: PlannedModel) -> bool:
    """Whether an engine was rejected since the model was planned, and another is to be tried instead."""
    return any(
        key_below(engine.key, lower).digest not in planned.engines
        for engine in planned.engines.values()
        if engine.state is EngineState.REJECTED and (lower := below(engine.recipe)) is not None
    )


def _is_rejected(each: DesiredEngine, planned: PlannedModel, stored: Mapping[str, EngineRecord]) -> bool:
    """Whether an engine's answers were found wrong, just now or before, by the standard that it is held to."""
    known = planned.engines.get(each.key.digest)
    if known is not None and known.standard == each.standard and known.state is EngineState.REJECTED:
        return True
    record = stored.get(each.key.digest)
    if record is None or record.is_unproven:
        return False
    return not record.verdict.accepted and record.standard == each.standard


def missing(wanted: Mapping[str, str], stored: Mapping[str, EngineRecord]) -> str:
    """Why an engine is not there, in a word: the kind of the parts in which the nearest of its model is another
    (`recipe`, `runtime`, `cpu`, ...), `several` where there are several kinds, `new` where there is none."""
    kin = {key: record.parts for key, record in stored.items() if record.parts.get("model") == wanted["model"]}
    near = nearest(wanted, kin.items())
    if near is None:
        return "new"
    kinds = {change.part.partition(".")[0] for change in changes(kin[near], wanted)}
    return kinds.pop() if len(kinds) == 1 else "several"


def trial(engine: PlannedEngine, stored: Mapping[str, EngineRecord], drivers: bool = True) -> str:
    """The key of the newest stored engine that may be this one: built ahead, or, if `drivers`, for another driver.

    Empty where there is none.
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
