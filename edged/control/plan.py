"""What the controller knows of one model: the engines it should have, their states, and the slot that serves it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from edged.backend.contract import Recipe
from edged.control import states
from edged.control.policy import candidates
from edged.control.reconcile import EngineView, ModelView
from edged.control.states import EngineState
from edged.device.fingerprint import Fingerprint
from edged.errors import EdgedError
from edged.model.model import Model
from edged.model.repository import ModelEntry, stamp
from edged.serving.slot import Slot
from edged.store.key import EngineKey
from edged.store.record import EngineRecord
from edged.store.store import Store

_RETRY_SECONDS = (5.0, 30.0, 120.0, 600.0, 3600.0)


@dataclass
class PlannedEngine:
    """One engine a model should have, and how far it is. Times are monotonic seconds."""

    key: EngineKey
    recipe: Recipe
    state: EngineState = EngineState.ABSENT
    record: EngineRecord | None = None
    reason: str = ""
    failures: int = 0
    retry_at: float = 0.0
    open_at: float = 0.0
    told: Callable[[PlannedEngine], None] | None = None  # called after every step

    @property
    def digest(self) -> str:
        return self.key.digest

    def move(self, state: EngineState, reason: str = "") -> None:
        """One step of the table of states."""
        self.state = states.check(self.state, state)
        self.reason = reason
        if self.told is not None:
            self.told(self)

    def phase(self, name: str) -> None:
        """What the builder says it is doing now."""
        self.move(EngineState(name))

    def finish(self, record: EngineRecord) -> None:
        """The outcome of making it."""
        self.record = record
        self.move(EngineState.READY if record.is_usable else EngineState.REJECTED, record.verdict.reason)

    def fail(self, error: EdgedError, now: float) -> None:
        """Making it had no outcome: it is tried again, later each time."""
        self.retry_at = now + _RETRY_SECONDS[min(self.failures, len(_RETRY_SECONDS) - 1)]
        self.failures += 1
        self.move(EngineState.FAILED, str(error))

    def adopt(self, record: EngineRecord) -> None:
        """The store holds it already."""
        self.record, self.reason = record, record.verdict.reason
        self.state = EngineState.READY if record.is_usable else EngineState.REJECTED
        if self.told is not None:
            self.told(self)

    def opened(self) -> None:
        """It serves: what went wrong before is forgiven."""
        self.failures, self.open_at = 0, 0.0

    def lose(self) -> None:
        """Its files are gone or damaged: it has to be made again."""
        self.record = None
        self.move(EngineState.ABSENT)


@dataclass
class PlannedModel:
    """One model of the repository."""

    entry: ModelEntry
    slot: Slot
    model: Model | None = None
    problem: EdgedError | None = None
    engines: dict[str, PlannedEngine] = field(default_factory=dict)
    opening: asyncio.Task[None] | None = None
    reading: asyncio.Task[None] | None = None
    _weights: str = ""

    @property
    def serving(self) -> str | None:
        return self.slot.current.engine.key if self.slot.current else None

    @property
    def is_being_read(self) -> bool:
        return self.reading is not None and not self.reading.done()

    def plan(self, model: Model, fingerprint: Fingerprint, store: Store) -> None:
        """Takes up a model as it was just read: which engines it should have, and which of them the store holds."""
        self.model, self.problem = model, None
        wanted: dict[str, PlannedEngine] = {}
        for recipe in candidates(model.entry.settings, fingerprint.facts):
            key = EngineKey.of(model.digest, recipe, fingerprint)
            wanted[key.digest] = self.engines.get(key.digest) or _from_store(key, recipe, store)
        self.engines = wanted

    def weights_changed(self) -> bool:
        """Whether the model's external data is other files than when this was last asked."""
        if self.model is None:
            return False
        folder = Path(self.entry.path).parent
        now = stamp(folder / file.path for file in self.model.inspection.external)
        before, self._weights = self._weights, now
        return now != before

    def view(self) -> ModelView:
        """What the pure decision looks at."""
        engines = tuple(
            EngineView(e.digest, e.recipe, e.state, e.record.cost if e.record else None, e.retry_at, e.open_at)
            for e in self.engines.values()
        )
        fits = self._fits()
        return ModelView(
            name=self.entry.name,
            engines=engines,
            serving=self.serving if fits else None,
            opening=self.opening is not None,
            outdated=fits and self.serving not in self.engines,
        )

    def _fits(self) -> bool:
        """Whether what serves is this model with these settings; after a change it is the one before."""
        current = self.slot.current
        if current is None or self.model is None:
            return False
        return current.engine.model == self.model.digest and current.engine.recognition == self.model.recognition

    def is_hopeless(self) -> bool:
        """Nothing that could be opened may ever be: the reference itself was refused, and no engine is there."""
        if self.serving in self.engines or self.opening is not None or not self.engines:
            return False
        reference = next(e for e in self.engines.values() if e.recipe.is_reference)
        ready = any(e.state is EngineState.READY and e.open_at < math.inf for e in self.engines.values())
        return reference.open_at == math.inf and not ready


def _from_store(key: EngineKey, recipe: Recipe, store: Store) -> PlannedEngine:
    engine, record = PlannedEngine(key, recipe), store.find(key.digest)
    if record is not None:
        engine.adopt(record)
    return engine
