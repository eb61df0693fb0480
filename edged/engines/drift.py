"""Checks live answers for drift: now and then the reference answers a frame of a camera as well, in a child, and both
answers are compared.

A check runs at the lowest priority, one at a time on the box, and not while engines are built or the box is busy. It
copies a frame with the served answer (`serving/taps.py`), takes the cameras of a model in turn, and follows two
questions: do the answers still agree (`drift_answers`), and does the camera still give the usual pictures
(`drift_cameras`)?
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from edged.api_types import DriftInfo
from edged.backends.contract import REFERENCE
from edged.config import Drift
from edged.config.child_limits import AdmissionLimits, Limits
from edged.engines import drift_answers, drift_cameras
from edged.engines.alarms import Alarm, AlarmKind
from edged.engines.child import in_thread, run
from edged.engines.child_watch import Patience
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
from edged.tasks import TaskGroup
from edged.verification.standard import TOLERANCES, Tolerance, coarser, tolerance
from edged.vision.content import pack

_CPU_SECONDS, _SECONDS, _STARVED_SECONDS = 60, 120.0, 600.0  # limits of a child
_DISK_MB = 256  # largest file of a child: a raw frame as PNG
_FIRST_SECONDS = 60.0  # after the start, or the interval if that is shorter
_SEEN_SECONDS = 30.0  # a camera without a frame for so long is not waited for
_GIVEN_SECONDS = 3.0  # until another frame is asked for, if the one that was asked for was skipped
_GONE_SECONDS = 3600.0  # the alarm of a camera without frames ends
_MOST_CAMERAS = 256  # of a model, whose ids clients choose
_MOST_PASTS = 64  # cameras of a model that are remembered
_MOST_DOUBLINGS = 6  # of the interval, after failures
_BUSY = 0.9  # share of the processors
_SPARE_MB = 512
_TIDY_SECONDS = 3600.0
_SET_YEAR = 2024  # an earlier clock was not set
_MB = 1 << 20


class Load(Protocol):
    """What is asked about the box."""

    @property
    def busy(self) -> float:
        """The share of the processors that is in use, 0 to 1."""


class Lanes(Protocol):
    """What is asked about builds."""

    @property
    def busy(self) -> frozenset[str]:
        """Lanes in which an engine is being made."""


# Runs a job in a child: `child.run` with limits.
Run = Callable[[jobs.Shadow, Limits], Awaitable[jobs.Shadowed]]


async def run_child(job: jobs.Shadow, limits: Limits) -> jobs.Shadowed:
    """Run a check in a child. Waiting for a processor extends its time limit."""
    return await run(job, jobs.Shadowed, limits, patience=Patience(starved_seconds=_STARVED_SECONDS))


@dataclass
class Watched:
    """A model whose answers are checked. Times are monotonic seconds."""

    history: History
    due: float
    counts: Counter[str] = field(default_factory=Counter)  # checks, by outcome
    cpu_s: float = 0.0  # processor time of all checks
    last_cpu_s: float = 0.0
    failures: int = 0  # in a row
    seen: dict[str, float] = field(default_factory=dict)  # by camera: when its last frame came
    turns: dict[str, float] = field(default_factory=dict)  # by camera: when a frame of it was last asked for
    checked: dict[str, float] = field(default_factory=dict)  # by camera: when it was last checked

    def is_turn_of(self, camera: str, now: float) -> bool:
        """Whether the camera is the next one, among those that send frames."""
        asked = max(self.turns.values(), default=-math.inf)
        if now - asked < _GIVEN_SECONDS:
            return False
        live = [name for name, seen in self.seen.items() if now - seen < _SEEN_SECONDS]
        return min(live, key=lambda name: self.turns.get(name, -math.inf)) == camera

    def meet(self, camera: str, now: float) -> bool:
        """Note that a frame of a camera came; return whether the camera is known now."""
        if camera not in self.seen and len(self.seen) >= _MOST_CAMERAS:
            return False
        self.seen[camera] = now
        return True

    def interval(self, settings: Drift, model: str) -> float:
        """Return the seconds between two checks: longer if they cost much, or if they fail."""
        by_cost = self.last_cpu_s * 100 / settings.cpu_percent
        return float(max(settings.interval(model), by_cost) * 2 ** min(self.failures, _MOST_DOUBLINGS))


class DriftMonitor:
    """Checks the models that the settings name. It is a tap of the cameras' streams. Use it from one event loop."""

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
        """`stored` reads from the disk which models the repository has, also those that are not served."""
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
        """Apply new settings. The next checks follow them."""
        self._settings = settings
        now = time.monotonic()
        for name, watched in self.watched.items():
            watched.due = min(watched.due, now + watched.interval(settings, name))

    # -- the control loop -------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Follow the models that are served, and find out whether a check may start."""
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
        if self._load.busy > _BUSY:
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
        """Remove what is kept about models that no longer exist."""
        served = tuple(self._models)
        self._disk.put(lambda: self._files.sweep({*served, *self._stored()}))

    # -- the tap ----------------------------------------------------------------------------------------------------

    def wants(self, model: str, camera: str, now: float) -> bool:
        """Whether a check of this camera is due, and may run."""
        watched = self.watched.get(model)
        if watched is None or not watched.meet(camera, now):
            return False
        if now < watched.due or self.checking or self._hindrance or not watched.is_turn_of(camera, now):
            return False
        watched.turns[camera] = now
        return True

    def take(self, frame: Tapped) -> None:
        """Start the check of a frame, unless the model or its engine changed meanwhile."""
        watched, planned = self.watched.get(frame.model), self._models.get(frame.model)
        if watched is None or planned is None or self.checking:
            return
        model, engine = _served(planned, frame.answer.engine), planned.engines.get(frame.answer.engine.key)
        if model is None or engine is None:
            return
        self.checking = frame.model
        watched.due = time.monotonic() + watched.interval(self._settings, frame.model)
        self._tasks.start(self._check(watched, model, engine.recipe.precision, frame))

    # -- one check --------------------------------------------------------------------------------------------------

    async def _check(self, watched: Watched, model: Model, precision: str, frame: Tapped) -> None:
        began, name = time.monotonic(), frame.model
        held = tolerance(model.entry.settings, precision, model.inspection.arithmetic)
        try:
            async with in_thread(partial(_staged, frame.data)) as folder:
                job = _job(model, frame, folder, held.box_score, keeps=_is_suspect(watched.history, frame.camera))
                shown = await self._run(job, self._limits(model))
                planned = self._models.get(name)
                if self.watched.get(name) is watched and planned and _served(planned, frame.answer.engine) is model:
                    watched.failures, watched.last_cpu_s = 0, shown.cpu_s
                    watched.cpu_s += shown.cpu_s
                    await self._judge(watched, model, precision, held, frame, shown, folder / "out")
        except Superseded:  # the model was replaced: the next check has its new content
            pass
        except (EdgedError, OSError) as error:
            reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
            watched.failures += 1
            watched.last_cpu_s = max(watched.last_cpu_s, min(_CPU_SECONDS, time.monotonic() - began))
            self._note(watched, frame.camera, "failed", reason)
        finally:
            self.checking = ""
            watched.due = max(watched.due, began + watched.interval(self._settings, name))
        if self.watched.get(name) is watched:
            self._disk.put(partial(self._files.write, name, watched.history))

    def _limits(self, model: Model) -> Limits:
        size_mb = (model.inspection.size + sum(file.size for file in model.inspection.external)) / _MB
        most_mb = self._admission().most_mb(size_mb)
        return Limits(seconds=_SECONDS, memory_mb=most_mb, stall_seconds=_SECONDS, disk_mb=_DISK_MB)

    async def _judge(
        self,
        watched: Watched,
        model: Model,
        precision: str,
        held: Tolerance,
        frame: Tapped,
        shown: jobs.Shadowed,
        evidence: Path,
    ) -> None:
        """Add a comparison to the history, and keep the frame if it raises an alarm."""
        before, camera, found = watched.history, frame.camera, shown.comparison
        history = before if before.engine == _identity(frame.answer.engine) else _renewed(before, frame.answer.engine)
        exact = coarser(precision, model.inspection.arithmetic)
        answers = drift_answers.after(history.answers, found, held, TOLERANCES[exact], exact)
        past = drift_cameras.after(
            history.cameras.get(camera, drift_cameras.Past()),
            drift_cameras.Seen(shown.picture, shown.objects, shown.score),
            _hour(self._clock()),
            _since(watched.checked, camera),
            self._clock(),
            self._settings.learn_hours * 3600,
        )
        watched.checked[camera] = time.monotonic()
        frames = {name: path for name, path in history.frames.items() if name != camera or past.problem}
        is_new = answers.is_drifted and not history.answers.is_drifted
        history = msgspec.structs.replace(
            history,
            answers=answers,
            frame=history.frame if answers.is_drifted else "",
            cameras=_newest({**history.cameras, camera: past}),
            frames=frames,
        )
        is_changed = bool(past.problem) and camera not in frames
        if is_new or is_changed:
            kept = self._settings.kept_mb, self._settings.kept_days
            path = await asyncio.to_thread(self._files.keep, frame.model, camera, evidence, *kept)
            if is_new:
                history = msgspec.structs.replace(history, frame=path, camera=camera)
            if is_changed:
                history = msgspec.structs.replace(history, frames={**frames, camera: path})
        watched.history = history
        problem = drift_answers.worst(found, held)
        self._note(watched, camera, "differed" if problem else "agreed" if found.figures else "empty", problem)

    def _note(self, watched: Watched, camera: str, outcome: str, reason: str) -> None:
        watched.counts[outcome] += 1
        last = Checked(self._clock(), camera, outcome, reason)
        watched.history = msgspec.structs.replace(watched.history, last=last)

    # -- what it found ----------------------------------------------------------------------------------------------

    def alarms(self) -> Iterator[Alarm]:
        """Yield the current alarms about drift."""
        now = time.monotonic()
        for name, watched in self.watched.items():
            history, current = watched.history, self._models[name].slot.current if name in self._models else None
            if current is not None and history.engine == _identity(current.engine):
                yield from answers_alarm(name, history, current.engine)
            for camera, past in history.cameras.items():
                if past.problem and now - watched.seen.get(camera, self._started) < _GONE_SECONDS:
                    yield camera_alarm(name, camera, past, history.frames.get(camera, ""), self._settings.learn_hours)

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


def answers_alarm(model: str, history: History, engine: EngineRef) -> Iterator[Alarm]:
    """Yield the alarm about answers that drifted away from the reference's, if they did. Pure."""
    if not history.answers.is_drifted:
        return
    what = f"model {model}: engine {engine.key[:12]} ({engine.backend}) no longer answers as the reference"
    where = f"; both answers: {history.frame}" if history.frame else ""
    how = f"check it with: edged engines verify {model}; build it again with: edged engines rebuild {model}"
    message = f"{what}: {history.answers.reason}, first seen on camera {history.camera}{where}; {how}"
    yield Alarm(AlarmKind.ANSWERS_DRIFT, message, model, engine.key)


def camera_alarm(model: str, camera: str, past: drift_cameras.Past, frame: str, learn_hours: float) -> Alarm:
    """Return the alarm about pictures of a camera that changed. Pure."""
    where = f"; the frame: {frame}" if frame else ""
    hours = max(learn_hours, drift_cameras.DAY / 3600)
    how = f"check the camera; if it is meant to be so, the alarm ends after {hours:g} h"
    message = f"model {model}: the pictures of camera {camera} have changed: {past.problem}{where}; {how}"
    return Alarm(AlarmKind.ANSWERS_DRIFT, message, model, camera=camera)


def _identity(engine: EngineRef) -> str:
    """Identify a build of an engine, and what it answers with."""
    return f"{engine.model}-{engine.key}-{engine.edition}"


def _served(planned: PlannedModel, engine: EngineRef) -> Model | None:
    """Return the model that an engine answers with; None if it does not serve any more."""
    current, served = planned.slot.current, planned.served
    if current is None or served is None or _identity(current.engine) != _identity(engine):
        return None
    is_of = (served.digest, served.recognition) == (engine.model, engine.recognition)
    return served if is_of else None


def _renewed(history: History, engine: EngineRef) -> History:
    """Return the history for another engine. The cameras are the same."""
    return History(_identity(engine), cameras=history.cameras, frames=history.frames, last=history.last)


def _is_suspect(history: History, camera: str) -> bool:
    """Whether the next check of a camera may raise an alarm."""
    past = history.cameras.get(camera)
    return history.answers.is_suspect or (past is not None and past.tally.level > 0)


def _newest(cameras: dict[str, drift_cameras.Past]) -> dict[str, drift_cameras.Past]:
    newest = sorted(cameras.items(), key=lambda each: each[1].checked_unix_s, reverse=True)
    return dict(newest[:_MOST_PASTS])


def _hour(unix_s: float) -> int | None:
    """Return the hour of the day in local time; None if the clock was not set."""
    local = time.localtime(unix_s)
    return local.tm_hour if local.tm_year >= _SET_YEAR else None


def _since(checked: Mapping[str, float], camera: str) -> float:
    return time.monotonic() - checked[camera] if camera in checked else 0.0


@contextlib.contextmanager
def _staged(data: bytes) -> Iterator[Path]:
    """Yield a folder of this user with the frame `picture` and the empty folder `out`."""
    with tempfile.TemporaryDirectory(prefix=f"edged-{os.getpid()}-") as name:  # `sweep_scratch` parses this name
        folder = Path(name)
        (folder / "picture").write_bytes(data)
        (folder / "out").mkdir()
        yield folder


def _job(model: Model, frame: Tapped, folder: Path, slack: float, *, keeps: bool) -> jobs.Shadow:
    answer, content = frame.answer, frame.answer.content
    return jobs.Shadow(
        model.order(msgspec.structs.replace(REFERENCE, threads=1)),
        model.recognition,
        str(folder / "picture"),
        str(folder / "out"),
        frame.pixel_format,
        frame.width,
        frame.height,
        frame.stride,
        frame.work.roi,
        frame.work.thresholds,
        answer.detections,
        None if content is None else pack(content),
        slack,
        keeps,
        _CPU_SECONDS,
    )
