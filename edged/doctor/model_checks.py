"""The models that are looked at: as the disk has them, and as the daemon tells of them where it is asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from edged.api_types import AlarmInfo, EngineInfo, ModelInfo
from edged.backends import registry
from edged.config import Engines
from edged.config.limits import Limits
from edged.decoding import ready
from edged.device.fingerprint import Fingerprint
from edged.doctor import models
from edged.doctor.check import Check, Name, ok, unknown, wrong
from edged.doctor.daemon import DaemonState
from edged.doctor.examination import Step
from edged.doctor.runtimes import Runtimes, judge_opsets
from edged.engines import report
from edged.engines.admission import examine
from edged.engines.builder import Builder
from edged.engines.plan import PlannedModel, Planner
from edged.errors import EdgedError
from edged.models.entries import ModelEntry, plain_entry
from edged.models.model import Model
from edged.models.repository import Repository
from edged.serving.slot import Slot
from edged.store.record import EngineRecord
from edged.store.store import Store


class StoreView:
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


_ONNX = "ai.onnx"  # the domain of ONNX's own operators
_SECONDS = 240.0
_LIMITS = Limits(seconds=_SECONDS)

_Ask: TypeAlias = Callable[[str], Awaitable[Sequence[Check]]]


class ModelChecks:
    """Models by name. `only` is the one to look at, by its name or its file; empty for every one."""

    def __init__(
        self,
        stock: StoreView,
        heard: DaemonState | None,
        runtimes: Runtimes,
        fingerprint: Fingerprint,
        scratch: Path,
        only: str = "",
    ) -> None:
        self._stock, self._heard, self._runtimes = stock, heard, runtimes
        self._installed = registry.installed(fingerprint.facts)
        self._builder = Builder(stock.store, scratch, _LIMITS)  # what it keeps of models goes with the visit
        self._only = only
        self.left_out: list[str] = []
        entries = stock.entries()
        told = {model.name: model for model in heard.models} if heard is not None else {}
        if only and only not in entries and only not in told and Path(only).is_file():
            entries = {only: plain_entry(Path(only).stem, Path(only).absolute(), {})}
        wanted = [name for name in sorted({*entries, *told}) if only in ("", name)]
        self._entries: dict[str, ModelEntry] = {name: entries[name] for name in wanted if name in entries}
        self._told: dict[str, ModelInfo] = {name: told[name] for name in wanted if name in told}
        self.names = tuple(wanted)

    def steps(self) -> list[Step]:
        """One for what is known of each model, and those that take long: reading it, asking every level."""
        steps = []
        for name in self.names:
            if name in self._told:
                steps.append(self._step(Name.MODEL, name, self._daemon_checks))
            if name not in self._entries:
                self.left_out.append(f"the file of {name}: it is not in {self._stock.repository.root}; give --state")
                continue
            steps.append(self._step(Name.ADMISSION, name, self._examine, heavy=True))
            if self._only:
                steps.append(self._step(Name.LEVELS, name, self._compare_levels, heavy=True))
        if self._entries and not self._only:
            self.left_out.append(
                "levels of optimisation: they are compared for one model at a time: edged doctor MODEL"
            )
        return steps

    def _step(self, name: Name, model: str, ask: _Ask, *, heavy: bool = False) -> Step:
        return Step(name, model, lambda: ask(model), _SECONDS, is_heavy=heavy)

    async def _daemon_checks(self, name: str) -> list[Check]:
        """What the daemon says of a model and its engines."""
        told, heard = self._told[name], self._heard
        assert heard is not None
        found = [engine for engine in heard.engines if engine.model == name]
        return [self._standing(told), *self._engine_checks(name, found, told.settings, told.alarms)]

    @staticmethod
    def _standing(told: ModelInfo) -> Check:
        by = f", by {told.backend} {told.engine[:12]}" if told.engine else ""
        said = f"it is {told.state}{by}" + (f": {told.reason}" if told.reason else "")
        if told.state in ("refused", "failed"):
            return wrong(Name.MODEL, said, f"see: edged models show {told.name}", told.name)
        if told.state == "ready":
            return ok(Name.MODEL, said, told.name)
        return unknown(Name.MODEL, said, told.name)

    async def _examine(self, name: str) -> list[Check]:
        """Everything that the file tells; and of its engines, where no daemon tells of them."""
        entry = self._entries[name]
        checks: list[Check] = []
        try:
            found = await examine(self._builder, Path(entry.path), entry.settings, self._installed)
        except EdgedError as error:
            return [wrong(Name.ADMISSION, f"it cannot be served here: {error}", models.inspect(entry.path), name)]
        checks += models.admission(name, entry.path, found)
        inspection = found.inspection
        checks += models.external_data(name, inspection)
        opset = inspection.opsets.get(_ONNX)
        if opset is not None:
            checks += judge_opsets(name, opset, inspection.ir_version, self._runtimes.loaded)
        if not found.refusal:
            planned = await self._stock.plan(self._builder, entry)
            checks += self._planned(name, planned)
        return checks

    def _planned(self, name: str, planned: PlannedModel) -> Iterator[Check]:
        if planned.model is None:
            return
        yield models.shapes(planned.model)
        yield models.batch(planned.model)
        if name not in self._told:
            found = self._stock.engines(planned)
            yield from self._engine_checks(name, found, planned.entry.settings, ())

    def _engine_checks(
        self,
        name: str,
        found: Sequence[EngineInfo],
        settings: dict[str, str],
        alarms: tuple[AlarmInfo, ...],
    ) -> Iterator[Check]:
        yield from models.standing(name, found, by_daemon=name in self._told)
        yield models.placement(name, found)
        yield models.latency(name, found, alarms)
        yield from models.drift(name, found, settings)

    async def _compare_levels(self, name: str) -> list[Check]:
        entry = self._entries[name]
        model = Model.of(entry, await self._builder.inspect(Path(entry.path)))
        return list(models.judge_levels(name, await models.compare_levels(model, _LIMITS)))
