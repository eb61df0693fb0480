"""Makes engines: builds, tries and verifies them, usually one at a time in each lane (see `desired.lanes`)."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from edged.api_types import ELSEWHERE
from edged.backends.contract import Effort
from edged.backends.registry import TIMING_KERNELS
from edged.config import Engines
from edged.engines.builder import Builder, Task
from edged.engines.child import ChildLost
from edged.engines.engine import EngineState, Making, PlannedEngine, Request
from edged.engines.eviction import EvictionManager
from edged.engines.plan import PlannedModel
from edged.engines.reconcile import Adopt, Make, Work
from edged.errors import (
    EdgedError,
    EngineDamaged,
    EngineUnusable,
    OutOfMemory,
    OutOfSpace,
    Superseded,
    Unsuitable,
    WrongAnswers,
)
from edged.events import EngineProgress, EventLog
from edged.fleet.sharing import EngineSharing, Found
from edged.ipc.job_messages import Progress
from edged.models.model import Model
from edged.store.attempts import AttemptLog
from edged.store.record import EngineRecord
from edged.store.store import Store
from edged.tasks import TaskGroup

_LOG = logging.getLogger("edged.engines")
_EFFORTS: tuple[Effort, ...] = ("full", "full", "reduced", "least")  # of the first attempt, the second, ...
_AGAIN_SECONDS = 0.2  # delay if the model on disk changed during the job
_SPACE_SECONDS = 30.0  # delay if the disk was full
_LONG_SECONDS = 60.0  # if a job takes longer, its lane may make a second engine at the same time
_SPARE_MB = 1024  # free memory for a second child in a lane
_VERIFYING = ("verifying", "judging", "timing")  # phases
_EVENT_STEP = 0.1  # share of a phase between two progress events


@dataclass
class _Job:
    """An engine that is being made. `source`: for the action `Adopt`, the key of the stored engine that is tried; empty
    for other actions."""

    engine: PlannedEngine
    source: str
    task: asyncio.Task[None]
    is_build: bool
    is_build_next: bool = False  # a command requests a build after this job
    is_cancelled: bool = False
    why: str = "cancelled"

    @property
    def times_kernels(self) -> bool:
        return self.is_build and self.engine.recipe.backend in TIMING_KERNELS


class Maker:
    """Carries out the actions `Make`, `Adopt` and `Verify` that `reconcile` returns."""

    def __init__(
        self,
        builder: Builder,
        store: Store,
        models: Mapping[str, PlannedModel],
        settings: Engines,
        events: EventLog,
        tasks: TaskGroup,
        attempts: AttemptLog,
        sharing: EngineSharing | None = None,
    ) -> None:
        """`sharing`: access to engines that other boxes built, which this box uses instead of building them."""
        self.eviction = EvictionManager(store, settings, models, events, self._keys)
        self._builder, self._store, self._models, self._settings = builder, store, models, settings
        self._events, self._tasks = events, tasks
        self._attempts, self._sharing = attempts, sharing
        self._work: list[_Job] = []

    def reconfigure(self, settings: Engines) -> None:
        """Apply new settings, also to jobs that run now."""
        self._settings = settings
        self.eviction.reconfigure(settings)

    @property
    def busy(self) -> frozenset[str]:
        """Lanes in which an engine is being made."""
        return frozenset(work.engine.lane for work in self._work)

    def slow(self, available_mb: Callable[[], int]) -> frozenset[str]:
        """Return the lanes in which a second job may run: the lanes with a single job that takes long and is not a
        build that times kernels. Empty if memory is scarce."""
        lanes = Counter(work.engine.lane for work in self._work)
        alone = [work.engine for work in self._work if lanes[work.engine.lane] == 1 and not work.times_kernels]
        long = frozenset(e.lane for e in alone if e.making is not None and e.making.elapsed_s >= _LONG_SECONDS)
        return long if long and available_mb() >= _SPARE_MB else frozenset()

    def start(self, planned: PlannedModel, action: Work) -> None:
        """Start the job of an action that `reconcile` returned."""
        assert planned.model is not None  # nothing is decided for a model that could not be read
        engine = planned.engines[action.key]
        engine.move(EngineState.QUEUED)
        engine.making = Making(time.monotonic())
        source = action.source if isinstance(action, Adopt) else ""
        task = self._tasks.start(self._run(planned, planned.model, engine, action))
        self._work.append(_Job(engine, source, task, isinstance(action, Make)))
        task.add_done_callback(partial(self._over, engine))

    def cancel(self, engine: PlannedEngine, reason: str) -> None:
        """Stop making an engine, or cancel the plan to make it. Only a command makes the engine again."""
        work = self._work_on(engine)
        if work is not None:
            work.is_cancelled, work.is_build_next, work.why = True, False, reason
            work.task.cancel()
            if not engine.is_usable:
                self._keep_cancelled(engine, reason)
        elif engine.state in (EngineState.ABSENT, EngineState.FAILED):
            engine.quarantine(reason, held=True)
            self._keep_cancelled(engine, reason)
        elif engine.request is Request.BUILD or engine.request is Request.VERIFY:
            engine.last_attempt_failed = reason
        engine.request = Request.NONE

    def _keep_cancelled(self, engine: PlannedEngine, reason: str) -> None:
        """Store a cancellation on disk, so that it still holds after a restart. A thread writes, because the disk may
        be slow."""
        self._tasks.start(asyncio.to_thread(self._attempts.cancelled, engine.digest, reason))

    def abandon(self) -> None:
        """Stop making engines that are no longer planned: the model was removed or changed."""
        wanted = {id(engine) for planned in self._models.values() for engine in planned.engines.values()}
        for work in self._work:
            if id(work.engine) not in wanted and not work.is_cancelled:
                work.is_cancelled = True  # cancel only once, because its child is being stopped
                work.engine.on_change = None  # no event for its outcome
                work.task.cancel()

    def is_making(self, engine: PlannedEngine) -> bool:
        """Whether an engine is being made now."""
        return self._work_on(engine) is not None

    def build_after(self, engine: PlannedEngine) -> None:
        """Build an engine after its current job, because a command requests a build. Do nothing if the current job is a
        build."""
        if (work := self._work_on(engine)) is not None and not work.is_cancelled:
            work.is_build_next = not work.is_build

    def will_build(self, engine: PlannedEngine) -> bool:
        """Whether a command requested to build an engine after its current job."""
        return (work := self._work_on(engine)) is not None and work.is_build_next

    def forgive(self, engine: PlannedEngine) -> None:
        """Reset the failures of an engine, because a command requests the engine."""
        self._attempts.forget(engine.digest)
        engine.failures, engine.failure, engine.retry_at, engine.losses = 0, "", 0.0, 0

    # -- one engine -------------------------------------------------------------------------------------------------

    async def _run(self, planned: PlannedModel, model: Model, engine: PlannedEngine, action: Work) -> None:
        task = Task(model, engine.recipe, engine.key, _EFFORTS[min(engine.failures, len(_EFFORTS) - 1)])
        try:
            await self._outcome(planned, engine, task, action)
        except asyncio.CancelledError:
            work = self._work_on(engine)
            engine.cancel(work.why if work is not None else _Job.why)
            raise
        except Exception as error:  # an unexpected error counts as a failure; the task group logs it
            why = EngineUnusable(f"unexpected error ({type(error).__name__}); see the log")
            self._attempts.failed(engine.digest, str(why))
            engine.fail(why, self._settings.attempts)
            raise
        else:
            if self.will_build(engine):
                self.forgive(engine)
                engine.request, engine.adoptable, engine.last_attempt_failed = Request.BUILD, "", ""
        finally:
            self._free(engine)

    async def _outcome(self, planned: PlannedModel, engine: PlannedEngine, task: Task, action: Work) -> None:
        name, short = planned.entry.name, engine.digest[:12]
        try:
            if isinstance(action, Make):
                await self._make(planned, engine, task)
            elif isinstance(action, Adopt):
                await self._adopt(engine, task, action.source)
            else:
                await self._verify(engine, task)
        except Superseded as error:
            engine.postpone(str(error), _AGAIN_SECONDS)
            _LOG.info("model %s: the work on engine %s was discarded: %s", name, short, error)
            planned.is_superseded = True
        except OutOfSpace as error:
            engine.met_disk(error)
            engine.postpone(str(error), _SPACE_SECONDS)
            _LOG.warning("model %s: engine %s: %s", name, short, error)
        except KeyError:  # the engine was evicted or found damaged meanwhile
            engine.lose()
        else:
            cost = engine.record.cost if engine.record else None
            timed = f", {1 / cost:.2f} times as fast as the reference" if cost else ""
            _LOG.info("model %s: engine %s is %s%s", name, short, engine.state.value, timed)

    async def _make(self, planned: PlannedModel, engine: PlannedEngine, task: Task) -> None:
        """Fetch an engine from the shared store, wait for the box that builds it, or build it."""
        sharing = self._sharing
        # If the engine is usable, a command requested a rebuild. In this case, and after a failure or crash, this box
        # builds the engine itself.
        if sharing is None or task.recipe.is_reference or engine.is_usable or engine.failures:
            await self._build(planned, engine, task)
            return
        if (found := await sharing.find(task.key)) is not None:
            await self._take_over(engine, task, sharing, found)
            return
        turn = await sharing.turn(task.key)
        if turn.other:
            engine.wait(f"{turn.other} {ELSEWHERE}", sharing.timing.poll_s)
            return
        timings = self._builder.timings(task) if task.recipe.backend in TIMING_KERNELS else None
        try:
            if timings is not None:
                await sharing.fetch_timings(timings)
            await self._build(planned, engine, task)
        finally:
            self._tasks.start(sharing.built(task.key, timings))

    async def _take_over(self, engine: PlannedEngine, task: Task, sharing: EngineSharing, found: Found) -> None:
        key = engine.digest
        try:
            # Counted before it starts, so that an engine that crashes the whole box is not tried at every start.
            await asyncio.to_thread(self._attempts.begin, key)

            async def fetch(out: Path) -> EngineRecord:
                await self.eviction.wait_for_capacity(found.manifest.size, replacing=key)
                return await sharing.fetch(found, out)

            on_progress = partial(self._report_progress, task, engine)
            capacity = partial(self.eviction.wait_for_capacity, replacing=key)
            record = await self._builder.take_over(task, fetch, on_progress, capacity)
        except Superseded:
            raise
        except EdgedError as error:  # also OutOfSpace, which the following build reports
            sharing.refuse(found, error)
            engine.move(EngineState.ABSENT, f"the engine that {found.signer} built is not used: {error}")
        else:
            engine.finish(record, self._store.records().get(key), f"built by {found.signer}, verified here")
            _LOG.info("model %s: engine %s was built by %s and is verified", task.model.name, key[:12], found.signer)
        finally:
            self._attempts.undone(key)

    async def _build(self, planned: PlannedModel, engine: PlannedEngine, task: Task) -> None:
        key = engine.digest
        engine.making = Making(time.monotonic(), self._builder.expected_seconds(task))
        try:
            await asyncio.to_thread(self._attempts.begin, key)  # waits for the disk
            capacity = partial(self.eviction.wait_for_capacity, replacing=key)
            record = await self._builder.make(task, partial(self._report_progress, task, engine), capacity)
        except (Superseded, OutOfSpace, asyncio.CancelledError):
            self._attempts.undone(key)
            raise
        except Unsuitable as error:
            self._attempts.undone(key)
            engine.unsuited(error)
        except EdgedError as error:
            hopeless = reason_to_give_up(error, engine.recipe.backend, engine.failure, _given_up(planned, engine))
            self._attempts.failed(key, str(error), is_hopeless=bool(hopeless))
            engine.fail(error, self._settings.attempts, hopeless)
            _LOG.warning("model %s: engine %s could not be made: %s", task.model.name, key[:12], error)
        else:
            self._attempts.forget(key)
            engine.finish(record, self._store.records().get(key))

    async def _verify(self, engine: PlannedEngine, task: Task) -> None:
        key, artefact = engine.digest, self._store.artefact(engine.digest)
        try:
            record = await self._builder.verify(task, partial(self._report_progress, task, engine))
        except (Superseded, OutOfSpace):
            raise
        except EngineDamaged as error:
            await asyncio.to_thread(self._store.damaged, artefact)
            engine.lose()
            engine.reason = str(error)
        except EdgedError as error:
            engine.fail(error)
            _LOG.warning("model %s: engine %s could not be verified: %s", task.model.name, key[:12], error)
        else:
            engine.finish(record, self._store.records().get(key))

    async def _adopt(self, engine: PlannedEngine, task: Task, source: str) -> None:
        found = self._store.records().get(source)
        is_unproven = found is not None and found.is_unproven
        try:
            # Counted before it starts, so that an adoption that crashes the whole box is not repeated at every start.
            await asyncio.to_thread(self._attempts.begin, engine.digest)
            on_progress = partial(self._report_progress, task, engine)
            record = await self._builder.adopt(task, source, on_progress, self.eviction.wait_for_capacity)
        except (Superseded, OutOfSpace):
            raise
        except EngineDamaged as error:
            if found is not None:
                await asyncio.to_thread(self._store.damaged, self._store.artefact(source))
            self._give_up_adoption(engine, task, f"{error}")
        except (WrongAnswers, Unsuitable) as error:
            if is_unproven:
                # Remove the engine here, because no other check finds it unusable.
                await asyncio.to_thread(self._store.remove, source, keep_pin=True)
            self._give_up_adoption(engine, task, f"does not work with this device: {error}")
        except EdgedError as error:
            if is_unproven and engine.failures + 1 < self._settings.attempts:
                engine.fail(error)  # not given up: the stored engine may be good, and its build may have taken an hour
            else:
                self._give_up_adoption(engine, task, f"could not be tried: {error}")
        except KeyError:
            self._give_up_adoption(engine, task, "is no longer in the store")
        else:
            engine.adoptable = ""
            engine.finish(record, record, f"adopted from engine {source[:12]}, whose answers are right")
        finally:
            self._attempts.undone(engine.digest)

    @staticmethod
    def _give_up_adoption(engine: PlannedEngine, task: Task, why: str) -> None:
        """Give up an adoption, so that the engine is built instead."""
        reason = f"engine {engine.adoptable[:12]} {why}; a new engine is built"
        _LOG.warning("model %s: %s", task.model.name, reason)
        engine.adoptable, engine.failures = "", 0
        engine.move(EngineState.ABSENT, reason)

    def _over(self, engine: PlannedEngine, task: asyncio.Task[None]) -> None:
        work = self._work_on(engine)
        if work is not None and work.task is task:  # cancelled before it began
            self._free(engine)
            engine.cancel(work.why)

    def _free(self, engine: PlannedEngine) -> None:
        engine.making = None
        self._work = [work for work in self._work if work.engine is not engine]

    def _report_progress(self, task: Task, engine: PlannedEngine, progress: Progress) -> None:
        """Apply a progress message of a child or of the builder."""
        making = engine.making
        if making is None:
            return
        before = making.phase
        making.update(progress)
        state = EngineState.VERIFYING if making.phase in _VERIFYING else EngineState.BUILDING
        if engine.state is not state:
            engine.move(state, engine.reason)
        if making.phase != before or (making.reported or 0.0) - making.last_event >= _EVENT_STEP:
            making.last_event = making.reported or 0.0
            what = EngineProgress(making.phase, making.fraction, making.elapsed_s, making.estimate_s)
            self._events.emit(what, task.model.name, engine.digest)

    def _work_on(self, engine: PlannedEngine) -> _Job | None:
        return next((work for work in self._work if work.engine is engine), None)

    def _keys(self) -> set[str]:
        """Return the keys of stored engines that running jobs depend on."""
        return {work.engine.digest for work in self._work} | {work.source for work in self._work}


def _given_up(planned: PlannedModel, engine: PlannedEngine) -> Iterator[str]:
    """Yield the last failure of each other engine that was given up and has the same backend and device."""
    for other in planned.engines.values():
        is_kin = (other.recipe.backend, other.recipe.device) == (engine.recipe.backend, engine.recipe.device)
        if is_kin and other is not engine and other.state is EngineState.QUARANTINED and not other.is_held:
            yield other.failure


# Names, paths and numbers, which differ between two failures of one kind.
_PARTICULARS = re.compile(r"'[^']*'|\"[^\"]*\"|/\S+|\b[0-9a-f]{8,}\b|\d+(\.\d+)?")
_COMPARED = 200  # characters


def reason_to_give_up(error: EdgedError, backend: str, before: str, kin: Iterable[str]) -> str:
    """Return why another attempt would fail in the same way; empty if it may succeed.

    `before`: the message of the engine's previous failure. `kin`: the last failures of engines of the same backend and
    device that were given up.
    """
    if not _is_of_model(error):
        return ""
    own = _kind(str(error))
    if own in map(_kind, kin):
        return "in the same way as another engine of the same runtime"
    # For a builder that times kernels the next attempt has a lower effort, so it may succeed.
    return "twice in the same way" if own == _kind(before) and backend not in TIMING_KERNELS else ""


def _is_of_model(error: EdgedError) -> bool:
    """Whether only the model and the runtime cause the error, so that another attempt would fail too. A kill from
    outside and a lack of memory have other causes, which may be temporary."""
    if isinstance(error, ChildLost):
        return error.how in ("crashed", "late")
    return isinstance(error, EngineUnusable) and not isinstance(error, OutOfMemory)


def _kind(message: str) -> str:
    return _PARTICULARS.sub("#", message)[:_COMPARED]
