"""Builds, verifies and tries engines, each step in a child, and commits the outcome to the store."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Set
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec

from edged.backends import registry
from edged.backends.artefact import Artefact
from edged.backends.contract import REFERENCE, Composition, Effort, Recipe
from edged.config.child_limits import AdmissionLimits, Limits
from edged.engines import child_watch, judging, trials
from edged.engines.child import ChildLost, run
from edged.engines.child_watch import Patience
from edged.engines.desired import reference_recipe
from edged.engines.families import Families
from edged.engines.trials import Outcomes, Unread
from edged.errors import (
    BuildFailed,
    EdgedError,
    EngineUnusable,
    ModelRefused,
    OutOfSpace,
    Refused,
    Unsupported,
    WrongAnswers,
)
from edged.files import disk_fault, unwritable
from edged.ipc import job_messages as jobs
from edged.models.entries import ModelEntry
from edged.models.finding import Finding
from edged.models.identity import file_digest
from edged.models.inspection import Inspection, too_large
from edged.models.model import Model
from edged.models.settings import repair_seconds
from edged.store import atomic, sealed
from edged.store.judgement import Judgement
from edged.store.key import EngineKey
from edged.store.record import Blocks, BuildFacts, EngineRecord, Verdict
from edged.store.sealed import Later, at_once
from edged.store.store import Store
from edged.tasks import in_thread
from edged.verification import user_samples
from edged.verification.golden import SUFFIX, Sample, is_whole, prune
from edged.verification.golden import load as load_golden
from edged.verification.shape_range import ShapeRange
from edged.verification.standard import Standard, coarser, tolerance, tolerance_of
from edged.version import __version__

_LOG = logging.getLogger("edged.engines")
_DEFAULT_ADMISSION = AdmissionLimits()
_LEAST = 1 << 20  # free bytes below which a disk counts as full
_READ_FORMAT = 8  # of cached inspections; raise it when `edged.jobs.inspect`, or a check that it calls, changes
_REPAIR_SHARE, _REPAIRED_BY = 0.5, 0.75  # shares of a build's time limit: longest int8 repair; its latest end
_KEPT = 1000  # cached inspections; if there are more, the oldest are deleted (of models that were refused and removed)

OnProgress: TypeAlias = Callable[[jobs.Progress], None]
# Frees disk space until the given number of bytes may be written. Returns the most bytes that may be written, 0 for no
# limit. Raises OutOfSpace if the bytes cannot fit.
Reserve: TypeAlias = Callable[[int], Awaitable[int]]


async def no_limit(need: int) -> int:
    """A `Reserve` that frees nothing, for a store without a budget."""
    return 0


class Task(msgspec.Struct, frozen=True):
    """An engine to make for a model. `effort`: how hard the build tries; it is lower after failures. `is_timed`:
    whether to time the engine once it is accepted."""

    model: Model
    recipe: Recipe
    key: EngineKey
    effort: Effort = "full"
    is_timed: bool = True


_UNKNOWN = Verdict(False, "not verified yet", {})


class Builder:
    """Runs the children that make engines, and caches golden answers (the reference's answers to test inputs),
    inspections and admission outcomes of models.

    `admission` has the limits of the children that examine models before the models are served.
    """

    def __init__(
        self,
        store: Store,
        cache: Path,
        limits: Limits,
        admission: AdmissionLimits = _DEFAULT_ADMISSION,
        later: Later = at_once,
        families: Iterable[str] = (),
        facts: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`later` runs deletions in the background. `families` are the families of other packages that models may
        use. `facts` returns the facts of the device for which engines are planned."""
        self._later, self.facts = later, facts
        self._store, self._limits, self.admission = store, limits, admission
        self._outcomes = Outcomes(cache.absolute())
        self.families = Families(cache.absolute(), families)
        self._golden, self._inspections = cache.absolute() / "golden", cache.absolute() / "inspections"
        self._trials: dict[str, float] = {}  # seconds of the reference's trial at admission, by model digest
        self._timings = cache.absolute() / "timings"  # timing caches of builders for this device
        # A command may use the daemon's cache at the same time, so unfinished golden answers belong to the process that
        # makes them.
        self._unfinished = atomic.Staging(cache.absolute() / "unfinished")
        for folder in (self._golden, self._inspections, self._timings, self._unfinished.root):
            with contextlib.suppress(OSError):  # without the cache, reading models takes longer
                folder.mkdir(parents=True, exist_ok=True, mode=0o750)
                atomic.sweep(folder)
        with contextlib.suppress(OSError):
            self._unfinished.sweep()

    def reconfigure(self, limits: Limits, admission: AdmissionLimits | None = None) -> None:
        """Apply new limits to children that start from now on."""
        self._limits, self.admission = limits, admission or self.admission

    async def inspect(self, path: Path, tries: int = 1) -> Inspection:
        """Inspect a model file. If the model cannot be served, the result's `finding` says why.

        Raises ModelRefused with a finding if the file is not a model, or if the child that reads it crashes or exceeds
        the limits. After `tries` attempts in a row that exceeded the limits, the file is not read again. Attempts
        before a restart of the daemon count too.
        """
        path = path.absolute()
        graph, known = await asyncio.to_thread(self._known, path)
        if known is not None:
            return known
        unread = await asyncio.to_thread(self._outcomes.unread, graph, self.admission) if graph else None
        if unread is not None and unread.tries >= tries:
            raise unread.finding.refusal()
        try:
            inspection = await trials.read(path, self.admission)
        except ModelRefused as error:
            finding = Finding.of(error)
            if graph and finding is not None and trials.is_of_reader(finding):
                now = Unread(finding, 1 + (unread.tries if unread is not None else 0))
                await asyncio.to_thread(self._outcomes.keep_unread, graph, self.admission, now)
            raise
        if not inspection.external:  # models with external data are not cached, see `_known`
            with contextlib.suppress(OSError):  # without the cache, the next start only takes longer
                await asyncio.to_thread(self._keep, inspection)
        return inspection

    async def model(self, entry: ModelEntry, inspection: Inspection) -> Model:
        """Combine entry and inspection into a model. Raises the errors of `Model.of` and `Families.recognise`."""
        recognition = None
        if not entry.problem and inspection.finding is None:
            recognition = await self.families.recognise(inspection, entry.settings)
        return Model.of(entry, inspection, recognition)

    async def check(self, job: jobs.Check, size_mb: float, tries: int = 1) -> jobs.Checked | str:
        """Try a model of `size_mb` MiB on a runtime, unless the outcome is cached. Return the outcome, or a text that
        says why the runtime cannot be loaded.

        If the model exceeds the limits, it is tried at most `tries` times in a row. Raises EdgedError if the trial has
        no outcome.
        """
        known = await asyncio.to_thread(self._outcomes.known, job, self.admission)
        before = known.tries if known is not None and not trials.is_lasting(known.finding) else 0
        if known is not None and not 0 < before < tries:
            return self._noted(job, known)
        support = await asyncio.to_thread(self._outcomes.support, job.order.recipe.backend)
        job = msgspec.structs.replace(job, support=support)
        try:
            found = await trials.attempt(job, self.admission, size_mb)
        except Unsupported as error:
            return str(error)
        found = msgspec.structs.replace(found, tries=before + 1)
        await asyncio.to_thread(self._outcomes.keep, job, self.admission, found)
        return self._noted(job, found)

    def _noted(self, job: jobs.Check, found: jobs.Checked) -> jobs.Checked:
        if job.order.recipe.is_reference and found.seconds:
            self._trials[job.order.digest] = found.seconds
        return found

    async def ask_reference(self, model: Model) -> None:
        """Make a model's golden answers (the reference's answers to test inputs), unless they exist. Several engines of
        the model can then use them at the same time."""
        async with self._storing():
            await self._reference(model, REFERENCE, lambda progress: None)

    async def make(self, task: Task, on_progress: OnProgress, reserve: Reserve) -> EngineRecord:
        """Build, verify and time an engine. Commit the outcome, accepted or rejected, and return the engine's record.

        If the new engine is rejected and the store has an accepted engine with this key, the accepted engine stays. If
        an error is raised, no outcome is stored, and the temporary files are removed.
        """
        async with self._storing(), in_thread(self._store.stage) as out, self._storing():
            started, begun, model, recipe = time.time(), time.monotonic(), task.model, task.recipe
            artefact, composition, seconds, peak = None, Composition(), 0.0, 0.0
            reference = await self._reference(model, recipe, on_progress)
            if not recipe.is_reference:
                built = await self._build(task, out, on_progress, reserve)
                artefact, seconds, peak = built.artefact, built.seconds, built.peak_memory_mb
                composition = built.composition
            files = artefact.files if artefact is not None else {}
            facts = BuildFacts(started, seconds, peak, __version__, effort=task.effort)
            record = EngineRecord(task.key.parts, model.name, recipe, files, facts, _UNKNOWN, composition=composition)
            record = await self._judge(record, task, artefact, reference, on_progress)
            facts = msgspec.structs.replace(facts, total_s=round(time.monotonic() - begun, 3))
            files = files if record.verdict.accepted else {}
            record = msgspec.structs.replace(record, files=files, build=facts)
            await self._commit(out, record, reserve)
            return record

    async def make_ahead(
        self, task: Task, device: str, capability: str, on_progress: OnProgress, reserve: Reserve
    ) -> EngineRecord:
        """Build an engine for a GPU with this compute capability, and commit it. The box itself needs no such GPU.

        The engine's answers cannot be compared here, so the engine serves only after it was verified on the device for
        which it is built. Raises Refused if the store already has an accepted engine with this key.
        """
        async with self._storing(), in_thread(self._store.stage) as out, self._storing():
            await asyncio.to_thread(self._require_none, task.key.digest)
            started, begun = time.time(), time.monotonic()
            built = await self._build(task, out, on_progress, reserve, capability)
            seconds = round(time.monotonic() - begun, 3)
            facts = BuildFacts(started, built.seconds, built.peak_memory_mb, __version__, seconds, task.effort)
            verdict = Verdict(False, f"built ahead for {device}; the engine is verified there before it serves", {})
            record = EngineRecord(
                *(task.key.parts, task.model.name, task.recipe, built.artefact.files, facts, verdict),
                ahead=device,
                composition=built.composition,
            )
            await reserve(record.size)
            await asyncio.to_thread(self._require_none, task.key.digest)
            await asyncio.to_thread(self._store.commit, out, record)
            return record

    async def verify(self, task: Task, on_progress: OnProgress) -> EngineRecord:
        """Verify and time a stored engine again, and update its record. If the engine is rejected, its files are
        removed. Returns the record.

        Raises KeyError if the store does not have the engine.
        """
        async with self._storing():
            digest = task.key.digest
            record = self._store.records()[digest]
            reference = await self._reference(task.model, task.recipe, on_progress)
            artefact = None if task.recipe.is_reference else self._store.artefact(digest)
            record = await self._judge(record, task, artefact, reference, on_progress)
            write = self._store.amend if record.verdict.accepted else self._store.strip
            await asyncio.to_thread(write, record)  # waits for the disk
            return self._store.records()[digest]

    async def adopt(self, task: Task, source: str, on_progress: OnProgress, reserve: Reserve) -> EngineRecord:
        """Test whether the files of the stored engine `source` also work as the engine of this task. The engine
        `source` was built in advance on another box, or for another driver.

        If the answers are right, commit the files under the new key as well, and return the record. If the answers are
        wrong, raise WrongAnswers. After any error, the caller builds the engine instead. Raises KeyError if the store
        has no engine `source`.
        """
        async with self._storing(), in_thread(self._store.stage) as out, self._storing():
            old, artefact = self._store.records()[source], self._store.artefact(source)
            reference = await self._reference(task.model, task.recipe, on_progress)
            about = {"parts": task.key.parts, "recipe": task.recipe, "model": task.model.name, "adopted_from": source}
            record = await self._judge(msgspec.structs.replace(old, **about), task, artefact, reference, on_progress)
            if not record.verdict.accepted:
                raise WrongAnswers(record.verdict.reason)
            await asyncio.to_thread(_share, artefact, out)
            await self._commit(out, record, reserve)
            return record

    async def take_over(
        self, task: Task, fetch: Callable[[Path], Awaitable[EngineRecord]], on_progress: OnProgress, reserve: Reserve
    ) -> EngineRecord:
        """Verify and time an engine that another box built. If its answers are right, commit it and return its record;
        otherwise raise WrongAnswers. `fetch` writes the engine's files into a folder and returns the record of the
        other box. Raises the errors of `fetch` too."""
        async with self._storing(), in_thread(self._store.stage) as out, self._storing():
            on_progress(jobs.Progress("fetching"))
            fetched = await fetch(out)
            reference = await self._reference(task.model, task.recipe, on_progress)
            record = msgspec.structs.replace(fetched, model=task.model.name)
            record = await self._judge(record, task, Artefact(str(out), record.files), reference, on_progress)
            if not record.verdict.accepted:
                raise WrongAnswers(record.verdict.reason)
            await self._commit(out, record, reserve)
            return record

    def forget(self, digest: str) -> None:
        """Remove the cached inspection, golden answers and admission outcomes of a removed model, in the background."""
        self._later(partial(self._forget, digest))

    def _forget(self, digest: str) -> None:
        self._outcomes.forget(digest)
        self.families.forget(digest)
        self._trials.pop(digest, None)
        for place in (*self._golden.glob(f"{digest}*{SUFFIX}"), *self._inspections.glob(f"{digest}-*.json")):
            with contextlib.suppress(OSError):
                place.unlink()

    def forget_others(self, needed: Set[str]) -> None:
        """Remove the cached files of models that were removed while no daemon ran. A model counts as removed if it has
        golden answers, its digest is not in `needed`, and the store has no engine of it. The cached files of a removed
        model without golden answers stay, because these files are small and their number is limited."""
        self._later(partial(self._forget_others, frozenset(needed)))

    def _forget_others(self, needed: Set[str]) -> None:
        cached = {place.name.removesuffix(SUFFIX).partition("-")[0] for place in self._golden.glob(f"*{SUFFIX}")}
        built = {record.parts.get("model", "") for record in self._store.records().values()}
        for digest in filter(None, cached - needed - built):
            self._forget(digest)

    def recorded(self, model: Model) -> list[Sample]:
        """Read a model's golden inputs with the reference's answers from disk. Return an empty list if the file is
        missing or damaged."""
        place = self._golden / f"{Standard.of(model, REFERENCE.precision, self.facts()).golden}.golden"
        try:
            return load_golden(place).samples if place.exists() else []
        except BuildFailed:  # the golden answers are made again at the next verification
            return []

    def expected_seconds(self, task: Task) -> float | None:
        """Estimate the seconds for making an engine. If the store has an engine of this model and backend, return the
        seconds that making the newest one took. Otherwise return the mean of all engines of the backend. Return None if
        the store has no engine of the backend."""
        kin = [
            record
            for record in self._store.records().values()
            if record.recipe.backend == task.recipe.backend and record.build.total_s and not record.recipe.is_reference
        ]
        own = [record for record in kin if record.parts.get("model") == task.model.digest]
        if own:
            return max(own, key=lambda record: record.build.created_unix_s).build.total_s
        return sum(record.build.total_s for record in kin) / len(kin) if kin else None

    async def _build(
        self, task: Task, out: Path, on_progress: OnProgress, reserve: Reserve, capability: str = ""
    ) -> jobs.Built:
        on_progress(jobs.Progress("building"))
        model = task.model
        limits = self._within(await reserve(self._estimate(model, task.recipe)))
        order = model.order(task.recipe, effort=task.effort)
        order = msgspec.structs.replace(order, capability=capability, timings=str(self.timings(task, capability)))
        job = jobs.Build(order, str(out), model.recognition, model.samples, _version(task))
        if task.recipe.precision == "int8":
            settings = model.entry.settings
            job = msgspec.structs.replace(
                job,
                tolerance=tolerance_of(model, "int8"),
                collected=user_samples.calibration_frames(model.collected),
                repair_s=min(repair_seconds(settings), _REPAIR_SHARE * limits.seconds),
                repairs_until_s=_REPAIRED_BY * limits.seconds,
            )
        return await run(
            job, jobs.Built, limits, on_progress=on_progress, patience=self._patience(model, task.recipe.backend)
        )

    def timings(self, task: Task, capability: str = "") -> Path:
        """Return the path of the timing cache of a backend that times kernels (TensorRT). Devices of the same kind
        share a cache."""
        return self._timings / f"{task.recipe.backend}-{capability or task.key.generation}"

    def _patience(self, model: Model, backend: str) -> Patience:
        return child_watch.patience(model, backend, self._trials.get(model.digest, 0.0), self._limits)

    def _require_none(self, digest: str) -> None:
        stored = self._store.read(digest)  # another process may have built the engine meanwhile
        if stored is not None and stored.is_usable:
            raise Refused(
                f"{self._store.root} already has the verified engine {digest[:12]}, which an unverified build must not"
                " replace; use a different --cache"
            )

    async def _judge(
        self,
        record: EngineRecord,
        task: Task,
        artefact: Artefact | None,
        reference: tuple[Path, Standard],
        on_progress: OnProgress,
    ) -> EngineRecord:
        """Verify an engine, judge it on camera frames if frames were collected for the model, and time it if it is
        accepted. Return `record` with the outcome."""
        golden, standard = reference
        on_progress(jobs.Progress("verifying"))
        model = task.model
        job = jobs.Verify(
            model.order(task.recipe, artefact),
            str(golden),
            model.order(reference_recipe(model.entry.settings)),
            standard.tolerance,
            model.recognition,
            _version(task),
            coarser(task.recipe.precision, model.inspection.arithmetic),
        )
        patience = self._patience(model, REFERENCE.backend)
        found = await run(job, jobs.Verified, self._limits, on_progress=on_progress, patience=patience)
        verdict, judgement = found.verdict, None
        if verdict.accepted and (frames := judging.job_of(job, model, self._limits.seconds)) is not None:
            judgement = judging.without_frames(record, frames.collection)
            if frames.frames:
                judgement = await run(frames, Judgement, self._limits, on_progress=on_progress, patience=patience)
            alone = tolerance(model.entry.settings, task.recipe.precision, model.inspection.arithmetic)
            if judgement.outcome == "no_frames" and alone != standard.tolerance:  # the golden answers alone decide
                job = msgspec.structs.replace(job, tolerance=alone)
                found = await run(job, jobs.Verified, self._limits, on_progress=on_progress, patience=patience)
                verdict = found.verdict
            if not judgement.accepts:
                verdict = Verdict(False, judgement.reason, verdict.figures)
        record = msgspec.structs.replace(record, verdict=verdict, standard=standard.digest, judgement=judgement)
        if not verdict.accepted or not task.is_timed:
            return msgspec.structs.replace(record, speeds=(), load=None, blocks=Blocks())
        timing = partial(run, answer=jobs.Timed, limits=self._limits, on_progress=on_progress, patience=patience)
        again = jobs.Time(**msgspec.structs.asdict(job))
        try:
            timed = await timing(again)
        except ChildLost as error:  # several instances may need too much memory or time
            _LOG.warning("model %s: timing with several instances failed (%s); trying one instance", model.name, error)
            timed = await timing(msgspec.structs.replace(again, with_instances=False))
        return msgspec.structs.replace(record, speeds=timed.speeds, load=timed.load, blocks=timed.blocks)

    async def _commit(self, out: Path, record: EngineRecord, reserve: Reserve) -> None:
        """Commit an engine. Of a rejected engine only the record is stored, so that the engine is not built again. A
        rejected engine does not replace an accepted engine."""
        key = EngineKey(record.parts).digest
        if not record.verdict.accepted:
            stored = self._store.records().get(key)
            if stored is None or not stored.is_usable:
                await asyncio.to_thread(self._store.strip, record)
            return
        if not record.adopted_from:  # adopted files are links to those of the other engine
            await reserve(record.size)
        await asyncio.to_thread(self._store.commit, out, record)

    async def _reference(self, model: Model, recipe: Recipe, on_progress: OnProgress) -> tuple[Path, Standard]:
        """Return the file of golden answers, and the standard for the engine. Makes the file if it does not exist.

        Raises Superseded if the child loads a different version of the reference's runtime than the facts state.
        """
        now = await asyncio.to_thread(model.with_contents)  # the samples may have changed since planning
        facts = self.facts()
        standard = Standard.of(now, recipe.precision, facts)
        place = self._golden / f"{standard.golden}.golden"
        if not await asyncio.to_thread(is_whole, place):
            on_progress(jobs.Progress("asking the reference"))
            shape_range = ShapeRange.of(model)
            patience = self._patience(model, REFERENCE.backend)
            # The child gets a separate folder: it must not see the answers of other models.
            async with in_thread(self._making) as folder:
                out = folder / place.name
                job = jobs.MakeGolden(
                    *(model.order(REFERENCE), str(out), model.recognition, model.samples, shape_range),
                    expects=registry.versions(REFERENCE.backend, facts),
                )
                made = await run(job, jobs.MadeGolden, self._limits, on_progress=on_progress, patience=patience)
                await asyncio.to_thread(_take, out, place)
            for reason in made.skipped:
                _LOG.warning("model %s: %s", model.name, reason)
        return place, standard

    def _making(self) -> contextlib.AbstractContextManager[Path]:
        """Return a context that creates a folder for unfinished golden answers. First creates the folders of
        the cache that are missing: the disk may have been full when the daemon started."""
        for folder in (self._golden, self._unfinished.root, self._timings):
            folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        return self._unfinished.stage()

    @contextlib.asynccontextmanager
    async def _storing(self) -> AsyncIterator[None]:
        """Convert an error of the block into OutOfSpace if the disk is full, because runtimes rarely name this cause.
        Convert other OSErrors into BuildFailed. Use this context around `Store.stage`, and also inside it. After an
        error, `Store.stage` removes its folder, which frees space. So only the inner context finds the disk full."""
        try:
            yield
        except OSError as error:
            if (fault := disk_fault(self._store.root, error)) is not None:
                raise fault from error
            place = f"cannot store the engine in {self._store.root}"
            raise BuildFailed(f"{place}: {error.strerror or error}; check the permissions and the disk") from error
        except (BuildFailed, EngineUnusable) as error:
            if await asyncio.to_thread(self._is_full):
                raise OutOfSpace(f"{self._store.root} is full; free some space ({error})") from error
            raise

    def _is_full(self) -> bool:
        try:
            disk = os.statvfs(self._store.root)
        except OSError:
            return False
        return disk.f_bavail * disk.f_frsize < _LEAST or bool(unwritable(self._store.root))

    def _estimate(self, model: Model, recipe: Recipe) -> int:
        """Estimate the bytes of an engine: 1.5 times the size of the model, or more if an earlier engine was larger."""
        kin = [
            record.size
            for record in self._store.records().values()
            if record.recipe.backend == recipe.backend and record.parts.get("model") == model.digest
        ]
        weights = model.inspection.size + sum(file.size for file in model.inspection.external)
        return max([*kin, weights + weights // 2])

    def _within(self, most: int) -> Limits:
        """Return the limits of a build that may write `most` bytes; 0 for no limit except build.disk_mb."""
        if not most:
            return self._limits
        most_mb = max(1, most >> 20)
        return msgspec.structs.replace(self._limits, disk_mb=min(most_mb, self._limits.disk_mb or most_mb))

    def _keep(self, inspection: Inspection) -> None:
        sealed.write(self._read_place(inspection.graph_digest), inspection)
        atomic.prune(self._inspections, _KEPT)

    def _known(self, path: Path) -> tuple[str, Inspection | None]:
        """Return a file's digest (empty if the file cannot be read), and its cached inspection (None without a cached
        inspection, or with external data)."""
        try:
            is_readable = path.is_file() and too_large(path.name, path.stat().st_size) is None
            graph = file_digest(path) if is_readable else ""
        except (OSError, EdgedError):
            return "", None
        known = sealed.read(self._read_place(graph), Inspection, "inspections")
        # The outcome also depends on the files with external data, which only the child reads.
        is_same = known is not None and not known.external and known.graph_digest == graph
        return graph, known if is_same else None

    def _read_place(self, graph_digest: str) -> Path:
        """Return the path of a cached inspection. The name includes edged's version, because a newer version may
        inspect more details."""
        return self._inspections / f"{graph_digest}-{__version__}-{_READ_FORMAT}.json"


def _version(task: Task) -> str:
    """Return the runtime version in the engine's key; empty if the key has none."""
    return registry.version(task.recipe.backend, task.key.parts) or ""


def _share(artefact: Artefact, out: Path) -> None:
    """Link an engine's files into another folder; copy them if the file system has no links."""
    for name in artefact.files:
        try:
            os.link(Path(artefact.root) / name, out / name)
        except OSError:
            (out / name).write_bytes(artefact.load(name))


def _take(made: Path, place: Path) -> None:
    """Move golden answers into place, and remove old ones."""
    os.replace(made, place)
    prune(place)
