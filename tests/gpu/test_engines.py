"""Every backend that can build for the present GPU, in edged's own children: build, compare, time, open, serve."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edged.backends import registry
from edged.config.child_limits import Limits
from edged.device.fingerprint import Fingerprint, probe
from edged.engines.builder import Builder, Task
from edged.engines.desired import DesiredEngine, desired
from edged.errors import EngineDamaged, EngineUnusable, InvalidInput
from edged.host.pipeline import Outcome, Pipeline, Prepared, Shot
from edged.jobs.inspect import inspect
from edged.models.entries import plain_entry
from edged.models.model import Model
from edged.shapes import MODEL_PATH, Scene
from edged.store.record import EngineRecord
from edged.store.store import Store
from tests import models
from tests.gpu.conftest import Gpu
from tests.integration.daemon import Daemon
from tests.waiting import run

BACKENDS = ("tensorrt", "tensorrt_rtx", "onnxruntime")


@pytest.fixture(scope="module")
def box(gpu: Gpu) -> Fingerprint:
    return probe()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, box: Fingerprint) -> str:
    """A backend that, by the facts of this box, has a candidate for the first GPU."""
    name: str = request.param
    if not wanted(read(MODEL_PATH), box, name):
        pytest.skip(f"by the facts of this box, {name} cannot use the GPU")
    return name


def read(path: Path, **settings: str) -> Model:
    return Model.of(plain_entry("m", path, {k.replace("__", "."): v for k, v in settings.items()}), inspect(path))


def wanted(model: Model, box: Fingerprint, backend: str) -> list[DesiredEngine]:
    found = desired(box, model)
    return [each for each in found if each.recipe.backend == backend and each.recipe.device == "cuda:0"]


def make(store: Store, model: Model, engine: DesiredEngine) -> EngineRecord:
    async def plenty(need: int) -> int:
        return 0

    builder = Builder(store, store.root, Limits(seconds=500))
    return run(builder.make(Task(model, engine.recipe, engine.key), lambda progress: None, plenty), 500)


@pytest.mark.timeout(1800)
def test_embedded_detector_is_right_in_every_precision_of_the_gpu(
    backend: str, box: Fingerprint, tmp_path: Path
) -> None:
    model, store = read(MODEL_PATH), Store(tmp_path)
    for engine in wanted(model, box, backend):
        assert engine.problem == ""
        record = make(store, model, engine)
        output = f"{backend} {engine.recipe.precision}: {record.verdict.reason} {record.verdict.figures}"
        assert record.verdict.accepted, output
        assert record.composition.layers or record.composition.nodes, output
        assert record.composition.fallback == (), output
        assert record.cost is not None
        print(f"{backend} {engine.recipe.precision}: {record.cost:.3f} of the reference, {record.composition.layers}")


@pytest.mark.timeout(900)
def test_engine_of_open_shapes_takes_every_shape_of_its_profile(backend: str, box: Fingerprint, tmp_path: Path) -> None:
    path = models.save(models.dynamic(), tmp_path / "model.onnx")
    model = read(path, profile__x="1x3x8x8 1x3x16x16 4x3x32x32", precisions="fp32")
    store = Store(tmp_path / "cache")
    (engine,) = wanted(model, box, backend)
    record = make(store, model, engine)
    assert record.verdict.accepted, record.verdict.reason
    session = registry.load(backend).open(model.order(engine.recipe, store.artefact(engine.key.digest)))
    try:
        for shape in ((1, 3, 8, 8), (4, 3, 32, 32), (2, 3, 9, 31)):
            x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
            assert np.array_equal(session.infer({"x": x})["y"], np.maximum(x, 0))
        if engine.recipe.profile:
            with pytest.raises(InvalidInput):
                session.infer({"x": np.zeros((5, 3, 8, 8), np.float32)})
    finally:
        session.close()


@pytest.mark.timeout(900)
def test_open_altered_engine_is_refused(backend: str, box: Fingerprint, tmp_path: Path) -> None:
    model, store = read(models.save(models.conv(), tmp_path / "model.onnx"), precisions="fp32"), Store(tmp_path / "c")
    (engine,) = wanted(model, box, backend)
    assert make(store, model, engine).verdict.accepted
    artefact = store.artefact(engine.key.digest)
    name = max(artefact.files, key=lambda each: artefact.files[each].size)
    place = Path(artefact.root) / name
    content = bytearray(place.read_bytes())
    content[len(content) // 2] ^= 1
    place.write_bytes(content)
    with pytest.raises((EngineDamaged, EngineUnusable)):
        registry.load(backend).open(model.order(engine.recipe, artefact))


def found(pipeline: Pipeline, prepared: Prepared) -> bytes:
    """Return the packed detections of one picture."""
    (outcome,) = pipeline.infer(prepared)
    assert isinstance(outcome, Outcome)
    assert outcome.detections is not None
    return outcome.detections.pack()


@pytest.mark.timeout(900)
def test_pictures_are_prepared_while_others_are_inferred(backend: str, box: Fingerprint, tmp_path: Path) -> None:
    model, store = read(MODEL_PATH, precisions="fp32"), Store(tmp_path)
    (engine,) = wanted(model, box, backend)
    make(store, model, engine)
    session = registry.load(backend).open(model.order(engine.recipe, store.artefact(engine.key.digest)))
    pipeline = Pipeline(session, model.inspection.signature, model.recognition)
    try:
        pixels = [np.ascontiguousarray(Scene(n, 640, 480, shapes=5).frame(0)[0]) for n in range(4)]
        shots = [Shot(picture.reshape(-1).data, "bgr", 640, 480) for picture in pixels]
        one_by_one = [found(pipeline, pipeline.prepare([shot])) for shot in shots]
        ahead, in_turns = pipeline.prepare(shots[:1]), []
        for shot in (*shots[1:], shots[0]):
            now, ahead = ahead, pipeline.prepare([shot])
            in_turns.append(found(pipeline, now))
        assert in_turns == one_by_one
        pipeline.infer(ahead)
    finally:
        pipeline.close()


@pytest.mark.timeout(1800)
def test_daemon_serves_on_the_gpu_or_gives_a_reason(gpu: Gpu, box: Fingerprint) -> None:
    if not any(wanted(read(MODEL_PATH), box, name) for name in BACKENDS):
        pytest.skip("by the facts of this box, no runtime can use the GPU")
    with Daemon("--model", f"shapes={MODEL_PATH}") as daemon:
        engines = daemon.settled("shapes", 1500)
        for engine in engines:
            print(engine.backend, engine.device, engine.precision, engine.state, engine.latency_ms, engine.reason)
        on_gpu = [engine for engine in engines if engine.device == "cuda:0"]
        assert any(engine.state in ("ready", "serving") for engine in on_gpu)
        with daemon.client() as client:
            assert client.infer("shapes", Scene(3, 640, 480, shapes=5).frame(0)[0]).detections
