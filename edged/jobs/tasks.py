"""Runs the jobs of a one-shot child process."""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec

from edged.backends import registry
from edged.backends.artefact import Artefact
from edged.backends.contract import ONE_INSTANCE, Backend, Composition, Graphs, Order, Parallelism, Session, Signature
from edged.backends.profile import PREFIX
from edged.errors import EdgedError, EngineUnusable, InvalidInput, OutOfSpace, Superseded, Unsuitable
from edged.files import disk_fault, disk_fault_behind, read_through
from edged.ipc import job_messages as jobs
from edged.ipc.job_messages import FreeDims, Lower, Prove, Simplify
from edged.jobs import runtimes, timing, trial
from edged.jobs.precision import convert_order
from edged.models.identity import require_same
from edged.models.samples import is_tensors
from edged.store.record import Verdict
from edged.verification import golden, user_samples
from edged.verification.probes import USED, read_sample
from edged.verification.verify import Pair, judge, matcher_for

Report: TypeAlias = Callable[[jobs.Progress], None]

_PROBE = 64 << 10  # bytes written to test whether the disk is full


def do(job: jobs.Job, report: Report) -> msgspec.Struct:
    """Run one job in this process, and return its answer."""
    if isinstance(job, jobs.Inspect):
        from edged.jobs.inspect import inspect  # imports the onnx package

        return inspect(Path(job.path), lambda stage: report(jobs.Progress(stage.value)))
    if isinstance(job, jobs.Tokenize):
        from edged.jobs import tokenizer

        found = tokenizer.load(map(Path, job.files))
        return jobs.Tokenized(tuple(map(found.encode, job.texts)))
    if isinstance(job, (jobs.Recognise, jobs.LoadFamilies)):
        from edged.jobs import families

        return families.recognise(job, report) if isinstance(job, jobs.Recognise) else families.load(job, report)
    if isinstance(job, jobs.CheckSamples):
        for sample in map(Path, job.samples):
            if is_tensors(sample.name):
                user_samples.read_tensors(sample, job.signature)
            else:
                read_sample(sample)
        return jobs.Done()
    if isinstance(job, jobs.AskPicture):
        from edged.jobs.picture import ask  # imports the code that draws

        require_same(job.order)
        return ask(job)
    if isinstance(job, jobs.TryFamilies):
        from edged.jobs.try_families import try_families  # imports the code that draws

        require_same(job.order)
        return try_families(job)
    if isinstance(job, jobs.DrawFrames):
        from edged.jobs.judge_frames import draw  # imports the code that draws

        return draw(job)
    if isinstance(job, jobs.Sift):
        from edged.jobs import sift  # imports OpenCV

        return sift.sift(job)
    if isinstance(job, jobs.LoadRuntime):
        return runtimes.load(job)
    if isinstance(job, jobs.TryProvider):
        return runtimes.try_provider(job)
    if isinstance(job, jobs.ImportPackage):
        return runtimes.import_package(job)
    if isinstance(job, jobs.FinishExport | jobs.ExportLayers):
        from edged.jobs import exported  # imports the onnx package

        return exported.finish(job) if isinstance(job, jobs.FinishExport) else exported.layers(job)
    if isinstance(job, Lower | Prove | FreeDims | Simplify):
        return _repair(job)
    # Runtimes read the model by its path, so its digest is compared with the job's digest before and after.
    require_same(job.order)
    answer = _on_model(job, report)
    try:
        require_same(job.order)
    except Superseded:
        if isinstance(job, jobs.MakeGolden):
            Path(job.out).unlink(missing_ok=True)
        raise
    return answer


def _repair(job: Lower | Prove | FreeDims | Simplify) -> msgspec.Struct:
    from edged.jobs.repair import dims, lowering, proof, simplify  # import the onnx package

    if isinstance(job, Prove):
        return proof.prove(job)
    if isinstance(job, FreeDims):
        return dims.free(job)
    return simplify.simplify(job) if isinstance(job, Simplify) else lowering.write_lowered(job)


def _on_model(
    job: jobs.Check | jobs.MakeGolden | jobs.CompareLevels | jobs.Shadow | jobs.Build | jobs.Verify, report: Report
) -> msgspec.Struct:
    if isinstance(job, jobs.Check):
        return trial.attempt(job, registry.load(job.order.recipe.backend), report)
    if isinstance(job, jobs.Shadow):
        from edged.jobs.shadow import shadow  # imports the code that decodes pictures

        return shadow(job)
    if isinstance(job, jobs.MakeGolden):
        return _make_golden(job, report)
    if isinstance(job, jobs.CompareLevels):
        return _compare_levels(job, report)
    if isinstance(job, jobs.Build):
        return _build(job, report)
    if isinstance(job, jobs.Judge):
        from edged.jobs.judge_frames import judge as judge_frames  # imports the code that draws

        reference = registry.load(job.reference.recipe.backend)
        return judge_frames(job, _load(job).open(job.order), reference.open(job.reference), report)
    return _time(job, report) if isinstance(job, jobs.Time) else _verify(job, report)


def _build(job: jobs.Build, report: Report) -> jobs.Built:
    started = time.monotonic()
    backend, out = _load(job), Path(job.out)
    if job.order.recipe.precision in backend.converted_in_graph:
        # The folder is inside `out`, so that both are removed if this process is killed.
        with tempfile.TemporaryDirectory(prefix=".graph-", dir=out) as folder:
            report(jobs.Progress("converting"))
            order, converted = convert_order(job, Path(folder), report)
            made = _run(backend, order, out, report)
        made = msgspec.structs.replace(made, kept=converted.kept + made.kept, notes=converted.notes + made.notes)
    else:
        made = _run(backend, job.order, out, report)
    seconds = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return jobs.Built(Artefact.seal(out), round(seconds, 3), round(peak, 1), made)


def _run(backend: Backend, order: Order, out: Path, report: Report) -> Composition:
    report(jobs.Progress("building"))
    return backend.build(order, out, lambda fraction: report(jobs.Progress("building", fraction)), load_graphs)


def load_graphs() -> Graphs:
    """Return the module with which builders rewrite graphs. Imports the onnx package."""
    from edged.jobs import engine_graph

    return engine_graph


def _make_golden(job: jobs.MakeGolden, report: Report) -> jobs.MadeGolden:
    session, out = _load(job).open(job.order), Path(job.out)
    asking = partial(report, jobs.Progress("asking the reference"))
    made = golden.make(session, job.order.signature, job.recognition, job.samples, job.shape_range, asking)
    golden.save(out, made.samples, made.skipped)
    return jobs.MadeGolden(made.skipped)


def _compare_levels(job: jobs.CompareLevels, report: Report) -> jobs.ComparedLevels:
    """Compare each level of ONNX Runtime's graph optimisation with the unoptimised model.

    Optimisers fuse and fold nodes, which makes the answers of some models wrong. Raises EngineUnusable if the
    unoptimised model answers no probe.
    """
    from edged.backends.ort import session as ort_levels  # imports ONNX Runtime

    session = registry.load(job.order.recipe.backend).open(job.order)
    report(jobs.Progress("asking the reference"))
    asked = golden.make(session, job.order.signature, job.recognition, job.samples, job.shape_range)
    session.close()
    matcher = matcher_for(job.recognition, job.tolerance.box_score)
    found = []
    for number, level in enumerate(ort_levels.NAMES):
        report(jobs.Progress(f"comparing answers at optimisation level {level}", number / len(ort_levels.NAMES)))
        try:
            session = ort_levels.open_at(job.order, level)
            pairs = (Pair.of(sample, session.infer(sample.inputs)) for sample in asked.samples)
            verdict = judge(pairs, job.tolerance, matcher)
        except (EngineUnusable, InvalidInput) as error:
            verdict = Verdict(False, f"this level refuses probes that the unoptimised model answers: {error}", {})
        found.append(jobs.LevelVerdict(level, verdict))
    return jobs.ComparedLevels(tuple(found))


def _verify(job: jobs.Verify, report: Report) -> jobs.Verified:
    asked = golden.load(Path(job.golden))
    session = _load(job).open(job.order)
    pairs = (
        _pair(sample, session, job.order.signature, report) for sample in golden.deciding(asked.samples, job.arithmetic)
    )
    matcher = matcher_for(job.recognition, job.tolerance.box_score)
    # An engine in fp32 differs from the reference by rounding only, unless its runtime has a defect.
    verdict = judge(pairs, job.tolerance, matcher, needs_values=job.order.recipe.precision != "fp32")
    if asked.skipped:
        figures = verdict.figures | {"skipped_samples": float(len(asked.skipped))}
        verdict = msgspec.structs.replace(verdict, figures=figures)
    return jobs.Verified(verdict)


def _time(job: jobs.Time, report: Report) -> jobs.Timed:
    asked, backend = golden.load(Path(job.golden)), _load(job)
    sample, matcher = _typical(asked.samples), matcher_for(job.recognition, job.tolerance.box_score)

    def open_form(form: Parallelism) -> Session:
        report(jobs.Progress("timing"))
        if job.order.recipe.is_reference and form == ONE_INSTANCE:
            return reference  # memory may be too small for two copies of a large model
        return backend.open(msgspec.structs.replace(job.order, parallelism=form))

    def is_right(session: Session) -> bool:
        """Whether the session's answer is within the tolerance. A session with another number of threads sums numbers
        in another order, so its answer may differ from the verified answer."""
        return judge([_pair(sample, session, job.order.signature, report)], job.tolerance, matcher).accepted

    reference = registry.load(job.reference.recipe.backend).open(job.reference)
    forms = timing.parallelisms(job.order, timing.cores()) if job.with_instances else (ONE_INSTANCE,)
    on_round = partial(report, jobs.Progress("timing"))
    return timing.measure(open_form, forms, reference, sample.inputs, is_right, on_round=on_round)


def _pair(sample: golden.Sample, session: Session, signature: Signature, report: Report) -> Pair:
    report(jobs.Progress("verifying"))
    try:
        answer = session.infer(sample.inputs)
    except InvalidInput as error:  # a rebuilt engine would refuse these shapes too
        asked = ", ".join(f"{name} {'x'.join(map(str, array.shape))}" for name, array in sample.inputs.items())
        where = " and ".join(PREFIX + spec.name for spec in signature.inputs if not spec.is_static)
        advice = f"; change {where} to accept these shapes" if where else ""
        raise Unsuitable(f"the engine refuses shapes that the reference accepts, {asked}: {error}{advice}") from error
    return Pair.of(sample, answer)


def _typical(samples: Sequence[golden.Sample]) -> golden.Sample:
    """Return the sample for timing. It is the first sample with values as in real requests (`USED`), because the time
    may depend on the values. If there is no such sample, return the first sample."""
    return next((sample for sample in samples if sample.kind in USED), samples[0])


def _load(job: jobs.Build | jobs.Verify | jobs.MakeGolden) -> Backend:
    """Load the backend. Raises Superseded if the daemon planned the job with another version."""
    backend = registry.load(job.order.recipe.backend)
    expected = job.expects if isinstance(job.expects, tuple) else tuple(filter(None, (job.expects,)))
    if expected and not any(registry.agree(backend.version(), each) for each in expected):
        known = " or ".join(expected)
        raise Superseded(f"{backend.name} is now version {backend.version()}, not {known}: its libraries changed")
    return backend


def find_disk_fault(job: msgspec.Struct, error: BaseException) -> OutOfSpace | None:
    """Return the disk fault that caused an error; None if no disk fault is found.

    The disk is tested, because most runtimes report a file that they cannot read or write as an error of the model.
    """
    if (behind := disk_fault_behind(_place(job), error)) is not None:
        return behind
    try:
        if isinstance(error, EdgedError):
            require_disk(job)
    except OutOfSpace as found:
        return found
    return None


def require_disk(job: msgspec.Struct) -> None:
    """Raise OutOfSpace if the disk that a job writes to is full or faulty, or if its model cannot be read."""
    try:
        if getattr(job, "out", ""):
            with tempfile.TemporaryFile(dir=_place(job)) as file:
                file.write(bytes(_PROBE))
                file.flush()
                os.fsync(file.fileno())
        read_through(Path(getattr(job, "path", "") or getattr(getattr(job, "order", None), "model", "")))
    except OSError as error:
        if (found := disk_fault(_place(job), error)) is not None:
            raise found from error


def _place(job: msgspec.Struct) -> Path:
    """Return the folder that a job writes to, or, if the job writes no files, the folder of its model."""
    out = Path(getattr(job, "out", ""))
    if str(out) != ".":
        return out if out.is_dir() else out.parent
    return Path(getattr(job, "path", "") or getattr(getattr(job, "order", None), "model", "")).parent
