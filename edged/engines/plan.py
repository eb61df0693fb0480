"""Plans a model: decides which engines it should have, and keeps their states and the slot that serves the model. The
planner reads the state of each engine from the store and from the log of earlier attempts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import msgspec

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
from edged.models.collected import Collected
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

# Returns the frames that were collected for a model of this name; None if no frames were collected.
FindCollected: TypeAlias = Callable[[str], "Collected | None"]


@dataclass
class PlannedModel:
    """One model: `model` is the content on disk now, `served` the content that the slot answers with."""

    entry: ModelEntry
    slot: Slot
    model: Model | None = None
    served: Model | None = None
    problem: EdgedError | None = None
    warnings: tuple[Finding, ...] = ()  # findings that do not prevent serving
    engines: dict[str, PlannedEngine] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    fallback: Slot = field(init=False)  # answers requests outside the range of the engine in `slot`
    opening: asyncio.Task[None] | None = None
    opening_key: str = ""
    fallback_opening: asyncio.Task[None] | None = None
    fallback_open_at: float = 0.0  # when opening may be tried again, in monotonic seconds
    fallback_why: str = ""  # why the fallback engine is not open
    reading: asyncio.Task[None] | None = None
    is_superseded: bool = False  # its file changed while an engine was made or opened
    examined: str = ""  # digest of the content that was read last, accepted or not
    weights: tuple[Path, ...] = ()  # external data files, as the model was last read
    _weights: str = ""
    _known: KnownAnswers | None = None

    def known_answers(self) -> KnownAnswers:
        """Return the results of the probes of `model`, which must not be None."""
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
        """The model that answers requests, now or once it is loaded. During a change it is the previous content."""
        return self.served if self.served is not None and self.slot.current is not None else self.model

    @property
    def version(self) -> str:
        """The version that answers requests."""
        answering = self.answering
        return answering.entry.version if answering is not None else self.entry.version

    @property
    def is_up_to_date(self) -> bool:
        """Whether the slot answers with the model that the last scan found on disk."""
        return self.slot.current is not None and self.served is not None and self.served.entry == self.entry

    @property
    def is_being_read(self) -> bool:
        return self.reading is not None and not self.reading.done()

    def is_busy(self, now: float) -> bool:
        """Whether to choose the engine for throughput instead of latency. The settings determine this, or the demand if
        the settings say `auto`."""
        wanted = performance(self.entry.settings)
        return self.slot.demand.is_high(now) if wanted == "auto" else wanted == "throughput"

    @property
    def reference(self) -> PlannedEngine | None:
        """The reference engine; None if no engine is planned yet."""
        return next((engine for engine in self.engines.values() if engine.recipe.is_reference), None)

    def plan(self, model: Model, wanted: tuple[DesiredEngine, ...]) -> list[PlannedEngine]:
        """Set the model and the engines that it should have. Returns the new engines, all in state ABSENT."""
        is_changed = self.model is None or self.model.entry != model.entry
        self.model, self.problem = model, None
        engines = {
            each.key.digest: self.engines.get(each.key.digest)
            or PlannedEngine(each.key, each.recipe, each.standard, each.lane, each.problem)
            for each in wanted
        }
        added = [engine for key, engine in engines.items() if key not in self.engines]
        if is_changed:
            for engine in engines.values():  # opening may have failed because of the previous settings
                engine.open_at, engine.refusals = 0.0, 0
        for each in wanted:
            self._hold_to(engines[each.key.digest], each.standard)
        self.engines = engines
        if self.slot.current is None or self.fits():
            self.serve(model)
        return added

    def serve(self, model: Model) -> None:
        """Set the model that the slot answers with, now or once an engine is open."""
        if self.served is not None and self.served.entry != model.entry:
            self.slot.reset_counts()
        self.served = model
        self.slot.batching_policy = self.fallback.batching_policy = tensor_batching(model)
        self.fallback.count_with(self.slot)

    @staticmethod
    def _hold_to(engine: PlannedEngine, standard: str) -> None:
        """Set the standard that the answers of an engine must meet. If the standard has changed, request a review of a
        usable engine, and make a rejected engine again."""
        if engine.standard == standard or engine.recipe.is_reference:
            return
        engine.standard = standard
        if engine.is_usable and engine.request is Request.NONE:
            engine.request = Request.REVIEW
        elif engine.state is EngineState.REJECTED:
            engine.lose()

    def weights_changed(self, now: str) -> bool:
        """Store the stamp of the model's external data. Return whether it differs from the previous stamp."""
        before, self._weights = self._weights, now
        return now != before

    @property
    def quarantine(self) -> str:
        """Why no engine can be opened: each one is quarantined or refused, and at least one is quarantined. Empty
        otherwise, and while an engine serves or is being opened."""
        reasons = [engine.quarantined for engine in self.engines.values() if engine.quarantined]
        if not reasons or self.slot.current is not None or self.opening is not None:
            return ""
        return "" if any(engine.may_open for engine in self.engines.values()) else reasons[-1]

    @property
    def refusal(self) -> EdgedError | None:
        """The error for requests if no engine can answer them; None if an engine can, now or later."""
        name = self.entry.name
        if self.problem is not None and not self.serving:
            return NotReady(f"model {name!r} cannot be served: {self.problem}")
        if reason := self.quarantine:
            what = "fix the model or the requests that crash it, then: edged engines rebuild"
            return Quarantined(f"model {name!r} is quarantined: {reason}; {what} {name}")
        return None

    def refuse_or_accept(self) -> None:
        """Make the slots refuse requests if no engine can answer them, and accept requests otherwise."""
        refusal = self.refusal
        for slot in (self.slot, self.fallback):
            slot.set_refusal(refusal)

    def refuse_fallback(self, why: str) -> None:
        """Refuse the requests that wait for the fallback slot. Later requests may wait for it again."""
        self.fallback.refuse(NotReady(f"model {self.entry.name!r}: {why}"))
        self.fallback.set_refusal(None)

    def fits(self) -> bool:
        """Whether the serving engine is of the current model and settings. False while an engine of the previous model
        or settings serves."""
        current = self.slot.current
        return current is not None and self.model is not None and is_of(current.engine, self.model)

    def has_other(self, engine: PlannedEngine) -> bool:
        """Whether the model has another engine that can serve, and whose nodes run on the devices on which they were
        verified."""
        others = (other for other in self.engines.values() if other is not engine and not other.misplaced)
        return any(other.may_open for other in others)

    def is_hopeless(self) -> bool:
        """Whether no engine serves, and no engine can ever serve. Either the runtime refused even the reference, or the
        model on disk cannot be served and the host of the previous content has ended."""
        if self.problem is not None and not self.serving and self.model is not None:
            return True
        reference = self.reference
        if self.serving in self.engines or self.opening is not None or reference is None:
            return False
        if any(engine.quarantined for engine in self.engines.values()):
            return False
        return not any(engine.may_open for engine in self.engines.values())


def external_files(entry: ModelEntry, inspection: Inspection) -> tuple[Path, ...]:
    """Return the files with a model's external weights. Missing files are returned too."""
    folder = Path(entry.path).parent
    return tuple(folder / file.path for file in inspection.external if not leads_outside(file.path))


def is_of(engine: EngineRef, model: Model) -> bool:
    """Whether an engine was opened for this model with its current content and settings."""
    return (engine.model, engine.recognition, engine.limits) == (model.digest, model.recognition, model.limits)


def batching(model: Model, recipe: Recipe) -> Batching:
    """Return how frames are batched. The configured size, the model's fixed batch and the engine's range of shapes
    limit the size of a batch. If none of these limits exists, frames run one by one.

    An engine on a CPU has no range of shapes. So without configuration it batches only if the model has a fixed batch.
    Batches gain little on a CPU, and each frame of a batch waits for the others.
    """
    settings = model.entry.settings
    limit = _limit(model, recipe, max_batch(settings))
    return Batching(limit, batch_wait_seconds(settings) if limit > 1 else 0.0)


_LEAST_GAIN = 1.25  # a batch must be this many times as fast as single requests


def tensor_batching(model: Model) -> TensorBatching:
    """Return how tensor requests are batched. If config.pbtxt has `dynamic_batching`, this field determines the
    batching. Otherwise requests are batched if `batch.max` is set, or if the rows of the model are independent and
    batches are faster. In all other cases they run one by one."""
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
    """Return the maximum number of rows that an engine's range of shapes allows in a tensor request."""
    return min((each.maximum[0] for each in parsed(recipe.profile).ranges if each.maximum), default=ANY_NUMBER)


def _limit(model: Model, recipe: Recipe, wanted: int | None) -> int:
    recognition, signature = model.recognition, model.inspection.signature
    spec = next((spec for spec in signature.inputs if spec.name == recognition.input), None)
    if recognition.family is None or spec is None:
        return 1
    batch = spec.shape[0]
    if isinstance(batch, int):
        return min(batch, wanted or batch)
    if recognition.reading.constants:
        return 1
    if any(output.shape and output.shape[0] == 1 for output in signature.outputs):
        return 1  # the output is for one picture, even if the input declares more
    allowed = parsed(recipe.profile).range(spec.name)
    if allowed is None:
        return wanted or 1
    return min(allowed.maximum[0], wanted or allowed.maximum[0])


class Planner:
    """Plans models. Uses the records of `store`, the earlier attempts in `log` (None: the log in the store's folder),
    and the frames that `collected` returns."""

    def __init__(
        self,
        store: Store,
        fingerprint: Fingerprint,
        settings: Engines,
        log: AttemptLog | None = None,
        collected: FindCollected = lambda model: None,
    ) -> None:
        self.fingerprint = fingerprint
        self.book = ShapeBook(store.root)
        self.misses: Counter[str] = Counter()  # planned engines that the store did not have, by reason
        self._store, self._log, self._settings = store, log or AttemptLog(store.root), settings
        self._collected = collected

    def reconfigure(self, settings: Engines) -> None:
        """Use new settings from the next plan on."""
        self._settings = settings

    def plan(
        self, planned: PlannedModel, model: Model, on_change: Callable[[PlannedEngine], None] | None = None
    ) -> None:
        """Plan a model for the current device. `on_change` is called when an engine changes state."""
        model, stored = self._with_frames(self.book.applied(model)), self._store.records()
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

    def _with_frames(self, model: Model) -> Model:
        """Return the model with the frames that were collected for it."""
        found = self._collected(model.name)
        return model if found == model.collected else msgspec.structs.replace(model, collected=found)

    def _recall(self, engine: PlannedEngine, stored: Mapping[str, EngineRecord]) -> None:
        """Read the earlier failures of an engine that is not in the store from the log of attempts. If the log has no
        failures, choose a stored engine to try before the engine is built."""
        before = self._log.of(engine.digest)
        engine.failures, engine.failure = before.failures, before.reason
        if before.stopped == "cancelled":
            engine.quarantine(before.reason, held=True)
            return
        if before.stopped or before.failures >= self._settings.attempts:
            engine.quarantine(f"failed {many(before.failures, 'time')}; last error: {before.reason}")
            return
        if before.failures:  # an adoption may have crashed the box
            return
        engine.adoptable = adoptable(engine, stored, self._settings.on_driver_change == "verify")
        if engine.adoptable:
            how = (
                "was built ahead"
                if stored[engine.adoptable].ahead
                else "was built for another driver or a similar device"
            )
            engine.reason = f"engine {engine.adoptable[:12]} {how} and is tried first"


def is_lowering_due(planned: PlannedModel) -> bool:
    """Whether an engine was rejected, and the engine with the next lower optimisation level is not planned yet."""
    return any(
        key_below(engine.key, lower).digest not in planned.engines
        for engine in planned.engines.values()
        if engine.state is EngineState.REJECTED and (lower := below(engine.recipe)) is not None
    )


def _is_rejected(each: DesiredEngine, planned: PlannedModel, stored: Mapping[str, EngineRecord]) -> bool:
    """Whether an engine was judged by its current standard and was rejected."""
    known = planned.engines.get(each.key.digest)
    if known is not None and known.standard == each.standard and known.state is EngineState.REJECTED:
        return True
    record = stored.get(each.key.digest)
    if record is None or record.is_unproven:
        return False
    return not record.verdict.accepted and record.standard == each.standard


def missing(wanted: Mapping[str, str], stored: Mapping[str, EngineRecord]) -> str:
    """Return one word that says why the store does not have an engine. Each part of a key has a kind, such as `recipe`,
    `runtime` or `cpu`. The word is the kind of the parts in which the nearest stored engine differs from the wanted
    engine. It is `several` if parts of more than one kind differ. It is `new` if the store has no engine of this model
    and backend."""
    kin = {key: record.parts for key, record in stored.items() if record.parts.get("model") == wanted["model"]}
    near = nearest(wanted, kin.items())
    if near is None:
        return "new"
    kinds = {change.part.partition(".")[0] for change in changes(kin[near], wanted)}
    return kinds.pop() if len(kinds) == 1 else "several"


def adoptable(engine: PlannedEngine, stored: Mapping[str, EngineRecord], drivers: bool = True) -> str:
    """Return the key of the newest stored engine that can be tried instead of a build; empty if no engine fits. Such an
    engine was built in advance on another box. If `drivers` is true, an engine that was built for another driver can be
    tried too."""
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
