"""Trials of a model before it is served: children read the model and run it on a runtime. This module interprets how
the children end, and caches the outcomes on disk, so that a restart does not repeat trials.

If a child crashes, hangs or takes too much memory, this is a finding at the stage that the child had reached. Failures
that the model did not cause (no process left, a full disk, a kill from outside) are raised as errors.

CACHE/admissions/DIGEST-KEY.json contains one outcome. DIGEST is that of the model. KEY is a digest of everything else
on which the outcome depends: the versions of edged and of the runtime, the limits, and the inputs. If the model
exceeded the limits, the outcome has the number of attempts. The caller decides how many to allow.
CACHE/runtimes/BACKEND.json contains the ONNX versions that a runtime supports.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from edged.backends import registry
from edged.backends.registry import TITLES
from edged.config.child_limits import AdmissionLimits, Limits
from edged.device import runtimes
from edged.device.root import Root
from edged.engines.child import ChildLost, run
from edged.engines.child_watch import Patience
from edged.files import read_regular
from edged.ipc import job_messages as jobs
from edged.ipc.job_messages import Check, Checked, RuntimeSupport
from edged.models.finding import Category, Finding, Stage
from edged.models.identity import require_same
from edged.models.inspection import Footprint, Inspection
from edged.store import atomic, sealed
from edged.version import __version__

_ORDER = list(Stage)
# Categories of vague refusals by a runtime. If edged's own checks have a suspicion, it explains the cause better.
_VAGUE = (Category.REFUSED, Category.FAILED)


def first(*findings: Finding | None) -> Finding | None:
    """Return the finding of the earliest stage; None if there is no finding."""
    found = [finding for finding in findings if finding is not None]
    return min(found, key=lambda finding: _ORDER.index(finding.stage), default=None)


def decided(reference: Checked, suspicion: Finding | None) -> tuple[Finding | None, tuple[Finding, ...]]:
    """Return the finding that says why the reference refuses a model (None if the reference accepts the model), and the
    warnings.

    `suspicion` is a finding of edged's own checks about operators, types or shapes. It replaces a vague refusal. If the
    reference accepts the model, the suspicion becomes a warning.
    """
    finding = reference.finding
    if suspicion is None:
        return finding, reference.warnings
    if finding is None:
        return None, (suspicion, *reference.warnings)
    return (suspicion if finding.category in _VAGUE else finding), reference.warnings


def memory(needs: Footprint, limits: AdmissionLimits, size_mb: float, box_mb: int) -> Finding | None:
    """Return a finding if the tensors that a model declares cannot fit into memory; otherwise None."""
    least_mb = needs.least / (1 << 20)
    what = f"tensor {needs.tensor[:100]!r} alone takes {_size(needs.largest)}"
    if needs.weights > needs.largest:
        what = f"its weights alone take {_size(needs.weights)}"
    if box_mb and least_mb > box_mb:
        message = (
            f"the model needs at least {_size(needs.least)} of memory, and this box has {_size(box_mb << 20)}: {what}"
        )
        remedy = "export the model with smaller dimensions"
    elif least_mb > limits.most_mb(size_mb):
        most = limits.most_mb(size_mb)
        allowed = f"its examination may use only {_size(most << 20)}"
        message = f"the model needs at least {_size(needs.least)} of memory, and {allowed}: {what}"
        remedy = _raise_memory(limits)
    else:
        return None
    node = needs.tensor if needs.largest >= needs.weights else ""
    return Finding(Stage.MEMORY, Category.TOO_MUCH_MEMORY, message, remedy, node)


def lost(
    error: ChildLost, stage: Stage, limits: AdmissionLimits, seconds: float, runtime: str, family: str = ""
) -> Finding:
    """Return the finding for a child that was lost at a stage. `seconds` is the child's time limit. `runtime` is the
    runtime's name; empty for the child that only reads the model. If code of another package also ran in the child,
    `family` names the model family and the package of this code; otherwise `family` is empty."""
    where = _WHERE[stage].format(runtime=runtime or "edged")
    if family and stage is Stage.INFERENCE:
        where = f"{where} and reading its outputs with {family}"
    if error.how == "late":
        message = f"{where} did not end within {seconds:.3g} s"
        return Finding(
            stage,
            Category.TIMED_OUT,
            message,
            f"if the model is only slow, raise {_named('seconds')}, now {limits.seconds:g} s",
        )
    if error.how == "too large":
        return Finding(stage, Category.TOO_MUCH_MEMORY, f"{where} used more memory than allowed", _raise_memory(limits))
    remedy = "try a newer version of the runtime" if runtime else "export the model again"
    remedy = f"{remedy}, or set family=raw" if family else remedy
    return Finding(stage, Category.CRASHED, f"{where} crashed: {error}", remedy)


def completed(finding: Finding | None, limits: AdmissionLimits) -> Finding | None:
    """Return the finding. If it is about memory and has only the default remedy of its category, replace this remedy by
    one that names the memory limit."""
    if finding is None or finding.category is not Category.TOO_MUCH_MEMORY or finding.has_own_remedy:
        return finding
    return msgspec.structs.replace(finding, remedy=_raise_memory(limits))


def stage_of(phase: str) -> Stage | None:
    """Return the stage that a progress phase names; None if it names no stage."""
    return Stage(phase) if phase in _STAGES else None


def is_lasting(finding: Finding | None) -> bool:
    """Whether another trial would have the same outcome. Timeouts and lack of memory depend on the box's load."""
    return finding is None or finding.category not in (Category.TIMED_OUT, Category.TOO_MUCH_MEMORY)


def is_of_reader(finding: Finding) -> bool:
    """Whether the reader exceeded its limits because of the model file itself, not its external data."""
    return not is_lasting(finding) and finding.stage is not Stage.EXTERNAL_DATA


_STAGES = frozenset(stage.value for stage in Stage)
_WHERE: Mapping[Stage, str] = {
    Stage.FILE: "opening the file",
    Stage.PARSE: "parsing the model",
    Stage.GRAPH: "checking the graph",
    Stage.OPSET: "asking {runtime} which versions it supports",
    Stage.OPERATORS: "asking {runtime} for its operators",
    Stage.EXTERNAL_DATA: "reading the external data",
    Stage.MEMORY: "estimating the memory",
    Stage.SESSION: "opening the model with {runtime}",
    Stage.INFERENCE: "running the model with {runtime}",
}


def _raise_memory(limits: AdmissionLimits) -> str:
    return f"if the model really needs so much, raise {_named('memory_mb')}, now {limits.memory_mb} MiB"


def _named(field: str) -> str:
    return f"admission.{field} (--{field.replace('_', '-')} of edged inspect)"


def _size(size: int) -> str:
    """Format bytes as `4 TiB`."""
    amount, units = float(size), ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    while amount >= 1000 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{amount:.3g} {units[0]}"


_UNKNOWN = RuntimeSupport("", 0, 0, 0)  # of a runtime that ended before it reported anything
_STARVED = 8.0  # a child that waits for a processor gets up to this many times the limit as extra time
_HASHING_SECONDS = 3600.0  # extra time to hash the external data of a model: its size is known, and disks are slow


class _Stages:
    """Keeps the stage that a child last reported. An instance can be called with a progress message."""

    def __init__(self, first: Stage) -> None:
        self.now = first

    def __call__(self, progress: jobs.Progress) -> None:
        self.now = stage_of(progress.phase) or self.now


async def read(path: Path, limits: AdmissionLimits) -> Inspection:
    """Inspect a model file. Raises ModelRefused with a finding if it is not a model, or if its reader crashes or
    exceeds a limit."""
    stages, granted = _Stages(Stage.FILE), limits.of_reader(await asyncio.to_thread(_size_mb, path))
    try:
        job = jobs.Inspect(str(path))
        return await run(job, Inspection, granted, on_progress=stages, patience=_patience(granted))
    except ChildLost as error:
        if error.how == "killed":
            raise
        raise lost(error, stages.now, limits, granted.seconds, "").refusal() from error


async def attempt(job: jobs.Check, limits: AdmissionLimits, size_mb: float) -> jobs.Checked:
    """Try a model on a runtime.

    Raises Unsupported if the runtime cannot be loaded, and Superseded if the model was replaced or removed meanwhile.
    Raises another EdgedError if the trial fails for a reason other than the model.
    """
    stages, granted = _Stages(Stage.OPSET), limits.of_runtime(size_mb)
    backend = job.order.recipe.backend
    try:
        found = await run(job, jobs.Checked, granted, on_progress=stages, patience=_patience(granted))
    except ChildLost as error:
        if error.how == "killed":
            raise
        await asyncio.to_thread(require_same, job.order)  # the child may have crashed because the file was overwritten
        family = job.recognition.other_family if job.recognition is not None else ""
        finding = lost(error, stages.now, limits, granted.seconds, TITLES.get(backend, backend), family)
        return jobs.Checked(job.support or _UNKNOWN, finding)
    return msgspec.structs.replace(found, finding=completed(found.finding, limits))


def _patience(limits: Limits) -> Patience:
    """Return extra time for waiting for a processor and for hashing external data."""
    return Patience(limits.seconds * _STARVED, {Stage.EXTERNAL_DATA.value: _HASHING_SECONDS})


def _size_mb(path: Path) -> float:
    try:
        return path.stat().st_size / (1 << 20)
    except OSError:
        return 0.0


_FORMAT = 8  # of these files and of the checks in `edged.jobs.trial`; raise it if either changes
_MOST = 1000  # outcomes; the oldest belong to models that were refused and removed


class Unread(msgspec.Struct, frozen=True):
    """A model file whose reader exceeded its limits: the finding, and the number of attempts in a row."""

    finding: Finding
    tries: int


class Outcomes:
    """Reads and writes the cached outcomes. If a file cannot be read or written, the trial is repeated later."""

    def __init__(self, cache: Path) -> None:
        self._outcomes, self._runtimes = cache / "admissions", cache / "runtimes"
        for folder in (self._outcomes, self._runtimes):
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True, mode=0o750)
                atomic.sweep(folder)

    def known(self, job: Check, limits: AdmissionLimits) -> Checked | None:
        """Return the cached outcome for this model and job; None if no outcome is cached."""
        place = self._place(job, limits)
        if place is None:
            return None
        return sealed.read(place, Checked, "admissions")

    def keep(self, job: Check, limits: AdmissionLimits, found: Checked) -> None:
        """Store an outcome, and the ONNX versions that the runtime supports."""
        backend = job.order.recipe.backend
        if found.support.version:
            self._write(self._runtimes / f"{backend}.json", sealed.seal(found.support))
        place = self._place(job, limits)
        if place is None:
            return
        # A child that exceeded a limit may not have reported the loaded version. Its outcome is stored nevertheless.
        if not is_lasting(found.finding) or registry.agree(found.support.version, _version(backend) or ""):
            self._write(place, sealed.seal(found))
            atomic.prune(self._outcomes, _MOST)

    def unread(self, graph: str, limits: AdmissionLimits) -> Unread | None:
        """Return how the reader of the file with digest `graph` exceeded its limits; None if it did not."""
        return sealed.read(self._unread_place(graph, limits), Unread, "admissions")

    def keep_unread(self, graph: str, limits: AdmissionLimits, unread: Unread) -> None:
        """Store how the reader of the file with digest `graph` exceeded its limits."""
        self._write(self._unread_place(graph, limits), sealed.seal(unread))
        atomic.prune(self._outcomes, _MOST)

    def support(self, backend: str) -> RuntimeSupport | None:
        """Return the last stored opset and IR version that the runtime supports, perhaps of another version of the
        runtime; None if unknown."""
        return sealed.read(self._runtimes / f"{backend}.json", RuntimeSupport, "runtimes")

    def forget(self, digest: str) -> None:
        """Remove the outcomes of a removed model."""
        for place in self._outcomes.glob(f"{digest}-*.json"):
            with contextlib.suppress(OSError):
                place.unlink()

    def _unread_place(self, graph: str, limits: AdmissionLimits) -> Path:
        parts = "\0".join((str(_FORMAT), __version__, msgspec.json.encode(limits).decode()))
        return self._outcomes / f"{graph}-unread-{hashlib.sha256(parts.encode()).hexdigest()[:16]}.json"

    def _place(self, job: Check, limits: AdmissionLimits) -> Path | None:
        """Return the path of an outcome; None if the model's digest or the runtime's version is unknown."""
        version = _version(job.order.recipe.backend)
        if not job.order.digest or version is None:
            return None
        order = msgspec.structs.replace(job.order, model="")
        asked = msgspec.structs.replace(job, support=None, order=order, given=dict.fromkeys(job.given, ""))
        parts = [str(_FORMAT), __version__, version, *(msgspec.json.encode(part).decode() for part in (limits, asked))]
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        return self._outcomes / f"{job.order.digest}-{key[:16]}.json"

    @staticmethod
    def _write(place: Path, content: bytes) -> None:
        with contextlib.suppress(OSError):  # without the cache, the next start only takes longer
            if not _holds(place, content):
                place.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
                atomic.write_file(place, content)


def _holds(place: Path, content: bytes) -> bool:
    try:
        return read_regular(place) == content
    except OSError:  # missing, or not a regular file
        return False


def _version(backend: str) -> str | None:
    """Return the version of the installed runtime; None if unknown."""
    return registry.version(backend, runtimes.probe(Root()))
