"""Makes one engine: golden answers, build, verification, timing, each in a child; then commits it to the store."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from edged.backend import registry
from edged.backend.contract import UNOPTIMISED, Recipe
from edged.build import jobs
from edged.build.child import Limits, run
from edged.build.standard import Standard
from edged.errors import BuildFailed, EdgedError
from edged.files import read_regular
from edged.model.identity import file_digest
from edged.model.inspection import Inspection
from edged.model.model import Model
from edged.store import atomic
from edged.store.key import EngineKey
from edged.store.record import BuildFacts, EngineRecord
from edged.store.store import Store
from edged.version import __version__

_INSPECT = Limits(seconds=120.0, memory_mb=4096)
# The reference is ONNX Runtime with the model as it was written.
REFERENCE = Recipe("onnxruntime", optimization=UNOPTIMISED)

Phase = Callable[[str], None]


class Builder:
    """Runs children; keeps golden answers by model digest and what was read of models by file digest."""

    def __init__(self, store: Store, cache: Path, limits: Limits) -> None:
        self._store, self._limits = store, limits
        self._golden, self._inspections = cache.absolute() / "golden", cache.absolute() / "inspections"
        for folder in (self._golden, self._inspections):
            folder.mkdir(parents=True, exist_ok=True, mode=0o750)

    async def inspect(self, path: Path) -> Inspection:
        """What a model file holds; `refusal` says why it cannot be served. ModelRefused when it is no model at all."""
        path = path.absolute()
        known = await asyncio.to_thread(self._known, path)
        if known is not None:
            return known
        inspection = await run(jobs.Inspect(str(path)), Inspection, _INSPECT)
        with contextlib.suppress(OSError):  # a full disk costs time at the next start, no more
            place = self._inspections / f"{inspection.graph_digest}.json"
            atomic.write_file(place, msgspec.json.encode(inspection))
        return inspection

    async def check(self, backend: str, path: Path) -> str:
        """Why a backend does not take a model; empty when it does."""
        try:
            await run(jobs.Check(backend, str(path.absolute())), jobs.Done, self._limits)
        except EdgedError as error:
            return str(error)
        return ""

    async def make(self, model: Model, recipe: Recipe, key: EngineKey, phase: Phase) -> EngineRecord:
        """Builds and verifies one engine and commits the outcome, accepted or rejected.

        `phase` is told "building" and "verifying". Raises the reason when there is no outcome; nothing is left behind.
        """
        try:
            return await self._make(model, recipe, key, phase)
        except OSError as error:
            raise BuildFailed(f"the engine could not be stored: {error.strerror or error}; free some space") from error

    async def _make(self, model: Model, recipe: Recipe, key: EngineKey, phase: Phase) -> EngineRecord:
        with self._store.stage() as out:
            started = time.time()
            artefact, seconds, peak = None, 0.0, 0.0
            expects = registry.version(recipe.backend, key.parts) or ""
            phase("building")
            standard = Standard.of(model, recipe.precision)
            golden = await self._reference(model, standard)
            if not recipe.is_reference:
                built = await run(jobs.Build(model.order(recipe), str(out), expects), jobs.Built, self._limits)
                artefact, seconds, peak = built.artefact, built.seconds, built.peak_memory_mb
            phase("verifying")
            order = model.order(recipe, artefact)
            reference = model.order(msgspec.structs.replace(REFERENCE, threads=recipe.threads))
            timed = await run(
                jobs.Verify(order, str(golden), reference, standard.tolerance, model.recognition, expects),
                jobs.Timed,
                self._limits,
            )
            files = artefact.files if artefact is not None and timed.verdict.accepted else {}
            if not timed.verdict.accepted:
                _empty(out)
            facts = BuildFacts(started, seconds, peak, __version__)
            times = (timed.latency_ms, timed.reference_ms)
            record = EngineRecord(
                key.parts, model.name, recipe, files, facts, timed.verdict, *times, standard=standard.digest
            )
            await asyncio.to_thread(self._store.commit, out, record)  # it waits for the disk
            return record

    async def _reference(self, model: Model, standard: Standard) -> Path:
        """The file of golden answers, made first if this model has none."""
        place = self._golden / f"{standard.golden}.golden"
        if not place.exists():
            job = jobs.MakeGolden(model.order(REFERENCE), str(place), model.recognition, model.samples)
            await run(job, jobs.Done, self._limits)
        return place

    def _known(self, path: Path) -> Inspection | None:
        """What was read of this very file before, if its external data is as it was."""
        try:
            graph = file_digest(path) if path.is_file() else ""
            known = msgspec.json.decode(read_regular(self._inspections / f"{graph}.json"), type=Inspection)
        except (OSError, msgspec.MsgspecError, EdgedError):
            return None
        # With external data the files beside the model decide, and they are read and checked by the child.
        return None if known.external or known.refusal else known


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
