"""What a one-shot child does for each kind of job. Runs in the child; `tell` reports progress to the parent."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from edged.backend import registry
from edged.backend.artefact import Artefact
from edged.backend.contract import Backend, Session
from edged.build import golden, jobs
from edged.build.verify import judge
from edged.errors import Superseded
from edged.model.identity import require_same
from edged.tensors import Array
from edged.vision.family import Recognition

Tell: TypeAlias = Callable[[jobs.Progress], None]

_WARM_UPS = 2
_RUNS = (5, 60)  # at least, at most
_RUN_SECONDS = 1.5


def do(job: jobs.Job, tell: Tell) -> msgspec.Struct:
    """Does one job in this process."""
    if isinstance(job, jobs.Inspect):
        from edged.model.inspect import inspect  # brings the onnx package, which the other jobs do without

        return inspect(Path(job.path))
    if isinstance(job, jobs.Check):
        registry.load(job.backend).check(Path(job.path))
        return jobs.Done()
    # The file is read by its path, now; a key says which content it must have had, before and after.
    require_same(job.order)
    answer = _make_golden(job) if isinstance(job, jobs.MakeGolden) else _engine(job, tell)
    try:
        require_same(job.order)
    except Superseded:
        if isinstance(job, jobs.MakeGolden):
            Path(job.out).unlink(missing_ok=True)
        raise
    return answer


def _engine(job: jobs.Build | jobs.Verify, tell: Tell) -> jobs.Built | jobs.Timed:
    return _build(job, tell) if isinstance(job, jobs.Build) else _verify(job, tell)


def _build(job: jobs.Build, tell: Tell) -> jobs.Built:
    started = time.monotonic()
    _load(job).build(job.order, Path(job.out), lambda fraction: tell(jobs.Progress("building", fraction)))
    seconds = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return jobs.Built(Artefact.seal(Path(job.out)), round(seconds, 3), round(peak, 1))


def _make_golden(job: jobs.MakeGolden) -> jobs.Done:
    session = registry.load(job.order.recipe.backend).open(job.order)
    samples = golden.make(session, job.order.signature, _picture(job.recognition))
    golden.save(Path(job.out), samples)
    return jobs.Done()


def _picture(recognition: Recognition) -> tuple[int, int] | None:
    preprocess = recognition.preprocess
    return (preprocess.width, preprocess.height) if preprocess else None


def _verify(job: jobs.Verify, tell: Tell) -> jobs.Timed:
    samples = golden.load(Path(job.golden))
    session = _load(job).open(job.order)
    pairs = ((sample.outputs, session.infer(sample.inputs)) for sample in samples)
    verdict = judge(pairs, job.tolerance)
    if not verdict.accepted:
        return jobs.Timed(verdict, None)
    if job.order.recipe.is_reference:
        (own,) = _medians_ms([session], samples[0].inputs)
        return jobs.Timed(verdict, own, own)
    reference = registry.load(job.reference.recipe.backend).open(job.reference)
    own, other = _medians_ms([session, reference], samples[0].inputs)
    return jobs.Timed(verdict, own, other)


def _load(job: jobs.Build | jobs.Verify) -> Backend:
    """The backend, in the version that the engine's key is about."""
    backend = registry.load(job.order.recipe.backend)
    if job.expects and backend.version() != job.expects:
        raise Superseded(f"{backend.name} is {backend.version()} now, not {job.expects}: the libraries changed")
    return backend


def _medians_ms(sessions: Sequence[Session], inputs: dict[str, Array]) -> list[float]:
    """Median milliseconds of one inference of each session. They take turns, so that the box's load meets all alike."""
    for session in sessions:
        for _ in range(_WARM_UPS):
            session.infer(inputs)
    times: list[list[float]] = [[] for _ in sessions]
    begun = time.perf_counter()
    while len(times[0]) < _RUNS[0] or (len(times[0]) < _RUNS[1] and time.perf_counter() - begun < _RUN_SECONDS):
        for session, own in zip(sessions, times, strict=True):
            started = time.perf_counter()
            session.infer(inputs)
            own.append(time.perf_counter() - started)
    return [round(statistics.median(own) * 1000, 4) for own in times]
