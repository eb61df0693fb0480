"""Trials of a model before it is served: children read it and run it on a runtime; what their ends mean, and the
outcomes on disk, so that a restart examines nothing again.

A child may crash, hang or grow: that is a finding at the stage that it had begun. Failures that say nothing about the
model (no process left, a full disk, a kill from outside) are raised as errors.

CACHE/admissions/DIGEST-KEY.json holds an outcome: the key is a digest of everything that it depends on besides the
model: the version of edged and of the runtime, the limits, and the inputs. CACHE/runtimes/BACKEND.json holds what a
runtime supports. A model that exceeded the limits is stored with the number of attempts; the caller says how many it
allows.
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
from edged.models.inspection import Footprint, Inspection
from edged.store import atomic, sealed
from edged.version import __version__

_ORDER = list(Stage)
# A runtime's vague refusals; a suspicion explains better what is wrong.
_VAGUE = (Category.REFUSED, Category.FAILED)


def first(*findings: Finding | None) -> Finding | None:
    """Return the finding of the earliest stage."""
    found = [finding for finding in findings if finding is not None]
    return min(found, key=lambda finding: _ORDER.index(finding.stage), default=None)


def decided(reference: Checked, suspicion: Finding | None) -> tuple[Finding | None, tuple[Finding, ...]]:
    """Return why the reference does not take a model, and warnings about one that it takes.

    A suspicion about operators, types or shapes explains a refusal; without a refusal it is a warning.
    """
    finding = reference.finding
    if suspicion is None:
        return finding, reference.warnings
    if finding is None:
        return None, (suspicion, *reference.warnings)
    return (suspicion if finding.category in _VAGUE else finding), reference.warnings


def memory(needs: Footprint, limits: AdmissionLimits, size_mb: float, box_mb: int) -> Finding | None:
    """Return a finding if a model cannot fit into memory, by its own declarations."""
    least_mb = needs.least / (1 << 20)
    what = f"tensor {needs.tensor[:100]!r} alone takes {_size(needs.largest)}"
    if needs.weights > needs.largest:
        what = f"its weights alone take {_size(needs.weights)}"
    if box_mb and least_mb > box_mb:
        message = (
            f"the model needs at least {_size(needs.least)} of memory, and this box has {_size(box_mb << 20)}: {what}"
        )
        remedy = "export it with smaller dimensions"
    elif least_mb > limits.most_mb(size_mb):
        most = limits.most_mb(size_mb)
        allowed = f"examining it may use {_size(most << 20)}"
        message = f"the model needs at least {_size(needs.least)} of memory, and {allowed}: {what}"
        remedy = _raise_memory(limits)
    else:
        return None
    node = needs.tensor if needs.largest >= needs.weights else ""
    return Finding(Stage.MEMORY, Category.TOO_MUCH_MEMORY, message, remedy, node)


def lost(error: ChildLost, stage: Stage, limits: AdmissionLimits, seconds: float, runtime: str) -> Finding:
    """Return the finding for a child that was lost at a stage; `runtime` is what it tried, empty for the reader."""
    where = _WHERE[stage].format(runtime=runtime or "edged")
    if error.how == "late":
        message = f"{where} did not end within {seconds:.3g} s"
        return Finding(
            stage, Category.TIMED_OUT, message, f"if it is only slow, raise {_named('seconds')}, now {limits.seconds:g}"
        )
    if error.how == "too large":
        return Finding(stage, Category.TOO_MUCH_MEMORY, f"{where} took more memory than it may", _raise_memory(limits))
    remedy = "see whether an update of the runtime takes it" if runtime else "export the model again"
    return Finding(stage, Category.CRASHED, f"{where} crashed: {error}", remedy)


def completed(finding: Finding | None, limits: AdmissionLimits) -> Finding | None:
    """Add the remedy that depends on the limits."""
    if finding is None or finding.category is not Category.TOO_MUCH_MEMORY or finding.has_own_remedy:
        return finding
    return msgspec.structs.replace(finding, remedy=_raise_memory(limits))


def stage_of(phase: str) -> Stage | None:
    """Return the stage that a progress phase names, if any."""
    return Stage(phase) if phase in _STAGES else None


def is_lasting(finding: Finding | None) -> bool:
    """Whether it would be found again: timeouts and lack of memory depend on the box's load."""
    return finding is None or finding.category not in (Category.TIMED_OUT, Category.TOO_MUCH_MEMORY)


def is_of_reader(finding: Finding) -> bool:
    """Whether a file itself, not its external data, took its reader beyond the limits."""
    return not is_lasting(finding) and finding.stage is not Stage.EXTERNAL_DATA


_STAGES = frozenset(stage.value for stage in Stage)
_WHERE: Mapping[Stage, str] = {
    Stage.FILE: "opening the file",
    Stage.PARSE: "parsing the model",
    Stage.GRAPH: "checking the graph",
    Stage.OPSET: "asking {runtime} for what it takes",
    Stage.OPERATORS: "asking {runtime} for its operators",
    Stage.EXTERNAL_DATA: "reading the external data",
    Stage.MEMORY: "estimating the memory",
    Stage.SESSION: "opening the model with {runtime}",
    Stage.INFERENCE: "running the model with {runtime}",
}


def _raise_memory(limits: AdmissionLimits) -> str:
    return f"if it really needs so much, raise {_named('memory_mb')}, now {limits.memory_mb}"


def _named(field: str) -> str:
    return f"admission.{field} (--{field.replace('_', '-')} of edged inspect)"


def _size(size: int) -> str:
    """Format bytes as `4 TiB`."""
    amount, units = float(size), ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    while amount >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{amount:.3g} {units[0]}"


_UNKNOWN = RuntimeSupport("", 0, 0, 0)  # of a runtime that ended before it reported anything
_STARVED = 8.0  # times as long again, for a child that others on the box do not let run
_HASHING_SECONDS = 3600.0  # the external data of a model are regular files of a known size, and disks are slow


class _Stages:
    """The stage that a child reports to be at."""

    def __init__(self, first: Stage) -> None:
        self.now = first

    def __call__(self, progress: jobs.Progress) -> None:
        self.now = stage_of(progress.phase) or self.now


async def read(path: Path, limits: AdmissionLimits) -> Inspection:
    """Inspect a model file. ModelRefused, with its finding, if it is not a model or crashes its reader."""
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

    EdgedError if the model is not the cause; Unsupported if the runtime cannot be loaded.
    """
    stages, granted = _Stages(Stage.OPSET), limits.of_runtime(size_mb)
    backend = job.order.recipe.backend
    try:
        found = await run(job, jobs.Checked, granted, on_progress=stages, patience=_patience(granted))
    except ChildLost as error:
        if error.how == "killed":
            raise
        finding = lost(error, stages.now, limits, granted.seconds, TITLES.get(backend, backend))
        return jobs.Checked(job.support or _UNKNOWN, finding)
    return msgspec.structs.replace(found, finding=completed(found.finding, limits))


def _patience(limits: Limits) -> Patience:
    """More time for a child that waits for a processor, and for hashing external data."""
    return Patience(limits.seconds * _STARVED, {Stage.EXTERNAL_DATA.value: _HASHING_SECONDS})


def _size_mb(path: Path) -> float:
    try:
        return path.stat().st_size / (1 << 20)
    except OSError:
        return 0.0


_FORMAT = 7  # of these files and of the checks in the stages
_MOST = 1000  # outcomes; the oldest belong to models that were refused and removed


class Unread(msgspec.Struct, frozen=True):
    """A file that took its reader beyond the limits, and how many times in a row."""

    finding: Finding
    tries: int


class Outcomes:
    """Reads and writes the files; an outcome that cannot be read or written is found out again."""

    def __init__(self, cache: Path) -> None:
        self._outcomes, self._runtimes = cache / "admissions", cache / "runtimes"
        for folder in (self._outcomes, self._runtimes):
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True, mode=0o750)
                atomic.sweep(folder)

    def known(self, job: Check, limits: AdmissionLimits) -> Checked | None:
        """Return the known outcome for this model and job."""
        place = self._place(job, limits)
        if place is None:
            return None
        return sealed.read(place, Checked, "admissions")

    def keep(self, job: Check, limits: AdmissionLimits, found: Checked) -> None:
        """Keep an outcome, and what the runtime supports."""
        backend = job.order.recipe.backend
        if found.support.version:
            self._write(self._runtimes / f"{backend}.json", sealed.seal(found.support))
        place = self._place(job, limits)
        if place is None:
            return
        # A child that was killed did not report which version it had loaded.
        if not is_lasting(found.finding) or registry.agree(found.support.version, _version(backend) or ""):
            self._write(place, sealed.seal(found))
            atomic.prune(self._outcomes, _MOST)

    def unread(self, graph: str, limits: AdmissionLimits) -> Unread | None:
        """Return how the reader of a file of that digest failed; None if it did not."""
        return sealed.read(self._unread_place(graph, limits), Unread, "admissions")

    def keep_unread(self, graph: str, limits: AdmissionLimits, unread: Unread) -> None:
        """Keep how the reader of a file failed."""
        self._write(self._unread_place(graph, limits), sealed.seal(unread))
        atomic.prune(self._outcomes, _MOST)

    def support(self, backend: str) -> RuntimeSupport | None:
        """Return what some version of a runtime supports, if known."""
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
        """Return the outcome's path; None if something that it depends on is unknown."""
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
        with contextlib.suppress(OSError):  # a full disk costs time at the next start, no more
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
