"""Examines candidate frames before they are collected, in a child at the lowest priority."""

from __future__ import annotations

from edged.config.child_limits import Limits
from edged.engines.child import ChildLost, run
from edged.engines.child_watch import Patience
from edged.errors import BuildFailed, Overloaded
from edged.ipc import job_messages as jobs

_LIMITS = Limits(seconds=120.0, memory_mb=1024, stall_seconds=60.0, disk_mb=64)
_PATIENCE = Patience(starved_seconds=1800.0)  # on a box whose processors are all busy


async def sift(job: jobs.Sift) -> jobs.Sifted:
    """Examine the frames of a job in a child. Raises Overloaded if this fails because of the box, not because of a
    frame: the child cannot be started, or gets too little processor time. For other failures, raises the errors of
    `child.run`."""
    try:
        return await run(job, jobs.Sifted, _LIMITS, patience=_PATIENCE)
    except BuildFailed as error:
        is_late = isinstance(error, ChildLost) and error.how == "late"
        if is_late or isinstance(error.__cause__, OSError):
            raise Overloaded(f"the frames to collect cannot be examined: {error}; serving continues") from error
        raise
