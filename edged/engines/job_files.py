"""Which files a job is about: those that its child may read, and the folders that it may write in. Pure but for looking
at what lies beside a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edged.backends.contract import Order
from edged.confinement import settings
from edged.confinement.rules import Reach
from edged.ipc import job_messages as jobs
from edged.ipc.repair_messages import FreeDims, Lower, Prove, Simplify


def reach_of(job: jobs.Job, scratch: str) -> Reach:
    """`scratch` is a folder of the child's own."""
    return settings.reach(_reads(job), _writes(job), scratch)


def _reads(job: jobs.Job) -> Iterator[str]:
    for order in _orders(job):
        yield from settings.around(order.model)
        if order.artefact is not None:
            yield order.artefact.root
    if isinstance(job, (jobs.Inspect, Lower, Simplify)):
        yield from settings.around(job.path)
    if isinstance(job, (jobs.CheckSamples, jobs.MakeGolden, jobs.Build, jobs.CompareLevels, Prove)):
        yield from job.samples
    if isinstance(job, jobs.Check):
        yield from job.given.values()
    if isinstance(job, jobs.Verify):
        yield job.golden


def _writes(job: jobs.Job) -> Iterator[str]:
    if isinstance(job, jobs.Build):
        yield job.out
        if job.order.timings:  # of one device, for all of its builds
            yield str(Path(job.order.timings).parent)
    if isinstance(job, (jobs.MakeGolden, Lower, FreeDims, Simplify)):
        yield str(Path(job.out).parent)


def _orders(job: jobs.Job) -> Iterator[Order]:
    if isinstance(job, Prove):
        yield from (job.original, job.repaired)
    if isinstance(job, (jobs.Check, jobs.MakeGolden, jobs.Build, jobs.Verify, jobs.CompareLevels, FreeDims)):
        yield job.order
    if isinstance(job, jobs.Verify):
        yield job.reference
