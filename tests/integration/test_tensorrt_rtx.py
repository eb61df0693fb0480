"""TensorRT for RTX, if its wheels are installed: the real parser and the real builder, in edged's child process.

A build needs no GPU. The answers of an engine need one, so these tests do not check them.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from edged.backends import registry
from edged.engines.builder import Builder
from edged.engines.learning import widened
from edged.serving.extents import Kind, Seen
from edged.shapes import MODEL_PATH
from edged.store.store import Store
from tests import models
from tests.integration.tensorrt_rtx import (
    INSTALLED,
    TARGETS,
    ask,
    builder,
    conv,
    header,
    here,
    layered,
    make,
    read,
    store,
)

__all__ = ["builder", "store"]
pytestmark = [pytest.mark.long, INSTALLED]


# -- engines --------------------------------------------------------------------------------------------------------


def test_backend_version_equals_the_facts() -> None:
    answer = ask("answer = {'version': BACKEND.version(), 'module': trt.__version__}")
    assert answer["version"] == registry.version("tensorrt_rtx", here().facts) == answer["module"]
    assert str(answer["version"]).count(".") == 3


@pytest.mark.parametrize("capability", TARGETS)
def test_engine_is_built_for_each_generation_of_gpus(
    builder: Builder, store: Store, tmp_path: Path, capability: str
) -> None:
    model = read(conv(tmp_path))
    record, key, reported = make(builder, model, capability)
    found, data = header(store, key)
    assert (found.kind, found.version) == ("TensorRT-RTX", registry.version("tensorrt_rtx", here().facts))
    assert found.size == len(data) == record.files["engine.plan"].size
    assert data[32] == TARGETS[capability]
    assert record.parts["gpu.0.compute_capability"] == capability
    assert record.parts["runtime.tensorrt_rtx"] == found.version
    assert record.parts["recipe.options"].startswith("workspace_mb=")
    assert record.parts["recipe.optimization"] == "3"
    assert (record.is_unproven, record.is_usable, record.verdict.accepted) == (True, False, False)
    assert "built ahead for sm_" in record.verdict.reason
    assert record.composition.layers == {"fp32": 3}
    assert record.composition.fallback == ()
    assert store.find(key) == record
    shares = [step.fraction for step in reported if step.fraction is not None]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_keys_of_two_devices_differ_in_the_capability_alone(builder: Builder, tmp_path: Path) -> None:
    model = read(conv(tmp_path))
    one, _, _ = make(builder, model, "8.6")
    two, _, _ = make(builder, model, "8.9")
    assert {name for name in one.parts if one.parts[name] != two.parts[name]} == {"gpu.0.compute_capability"}


def test_profile_is_in_the_key_and_in_the_engine(builder: Builder, store: Store, tmp_path: Path) -> None:
    path = models.save(models.dynamic(), tmp_path / "model.onnx")
    model = read(path, preprocess__width="48", preprocess__height="32")
    narrow, _, _ = make(builder, model)
    assert narrow.parts["recipe.profile"] == "x=1x3x32x48:1x3x32x48:8x3x32x48"
    wide, _, _ = make(builder, read(path, profile__x="1x3x8x8 1x3x16x16 2x3x64x64"))
    assert wide.parts["recipe.profile"] == "x=1x3x8x8:1x3x16x16:2x3x64x64"
    assert narrow.files != wide.files


def test_engine_is_built_for_the_learnt_range(builder: Builder, store: Store, tmp_path: Path) -> None:
    path = models.save(models.dynamic(), tmp_path / "model.onnx")
    model = read(path, preprocess__width="48", preprocess__height="32")
    shapes = {"x": (3, 3, 40, 48)}
    seen = Seen(1, (Kind(shapes, 1),), shapes, shapes)
    reported = model.profile
    wider = widened(reported, model.inspection.signature, seen, 1 << 20, usual=model.picture is None)
    before, first, _ = make(builder, model)
    record, key, _ = make(builder, msgspec.structs.replace(model, learnt=wider))
    assert (before.parts["recipe.profile"], record.parts["recipe.profile"]) == (str(reported), str(wider))
    assert key != first
    assert wider.contains("x", shapes["x"])
    assert not reported.contains("x", shapes["x"])
    assert header(store, key)[1] != header(store, first)[1]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
def test_precision_is_in_the_graph(builder: Builder, tmp_path: Path, precision: str) -> None:
    record, _, reported = make(builder, read(layered(tmp_path)), precision=precision)
    layers = record.composition.layers
    if precision == "fp16":
        assert layers["fp16"] > layers.get("fp32", 0)
        assert "converting" in {step.phase for step in reported}
    else:
        assert set(layers) == {"fp32"}


def test_fp32_build_is_reproducible_and_differs_from_tf32(builder: Builder, tmp_path: Path) -> None:
    model = read(conv(tmp_path))
    exact, again, rounded = (make(builder, model, precision=name)[0].files for name in ("fp32", "fp32", "tf32"))
    assert exact == again
    assert exact != rounded


def test_int8_graph_with_ranges_is_accepted(builder: Builder, tmp_path: Path) -> None:
    record, _, _ = make(builder, read(layered(tmp_path)), precision="int8")
    assert record.composition.layers["int8"] >= 2
    assert record.parts["recipe.calibration"]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_embedded_detector_is_accepted_in_every_precision(builder: Builder, tmp_path: Path, precision: str) -> None:
    record, _, _ = make(builder, read(MODEL_PATH), precision=precision)
    assert record.composition.layers[precision] > 0


def test_external_weights_are_in_the_engine(builder: Builder, store: Store, tmp_path: Path) -> None:
    model = read(models.external(tmp_path / "m", columns=20_000, seed=1))
    record, _, _ = make(builder, model)
    assert record.files["engine.plan"].size > 4 * 4 * 20_000


def test_models_with_bodies_and_integers_are_accepted(builder: Builder, tmp_path: Path) -> None:
    for proto in (models.loop(), models.branches(), models.gather(), models.several()):
        make(builder, read(models.save(proto, tmp_path / "model.onnx")))
