"""One model as the control loop knows it: the engines it should have, and the slot that serves it. The planner adds
what the store and earlier attempts say of each engine."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edged.backends.contract import Recipe
from edged.backends.profile import parsed
from edged.config import Engines
from edged.device.fingerprint import Fingerprint
from edged.engines.desired import DesiredEngine, below, desired, key_below, lowered
from edged.engines.engine import EngineState, PlannedEngine, Request
from edged.engines.probe import KnownAnswers
from edged.engines.shape_book import ShapeBook
from edged.errors import EdgedError, NotReady, Quarantined
from edged.files import leads_outside
from edged.formatting import many
from edged.models.entries import ModelEntry
from edged.models.finding import Finding
from edged.models.inspection import Inspection
from edged.models.model import Model
from edged.models.settings import batch_wait_seconds, max_batch, performance
from edged.serving.extents import Traffic
from edged.serving.schedule import Batching, TensorBatching
from edged.serving.slot import Slot
from edged.serving.work import ANY_NUMBER, EngineRef
from edged.store.attempts import AttemptLog
from edged.store.key import changes, differ_by_driver, may_be_for, nearest
from edged.store.record import EngineRecord
from edged.store.store import Store


@dataclass
class PlannedModel:
    """One model: `model` is what the disk has now, `served` what the slot answers with."""

    entry: ModelEntry
    slot: Slot
    model: Model | None = None
    served: Model | None = None
    problem: EdgedError | None = None
    warnings: tuple[Finding, ...] = ()  # findings about a model that serves all the same
    engines: dict[str, PlannedEngine] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    fallback: Slot = field(init=False)  # answers requests outside the range of the engine in `slot`
    opening: asyncio.Task[None] | None = None
    opening_key: str = ""
    fallback_opening: asyncio.Task[None] | None = None
    fallback_open_at: float = 0.0  # when opening may be tried again, in monotonic seconds
    fallback_why: str = ""  # why it was not opened the last time
    reading: asyncio.Task[None] | None = None
    is_superseded: bool = False  # its file was found to be another one while an engine was made or opened
    examined: str = ""  # digest of what was read last, with whatever outcome
    weights: tuple[Path, ...] = ()  # external data files, as the model was last read
    _weights: str = ""
    _known: KnownAnswers | None = None

    def known_answers(self) -> KnownAnswers:
        """Return the known answers of the model as the disk has it, which must have been read."""
        assert self.model is not None
        if self._known is None or not self._known.is_of(self.model):
            self._known = KnownAnswers(self.model)
        self._known.model = self.model
        return self._known

    def __post_init__(self) -> None:
        self.fallback = self.slot.fallback = Slot(self.entry.name)
        self.fallback.count_with(self.slot)

    @property
    def serving(self) -> str | None:
        return self.slot.current.engine.key if self.slot.current else None

    @property
    def answering(self) -> Model | None:
        """The model that answers requests, now or once it is loaded; during a change, the previous one."""
        return self.served if self.served is not None and self.slot.current is not None else self.model

    @property
    def version(self) -> str:
        """The version that answers requests."""
        answering = self.answering
        return answering.entry.version if answering is not None else self.entry.version

    @property
    def is_up_to_date(self) -> bool:
        """Whether what answers is what the disk was last seen to have."""
        return self.slot.current is not None and self.served is not None and self.served.entry == self.entry

    @property
    def is_being_read(self) -> bool:
        return self.reading is not None and not self.reading.done()

    def is_busy(self, now: float) -> bool:
        """Whether the engine is chosen for the number of inferences in a second, not for the time of one."""
        wanted = performance(self.entry.settings)
        return self.slot.demand.is_high(now) if wanted == "auto" else wanted == "throughput"

    @property
    def reference(self) -> PlannedEngine | None:
        """The engine that needs no build; None while nothing is planned."""
        return next((engine for engine in self.engines.values() if engine.recipe.is_reference), None)

    def plan(self, model: Model, wanted: tuple[DesiredEngine, ...]) -> list[PlannedEngine]:
        """Take a model and the engines that it should have. Returns those that are new in the plan, all absent."""
        self.model, self.problem = model, None
        engines = {
            each.key.digest: self.engines.get(each.key.digest)
            or PlannedEngine(each.key, each.recipe, each.standard, each.lane, each.problem)
            for each in wanted
        }
        added = [engine for key, engine in engines.items() if key not in self.engines]
        for each in wanted:
            self._hold_to(engines[each.key.digest], each.standard)
        self.engines = engines
        if self.slot.current is None or self.fits():
            self.serve(model)
        return added

    def serve(self, model: Model) -> None:
        """Make this the model that the slot answers with, or waits for."""
        if self.served is not None and self.served.entry != model.entry:
            self.slot.reset_counts()
        self.served = model
        self.slot.batching_policy = self.fallback.batching_policy = tensor_batching(model)
        self.fallback.count_with(self.slot)

    @staticmethod
    def _hold_to(engine: PlannedEngine, standard: str) -> None:
        """Take another standard for an engine whose key stays."""
        if engine.standard == standard or engine.recipe.is_reference:
            return
        engine.standard = standard
        if engine.is_usable and engine.request is Request.NONE:
            engine.request = Request.REVIEW
        elif engine.state is EngineState.REJECTED:
            engine.lose()

    def weights_changed(self, now: str) -> bool:
        """Take the stamp of the model's external data; whether it differs from the previous one."""
        before, self._weights = self._weights, now
        return now != before

    @property
    def quarantine(self) -> str:
        """Why no engine is opened any more: all are quarantined or ruled out. Empty while one serves or may."""
        reasons = [engine.quarantined for engine in self.engines.values() if engine.quarantined]
        if not reasons or self.slot.current is not None or self.opening is not None:
            return ""
        return "" if any(engine.may_open for engine in self.engines.values()) else reasons[-1]

    @property
    def refusal(self) -> EdgedError | None:
        """The error that requests get because nothing can answer them; None if something can, or will."""
        name = self.entry.name
        if self.problem is not None and not self.serving:
            return NotReady(f"model {name!r} cannot be served: {self.problem}")
        if reason := self.quarantine:
            what = "fix the model or the requests that crash it, then: edged engines rebuild"
            return Quarantined(f"model {name!r} is quarantined: {reason}; {what} {name}")
        return None

    def refuse_or_accept(self) -> None:
        """Make the slots refuse requests if nothing can answer them, and accept them otherwise."""
        refusal = self.refusal
        for slot in (self.slot, self.fallback):
            slot.hold(refusal)

    def refuse_fallback(self, why: str) -> None:
        """Refuse the requests that wait for the fallback slot; later ones are accepted and judged again."""
        self.fallback.refuse(NotReady(f"model {self.entry.name!r}: {why}"))
        self.fallback.hold(None)

    def fits(self) -> bool:
        """Whether what serves is this model with these settings, and not the one before a change."""
        current = self.slot.current
        return current is not None and self.model is not None and is_of(current.engine, self.model)

    def has_other(self, engine: PlannedEngine) -> bool:
        """Whether another engine, placed as it was verified, can serve the model."""
        others = (other for other in self.engines.values() if other is not engine and not other.misplaced)
        return any(other.may_open for other in others)

    def is_hopeless(self) -> bool:
        """Whether nothing serves and nothing ever can: the runtime refused even the reference, or the model on disk
        cannot be served and the host of the one before it is gone."""
        if self.problem is not None and not self.serving and self.model is not None:
            return True
        reference = self.reference
        if self.serving in self.engines or self.opening is not None or reference is None:
            return False
        if any(engine.quarantined for engine in self.engines.values()):
            return False
        return not any(engine.may_open for engine in self.engines.values())


def external_files(entry: ModelEntry, inspection: Inspection) -> tuple[Path, ...]:
    """The files that hold a model's external weights, also those that are missing."""
    folder = Path(entry.path).parent
    return tuple(folder / file.path for file in inspection.external if not leads_outside(file.path))


def is_of(engine: EngineRef, model: Model) -> bool:
    """Whether an engine was opened for this model with these settings."""
    return (engine.model, engine.recognition, engine.limits) == (model.digest, model.recognition, model.limits)


def batching(model: Model, recipe: Recipe) -> Batching:
    """Return the batching of frames: as the model fixes or the engine's range of shapes allows, otherwise the
    configured one, or 1.

    A CPU gains little from batches, and every frame of one waits for the others, so only engines with a range of
    shapes, as on a GPU, batch without being configured.
    """
    settings = model.entry.settings
    limit = _limit(model, recipe, max_batch(settings))
    return Batching(limit, batch_wait_seconds(settings) if limit > 1 else 0.0)


_LEAST_GAIN = 1.25  # times as fast as single requests that a batch must be


def tensor_batching(model: Model) -> TensorBatching:
    """Return the batching of tensor requests: by `dynamic_batching` of config.pbtxt, or by `batch.max` and
    `batch.wait_ms`, or because a batch of a model with independent rows is faster; otherwise requests run one by
    one."""
    settings, dynamic, most = model.entry.settings, model.triton.dynamic, model.max_batch_size
    if dynamic is None:
        pays = model.is_batch_completed and model.batch_gain >= _LEAST_GAIN
        is_wanted = most > 1 and (max_batch(settings) is not None or pays)
        return TensorBatching(Batching(most, batch_wait_seconds(settings)) if is_wanted else Batching())
    preferred = tuple(size for size in dynamic.preferred if size <= most)
    return TensorBatching(
        Batching(max(1, most), dynamic.max_delay if most > 1 else 0.0, preferred),
        dynamic.policy,
        dynamic.levels,
        dynamic.default_level,
        dynamic.policies,
    )


def rows(recipe: Recipe) -> int:
    """Return the most rows of a tensor request that an engine's range of shapes allows."""
    return min((each.maximum[0] for each in parsed(recipe.profile).ranges if each.maximum), default=ANY_NUMBER)


def _limit(model: Model, recipe: Recipe, wanted: int | None) -> int:
    recognition, signature = model.recognition, model.inspection.signature
    spec = next((spec for spec in signature.inputs if spec.name == recognition.input), None)
    if recognition.family is None or spec is None:
        return 1
    batch = spec.shape[0]
    if isinstance(batch, int):
        return min(batch, wanted or batch)
    if any(output.shape and output.shape[0] == 1 for output in signature.outputs):
        return 1  # whatever the input says, only one picture comes out
    allowed = parsed(recipe.profile).range(spec.name)
    if allowed is None:
        return wanted or 1
    return min(allowed.maximum[0], wanted or allowed.maximum[0])


class Planner:
    """Plans models by what the store holds and what `log` knows of earlier attempts; by default it is read."""

    def __init__(
        self, store: Store, fingerprint: Fingerprint, settings: Engines, log: AttemptLog | None = None
    ) -> None:
        self.fingerprint = fingerprint
        self.book = ShapeBook(store.root)
        self.misses: Counter[str] = Counter()  # planned engines that the store did not have, by reason
        self._store, self._log, self._settings = store, log or AttemptLog(store.root), settings

    def reconfigure(self, settings: Engines) -> None:
        """Apply other settings from the next plan on."""
        self._settings = settings

    def plan(
        self, planned: PlannedModel, model: Model, on_change: Callable[[PlannedEngine], None] | None = None
    ) -> None:
        """Plan a model for the current device. `on_change` is called when an engine changes state."""
        model, stored = self.book.applied(model), self._store.records()
        wanted = desired(self.fingerprint, model)
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
        if before.stopped or before.failures >= self._settings.attempts:
            engine.quarantine(f"failed {many(before.failures, 'time')}, the last time: {before.reason}")
            return
        if before.failures:  # a trial may have taken the box down
            return
        engine.trial = trial(engine, stored, self._settings.on_driver_change == "verify")
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
