"""edged without a daemon: opens a model's verified engine in this process, from the store that the daemon also uses.

    import edged

    model = edged.load("model.onnx")
    print(model.infer("street.jpg").json())

`load` first builds and verifies missing engines; with `build=False` it does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from edged import family_packages, paths
from edged.backends import registry
from edged.backends.contract import ONE_INSTANCE
from edged.client.frames import Picture, read_picture
from edged.client.result import Result, Timings, class_labels, detections_of
from edged.config import Engines
from edged.config.child_limits import Limits
from edged.device.fingerprint import probe
from edged.engines import views
from edged.engines.builder import Builder, Task, no_limit
from edged.engines.engine import EngineState, PlannedEngine
from edged.engines.plan import PlannedModel, Planner, is_lowering_due
from edged.engines.prompts import with_token_ids
from edged.errors import ConfigError, EdgedError, EngineUnusable, InvalidInput
from edged.host.pipeline import Outcome, Pipeline, Shot
from edged.ipc.job_messages import Progress
from edged.models.entries import plain_entry
from edged.models.model import Model
from edged.serving.slot import Slot
from edged.store.record import EngineRecord
from edged.store.store import Store
from edged.tensors import Array, owned

T = TypeVar("T")


class LoadedModel(AbstractContextManager["LoadedModel"]):
    """A model whose engine is open in this process. Use it from one thread at a time; close it, or use it in a `with`.

    `speed` is the engine's speed as a multiple of the unoptimised model's; None if it was not measured. The `timings`
    of each result have the time of an inference in this process.
    """

    def __init__(self, model: Model, engine: PlannedEngine, pipeline: Pipeline) -> None:
        self.name = model.name
        self.engine = engine.digest
        self.backend = engine.recipe.backend
        self.speed = 1 / engine.record.cost if engine.record and engine.record.cost else None
        self._pipeline = pipeline

    def infer(self, image: Picture) -> Result:
        """Return the detections or the content of a picture, or raw outputs for a model of no known family.

        `image` is a path, the bytes of a JPEG or PNG, or uint8 pixels: BGR [height, width, 3] or gray [height, width].
        Raises InvalidInput if the picture cannot be decoded or the model takes no pictures, NotFound for a missing
        file.
        """
        started = time.perf_counter()
        shot = _raw(image) if isinstance(image, np.ndarray) else Shot(read_picture(image))
        (outcome,) = self._pipeline.infer(self._pipeline.prepare([shot]))
        if isinstance(outcome, Exception):
            raise outcome
        return self._result(outcome, (time.perf_counter() - started) * 1e3)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model. `inputs` and the result map names of tensors to arrays. Raises EngineUnusable if the runtime
        refuses the tensors."""
        outputs, _ = self._pipeline.run(inputs, None)
        return owned(outputs)

    def close(self) -> None:
        """Free the engine."""
        self._pipeline.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _result(self, outcome: Outcome, total_ms: float) -> Result:
        times, names = outcome.times, self._pipeline.recognition.names
        return Result(
            camera="",
            sequence=0,
            model=self.name,
            width=outcome.width,
            height=outcome.height,
            detections=() if outcome.detections is None else detections_of(outcome.detections, names),
            content=outcome.content,
            class_labels=class_labels(outcome.content, names),
            outputs=owned(outcome.outputs),
            age_ms=total_ms,
            timings=Timings(0.0, times.decode_ms, times.prepare_ms, times.infer_ms, times.postprocess_ms, total_ms),
            engine=self.engine,
            backend=self.backend,
            skipped=0,
            error=None,
        )


def load(
    path: str | os.PathLike[str],
    *,
    settings: Mapping[str, str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    build: bool = True,
    families: Iterable[str] = (),
) -> LoadedModel:
    """Open the fastest verified engine of an ONNX model.

    Engines that are not in the store are first built and verified in child processes; this takes seconds to minutes,
    once. With `build=False` nothing is built: if the store has no engine for the model, the unoptimised model is
    opened. `settings` are the model's settings, as in `edged models add --set`. In the setting `prompts`, a text
    without token ids is encoded with the tokenizer next to the file. `cache` is the store's folder, by default the
    daemon's. `families` names families of other packages whose code may run in this process, as in the configuration's
    `families.allow` (docs/third-party-families.md).

    Raises ModelRefused if the file cannot be served, ConfigError for an invalid setting or an unusable folder.
    """
    file = Path(path)
    folder = Path(cache) if cache else paths.default_cache_dir()
    store = Store(folder)
    if build and store.problem:
        raise ConfigError(f"cache directory {folder} cannot be used: {store.problem}; give another folder")
    encoded = _run(with_token_ids(settings or {}, file.absolute().parent))
    fingerprint = probe()
    builder = Builder(store, store.root, Limits(), families=families, facts=lambda: fingerprint.facts)
    if builder.families.allowed:
        family_packages.permit()
    entry = plain_entry(file.stem, file.absolute(), encoded)
    planned = PlannedModel(entry, Slot(entry.name))
    model = _run(builder.model(entry, _run(builder.inspect(file))))
    planner = Planner(store, fingerprint, Engines())
    planner.plan(planned, model)
    if build:
        _run(_make_missing(builder, store, model, planned))
    while build and is_lowering_due(planned):
        planner.plan(planned, model)
        _run(_make_missing(builder, store, model, planned))
    return _open(model, planned, store)


async def _make_missing(builder: Builder, store: Store, model: Model, planned: PlannedModel) -> None:
    for engine in planned.engines.values():
        if engine.state is not EngineState.ABSENT:
            continue
        engine.move(EngineState.QUEUED)
        engine.move(EngineState.BUILDING)
        task = Task(model, engine.recipe, engine.key)
        try:
            record = await _obtain(builder, task, engine.adoptable)
        except EdgedError as error:
            engine.fail(error)
        else:
            engine.move(EngineState.VERIFYING)
            engine.finish(record, store.find(engine.digest))


async def _obtain(builder: Builder, task: Task, source: str) -> EngineRecord:
    """Adopt the engine with the key `source`, if its answers are right. That engine was built in advance or for another
    driver. If there is no such engine, or if its answers are wrong, build the engine."""
    if source:
        with contextlib.suppress(EdgedError, KeyError):
            return await builder.adopt(task, source, _ignore, no_limit)
    return await builder.make(task, _ignore, no_limit)


def _ignore(progress: Progress) -> None:
    pass


def _open(model: Model, planned: PlannedModel, store: Store) -> LoadedModel:
    """Open the fastest engine that can be opened; the reference is tried last."""
    engines = planned.engines.values()
    ready = [e for e in engines if e.state is EngineState.READY and views.may_serve(e, engines)]
    ready.sort(key=lambda e: views.cost(planned, e, parallelism=ONE_INSTANCE) or math.inf)
    reference = [e for e in planned.engines.values() if e.recipe.is_reference and e not in ready]
    refusal: EdgedError = EngineUnusable("no backend is installed")
    for engine in [*ready, *reference]:
        artefact = None if engine.recipe.is_reference else store.artefact(engine.digest)
        try:
            session = registry.load(engine.recipe.backend).open(model.order(engine.recipe, artefact))
        except EdgedError as error:
            refusal = error
        else:
            return LoadedModel(model, engine, Pipeline(session, model.inspection.signature, model.recognition))
    raise refusal


def _raw(image: Array) -> Shot:
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3):
        raise InvalidInput(
            f"an array {image.dtype}{list(image.shape)} is not a picture; give uint8 [height, width, 3] or [h, w]"
        )
    height, width = image.shape[:2]
    pixels = np.ascontiguousarray(image)
    return Shot(memoryview(pixels.reshape(-1).data), "bgr" if image.ndim == 3 else "gray", width, height)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, even if an event loop is already running (as in a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
