"""Operators' commands. A command to build or verify only records a request; the control loop then carries it out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TypeAlias

import msgspec

from edged.api_types import EngineProgress
from edged.engines.catalogue import Catalogue
from edged.engines.engine import MAKING, EngineState, PlannedEngine, Request
from edged.engines.eviction import EvictionClass
from edged.engines.maker import Maker
from edged.engines.plan import PlannedModel
from edged.errors import InvalidInput, NotFound, Refused
from edged.events import Commanded, EventLog
from edged.store.store import Store

_SHORTEST = 6  # characters of a key prefix
_FOLLOW_SECONDS = 0.5
_TRIABLE = frozenset(
    {EngineState.ABSENT, EngineState.FAILED, EngineState.QUARANTINED, EngineState.EVICTED, EngineState.UNSUITABLE}
)


_Planned: TypeAlias = tuple[PlannedModel, PlannedEngine]


class Selection(msgspec.Struct, frozen=True):
    """The engines that a command selects: all engines of a model, one engine (by its key or a prefix of the key), or
    all engines."""

    model: str = ""
    engine: str = ""
    everything: bool = False


class Ordered(msgspec.Struct, frozen=True):
    """One engine that a command selected, for one model. Models of the same content share engines; `by` is the model
    for which the engine is made."""

    model: str
    key: str
    by: str


class Commands:
    """Carries out operators' commands. Methods with a selection raise NotFound if its model or key matches no engine,
    and InvalidInput if the selection is invalid. `rebuild`, `pin`, `unpin` and `evict` raise Refused if the store
    cannot be changed."""

    def __init__(
        self,
        catalogue: Catalogue,
        store: Store,
        maker: Maker,
        events: EventLog,
        wake: Callable[[], None],
        forgive: Callable[[str, str], None] = lambda model, engine: None,
    ) -> None:
        """`forgive` lifts the quarantine of an engine of a model."""
        self._catalogue, self._store, self._maker = catalogue, store, maker
        self._events, self._wake, self._forgive = events, wake, forgive

    def rebuild(self, selection: Selection, force: bool) -> tuple[Ordered, ...]:
        """Build engines. With `force`, build all selected engines; without `force`, build only the missing engines, and
        rejected engines that `selection` names by key. Without `force`, a stored engine that is quarantined because it
        killed its hosts is only opened again.

        A serving engine continues until its successor is verified. Returns the engines that will be built or opened
        again. Raises Refused if none of the selected engines can be made.
        """
        self._require_writable()
        chosen = [
            (planned, engine)
            for planned, engine in self._planned(selection)
            if force
            or engine.quarantined
            or engine.state in _TRIABLE | MAKING
            or (engine.state is EngineState.REJECTED and selection.engine)
        ]
        hopeless = [engine for _, engine in chosen if engine.problem]
        if hopeless and len(hopeless) == len(chosen):
            raise Refused(f"engine {hopeless[0].digest[:12]} cannot be made: {hopeless[0].problem}")
        chosen = [(planned, engine) for planned, engine in chosen if not engine.problem]
        reopened = {id(e) for _, e in chosen if e.quarantined and not force and (e.is_usable or e.recipe.is_reference)}
        for planned, engine in chosen:
            self._forgive(planned.entry.name, engine.digest)
        made = _once(chosen)
        for _, engine in made.values():
            if id(engine) in reopened:
                engine.open_at = 0.0
            elif engine.state in MAKING:
                if force:
                    self._maker.build_after(engine)
            else:
                self._maker.forgive(engine)
                engine.request, engine.adoptable, engine.last_attempt_failed = (
                    Request.BUILD,
                    "" if force else engine.adoptable,
                    "",
                )
        return self._commanded("rebuild", chosen, made)

    def verify(self, selection: Selection) -> tuple[Ordered, ...]:
        """Verify and time the selected stored engines again, and return them. Raises Refused if none of them is
        stored."""
        chosen = [(p, e) for p, e in self._planned(selection) if e.is_usable]
        if not chosen:
            raise Refused("no selected engine is in the store, so there is nothing to verify; see: edged engines list")
        made = _once(chosen)
        for _, engine in made.values():
            if engine.state not in MAKING:
                engine.request, engine.retry_at, engine.last_attempt_failed = Request.VERIFY, 0.0, ""
        return self._commanded("verify", chosen, made)

    def cancel(self, selection: Selection) -> tuple[str, ...]:
        """Stop making the selected engines. This also applies to engines that wait to be made. Only `rebuild` makes
        them again. Return their keys."""
        waiting = frozenset({EngineState.ABSENT, EngineState.FAILED}) | MAKING
        chosen = [(p, e) for p, e in self._planned(selection) if e.state in waiting or e.request is not Request.NONE]
        for _, engine in chosen:
            again = f"edged engines rebuild --engine {engine.digest[:12]}"
            self._maker.cancel(engine, f"cancelled by an operator; to make it: {again}")
        self._commanded("cancel", chosen, _once(chosen))
        return tuple(dict.fromkeys(engine.digest for _, engine in chosen))

    async def pin(self, selection: Selection) -> tuple[str, ...]:
        """Protect stored engines from eviction. Returns their keys."""
        return await self._each("pin", selection, self._store.pin)

    async def unpin(self, selection: Selection) -> tuple[str, ...]:
        """Allow the eviction of engines again. Returns their keys."""
        return await self._each("unpin", selection, self._store.unpin)

    async def evict(self, selection: Selection) -> tuple[str, ...]:
        """Remove the files of the selected engines that are neither needed nor pinned, and return their keys.

        Raises Refused if every selected engine is needed or pinned. A selection of all engines is never refused for
        this reason.
        """
        self._require_writable()
        keys = [key for key in self._stored(selection) if self._store.records()[key].files]
        needed = [key for key in keys if self._maker.eviction.eviction_class(key) is EvictionClass.NEEDED]
        if needed and not selection.everything and len(needed) == len(keys):
            why = "pinned; unpin it first" if self._store.is_pinned(needed[0]) else "needed: it serves or is about to"
            raise Refused(f"engine {needed[0][:12]} is {why}; nothing was evicted")
        models, evicted = self._models(), list[str]()
        for key in keys:
            if key in needed:
                continue
            self._events.emit(Commanded("evict"), models[key], key)
            if await self._maker.eviction.evict(key, "by command"):
                evicted.append(key)
        self._wake()
        return tuple(evicted)

    async def follow(self, ordered: tuple[Ordered, ...]) -> AsyncGenerator[EngineProgress, None]:
        """Yield the status of each engine of a command, then each change, until all engines are done."""
        sent: dict[tuple[str, str], EngineProgress] = {}
        while True:
            for status in self.statuses(ordered):
                if sent.get((status.model, status.key)) != status:
                    sent[status.model, status.key] = status
                    yield status
            if all(status.done for status in sent.values()):
                return
            await asyncio.sleep(_FOLLOW_SECONDS)

    def statuses(self, ordered: Iterable[Ordered]) -> list[EngineProgress]:
        """Return the current status of engines. An engine that is no longer planned counts as done."""
        models = self._catalogue.models
        found = []
        for each in ordered:
            plans = [models[name] for name in (each.by, each.model, *models) if name in models]
            engine = next((plan.engines[each.key] for plan in plans if each.key in plan.engines), None)
            found.append(self._status(each.model, engine) if engine is not None else _gone(each))
        return found

    def making(self) -> list[EngineProgress]:
        """Return the status of each engine that is being made now."""
        engines = [(name, e) for name, p in self._catalogue.models.items() for e in p.engines.values()]
        return [self._status(name, engine) for name, engine in engines if self._maker.is_making(engine)]

    def _status(self, model: str, engine: PlannedEngine) -> EngineProgress:
        making = engine.making
        is_waiting = engine.request in (Request.BUILD, Request.VERIFY) or self._maker.will_build(engine)
        done = engine.state not in MAKING and not is_waiting
        paused = "" if done or making is not None else self._maker.eviction.paused
        return EngineProgress(
            key=engine.digest,
            model=model,
            backend=engine.recipe.backend,
            precision=engine.recipe.precision,
            device=engine.recipe.device,
            state=engine.state.value,
            reason=paused or (engine.last_attempt_failed if done else "") or engine.reason,
            phase=making.phase if making is not None else "" if done else "waiting",
            fraction=making.fraction if making is not None else None,
            elapsed_s=round(making.elapsed_s, 1) if making is not None else 0.0,
            estimate_s=making.estimate_s if making is not None else None,
            done=done,
            succeeded=done and engine.state is EngineState.READY and not engine.last_attempt_failed,
        )

    # -- which engines ----------------------------------------------------------------------------------------------

    def _planned(self, selection: Selection) -> list[_Planned]:
        """Return the selected planned engines. Raises NotFound."""
        _check(selection)
        models = [self._catalogue.find(selection.model)] if selection.model else self._catalogue.models.values()
        found = [
            (planned, engine)
            for planned in models
            for engine in planned.engines.values()
            if engine.digest.startswith(selection.engine)
        ]
        self._require_one({engine.digest for _, engine in found}, selection)
        return found

    def _stored(self, selection: Selection) -> list[str]:
        """Return the keys of the selected stored engines. Raises NotFound."""
        _check(selection)
        model = selection.model
        wanted = set(self._catalogue.find(model).engines) if model else set[str]()
        keys = [
            key
            for key, record in self._store.records().items()
            if key.startswith(selection.engine) and (not model or key in wanted or record.model == model)
        ]
        if not selection.everything:
            self._require_one(set(keys), selection)
        return keys

    async def _each(self, verb: str, selection: Selection, act: Callable[[str], None]) -> tuple[str, ...]:
        self._require_writable()
        keys, models = tuple(self._stored(selection)), self._models()
        for key in keys:
            await asyncio.to_thread(act, key)
            self._events.emit(Commanded(verb), models[key], key)
        return keys

    def _models(self) -> dict[str, str]:
        """Return a mapping from the key of each stored engine to its model. This copy stays complete if another task
        removes a record while a command waits."""
        return {key: record.model for key, record in self._store.records().items()}

    def _require_writable(self) -> None:
        if self._maker.eviction.problem:
            raise Refused(f"cannot change the store: {self._maker.eviction.problem}")

    @staticmethod
    def _require_one(keys: set[str], selection: Selection) -> None:
        what = (
            f"with a key that begins with {selection.engine!r}" if selection.engine else f"of model {selection.model!r}"
        )
        if not keys and not selection.everything:
            raise NotFound(f"no engine {what}; see: edged engines list")
        if selection.engine and len(keys) > 1:
            raise InvalidInput(f"{len(keys)} engine keys begin with {selection.engine!r}; give more characters")

    def _commanded(self, verb: str, chosen: list[_Planned], made: dict[str, _Planned]) -> tuple[Ordered, ...]:
        for planned, engine in chosen:
            self._events.emit(Commanded(verb), planned.entry.name, engine.digest)
        self._wake()
        ordered = (Ordered(p.entry.name, e.digest, made[e.digest][0].entry.name) for p, e in chosen)
        return tuple(dict.fromkeys(ordered))


def _once(engines: Iterable[_Planned]) -> dict[str, _Planned]:
    """Return a mapping from each key to the engine and one model: the model for which the engine is being made, or else
    the first model."""
    chosen: dict[str, _Planned] = {}
    for planned, engine in engines:
        known = chosen.setdefault(engine.digest, (planned, engine))
        if _is_under_way(engine) and not _is_under_way(known[1]):
            chosen[engine.digest] = planned, engine
    return chosen


def _is_under_way(engine: PlannedEngine) -> bool:
    return engine.state in MAKING or engine.request in (Request.BUILD, Request.VERIFY)


def _check(selection: Selection) -> None:
    if selection.everything == bool(selection.model or selection.engine):
        raise InvalidInput(
            "name a model or an engine, or select all engines; all engines cannot be combined with a model or an engine"
        )
    if selection.engine and len(selection.engine) < _SHORTEST:
        raise InvalidInput(f"{selection.engine!r} is too short for a key prefix; give at least {_SHORTEST} characters")


def _gone(ordered: Ordered) -> EngineProgress:
    reason = "the device or the model changed; this engine is no longer planned"
    return EngineProgress(
        key=ordered.key,
        model=ordered.model,
        backend="",
        precision="",
        device="",
        state="gone",
        reason=reason,
        done=True,
    )
