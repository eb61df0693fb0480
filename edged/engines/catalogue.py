"""The models of the repository and of the configuration. Children inspect the models, and the planner chooses their
engines for the device. Ensembles have no engines, so they are only listed. Language models are passed on to
`edged.language`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from edged.engines.admission import Proven
from edged.engines.builder import Builder
from edged.engines.engine import PlannedEngine
from edged.engines.ensembles import PlannedEnsemble
from edged.engines.plan import PlannedModel, Planner, external_files
from edged.engines.probe import require_data
from edged.errors import (
    BuildFailed,
    ConfigError,
    EdgedError,
    EngineUnusable,
    InvalidInput,
    ModelNotFound,
    NotFound,
    NotReady,
    OutOfSpace,
    Superseded,
)
from edged.errors import ModelRefused as ModelRefusal
from edged.events import EngineMoved, EventLog, ModelRead, ModelRefused, ModelRemoved
from edged.language.model import PlannedLanguageModel
from edged.language.models import LanguageModels
from edged.models.entries import ModelEntry, outside_entries, plain_entry, split_name, stamp, versioned_name
from edged.models.finding import Reason
from edged.models.model import Model
from edged.references import kept
from edged.serving.galleries import Galleries
from edged.serving.session import ServingSession
from edged.serving.slot import Slot
from edged.tasks import TaskGroup

_LOG = logging.getLogger("edged.engines")
_DRAIN_SECONDS = 10.0  # for requests that wait for a removed model
_DRAIN_STEP = 0.02
_READERS = 2  # children that inspect models at the same time
# Delays before the next attempts after failures that may be temporary: exceeded limits, a failing box, kills, missing
# or replaced files. The last delay applies to all later attempts.
_AGAIN_SECONDS = (60.0, 600.0, 3600.0)
_COSTLY = ("timed_out", "too_much_memory")  # attempts take the processors for long, so their number is limited
_PASSING = (*_COSTLY, "missing", "unreadable")
_BACK_SECONDS = 1.0  # before the first new attempt to read a file that is missing or was replaced meanwhile


# Tries a model. The number is how many attempts in a row may exceed the limits.
Prove: TypeAlias = Callable[[Model, int], Awaitable[Proven]]


class Scan(NamedTuple):
    """A scan of the disk. `entries` maps each name (NAME or NAME:VERSION) to the model to be served. `weights` maps the
    name of each known model to the `stamp` of its external data (inodes, sizes and times)."""

    entries: dict[str, ModelEntry]
    weights: dict[str, str]


class ModelSource(Protocol):
    """Source of the models to be served."""

    def entries(self) -> dict[str, ModelEntry]:
        """Return a mapping from a name (NAME, or NAME:VERSION for further versions) to its entry. Raises OSError if the
        scan of the models fails."""


class Catalogue:
    """Keeps the plans of the models and ensembles that are to be served. `models` and `ensembles` map each name to its
    plan. `retire` closes the session of a removed model.

    A version that replaces another version is read and opened in the same slot while the previous version answers.
    """

    def __init__(
        self,
        selection: ModelSource,
        named: Mapping[str, Path],
        builder: Builder,
        planner: Planner,
        events: EventLog,
        tasks: TaskGroup,
        retire: Callable[[ServingSession | None], None],
        prove: Prove | None = None,
        galleries: Galleries | None = None,
        language: LanguageModels | None = None,
    ) -> None:
        """`prove` tries a model, and raises ModelRefused if the model must not be opened in a host. `galleries` has the
        galleries of embedding models. `language` serves the language models; None if they are not served."""
        self.models: dict[str, PlannedModel] = {}
        self.language: Mapping[str, PlannedLanguageModel] = language.models if language is not None else {}
        self.ensembles: dict[str, PlannedEnsemble] = {}
        self._selection, self._named, self._builder = selection, dict(named), builder
        self._planner, self._events, self._tasks, self._retire = planner, events, tasks, retire
        self._readers, self._looking = asyncio.Semaphore(_READERS), asyncio.Lock()
        self._logged_notes: dict[str, tuple[str, ...]] = {}  # notes that were logged, by model
        self._prove, self._galleries, self._language = prove, galleries, language
        self._late: dict[str, tuple[ModelEntry, int]] = {}  # attempts after temporary failures, by model
        self._known: set[str] = set()  # digests of models that may have cached files
        self._is_tidy = False  # whether the caches of models removed before this start were deleted

    def name(self, named: Mapping[str, Path]) -> None:
        """Set the models of the configuration. The next scan applies them."""
        self._named = dict(named)

    def is_configured(self, name: str) -> bool:
        """Whether a model comes from the configuration instead of the repository."""
        return name in self._named

    def find(self, name: str, version: str = "") -> PlannedModel:
        """Return the plan of a model, or of one version of it; `name` may also be NAME:VERSION.

        A new model on disk is found by the next scan, about a second later. An unknown name starts no scan, so that
        clients cannot keep the daemon busy with unknown names. Raises NotFound, NotReady if the version is not loaded,
        and InvalidInput if the version is invalid, or the model is an ensemble or a language model.
        """
        found = self.find_any(name, version)
        if isinstance(found, PlannedEnsemble):
            raise InvalidInput(
                f"model {name[:80]!r} is an ensemble; it has no engine and answers only tensor requests;"
                f" its models are {', '.join(found.part_names)[:200]}"
            )
        return found

    def find_any(self, name: str, version: str = "") -> PlannedModel | PlannedEnsemble:
        """Return the plan of a model or ensemble. Parameters and errors: see `find`; an ensemble is valid here."""
        if not version and name not in self.models and name not in self.ensembles:
            model, version = split_name(name)
            if version and (model in self.models or model in self.ensembles):
                return self.find_any(model, version)
        if name in self.ensembles:
            return self._ensemble_of(name, version)
        planned = self.models.get(name)
        if planned is None:
            if name in self.language:
                raise InvalidInput(
                    f"model {name[:80]!r} is a language model; use the method Chat, ModelStreamInfer or OpenAI's"
                    " protocol; see docs/language.md"
                )
            known = ", ".join(sorted((*self.models, *self.ensembles, *self.language))) or "none"
            raise ModelNotFound(f"no model {name[:80]!r}; available: {known}" if name else _which(known))
        return self._of_version(name, planned, version) if version else planned

    def versions(self, name: str) -> list[PlannedModel]:
        """Return the plans of all versions of a model, the default version first."""
        others = (planned for planned in self.models.values() if planned.entry.model == name != planned.entry.name)
        first = [self.models[name]] if name in self.models else []
        return [*first, *sorted(others, key=lambda planned: -int(planned.entry.version))]

    def ensembles_of(self, name: str) -> list[PlannedEnsemble]:
        """Return all versions of an ensemble, the default version first."""
        others = (each for each in self.ensembles.values() if each.entry.model == name != each.entry.name)
        first = [self.ensembles[name]] if name in self.ensembles else []
        return [*first, *sorted(others, key=lambda each: -int(each.version))]

    def _ensemble_of(self, name: str, version: str) -> PlannedEnsemble:
        found, wanted = self.ensembles_of(name), _number(version) if version else ""
        chosen = next((each for each in found if wanted in ("", each.version)), None)
        if chosen is None:
            there = ", ".join(each.version for each in found)
            raise ModelNotFound(f"model {name!r} has no version {wanted}; available: {there}")
        return chosen

    def _of_version(self, name: str, planned: PlannedModel, version: str) -> PlannedModel:
        wanted = _number(version)
        if wanted == planned.version:
            return planned
        further = self.models.get(versioned_name(name, wanted))
        if further is not None:
            return further
        if wanted == planned.entry.version:
            why = planned.problem or "it is being loaded"
            raise NotReady(f"version {wanted} of model {name!r} is not ready: {why}")
        there = ", ".join(each.version for each in self.versions(name))
        raise ModelNotFound(f"model {name!r} has no version {wanted}; available: {there}")

    async def look_aside(self) -> bool:
        """Scan the disk in a thread and apply the scan. Return whether a model is new, changed or removed. Concurrent
        calls run one after the other. If the scan fails, raises OSError and changes nothing."""
        async with self._looking:
            return self.take(await asyncio.to_thread(self.scan, self._weights()))

    def look(self) -> bool:
        """Scan the disk and apply the scan. Return whether a model is new, changed or removed."""
        return self.take(self.scan(self._weights()))

    def scan(self, weights: Mapping[str, tuple[Path, ...]]) -> Scan:
        """Return a scan of the disk. `weights` maps the name of each known model to its files with external data."""
        shelved = {k: e for k, e in self._selection.entries().items() if e.model not in self._named}
        named = {each.name: each for name, path in self._named.items() for each in _named_entries(name, path)}
        return Scan({**shelved, **named}, {name: stamp(files) for name, files in weights.items()})

    def _weights(self) -> dict[str, tuple[Path, ...]]:
        return {name: planned.weights for name, planned in self.models.items()}

    def take(self, scan: Scan) -> bool:
        """Apply a scan: read new and changed models, drop removed models. Return whether a model is new, changed or
        removed."""
        is_changed = self._take_ensembles({n: e for n, e in scan.entries.items() if e.is_ensemble})
        if self._language is not None:
            is_changed |= self._language.take({n: e for n, e in scan.entries.items() if e.is_language})
        entries = {n: e for n, e in scan.entries.items() if not (e.is_ensemble or e.is_language)}
        weights = scan.weights
        for name in [name for name in self.models if name not in entries]:
            if not self._is_awaited(name, entries):
                self._drop(name)
                is_changed = True
        for name, entry in entries.items():
            planned = self.models.get(name)
            if planned is None:
                planned = self.models[name] = PlannedModel(entry, Slot(name, self._galleries))
                self._read(planned)
                is_changed = True
            elif planned.entry != entry or (name in weights and planned.weights_changed(weights[name])):
                planned.entry = entry
                self._read(planned)
                is_changed = True
        self._forget()
        return is_changed

    def _take_ensembles(self, entries: Mapping[str, ModelEntry]) -> bool:
        """Add new ensembles, replace changed ones and remove the others, all at once. Return whether any changed."""
        gone = self.ensembles.keys() - entries.keys()
        fresh = [n for n, e in entries.items() if n not in self.ensembles or self.ensembles[n].entry != e]
        for name in gone:
            del self.ensembles[name]
            _LOG.info("ensemble %s: removed", name)
            self._events.emit(ModelRemoved(), name)
        for name in fresh:
            planned = self.ensembles[name] = PlannedEnsemble(entries[name], self.find)
            if not planned.entry.problem:  # an alarm reports a problem
                _LOG.info("ensemble %s: read, models %s", name, ", ".join(planned.part_names))
                self._note(planned.entry.model, planned.notes)
        return bool(gone or fresh)

    def _forget(self) -> None:
        """Remove the cached files of models that no longer serve and are no longer planned."""
        needed = {
            digest
            for planned in self.models.values()
            for digest in (planned.examined, *(model.digest for model in (planned.model, planned.served) if model))
            if digest
        }
        for digest in self._known - needed:
            self._builder.forget(digest)
        self._known = needed
        if not self._is_tidy and not any(planned.is_being_read for planned in self.models.values()):
            self._is_tidy = True
            self._builder.forget_others(needed)

    def _is_awaited(self, name: str, entries: Mapping[str, ModelEntry]) -> bool:
        """Whether version NAME:VERSION must stay because it is about to become the default version. Until the slot NAME
        has loaded this version, the slot NAME:VERSION answers."""
        model, version = split_name(name)
        planned, entry = self.models.get(model), entries.get(model)
        if not version or planned is None or entry is None or entry.version != version:
            return False
        answers = planned.slot.current is not None and self.models[name].slot.current is not None
        return answers and planned.version != version

    def read_again(self, planned: PlannedModel) -> None:
        """Read a model that changed on disk, unless it is being read already."""
        planned.is_superseded = False
        if not planned.is_being_read:
            self._read(planned)

    def plan_all(self) -> None:
        """Plan every model again because the device changed. Refused models are read again."""
        for planned in self.models.values():
            if planned.model is not None and planned.problem is None:
                self._plan(planned, planned.model)
            else:
                self.read_again(planned)

    def recognise_again(self) -> None:
        """Read again every model that a family of another package could decode, because these families changed."""
        for planned in self.models.values():
            read = planned.model if planned.problem is None else None
            if read is None or read.recognition.package is not None or not read.recognition.family:
                self._read(planned)

    def replan(self, planned: PlannedModel) -> None:
        """Plan a model again, because it should have different engines now."""
        if planned.model is not None:
            self._plan(planned, planned.model)

    def refuse(self, planned: PlannedModel) -> None:
        """Refuse a model that no engine can serve."""
        reason = planned.reference.reason if planned.reference is not None else ""
        self._refuse(planned, planned.problem or EngineUnusable(reason))

    def _read(self, planned: PlannedModel, tries: int = 1) -> None:
        if planned.reading is not None:
            planned.reading.cancel()
        planned.reading = self._tasks.start(self._inspect(planned, tries))

    async def _inspect(self, planned: PlannedModel, tries: int, *, is_repeated: bool = False) -> None:
        entry = planned.entry
        before = await asyncio.to_thread(stamp, planned.weights) if planned.weights else ""
        external = planned.weights
        try:
            if entry.problem:
                raise ConfigError(entry.problem)
            async with self._readers:
                inspection = await self._builder.inspect(Path(entry.path), tries)
                external = external_files(entry, inspection)
                model = await self._builder.model(entry, inspection)
                if model.samples:
                    model = await asyncio.to_thread(model.with_contents)
                planned.examined = model.digest
                proven = await self._prove(model, tries) if self._prove is not None else Proven()
            model = msgspec.structs.replace(model, batch_gain=proven.batch_gain)
            planned.warnings = proven.warnings
            for warning in proven.warnings:
                _LOG.warning("model %s: %s", entry.name, warning.line())
            if model.triton.warmups:
                await asyncio.to_thread(require_data, model)
            if not self._planner.book.is_open(model):
                await asyncio.to_thread(self._planner.book.page, model)
            weights = await asyncio.to_thread(stamp, external) if external else ""
            self._late.pop(entry.name, None)
            self._plan(planned, model)
            planned.weights = external
            planned.weights_changed(weights)  # from here on, changes of the external data count
            planned.refuse_or_accept()
            _LOG.info("model %s: read, digest %s", entry.name, inspection.digest[:12])
            self._events.emit(ModelRead(inspection.digest), entry.name)
            self._log_notes(planned)
        except EdgedError as error:
            if isinstance(error, Superseded) and not is_repeated:
                await asyncio.sleep(_BACK_SECONDS)  # a scan that finds another file meanwhile cancels this task
                return await self._inspect(planned, tries, is_repeated=True)
            planned.weights = external
            planned.weights_changed(before)  # a later change of the external data may fix the error
            self._refuse(planned, error)
            self._tasks.start(self._once_more(planned, entry, error))
        except Exception as error:  # a bug, or a failing box: refuse the model, so that clients do not wait forever
            _LOG.exception("model %s: cannot read the model", entry.name)
            refusal = EngineUnusable(f"cannot read the model ({type(error).__name__}); see the log")
            self._refuse(planned, refusal)
            self._tasks.start(self._read_later(planned, entry, refusal, _AGAIN_SECONDS[-1]))

    async def _once_more(self, planned: PlannedModel, entry: ModelEntry, error: EdgedError) -> None:
        """Read a model again later if its failure may be temporary."""
        before, times = self._late.get(entry.name, (entry, 0))
        times = times if before == entry else 0
        category = error.finding.get("category") if isinstance(error, ModelRefusal) else None
        is_passing = isinstance(error, BuildFailed | OutOfSpace | Superseded) or category in _PASSING
        if not is_passing or (category in _COSTLY and times >= len(_AGAIN_SECONDS)):
            return
        self._late[entry.name] = entry, times + 1
        delay = _AGAIN_SECONDS[min(times, len(_AGAIN_SECONDS) - 1)]
        await self._read_later(planned, entry, error, _BACK_SECONDS if category == "missing" and not times else delay)

    async def _read_later(self, planned: PlannedModel, entry: ModelEntry, error: EdgedError, seconds: float) -> None:
        """Read a model again after a delay, unless it was read or removed meanwhile."""
        await asyncio.sleep(seconds)
        if planned.problem is error and self.models.get(entry.name) is planned and not planned.is_being_read:
            self._read(planned, 1 + len(_AGAIN_SECONDS))  # attempts are counted across restarts

    def _log_notes(self, planned: PlannedModel) -> None:
        """Log the notes of a model once, for example settings without effect."""
        self._note(planned.entry.model, planned.model.notes if planned.model is not None else ())

    def _note(self, name: str, notes: tuple[str, ...]) -> None:
        if notes and self._logged_notes.get(name) != notes:
            self._logged_notes[name] = notes
            for note in notes:
                _LOG.warning("model %s: %s", name, note)

    def _plan(self, planned: PlannedModel, model: Model) -> None:
        self._planner.plan(planned, model, partial(self._moved, model.name))

    def _moved(self, model: str, engine: PlannedEngine) -> None:
        self._events.emit(EngineMoved(engine.state.value, engine.recipe.backend, engine.reason), model, engine.digest)

    def _refuse(self, planned: PlannedModel, error: EdgedError) -> None:
        """Refuse the model on disk. An engine that already serves the model's previous content continues to serve."""
        # The alarm about this model is logged once when it begins. If the reason changes during the alarm, it is logged
        # here.
        level = logging.DEBUG if planned.problem is None else logging.WARNING
        planned.problem, planned.engines = error, {}
        name = planned.entry.name
        found = Reason.of(error)
        self._events.emit(ModelRefused(str(error), found.category, found.stage), name)
        if planned.serving:
            _LOG.log(
                level, "model %s changed and cannot be served: %s; its previous version continues to serve", name, error
            )
            return
        _LOG.log(level, "model %s cannot be served: %s", name, error)
        planned.model = planned.served = None
        planned.refuse_or_accept()

    def _drop(self, name: str) -> None:
        """Remove a model and refuse new requests. Waiting requests are answered if an engine serves; otherwise they are
        refused too."""
        planned = self.models.pop(name)
        if planned.reading is not None:
            planned.reading.cancel()
        planned.engines = {}
        self._logged_notes.pop(name, None)
        self._late.pop(name, None)
        gone = NotFound(f"model {name!r} was removed")
        if planned.slot.waiting and planned.slot.current is not None:
            planned.slot.shut(gone)
            self._tasks.start(self._drain(planned, gone))
        else:
            self._retire(planned.slot.refuse(gone))
        self._retire(planned.fallback.refuse(gone))
        _LOG.info("model %s: removed", name)
        self._events.emit(ModelRemoved(), name)

    async def _drain(self, planned: PlannedModel, gone: NotFound) -> None:
        """Wait until the waiting requests are answered, the host is lost, or 10 s have passed; then refuse the rest."""
        end = time.monotonic() + _DRAIN_SECONDS
        while planned.slot.waiting and planned.slot.current is not None and time.monotonic() < end:
            if planned.slot.current.link.lost:
                planned.slot.vacate(planned.slot.current.link)
                break
            await asyncio.sleep(_DRAIN_STEP)
        self._retire(planned.slot.refuse(gone))


def _named_entries(name: str, path: Path) -> list[ModelEntry]:
    """Return the versions of a model of the configuration."""
    if problem := kept.problem_of(path):
        return [msgspec.structs.replace(plain_entry(name, path, {}), problem=problem)]
    return outside_entries(name, path)


def _number(version: str) -> str:
    """Return a version without leading zeros. Raises InvalidInput if the version is not a whole number."""
    if not (version.isascii() and version.isdecimal() and len(version) <= 18):
        raise InvalidInput(f"{version[:40]!r} is not a model version; versions are whole numbers")
    return str(int(version))


def _which(known: str) -> str:
    return f"the request names no model; this is allowed only if exactly one model is served; available: {known}"
