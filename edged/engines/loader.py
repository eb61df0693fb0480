"""Selects the models that are served, and loads and unloads models by command (Triton's extension
`model_repository`)."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import msgspec

from edged.config import ModelControl
from edged.engines.admission import admit
from edged.engines.builder import Builder
from edged.engines.catalogue import Catalogue
from edged.engines.ensembles import PlannedEnsemble
from edged.engines.plan import PlannedModel
from edged.engines.probe import require_data
from edged.engines.readiness import Readiness, ReadyState, held_up
from edged.errors import EdgedError, ModelNotFound, NotFound, NotReady, Refused
from edged.files import reading
from edged.language.model import LanguageState
from edged.models.entries import ModelEntry, check_name, split_name
from edged.models.language import examine, read_settings
from edged.models.repository import Overrides, Repository

_LOG = logging.getLogger("edged.engines")
_LOOK_SECONDS = 0.02
_LOAD_SECONDS = 900.0  # a busy box may take minutes to read and open a model
_MOST_REASONS = 1000  # the most models with a stored reason why they are not loaded
_PATIENCE = 2  # if a host refuses to open the reference more often than this, loading fails
_DRAIN_SECONDS = 30.0  # the longest time until a command to unload is answered
READY, LOADING, UNAVAILABLE = "READY", "LOADING", "UNAVAILABLE"


_LANGUAGE_STATES = {LanguageState.READY: READY, LanguageState.LOADING: LOADING, LanguageState.REFUSED: UNAVAILABLE}


class Listed(msgspec.Struct, frozen=True):
    """One version of a model, and whether it answers. `version` is empty if the model is not loaded."""

    name: str
    version: str
    state: str
    reason: str = ""


_Rows: TypeAlias = tuple[Listed | None, Listed | None]  # the version that serves in a slot, and the next one


class Loader:
    """Carries out load and unload commands, one at a time for each model. `installed` returns this box's backends;
    `readiness` says whether a model answers."""

    def __init__(
        self,
        selection: ModelSelection,
        catalogue: Catalogue,
        overrides: Overrides,
        builder: Builder,
        installed: Callable[[], tuple[str, ...]],
        wake: Callable[[], None],
        readiness: Callable[[PlannedModel | PlannedEnsemble], Readiness],
    ) -> None:
        self._selection, self._catalogue, self._overrides = selection, catalogue, overrides
        self._builder, self._installed, self._wake, self._readiness = builder, installed, wake, readiness
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        # By the name of an ensemble: the model that its load or unload loads or unloads now. Both hold their turns.
        self._waits: dict[str, str] = {}
        self._why: dict[str, str] = {}  # reasons why models are not loaded

    async def load(self, name: str, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        """Load a model, or reload it from disk, and return once it answers.

        `config` is a configuration in JSON that replaces config.pbtxt. `files` maps paths inside the model's folder to
        contents; these files replace all files of the model. A version that is loaded already answers until the new
        version answers. If loading fails, it stays loaded. The models of an ensemble are loaded from disk first, if
        they are not loaded. Raises NotFound, InvalidInput or NotReady if the model cannot be served. Raises Refused
        unless the mode of model control is `explicit`. The work continues if the caller is cancelled.
        """
        self._require_command(name)
        await self._finish(self._load(name, config, dict(files or {})))

    async def unload(self, name: str, *, with_parts: bool = False) -> None:
        """Unload a model or ensemble, and return when earlier requests are answered, after 30 s at the latest. Do
        nothing if it is not loaded. `with_parts`: also unload the models that were loaded only for this ensemble.
        Raises Refused unless the mode of model control is `explicit`."""
        self._require_command(name)
        await self._finish(self._unload(name, with_parts))

    async def listed(self) -> list[Listed]:
        """Return every version of every model, sorted by name, the default version of each model first. In mode
        `explicit` this includes models that are not loaded."""
        catalogue = self._catalogue
        loaded = {planned.entry.model for planned in catalogue.models.values()}
        found = {name: _once([self._rows(name, each) for each in catalogue.versions(name)]) for name in loaded}
        for name in {planned.entry.model for planned in catalogue.ensembles.values()}:
            found[name] = [self._row(name, each) for each in catalogue.ensembles_of(name)]
        for chats in catalogue.language.values():
            state = _LANGUAGE_STATES[chats.state]
            row = Listed(chats.entry.model, chats.version, state, "" if state == READY else str(chats.problem or ""))
            found.setdefault(chats.entry.model, []).append(row)
        if self._selection.mode == "explicit":
            there = await self._on_disk()
            for name in (there.keys() | self._why.keys()) - found.keys():
                found[name] = [Listed(name, "", UNAVAILABLE, self._why.get(name, "it is not loaded"))]
        return [row for _, rows in sorted(found.items()) for row in rows]

    def _rows(self, name: str, planned: PlannedModel) -> _Rows:
        found, why = self._readiness(planned), str(planned.problem or "")
        if planned.slot.current is None:
            if found.state is ReadyState.LOADING:
                return None, Listed(name, planned.entry.version, LOADING, held_up(planned))
            return None, Listed(name, planned.entry.version, UNAVAILABLE, why or found.reason)
        there = Listed(name, planned.version, READY if found.is_ready else UNAVAILABLE, found.reason)
        if planned.entry.version == planned.version:
            return there, None
        return there, Listed(name, planned.entry.version, UNAVAILABLE if why else LOADING, why)

    def _row(self, name: str, planned: PlannedEnsemble) -> Listed:
        found = self._readiness(planned)
        state = READY if found.is_ready else LOADING if found.state is ReadyState.LOADING else UNAVAILABLE
        return Listed(name, planned.version, state, found.reason)

    async def stop(self) -> None:
        """Cancel running commands."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _turn(self, name: str) -> asyncio.Lock:
        return self._turns.setdefault(name, asyncio.Lock())

    async def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work to its end, even if the caller is cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks the error as retrieved: a caller that was cancelled does not receive it

    async def _load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        async with self._turn(name):
            before = await asyncio.to_thread(self._selection.held, name)
            entries: dict[str, ModelEntry] = {}
            added: list[str] = []
            try:
                entries = await asyncio.to_thread(self._overrides.entries, name, config, files)
                if not entries:
                    raise ModelNotFound(f"no model {name!r} in the models folder; add it first")
                for entry in entries.values():
                    await self._admit(entry)
                for part in sorted(parts(entries.values())):
                    await self._load_part(name, part, added)
                self._selection.hold(name, entries)
                await self._look()
                self._try_again(entries)
                await self._until_served(entries)
            except BaseException as error:
                await self._restore(name, before, entries, error)
                for part in added:
                    await self._unload_part(name, part)
                raise
            self._selection.only_parts.discard(name)
            self._selection.only_parts.update(added)
            self._why.pop(name, None)
            await self._discard(before, entries)
            _LOG.info("model %s: loaded by command, version %s", name, ", ".join(e.version for e in entries.values()))

    async def _load_part(self, ensemble: str, part: str, added: list[str]) -> None:
        """Load a model of an ensemble if it is not loaded yet, and append its name to `added`."""
        if part == ensemble:
            raise NotReady(f"ensemble {ensemble!r} cannot be served: it is one of its own steps")
        held = await asyncio.to_thread(self._selection.held, part)
        if held or self._catalogue.is_configured(part):
            return
        there = (await self._on_disk()).get(part, {})
        if any(entry.is_ensemble for entry in there.values()):
            raise NotReady(f"ensemble {ensemble!r} cannot be served: its model {part!r} is itself an ensemble")
        if cycle := self._cycle(ensemble, part):
            raise NotReady(f"ensemble {ensemble!r} cannot be served: its steps form a cycle: {cycle}; correct a step")
        self._waits[ensemble] = part
        try:
            await self._load(part, None, {})
        except EdgedError as error:
            raise NotReady(f"ensemble {ensemble!r} cannot be served: {error}") from error
        finally:
            del self._waits[ensemble]
        added.append(part)

    async def _unload_part(self, ensemble: str, part: str) -> None:
        """Unload a model of an ensemble. Leave it loaded if its own load, as an ensemble, waits for this ensemble."""
        if self._cycle(ensemble, part):
            return
        self._waits[ensemble] = part
        try:
            await self._unload(part)
        finally:
            del self._waits[ensemble]

    def _cycle(self, ensemble: str, part: str) -> str:
        """Return the cycle of names if the turn of `part` waits for the turn of `ensemble`, so that both would wait for
        ever; empty if it does not. This happens if clients replace the configurations of models by ensembles that need
        each other."""
        names = [ensemble, part]
        while names[-1] in self._waits and names[-1] != ensemble:
            names.append(self._waits[names[-1]])
        return " -> ".join(names) if names[-1] == ensemble else ""

    async def _on_disk(self) -> dict[str, dict[str, ModelEntry]]:
        with reading("the models folder"):
            return await asyncio.to_thread(self._selection.on_disk)

    async def _admit(self, entry: ModelEntry) -> None:
        """Check that a model can be served, before the loaded version changes. Raises an EdgedError if it cannot."""
        if entry.problem:
            raise NotReady(f"model {entry.name!r} cannot be served: {entry.problem}")
        if entry.is_ensemble:  # its models are checked when they are loaded
            return
        if entry.is_language:
            read_settings(entry.settings)
            await asyncio.to_thread(examine, Path(entry.path))
            return
        admission = await admit(self._builder, Path(entry.path), entry.settings, self._installed())
        model = await self._builder.model(entry, admission.inspection)
        await asyncio.to_thread(require_data, model)

    def _try_again(self, names: Iterable[str]) -> None:
        """Read refused models again: the box may have changed, although the model on disk has not."""
        for name in names:
            planned, chats = self._catalogue.models.get(name), self._catalogue.language.get(name)
            if planned is not None and planned.problem is not None:
                self._catalogue.read_again(planned)
            if chats is not None and chats.problem is not None:
                chats.look()

    async def _until_served(self, entries: Mapping[str, ModelEntry]) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + _LOAD_SECONDS
        for name, entry in entries.items():
            is_loaded = self._is_loaded
            if entry.is_ensemble or entry.is_language:
                is_loaded = self._is_ensemble_loaded if entry.is_ensemble else self._is_language_loaded
            while not is_loaded(name, entry):
                if loop.time() > end:
                    raise NotReady(f"model {name!r} did not answer within {_LOAD_SECONDS:g} s; see the log")
                await asyncio.sleep(_LOOK_SECONDS)

    def _is_loaded(self, name: str, entry: ModelEntry) -> bool:
        """Whether a model answers. Raises NotReady if it cannot be served."""
        planned = self._catalogue.models.get(name)
        if planned is None or planned.entry != entry:
            raise NotReady(f"model {name!r} was changed while it was loaded; load it again")
        if planned.is_up_to_date:
            return True
        if planned.problem is not None and not planned.is_being_read:
            raise NotReady(f"model {name!r} cannot be served: {planned.problem}")
        if planned.reference is not None and planned.reference.refusals > _PATIENCE:
            raise NotReady(f"model {name!r} cannot be served: {held_up(planned)}")
        return False

    def _is_ensemble_loaded(self, name: str, entry: ModelEntry) -> bool:
        """Whether an ensemble answers. Raises NotReady if it cannot be served."""
        planned = self._catalogue.ensembles.get(name)
        if planned is None or planned.entry != entry:
            raise NotReady(f"ensemble {name!r} was changed while it was loaded; load it again")
        found = self._readiness(planned)
        if not found.can_serve:
            raise NotReady(f"ensemble {name!r} cannot be served: {found.reason}")
        return found.state is not ReadyState.LOADING

    def _is_language_loaded(self, name: str, entry: ModelEntry) -> bool:
        """Whether a language model answers. Raises NotReady if it cannot be served."""
        planned = self._catalogue.language.get(name)
        if planned is None or planned.entry != entry:
            raise NotReady(f"model {name!r} was changed while it was loaded; load it again")
        if planned.is_refused:
            raise NotReady(f"model {name!r} cannot be served: {planned.problem}")
        return planned.is_up_to_date

    async def _restore(
        self, name: str, before: Mapping[str, ModelEntry], entries: Mapping[str, ModelEntry], error: BaseException
    ) -> None:
        """Load the previous version again after loading failed."""
        if self._selection.held(name) != before:
            if before:
                self._selection.hold(name, before)
            else:
                self._selection.drop(name)
            await self._look()
        if not before and isinstance(error, EdgedError) and not isinstance(error, NotFound):
            self._note(name, str(error))
        await self._discard(entries, before)

    async def _unload(self, name: str, with_parts: bool = False) -> None:
        async with self._turn(name):
            before = await asyncio.to_thread(self._selection.held, name)
            if not before:
                return
            ensembles, leaving = self._catalogue.ensembles_of(name), self._catalogue.versions(name)
            sessions = [planned.slot.current for planned in leaving if planned.slot.current is not None]
            self._selection.drop(name)
            self._note(name, "unloaded")
            await self._look()
            end = asyncio.get_running_loop().time() + _DRAIN_SECONDS
            while asyncio.get_running_loop().time() < end:
                is_lost = all(session.link.lost or session.idle.is_set() for session in sessions)
                is_answered = not any(planned.memory.requests for planned in ensembles)
                if is_answered and is_lost and all(planned.slot.current is None for planned in leaving):
                    break
                await asyncio.sleep(_LOOK_SECONDS)
            await self._discard(before, {})
            self._selection.only_parts.discard(name)
            _LOG.info("model %s: unloaded by command", name)
            if with_parts:
                needed = parts(planned.entry for planned in self._catalogue.ensembles.values())
                for part in (parts(before.values()) & self._selection.only_parts) - needed:
                    await self._unload_part(name, part)

    def _note(self, name: str, why: str) -> None:
        self._why[name] = why
        if len(self._why) > _MOST_REASONS:
            del self._why[next(iter(self._why))]

    async def _discard(self, old: Mapping[str, ModelEntry], needed: Mapping[str, ModelEntry]) -> None:
        folders = {entry.folder for entry in needed.values()}
        gone = {name: entry for name, entry in old.items() if entry.folder not in folders}
        await asyncio.to_thread(self._overrides.discard, gone)

    async def _look(self) -> None:
        await self._catalogue.look_aside()
        self._wake()

    def _require_command(self, name: str) -> None:
        if self._selection.mode != "explicit":
            mode = self._selection.mode
            every = "every model on disk" if mode == "poll" else "every model that was on disk at the start"
            raise Refused(
                f'models cannot be loaded or unloaded by command, because model_control = "{mode}" serves {every};'
                ' set model_control = "explicit"'
            )
        check_name(name)
        if self._catalogue.is_configured(name):
            raise Refused(f"model {name!r} is always served: it is in the daemon's configuration; remove it there")


def parts(entries: Iterable[ModelEntry]) -> set[str]:
    """Return the names of the models in the steps of ensembles."""
    return {step.model for entry in entries for step in entry.steps}


def _once(places: Sequence[_Rows]) -> list[Listed]:
    """Return the rows of all slots. If a version serves in one slot and is loading in another, the list has only the
    row of the slot that serves it."""
    versions = {there.version for there, _ in places if there is not None}
    found: list[Listed] = []
    for there, coming in places:
        if there is not None:
            found.append(there)
        if coming is not None and coming.version not in versions:
            found.append(coming)
    return found


EVERY = "*"


class ModelSelection:
    """The models to be served, for each mode of model control:

    poll: all models, as they are on disk now
    none: all models, as they were on disk at the start
    explicit: the models that a command loaded, as they were on disk at that time, and the configured startup models. If
        an ensemble is loaded, the models of its steps are loaded too
    """

    def __init__(self, repository: Repository, mode: ModelControl = "poll", startup: Iterable[str] = ()) -> None:
        """`startup`: the models that mode `explicit` loads at the start; `EVERY` means all."""
        self.mode = mode
        self.only_parts = set[str]()  # models that are loaded only because an ensemble needs them
        self._repository, self._startup = repository, frozenset(startup)
        # The mapping is replaced, never changed, because a thread may be reading it.
        self._held: dict[str, dict[str, ModelEntry]] | None = None
        self._changing = threading.Lock()

    def entries(self) -> dict[str, ModelEntry]:
        """Return a mapping from a name to an entry, for every version to be served. Raises OSError as
        `Repository.entries` does."""
        if self.mode == "poll":
            return self._repository.entries()
        return {name: entry for entries in self._models().values() for name, entry in entries.items()}

    def on_disk(self) -> dict[str, dict[str, ModelEntry]]:
        """Return the versions that the repository has now, as a mapping from a model to its versions by name. Raises
        OSError as `Repository.entries` does."""
        return _by_model(self._repository.entries())

    def held(self, model: str) -> dict[str, ModelEntry]:
        """Return the versions of a model that are to be served. The result is empty if the model is not loaded. In mode
        poll, it is always empty. The first call reads the disk."""
        return dict(self._models().get(model, {}))

    def hold(self, model: str, entries: Mapping[str, ModelEntry]) -> None:
        """Set the versions of a model to be served."""
        with self._changing:
            self._held = {**self._models(), model: dict(entries)}

    def take(self, model: str) -> None:
        """Serve exactly the versions of a model that are on disk now; none if the model is gone. Does nothing in mode
        poll, because all versions on disk are served."""
        if self.mode == "poll":
            return
        entries = self.on_disk().get(model)
        if entries:
            self.hold(model, entries)
        else:
            self.drop(model)

    def drop(self, model: str) -> None:
        """Serve no version of a model."""
        with self._changing:
            self._held = {name: entries for name, entries in self._models().items() if name != model}

    def _models(self) -> dict[str, dict[str, ModelEntry]]:
        if self._held is None:
            there = self.on_disk() if self.mode != "poll" else {}
            is_whole = self._repository.is_whole
            if self.mode == "explicit" and EVERY not in self._startup:
                for name in sorted(self._startup - there.keys()) if is_whole else ():
                    _LOG.error("startup model %s is not in %s; it is not served", name, self._repository.root)
                chosen = {name: entries for name, entries in there.items() if name in self._startup}
                needed = parts(entry for entries in chosen.values() for entry in entries.values())
                self.only_parts = needed - chosen.keys()
                there = chosen | {name: there[name] for name in self.only_parts & there.keys()}
            if not is_whole:  # models that could not be read may exist, so the next call reads them again
                return there
            self._held = there
        return self._held


def _by_model(entries: Mapping[str, ModelEntry]) -> dict[str, dict[str, ModelEntry]]:
    models: dict[str, dict[str, ModelEntry]] = {}
    for name, entry in entries.items():
        models.setdefault(split_name(name)[0], {})[name] = entry
    return models
