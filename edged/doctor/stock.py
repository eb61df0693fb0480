"""What is on disk: the models of the folder, and the store with the engines that each of them should have here.

Read as the daemon would read it, and nothing is written there: what reading a model leaves behind goes to a folder of
its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from edged.api_types import EngineInfo
from edged.config import Engines
from edged.decoding import ready
from edged.device.fingerprint import Fingerprint
from edged.engines import report
from edged.engines.builder import Builder
from edged.engines.plan import PlannedModel
from edged.engines.planner import Planner
from edged.models.entries import ModelEntry, plain_entry
from edged.models.model import Model
from edged.models.repository import Repository
from edged.serving.slot import Slot
from edged.store.record import EngineRecord
from edged.store.store import Store


class Stock:
    """The models below a state folder and the engines in a cache folder; where that is not there it is not made."""

    def __init__(
        self,
        state: Path,
        cache: Path,
        fingerprint: Fingerprint,
        settings: Engines,
        scratch: Path,
        named: Mapping[str, Path],
    ) -> None:
        """`scratch` is for what must be somewhere; `named` are models that lie elsewhere."""
        self.repository = Repository(state / "models")
        self._named = named
        is_there = (cache / "engines").is_dir() and (cache / "staging").is_dir()
        self.store = Store(cache if is_there else scratch / "store")
        self._planner = Planner.of(self.store, fingerprint, settings)

    def entries(self) -> dict[str, ModelEntry]:
        """Every model by its name."""
        lying = {name: plain_entry(name, path, {}) for name, path in self._named.items()}
        return {**self.repository.entries(), **lying}

    async def plan(self, builder: Builder, entry: ModelEntry) -> PlannedModel:
        """A model with the engines it should have. EdgedError where it cannot be served as it is."""
        planned = PlannedModel(entry, Slot(entry.name))
        self._planner.plan(planned, Model.of(entry, await builder.inspect(Path(entry.path))))
        return planned

    def engines(self, planned: PlannedModel) -> tuple[EngineInfo, ...]:
        """The engines of a model as the daemon would tell of them, those that nothing wants any more included."""
        found = report.engines({planned.entry.name: planned}, self.store, planned.entry.name)
        return tuple(msgspec.convert(msgspec.to_builtins(engine), ready(EngineInfo)) for engine in found)

    def records(self) -> dict[str, EngineRecord]:
        return self.store.records()

    def times(self) -> list[float]:
        """When engines were made and last used, in seconds since the epoch."""
        known = self.store.records()
        made = [record.build.created_unix_s for record in known.values()]
        return made + [self.store.used(key) for key in known]
