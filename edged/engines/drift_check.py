"""One check for drift: the child's job, and what the child's answer adds to the history of the model. All functions
except `run_child` and `staged` are pure."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from edged.backends.contract import REFERENCE
from edged.config.child_limits import AdmissionLimits, Limits
from edged.engines import drift_answers, drift_cameras
from edged.engines.alarms import Alarm, AlarmKind
from edged.engines.child import run
from edged.engines.child_watch import Patience
from edged.engines.drift_files import Checked, History
from edged.ipc import job_messages as jobs
from edged.models.model import Model
from edged.serving.taps import Tapped
from edged.serving.work import EngineRef
from edged.verification.standard import TOLERANCES, Tolerance, coarser, tolerance
from edged.vision.content import pack

CPU_SECONDS = 60  # most processor time of a child
_SECONDS, _STARVED_SECONDS = 120.0, 600.0  # wall-clock time; waiting for a processor extends it
_DISK_MB = 256  # largest file of a child: a raw frame as PNG
_MOST_PASTS = 64  # cameras of a model that are remembered
_SET_YEAR = 2024  # a clock that shows an earlier year was not set


class Standard(msgspec.Struct, frozen=True):
    """The bounds for the answers of an engine: `held` has the bounds of its verification, `usual` the bounds of
    `precision`. `precision` is the coarser of the engine's and the model's precision."""

    held: Tolerance
    usual: Tolerance
    precision: str

    @classmethod
    def of(cls, model: Model, precision: str) -> Standard:
        arithmetic = model.inspection.arithmetic
        exact = coarser(precision, arithmetic)
        return cls(tolerance(model.entry.settings, precision, arithmetic), TOLERANCES[exact], exact)


class Moment(msgspec.Struct, frozen=True):
    """When a camera was checked: seconds of the wall clock, and seconds since its last check, 0 if unknown."""

    unix_s: float
    elapsed_s: float

    @property
    def hour(self) -> int | None:
        """The hour of the day in local time; None if the clock was not set."""
        local = time.localtime(self.unix_s)
        return local.tm_hour if local.tm_year >= _SET_YEAR else None


class Judged(msgspec.Struct, frozen=True):
    """The history after a check, and whether the check raised the alarm about the answers, or about its camera."""

    history: History
    answers_drifted: bool
    camera_changed: bool


async def run_child(job: jobs.Shadow, limits: Limits) -> jobs.Shadowed:
    """Run a check in a child. Waiting for a processor extends its time limit."""
    return await run(job, jobs.Shadowed, limits, patience=Patience(starved_seconds=_STARVED_SECONDS))


@contextlib.contextmanager
def staged(data: bytes) -> Iterator[Path]:
    """Yield a folder of this user with the file `picture`, which contains the frame, and the empty folder `out`."""
    with tempfile.TemporaryDirectory(prefix=f"edged-{os.getpid()}-") as name:  # `sweep_scratch` parses this name
        folder = Path(name)
        (folder / "picture").write_bytes(data)
        (folder / "out").mkdir()
        yield folder


def job_of(model: Model, frame: Tapped, folder: Path, slack: float, *, keeps: bool) -> jobs.Shadow:
    """Return the child's job. `folder` is the folder that `staged` yields; `slack` and `keeps` are fields of
    `Shadow`."""
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
        CPU_SECONDS,
    )


def limits_of(model: Model, admission: AdmissionLimits) -> Limits:
    """Return the limits of the child. The memory limit is that of an examination of the model."""
    size = model.inspection.size + sum(file.size for file in model.inspection.external)
    most_mb = admission.most_mb(size / (1 << 20))
    return Limits(seconds=_SECONDS, memory_mb=most_mb, stall_seconds=_SECONDS, disk_mb=_DISK_MB)


def identity(engine: EngineRef) -> str:
    """Return a text that identifies the build of an engine and the content of its model."""
    return f"{engine.model}-{engine.key}-{engine.edition}"


def is_suspect(history: History, camera: str) -> bool:
    """Whether the next check of a camera may raise an alarm, so that its frame must be kept."""
    past = history.cameras.get(camera)
    return history.answers.is_suspect or (past is not None and past.tally.level > 0)


def judged(
    history: History,
    engine: EngineRef,
    camera: str,
    shown: jobs.Shadowed,
    standard: Standard,
    moment: Moment,
    learn_s: float,
) -> Judged:
    """Return the history after a check of an engine and a camera. `learn_s` is a parameter of `drift_cameras.after`."""
    if history.engine != identity(engine):  # a new engine has no earlier answers; the cameras are the same
        history = History(identity(engine), cameras=history.cameras, frames=history.frames)
    found = shown.comparison
    answers = drift_answers.after(history.answers, found, standard.held, standard.usual, standard.precision)
    past = drift_cameras.after(
        history.cameras.get(camera, drift_cameras.Past()),
        drift_cameras.Seen(shown.picture, shown.objects, shown.score),
        moment.hour,
        moment.elapsed_s,
        moment.unix_s,
        learn_s,
    )
    cameras = _latest(history.cameras, camera, past)
    frames = {n: path for n, path in history.frames.items() if n in cameras and (n != camera or past.problem)}
    problem = drift_answers.worst(found, standard.held)
    outcome = "differed" if problem else "agreed" if found.figures else "empty"
    after = History(
        history.engine,
        answers,
        history.frame if answers.is_drifted else "",
        history.camera,
        cameras,
        frames,
        Checked(moment.unix_s, camera, outcome, problem),
    )
    is_new = answers.is_drifted and not history.answers.is_drifted
    return Judged(after, is_new, bool(past.problem) and camera not in frames)


def alarmed(history: History) -> tuple[bool, frozenset[str]]:
    """Return whether there is an alarm about the answers, and the cameras that have an alarm."""
    return history.answers.is_drifted, frozenset(name for name, past in history.cameras.items() if past.problem)


def answers_alarm(model: str, history: History, engine: EngineRef) -> Iterator[Alarm]:
    """Yield the alarm about the answers of an engine if they have drifted away from the reference's."""
    if not history.answers.is_drifted or history.engine != identity(engine):
        return
    what = f"model {model}: engine {engine.key[:12]} ({engine.backend}) no longer answers as the reference"
    where = f"; both answers: {history.frame}" if history.frame else ""
    how = f"check it with: edged engines verify {model}; build it again with: edged engines rebuild {model} --force"
    message = f"{what}: {history.answers.reason}, first seen on camera {history.camera}{where}; {how}"
    yield Alarm(AlarmKind.ANSWERS_DRIFT, message, model, engine.key)


def camera_alarm(model: str, camera: str, past: drift_cameras.Past, frame: str, learn_hours: float) -> Iterator[Alarm]:
    """Yield the alarm about the pictures of a camera if they have changed."""
    if not past.problem:
        return
    where = f"; the frame: {frame}" if frame else ""
    hours = max(learn_hours, drift_cameras.DAY / 3600)
    how = f"check the camera; if the change is intended, the alarm ends by itself after {hours:g} h"
    message = f"model {model}: the pictures of camera {camera} have changed: {past.problem}{where}; {how}"
    yield Alarm(AlarmKind.ANSWERS_DRIFT, message, model, camera=camera)


def _latest(
    cameras: dict[str, drift_cameras.Past], camera: str, past: drift_cameras.Past
) -> dict[str, drift_cameras.Past]:
    """Return `cameras` with `camera` set to `past` and moved to the end. If there are too many cameras, drop the first,
    because they were checked longest ago. The wall clock is not used, because it may jump."""
    others = [each for each in cameras.items() if each[0] != camera]
    return dict([*others, (camera, past)][-_MOST_PASTS:])
