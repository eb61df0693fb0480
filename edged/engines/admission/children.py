"""The children of admission: one inspects the file, others try a runtime. A crash becomes a finding.

Failures that say nothing about the model (no process left, a full disk, a kill from outside) are raised as errors.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from edged.backends.registry import TITLES
from edged.config.limits import AdmissionLimits, Limits
from edged.engines.admission import judgement
from edged.engines.child import ChildLost, run
from edged.engines.child_watch import Patience
from edged.ipc import job_messages as jobs
from edged.ipc.job_messages import RuntimeSupport
from edged.models.finding import Stage
from edged.models.inspection import Inspection

_UNKNOWN = RuntimeSupport("", 0, 0, 0)  # of a runtime that ended before it reported anything
_STARVED = 8.0  # times as long again, for a child that others on the box do not let run
_HASHING_SECONDS = 3600.0  # weights beside a model are regular files of a known size, and disks are slow


class _Stages:
    """The stage that a child reports to be at."""

    def __init__(self, first: Stage) -> None:
        self.now = first

    def __call__(self, progress: jobs.Progress) -> None:
        self.now = judgement.stage_of(progress.phase) or self.now


async def read(path: Path, limits: AdmissionLimits) -> Inspection:
    """Inspect a model file. ModelRefused, with its finding, if it is not a model or crashes its reader."""
    stages, granted = _Stages(Stage.FILE), limits.of_reader(await asyncio.to_thread(_size_mb, path))
    try:
        job = jobs.Inspect(str(path))
        return await run(job, Inspection, granted, on_progress=stages, patience=_patience(granted))
    except ChildLost as error:
        if error.how == "killed":
            raise
        raise judgement.lost(error, stages.now, limits, granted.seconds, "").refusal() from error


async def attempt(job: jobs.Check, limits: AdmissionLimits, size_mb: float) -> jobs.Checked:
    """Try a model on a runtime.

    EdgedError if the model is not the cause; Unsupported if the runtime cannot be loaded.
    """
    stages, granted = _Stages(Stage.OPSET), limits.of_runtime(size_mb)
    backend = job.order.recipe.backend
    try:
        found = await run(job, jobs.Checked, granted, on_progress=stages, patience=_patience(granted))
    except ChildLost as error:
        if error.how == "killed":
            raise
        finding = judgement.lost(error, stages.now, limits, granted.seconds, TITLES.get(backend, backend))
        return jobs.Checked(job.support or _UNKNOWN, finding)
    return msgspec.structs.replace(found, finding=judgement.completed(found.finding, limits))


def _patience(limits: Limits) -> Patience:
    """More time for a child that waits for a processor, and for hashing external data."""
    return Patience(limits.seconds * _STARVED, {Stage.EXTERNAL_DATA.value: _HASHING_SECONDS})


def _size_mb(path: Path) -> float:
    try:
        return path.stat().st_size / (1 << 20)
    except OSError:
        return 0.0
