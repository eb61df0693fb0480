"""Opens engines in their hosts and installs them in the slots."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from edged.backends import registry
from edged.backends.artefact import Artefact
from edged.backends.contract import ONE_INSTANCE, Nodes, Parallelism, Recipe, counted
from edged.backends.profile import parsed
from edged.engines.engine import EngineState, PlannedEngine
from edged.engines.plan import PlannedModel, batching, rows
from edged.engines.probe import NoUsableProbe, SessionProbe, warm_up
from edged.errors import (
    DeadlineExceeded,
    EdgedError,
    EngineDamaged,
    EngineUnusable,
    HostLost,
    ModelRefused,
    NotReady,
    OutOfMemory,
    OutOfSpace,
    Overloaded,
    Superseded,
    WarmupFailed,
)
from edged.events import EngineServes, EventLog
from edged.models.identity import require_same
from edged.models.model import Model
from edged.serving.crash_attribution import EngineId
from edged.serving.hosts import HostKind, Hosts
from edged.serving.link import Tenant
from edged.serving.session import ServingSession, SessionHealth
from edged.serving.work import EngineRef
from edged.store.attempts import AttemptLog
from edged.store.store import Store
from edged.tasks import TaskGroup

_LOG = logging.getLogger("edged.engines")
# The constants in seconds are delays before an engine may be opened again.
_REOPEN_SECONDS = 0.2  # after its host was lost
_REPLACED_SECONDS = 1.0  # after the model was replaced while it was opened
_PATIENCE = 2  # refusals until an engine is given up; refusals for lack of memory or space do not count
_REFUSED_SECONDS = (2.0, 10.0, 60.0)  # after the first, the second and every further refusal
_RETRY_SECONDS = 10.0  # after an unexpected error
_FALLBACK_AGAIN_SECONDS = 1.0  # after a temporary failure to open a fallback engine
_FALLBACK_REFUSED_SECONDS = 30.0  # after the runtime refused it


class Opener:
    """Opens and closes the engines of slots and fallback slots. `attempts`: failures before an engine is given up.
    `log` keeps the engines that were given up, across restarts."""

    def __init__(
        self,
        hosts: Hosts,
        store: Store,
        attempts: int,
        log: AttemptLog,
        events: EventLog,
        tasks: TaskGroup,
        probe: SessionProbe | None = None,
    ) -> None:
        """`probe` tests every engine before it serves; None skips the test."""
        self._hosts, self._store, self._attempts, self._log = hosts, store, attempts, log
        self._proven: set[tuple[str, str]] = set()  # engines that answered a golden input correctly, by key and edition
        self._events, self._tasks = events, tasks
        self._probe = probe

    def reconfigure(self, attempts: int) -> None:
        """Apply a new number of attempts."""
        self._attempts = attempts

    def start(self, planned: PlannedModel, key: str, parallelism: Parallelism = ONE_INSTANCE) -> None:
        """Start opening an engine of a model with the instances and threads that `parallelism` names."""
        planned.opening_key = key
        assert planned.model is not None  # nothing is decided for a model that could not be read
        planned.opening = self._tasks.start(self._open(planned, planned.model, planned.engines[key], parallelism))

    def start_fallback(self, planned: PlannedModel, key: str) -> None:
        """Start opening an engine for the fallback slot of a model."""
        assert planned.model is not None
        opening = self._open_fallback(planned, planned.model, planned.engines[key])
        planned.fallback_opening = self._tasks.start(opening)

    def close_fallback(self, planned: PlannedModel) -> None:
        """Close the engine in the fallback slot of a model."""
        session, planned.fallback.current = planned.fallback.current, None
        self.retire(session)

    def retire(self, session: ServingSession | None) -> None:
        """Close a session once its requests are answered. None is ignored."""
        if session is not None:
            self._tasks.start(session.retire())

    def tidy(self, models: Mapping[str, PlannedModel]) -> None:
        """Stop empty hosts that no planned engine needs."""
        wanted = {_kind(planned.model, engine) for planned in models.values() for engine in planned.engines.values()}
        for link in self._hosts.empty(wanted):
            self._tasks.start(link.stop())

    async def _open(self, planned: PlannedModel, model: Model, engine: PlannedEngine, parallelism: Parallelism) -> None:
        try:
            await self._install(planned, model, engine, parallelism)
        finally:
            planned.opening, planned.opening_key = None, ""

    async def _install(
        self, planned: PlannedModel, model: Model, engine: PlannedEngine, parallelism: Parallelism
    ) -> None:
        # Set before the outcome is known, so that an unexpected error does not lead to an immediate retry.
        engine.open_at = time.monotonic() + _RETRY_SECONDS
        try:
            session = await self._open_session(planned, model, engine, parallelism)
        except EngineDamaged as error:
            _LOG.warning("engine %s of model %s: %s", engine.digest[:12], model.name, error)
            if engine.state is EngineState.READY:  # otherwise the engine is being made again, and the outcome decides
                engine.damaged(error, self._attempts)
                self._keep(engine)
                engine.open_at = 0.0
        except (HostLost, NotReady, Superseded) as error:
            engine.open_at = time.monotonic() + max(_REOPEN_SECONDS, self._hosts.retry_in(_kind(model, engine)))
            if isinstance(error, Superseded):
                engine.open_at = max(engine.open_at, time.monotonic() + _REPLACED_SECONDS)
                planned.is_superseded = True
            _LOG.warning("engine %s of model %s cannot be opened now: %s", engine.digest[:12], model.name, error)
        except EdgedError as error:
            if planned.is_being_read:  # the model's file may have been removed
                engine.open_at = time.monotonic() + _REPLACED_SECONDS
            else:
                await self._cannot_open(model, engine, error)
        else:
            engine.opened()
            # The model may have changed meanwhile, or the engine may have been rejected.
            if planned.engines.get(engine.digest) is not engine or not _may_serve(engine):
                await session.retire()
                return
            planned.serve(model)
            previous = planned.slot.install(session)
            self._store.touch(engine.digest)
            message = "model %s: engine %s (%s%s) serves"
            about = {"event": "engine_serves", "backend": engine.recipe.backend}
            form = f", {parallelism.instances} instances" if parallelism.instances > 1 else ""
            _LOG.info(message, model.name, engine.digest[:12], engine.recipe.backend, form, extra=about)
            if previous is None or (previous.engine.key, previous.engine.edition) != (engine.digest, engine.edition):
                self._events.emit(EngineServes(engine.recipe.backend), model.name, engine.digest)
            self.retire(previous)

    async def _open_fallback(self, planned: PlannedModel, model: Model, engine: PlannedEngine) -> None:
        # Set before the outcome is known, as in `_install`.
        planned.fallback_open_at = time.monotonic() + _FALLBACK_REFUSED_SECONDS
        planned.fallback_why = "the engine for requests that the serving engine does not take could not be opened"
        try:
            session = await self._open_session(planned, model, engine)
        except (HostLost, NotReady, Superseded) as error:
            planned.fallback_open_at, planned.fallback_why = time.monotonic() + _FALLBACK_AGAIN_SECONDS, ""
            _LOG.warning(
                "model %s: engine %s cannot be opened now: %s; requests that the serving engine does not take wait"
                " for this engine",
                model.name,
                engine.digest[:12],
                error,
            )
        except EdgedError as error:
            what = "the engine for requests that the serving engine does not take"
            planned.fallback_why = f"{what} cannot be opened: {error}"
            _LOG.warning("model %s: %s", model.name, planned.fallback_why)
        else:
            planned.fallback_open_at, planned.fallback_why = 0.0, ""
            if planned.model is not model or planned.engines.get(engine.digest) is not engine:
                await session.retire()
                return
            _LOG.info(
                "model %s: opened engine %s for requests that the serving engine does not take",
                model.name,
                engine.digest[:12],
            )
            self.retire(planned.fallback.install(session))
        finally:
            planned.fallback_opening = None

    async def _open_session(
        self, planned: PlannedModel, model: Model, engine: PlannedEngine, parallelism: Parallelism = ONE_INSTANCE
    ) -> ServingSession:
        apart, kind = engine.apart, _kind(model, engine)
        stored = self._artefact(engine)
        paths = (model.entry.path,) if stored is None else (model.entry.path, stored.root)
        link = await self._hosts.get(kind, *map(Path, paths))
        tenant = Tenant(EngineId(model.name, engine.digest), model.limits, model.recognition.other_family)
        edition, artefact = engine.edition, self._artefact(engine)  # it may have been evicted while the host started
        order, batches = model.order(engine.recipe, artefact, parallelism=parallelism), batching(model, engine.recipe)
        ref = EngineRef(
            engine.digest,
            link.backend,
            model.digest,
            model.recognition,
            edition=edition,
            is_static=model.is_static,
            batching=batches,
            rows=rows(engine.recipe),
            profile=parsed(engine.recipe.profile),
            limits=model.limits,
            folded=frozenset() if engine.recipe.is_reference else model.defaults,
            outputs={each.name: each.datatype for each in order.signature.outputs},
        )
        try:
            number = await link.open(order, model.recognition, batches.limit, tenant)
        except EngineDamaged:
            if artefact is not None:
                await asyncio.to_thread(self._store.damaged, artefact)
            raise
        except EdgedError:
            if engine.recipe.is_reference:  # the runtime's message about a missing or partial file is unclear
                with contextlib.suppress(ModelRefused):
                    await asyncio.to_thread(require_same, order)
            raise
        session = ServingSession(link, number, ref, apart, parallelism)
        try:
            if engine.recipe.is_reference:  # the reference is opened from the model's file, which may have changed
                await asyncio.to_thread(require_same, order)
            nodes = link.nodes.get(number, {})
            verified = engine.record.composition.nodes if engine.record is not None else {}
            engine.nodes, engine.misplaced = nodes, misplaced_nodes(engine.recipe, verified, nodes)
            if engine.misplaced and planned.has_other(engine):
                raise EngineUnusable(
                    f"its nodes run on other devices than during verification: {'; '.join(engine.misplaced)}"
                )
            await warm_up(model, link, number, ref.profile)
            session.health = await self._prove(planned, model, engine, session)
            if link.lost:  # the host was lost before the session was registered
                raise HostLost(f"engine host {link.backend} {link.lost}")
        except BaseException:  # nothing else refers to the session yet
            self.retire(session)
            raise
        return session

    async def _prove(
        self, planned: PlannedModel, model: Model, engine: PlannedEngine, session: ServingSession
    ) -> SessionHealth:
        """Probe a session before it serves. If even the reference refuses every probe, edged cannot generate a valid
        request for this model. The model's engines then serve without a probe, and the model is ready once one of them
        has answered a request."""
        if self._probe is None or planned.model is not model:  # the model on disk has changed
            return SessionHealth()
        known, is_reference = planned.known_answers(), engine.recipe.is_reference
        try:
            await self._probe.ask(known, session.link, session.number, is_reference=is_reference)
        except NoUsableProbe as error:
            before = planned.slot.current if planned.fits() else None
            if before is not None and before.link is session.link and before.health.known is known:
                return SessionHealth(known=known)  # this host answered the probe before, so the host no longer works
            is_proven = bool(model.triton.warmups) or (before is not None and not before.health.unproven)
            return SessionHealth("" if is_proven else str(error))
        if not is_reference and (engine.digest, engine.edition) not in self._proven:
            # The record and the files may have been replaced with those of another model.
            wrong = await self._probe.compare(model, engine.recipe.precision, session.link, session.number)
            if wrong:
                engine.mismatch = wrong
                await asyncio.to_thread(self._store.damaged, self._store.artefact(engine.digest))
                raise EngineDamaged(f"the engine does not answer as the reference did: {wrong}; it is built again")
            self._proven.add((engine.digest, engine.edition))
        return SessionHealth(known=known)

    def _artefact(self, engine: PlannedEngine) -> Artefact | None:
        if engine.recipe.is_reference:
            return None
        if not _may_serve(engine):
            raise NotReady("the engine was evicted or rejected while its host started; edged opens another engine")
        try:
            return self._store.artefact(engine.digest)
        except KeyError:  # the engine was found damaged when it was opened for another model
            raise EngineDamaged("the engine is no longer in the store; it will be rebuilt") from None

    async def _cannot_open(self, model: Model, engine: PlannedEngine, error: EdgedError) -> None:
        """Decide what happens after the runtime refused to open an engine. After a temporary refusal, opening is tried
        again. A reference, or an engine whose warm-up failed, stays refused. Any other engine is built again, but only
        after several refusals, because a build may take an hour."""
        _LOG.warning("engine %s of model %s cannot be opened: %s", engine.digest[:12], model.name, error)
        engine.met_disk(error)
        if _may_pass(engine, error):
            engine.open_at = time.monotonic() + _REFUSED_SECONDS[min(engine.refusals, len(_REFUSED_SECONDS) - 1)]
            engine.refusals += 1
            engine.reason = f"the engine cannot be opened now: {error}"
        elif engine.recipe.is_reference or isinstance(error, WarmupFailed):
            engine.open_at, engine.reason = math.inf, str(error)
        elif engine.state is EngineState.READY:
            engine.record = None
            await asyncio.to_thread(self._store.remove, engine.digest, keep_pin=True)
            engine.fail(error, self._attempts)
            self._keep(engine)

    def _keep(self, engine: PlannedEngine) -> None:
        """If an engine was given up, add this to the log of attempts. Its successful builds added no failures."""
        if engine.state is EngineState.QUARANTINED:
            self._log.failed(engine.digest, engine.failure, is_hopeless=True)


def _may_pass(engine: PlannedEngine, error: EdgedError) -> bool:
    """Whether opening may succeed later: memory or space may become free, or opening took too long on a busy box. For a
    built engine, the first refusals of the runtime count as temporary too."""
    if isinstance(error, OutOfMemory | Overloaded | OutOfSpace):
        return engine.recipe.is_reference or engine.state is EngineState.READY
    if engine.recipe.is_reference:
        return isinstance(error, DeadlineExceeded) and engine.refusals < _PATIENCE
    is_final = isinstance(error, WarmupFailed)
    return engine.state is EngineState.READY and not is_final and engine.refusals < _PATIENCE


def _kind(model: Model | None, engine: PlannedEngine) -> HostKind:
    """Return the kind of host for an engine. The code of another package runs in a separate host. In this host the code
    can read only frames of its own models, and affects no other model if it hangs or crashes. A new version of the code
    gets a new host."""
    backend, package = engine.recipe.backend, model.recognition.package if model is not None else None
    own = f"{engine.apart} {package} {package.digest} " if package is not None else engine.apart
    return HostKind(backend, engine.key.generation, registry.version(backend, engine.key.parts) or "", own)


def _may_serve(engine: PlannedEngine) -> bool:
    return engine.recipe.is_reference or engine.is_usable


# The provider that should run the nodes, by backend and kind of device. For backends that are not listed, placement is
# not checked: add a backend if its sessions report nodes.
_HOMES: dict[tuple[str, str], str] = {
    ("onnxruntime", "cpu"): "CPUExecutionProvider",
    ("onnxruntime", "cuda"): "CUDAExecutionProvider",
    ("openvino", "cpu"): "CPU",
    ("openvino", "intel-gpu"): "GPU",
    ("openvino", "intel-npu"): "NPU",
}
_MOST_NAMED = 5  # operators


def misplaced_nodes(recipe: Recipe, verified: Nodes, opened: Nodes) -> tuple[str, ...]:
    """Return lines that describe the nodes that do not run where they ran when the engine was verified. All nodes of a
    reference must run on the CPU. The result is empty if all nodes run in the right place, or if the runtime does not
    report placement.

    If a provider no longer works, the engine may still open. Its nodes then fall back to another provider, which is
    slower, and whose answers were never verified.
    """
    home = _HOMES.get((recipe.backend, recipe.device.partition(":")[0]))
    if home is None or not opened:
        return ()
    if not any(_is(provider, home) for provider in opened):
        return (f"no node runs on {home}; all run on {', '.join(sorted(opened))}",)
    is_recorded = bool(verified) and not recipe.is_reference
    lines = []
    for provider in sorted(opened):
        known = Counter(verified.get(provider, {})) if is_recorded else Counter[str]()
        moved = Counter(opened[provider]) - known
        if _is(provider, home):
            continue
        if moved:
            lines.append(f"{counted(moved, _MOST_NAMED)} run on {provider} instead of {home}")
        elif provider not in verified:
            lines.append(f"some nodes run on {provider} instead of {home}")
    if not lines and is_recorded and home != "CPUExecutionProvider" and recipe.backend == "onnxruntime":
        lines += _missing(home, verified.get(home, {}), opened.get(home, {}))
    return tuple(lines)


def _missing(home: str, before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """Return a line about nodes that ran on the device during verification and that no provider reports now. Empty if
    no node is missing, or if the operators are unknown."""
    gone = Counter(before) - Counter(now) if before and now else Counter[str]()
    if not gone:
        return []
    named = counted(gone, _MOST_NAMED)
    return [f"{gone.total()} of {sum(before.values())} nodes no longer run on {home}: {named}"]


def _is(provider: str, home: str) -> bool:
    """Whether a provider is `home`. OpenVINO names the second GPU `GPU.1`."""
    return provider.partition(".")[0] == home
