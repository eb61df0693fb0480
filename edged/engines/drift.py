"""Checks live answers for drift. From time to time a child answers a camera frame with the reference (unoptimised ONNX
Runtime), and compares this answer with the served answer.

Checks run one at a time, at the lowest priority, and not while engines are built or the box is busy. The cameras of a
model take turns. `serving/taps.py` gives each check a copy of a frame and of the served answer. `drift_answers` decides
whether the answers still agree, `drift_cameras` whether the camera still gives its usual pictures.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec

from edged.api_types import DriftInfo
from edged.config import Drift
from edged.config.child_limits import AdmissionLimits, Limits
from edged.engines.alarms import Alarm
from edged.engines.drift_check import (
    CPU_SECONDS,
    Judged,
    Moment,
    Standard,
    alarmed,
    answers_alarm,
    camera_alarm,
    identity,
    is_suspect,
    job_of,
    judged,
    limits_of,
    run_child,
    staged,
)
from edged.engines.drift_files import Checked, DriftFiles, History
from edged.engines.plan import PlannedModel
from edged.errors import EdgedError, Superseded
from edged.events import Event, EventLog, ModelRemoved
from edged.ipc import job_messages as jobs
from edged.models.model import Model
from edged.serving import memory
from edged.serving.taps import Tapped
from edged.serving.work import EngineRef
from edged.store.sealed import Background
from edged.tasks import TaskGroup, in_thread

_FIRST_SECONDS = 60.0  # until the first check of a model, or the interval between checks if that is shorter
_SEEN_SECONDS = 30.0  # a check does not wait for a camera that has sent no frame for this time
_GIVEN_SECONDS = 3.0  # until another frame is requested, if the requested frame does not come
_GONE_SECONDS = 3600.0  # without a frame of a camera, until the alarm of the camera ends
_MOST_CAMERAS = 256  # of a model; clients choose the ids of cameras, so nothing else limits the number
_MOST_DOUBLINGS = 6  # of the interval, after failures
_SPARE_MB = 512
_TIDY_SECONDS = 3600.0
_WRITE_SECONDS = 600.0  # between two writes of a history, unless an alarm begins or ends: flash memory wears out

# Runs a job in a child with limits.
Run: TypeAlias = Callable[[jobs.Shadow, Limits], Awaitable[jobs.Shadowed]]


class Load(Protocol):
    """The load of the box."""

    @property
    def busy(self) -> float:
        """The share of the processors that is in use, 0 to 1."""


class Lanes(Protocol):
    """The builds that run now."""

    @property
    def busy(self) -> frozenset[str]:
        """Lanes in which an engine is being made."""


@dataclass
class Watched:
    """A model whose answers are checked. Times are monotonic seconds."""

    history: History
    due: float
    counts: Counter[str] = field(default_factory=Counter)  # checks, by outcome
    cpu_s: float = 0.0  # processor time of all checks
    last_cpu_s: float = 0.0
    failures: int = 0  # in a row
    written: float = -math.inf
    asked: float = -math.inf  # when the frame that is awaited was requested; -infinity if no frame is awaited
    seen: dict[str, float] = field(default_factory=dict)  # by camera: when its last frame came
    turns: dict[str, float] = field(default_factory=dict)  # by camera: when its frame was last requested
    checked: dict[str, float] = field(default_factory=dict)  # by camera: when it was last checked

    def is_turn_of(self, camera: str, now: float) -> bool:
        """Whether this camera must be checked next. The cameras that send frames take turns. Return False for up to
        three seconds while a requested frame is awaited."""
        if now - self.asked < _GIVEN_SECONDS:
            return False
        live = [name for name, seen in self.seen.items() if now - seen < _SEEN_SECONDS]
        return min(live, key=lambda name: self.turns.get(name, -math.inf)) == camera

    def meet(self, camera: str, now: float) -> bool:
        """Record that a frame of a camera came. Return False, and record nothing, if the camera is new and the model
        has too many cameras."""
        if camera not in self.seen and len(self.seen) >= _MOST_CAMERAS:
            return False
        self.seen[camera] = now
        return True

    def since_check(self, camera: str) -> float:
        """Record that a camera is checked now. Return the seconds since its last check, 0 if there was none."""
        now = time.monotonic()
        before, self.checked[camera] = self.checked.get(camera, now), now
        return now - before

    def note(self, history: History) -> None:
        """Set the history after a check, and count the check."""
        self.history = history
        self.counts[history.last.outcome] += 1

    def interval(self, settings: Drift, model: str) -> float:
        """Return the seconds between two checks: more than the setting if checks cost much processor time, or fail."""
        by_cost = self.last_cpu_s * 100 / settings.cpu_percent
        return float(max(settings.interval(model), by_cost) * 2 ** min(self.failures, _MOST_DOUBLINGS))


class DriftMonitor:
    """Checks the answers of the models that the settings name. It is a tap: the cameras' streams give it copies of a
    few frames (`serving/taps.py`). Use it from one event loop."""

    def __init__(
        self,
        models: Mapping[str, PlannedModel],
        stored: Callable[[], Mapping[str, object]],
        admission: Callable[[], AdmissionLimits],
        files: DriftFiles,
        load: Load,
        builds: Lanes,
        events: EventLog,
        tasks: TaskGroup,
        disk: Background,
        run: Run = run_child,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`stored` reads from the disk which models the repository has, whether they are served or not. The monitor
        removes the files about models that are neither served nor in the repository. If `stored` raises OSError because
        the disk cannot be read, no files are removed."""
        self.watched: dict[str, Watched] = {}
        self._models, self._stored, self._admission, self._files = models, stored, admission, files
        self._load, self._builds, self._tasks, self._disk = load, builds, tasks, disk
        self._run, self._clock = run, clock
        self._settings = Drift()
        self._opening: set[str] = set()  # models whose history is being read
        self.checking = ""  # the model of the check that runs; empty if none runs
        self._hindrance = ""
        self._tidied = -math.inf
        self._started = time.monotonic()
        events.hearers.append(self._hear)

    def reconfigure(self, settings: Drift) -> None:
        """Apply new settings. If the new interval ends earlier, it applies to the next check already."""
        self._settings = settings
        now = time.monotonic()
        for name, watched in self.watched.items():
            watched.due = min(watched.due, now + watched.interval(settings, name))

    # -- the control loop -------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Begin to watch models that are served now, and forget models that are not. Update `_hindrance`, the reason
        why no check can run now (empty if a check can run). Once an hour, remove kept frames that are too old or too
        many."""
        now = time.monotonic()
        wanted = {name for name, planned in self._models.items() if self._is_checked(name, planned)}
        for name in self.watched.keys() - wanted:
            del self.watched[name]
        for name in wanted - self.watched.keys() - self._opening:
            self._opening.add(name)
            self._tasks.start(self._open(name))
        for watched in self.watched.values():
            for camera in [camera for camera, seen in watched.seen.items() if now - seen > _GONE_SECONDS]:
                for known in (watched.seen, watched.turns, watched.checked):
                    known.pop(camera, None)
        self._hindrance = self._hindered() if self.watched else ""
        if now - self._tidied > _TIDY_SECONDS:
            if self._tidied == -math.inf:
                self._sweep()
            self._tidied = now
            self._tasks.start(self._tidy())

    def _is_checked(self, name: str, planned: PlannedModel) -> bool:
        served = planned.served
        if not self._settings.interval(name) or served is None or planned.slot.current is None:
            return False
        return served.recognition.reads_pictures

    def _hindered(self) -> str:
        if self._builds.busy:
            return "engines are being built"
        if self._load.busy * 100 > self._settings.busy_percent:
            return f"the processors are {self._load.busy:.0%} busy"
        free = memory.available_mb()
        return f"only {free} MiB of memory are free" if 0 < free < _SPARE_MB else ""

    async def _tidy(self) -> None:
        gone = await asyncio.to_thread(self._files.tidy, self._settings.kept_mb, self._settings.kept_days)
        for watched in self.watched.values() if gone else ():
            watched.history = watched.history.without(gone)

    async def _open(self, name: str) -> None:
        """Begin to watch a model, with its history from before the last restart."""
        try:
            found = await asyncio.to_thread(self._files.read, name)
            wait = min(self._settings.interval(name), _FIRST_SECONDS)
            self.watched[name] = Watched(found, time.monotonic() + wait)
        finally:
            self._opening.discard(name)

    def _hear(self, event: Event) -> None:
        if isinstance(event.what, ModelRemoved):
            self.watched.pop(event.model, None)
            self._sweep()

    def _sweep(self) -> None:
        """Remove the files about models that no longer exist."""
        served = tuple(self._models)
        self._disk.put(lambda: self._files.sweep({*served, *self._stored()}))

    # -- the tap ----------------------------------------------------------------------------------------------------

    def wants(self, model: str, camera: str, now: float) -> bool:
        """Whether a check of this camera is due and may run now. If so, the frame counts as requested."""
        watched = self.watched.get(model)
        if watched is None or not watched.meet(camera, now):
            return False
        if now < watched.due or self.checking or self._hindrance or not watched.is_turn_of(camera, now):
            return False
        watched.asked = watched.turns[camera] = now
        return True

    def take(self, frame: Tapped) -> None:
        """Start the check of a frame, unless another check runs, or the model or its engine changed meanwhile."""
        watched, planned = self.watched.get(frame.model), self._models.get(frame.model)
        model = _served(planned, frame.answer.engine)
        if watched is not None:
            watched.asked = -math.inf
        if watched is None or planned is None or model is None or self.checking:
            return
        engine = planned.engines.get(frame.answer.engine.key)
        if engine is None:  # the engine serves only until an engine for the changed device is ready
            return
        self.checking = frame.model
        watched.due = time.monotonic() + watched.interval(self._settings, frame.model)
        self._tasks.start(self._check(watched, model, Standard.of(model, engine.recipe.precision), frame))

    # -- one check --------------------------------------------------------------------------------------------------

    async def _check(self, watched: Watched, model: Model, standard: Standard, frame: Tapped) -> None:
        began, name, before, engine = time.monotonic(), frame.model, watched.history, frame.answer.engine
        try:
            async with in_thread(partial(staged, frame.data)) as folder:
                job = job_of(model, frame, folder, standard.held.box_score, keeps=is_suspect(before, frame.camera))
                shown = await self._run(job, limits_of(model, self._admission()))
                watched.failures, watched.last_cpu_s = 0, shown.cpu_s
                watched.cpu_s += shown.cpu_s
                if self.watched.get(name) is watched and _served(self._models.get(name), engine) is model:
                    moment = Moment(self._clock(), watched.since_check(frame.camera))
                    learn_s = self._settings.learn_hours * 3600
                    judge = partial(judged, engine=engine, camera=frame.camera, shown=shown, standard=standard)
                    try:
                        result = judge(before, moment=moment, learn_s=learn_s)
                    except (ArithmeticError, ValueError):  # another version of edged wrote the history: begin a new one
                        result = judge(History(), moment=moment, learn_s=learn_s)
                    watched.note(await self._kept(result, frame, folder / "out"))
        except Superseded:  # the model was replaced: the next check has its new content
            pass
        except (EdgedError, OSError) as error:
            watched.failures += 1
            watched.last_cpu_s = max(watched.last_cpu_s, min(CPU_SECONDS, time.monotonic() - began))
            reason = error.strerror if isinstance(error, OSError) else None
            last = Checked(self._clock(), frame.camera, "failed", reason or str(error))
            watched.note(msgspec.structs.replace(watched.history, last=last))
        finally:
            self.checking = ""
            watched.due = max(watched.due, began + watched.interval(self._settings, name))
        if self.watched.get(name) is watched:
            self._save(name, watched, before)

    async def _kept(self, found: Judged, frame: Tapped, evidence: Path) -> History:
        """Return the history of a judged frame. If the frame raised an alarm, copy its files from `evidence` to a
        folder that is kept. Add the path of this folder to the history; the path is empty if the files cannot be
        copied."""
        history, camera = found.history, frame.camera
        if not found.answers_drifted and not found.camera_changed:
            return history
        most_mb, days = self._settings.kept_mb, self._settings.kept_days
        path = await asyncio.to_thread(self._files.keep, frame.model, camera, evidence, most_mb, days)
        history = history.without(await asyncio.to_thread(self._files.gone, history))
        if found.answers_drifted:
            history = msgspec.structs.replace(history, frame=path, camera=camera)
        if found.camera_changed:
            history = msgspec.structs.replace(history, frames={**history.frames, camera: path})
        return history

    def _save(self, name: str, watched: Watched, before: History) -> None:
        """Write the history if the last write was long ago, or if an alarm began or ended."""
        is_changed = alarmed(watched.history) != alarmed(before)
        if is_changed or time.monotonic() - watched.written >= _WRITE_SECONDS:
            watched.written = time.monotonic()
            self._disk.put(partial(self._files.write, name, watched.history))

    def stop(self) -> None:
        """Write, in the background, the histories of all models that were checked since the start."""
        for name, watched in self.watched.items():
            if watched.counts:
                self._disk.put(partial(self._files.write, name, watched.history))

    # -- results ----------------------------------------------------------------------------------------------------

    def alarms(self) -> Iterator[Alarm]:
        """Yield the current alarms about drift."""
        now = time.monotonic()
        for name, watched in self.watched.items():
            planned, history = self._models.get(name), watched.history
            if planned is not None and planned.slot.current is not None:
                yield from answers_alarm(name, history, planned.slot.current.engine)
            for camera, past in history.cameras.items():
                if now - watched.seen.get(camera, self._started) < _GONE_SECONDS:
                    frame = history.frames.get(camera, "")
                    yield from camera_alarm(name, camera, past, frame, self._settings.learn_hours)

    def report(self, model: str) -> DriftInfo | None:
        """Report the checks of a model; None if it is not checked."""
        watched = self.watched.get(model)
        if watched is None:
            return None
        now, last = time.monotonic(), watched.history.last
        is_seen = any(now - seen < _SEEN_SECONDS for seen in watched.seen.values())
        return DriftInfo(
            checks=watched.counts.total(),
            differed=watched.counts["differed"],
            failed=watched.counts["failed"],
            every_s=watched.interval(self._settings, model),
            agreement=watched.history.answers.agreement,
            last_unix_s=last.unix_s,
            camera=last.camera,
            outcome=last.outcome,
            reason=last.reason,
            waiting=self._hindrance or ("" if is_seen else "no camera sends frames"),
        )


def _served(planned: PlannedModel | None, engine: EngineRef) -> Model | None:
    """Return the model whose requests an engine answers; None if the engine no longer serves."""
    current, served = (planned.slot.current, planned.served) if planned is not None else (None, None)
    if current is None or served is None or identity(current.engine) != identity(engine):
        return None
    return served if (served.digest, served.recognition) == (engine.model, engine.recognition) else None
