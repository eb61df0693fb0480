"""The one-shot child: reads one job from standard input, does it, writes the answer to standard output, ends.

Runtimes print what they like; so the real standard output is kept aside for the answer alone, and file descriptor 1
is pointed at standard error before any runtime is imported.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from edged import errors, process
from edged.backend import registry
from edged.backend.artefact import Artefact
from edged.backend.contract import Backend, Session
from edged.build import golden, jobs
from edged.build.verify import TOLERANCES, judge
from edged.errors import Superseded
from edged.model.identity import require_same
from edged.tensors import Array

_WARM_UPS = 2
_RUNS = (5, 60)  # at least, at most
_RUN_SECONDS = 1.5


def do(job: jobs.Job) -> msgspec.Struct:
    """Does one job in this process."""
    if isinstance(job, jobs.Inspect):
        from edged.model.inspect import inspect  # brings the onnx package, which the other jobs do without

        return inspect(Path(job.path))
    if isinstance(job, jobs.Check):
        registry.load(job.backend).check(Path(job.path))
        return jobs.Done()
    # The file is read by its path, now; a key says which content it must have had, before and after.
    require_same(job.order)
    answer = _make_golden(job) if isinstance(job, jobs.MakeGolden) else _engine(job)
    try:
        require_same(job.order)
    except Superseded:
        if isinstance(job, jobs.MakeGolden):
            Path(job.out).unlink(missing_ok=True)
        raise
    return answer


def _engine(job: jobs.Build | jobs.Verify) -> jobs.Built | jobs.Timed:
    return _build(job) if isinstance(job, jobs.Build) else _verify(job)


def _build(job: jobs.Build) -> jobs.Built:
    started = time.monotonic()
    _load(job).build(job.order, Path(job.out))
    seconds = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return jobs.Built(Artefact.seal(Path(job.out)), round(seconds, 3), round(peak, 1))


def _make_golden(job: jobs.MakeGolden) -> jobs.Done:
    session = registry.load(job.order.recipe.backend).open(job.order)
    samples = golden.make(session, job.order.signature, job.picture)
    golden.save(Path(job.out), samples)
    return jobs.Done()


def _verify(job: jobs.Verify) -> jobs.Timed:
    samples = golden.load(Path(job.golden))
    session = _load(job).open(job.order)
    pairs = ((sample.outputs, session.infer(sample.inputs)) for sample in samples)
    verdict = judge(pairs, TOLERANCES[job.order.recipe.precision])
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


def main() -> int:
    """`python -m edged.build.worker PARENT_PID MEMORY_MB`, the job on standard input.

    Exit status 0 with an answer on standard output, 3 with a Failure there; anything else is a crash."""
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    parent, memory_mb = (int(word) for word in sys.argv[1:])
    if not process.die_with_parent(parent):
        return 1
    process.restrain(memory_mb)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=jobs.Job)
    try:
        result, status = do(job), 0
    except errors.EdgedError as error:
        result, status = jobs.Failure(type(error).__name__, str(error)), 3
    except MemoryError:
        result, status = jobs.Failure("BuildFailed", "the child ran out of its memory limit; raise build.memory_mb"), 3
    answer.write(msgspec.json.encode(result))
    answer.flush()
    return status


if __name__ == "__main__":
    # Runtimes may crash or hang while their libraries unload; the answer is out, so nothing is lost by leaving now.
    status = main()
    sys.stderr.flush()
    os._exit(status)
