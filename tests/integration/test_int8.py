"""int8 with real runtimes: engines are repaired or rejected, and serve only if they are faster than fp32."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import onnx
import pytest

import edged
from edged.backends.contract import INT8_ASYMMETRIC, Recipe
from edged.config.child_limits import Limits
from edged.device import cpu
from edged.device.fingerprint import Fingerprint
from edged.device.root import Root
from edged.engines.builder import Builder, Task
from edged.engines.desired import complete
from edged.engines.views import EXACT
from edged.jobs.inspect import inspect
from edged.models.entries import plain_entry
from edged.models.model import Model
from edged.store.key import EngineKey
from edged.store.record import EngineRecord
from edged.store.store import Store
from tests import models
from tests.bad_for_int8 import classifier
from tests.integration.daemon import Daemon
from tests.waiting import run

INT8 = {"family": "classification", "precisions": "int8"}
RECIPES = [
    Recipe("onnxruntime", precision="int8"),
    Recipe("openvino", precision="int8"),
    Recipe("openvino", precision="int8", options=INT8_ASYMMETRIC),
]


def make(proto: onnx.ModelProto, recipe: Recipe, folder: Path, **settings: str) -> EngineRecord:
    path = models.save(proto, folder / "model.onnx")
    of = Model.of(plain_entry("m", path, INT8 | {k.replace("__", "."): v for k, v in settings.items()}), inspect(path))
    recipe, problem = complete(recipe, of, {})
    assert problem == ""
    builder = Builder(Store(folder / "cache"), folder / "cache", Limits(seconds=120, memory_mb=4096))

    async def plenty(need: int) -> int:
        return 0

    task = Task(of, recipe, EngineKey.of(of.digest, recipe, Fingerprint()), is_timed=False)
    return run(builder.make(task, lambda progress: None, plenty), 120)


@pytest.mark.parametrize(
    "recipe",
    [RECIPES[0], *(pytest.param(recipe, marks=pytest.mark.long) for recipe in RECIPES[1:])],
    ids=["onnxruntime", "openvino", "openvino asymmetric"],
)
def test_int8_engine_of_a_model_with_a_bad_layer_is_repaired_and_accepted(recipe: Recipe, tmp_path: Path) -> None:
    record = make(classifier(bad=[1]), recipe, tmp_path)
    assert record.verdict.accepted, record.verdict.reason
    (note,) = (note for note in record.composition.notes if note.startswith("repaired: "))
    most = 3 if cpu.saturates(cpu.probe(Root())) else 1  # weights have 7 bits then
    assert re.match(rf"repaired: [1-{most}] of [59] ", note), note
    assert "Conv.4 (" in note
    assert any(each.endswith(": int8 made the answers too wrong") for each in record.composition.kept)
    (tmp_path / "off").mkdir()
    unrepaired = make(classifier(bad=[1]), recipe, tmp_path / "off", int8__repair_s="0")
    assert not unrepaired.verdict.accepted
    assert any("repairs are off" in note for note in unrepaired.composition.notes)


def test_int8_engine_that_cannot_be_repaired_is_rejected_and_says_so(tmp_path: Path) -> None:
    record = make(classifier(), RECIPES[1], tmp_path, verify__int8__relative_l2="0.000001")
    assert not record.verdict.accepted
    assert "relative_l2" in record.verdict.reason
    (note,) = (note for note in record.composition.notes if note.startswith("int8 is too wrong"))
    assert "not repaired in" in note
    assert "\n" not in note


@pytest.mark.long
def test_int8_serves_only_if_it_is_faster_than_every_fp32_engine(tmp_path: Path) -> None:
    path = models.save(classifier(), tmp_path / "m.onnx")
    with edged.load(path, cache=tmp_path / "cache", settings=INT8) as loaded:
        assert loaded.speed is not None
        records = list(Store(tmp_path / "cache").records().values())
    made = {(record.recipe.backend, record.recipe.precision, record.recipe.options) for record in records}
    int8 = {(recipe.backend, recipe.precision, recipe.options) for recipe in RECIPES}
    assert made == int8 | {("onnxruntime", "fp32", ""), ("openvino", "fp32", "")}  # the reference is one of the first
    costs = {record.recipe: record.cost for record in records if record.is_usable and record.cost is not None}
    exact = min(cost for recipe, cost in costs.items() if recipe.precision == EXACT)
    best = min(costs.values())
    assert 1 / loaded.speed == pytest.approx(best if best < exact else exact, rel=1e-6)


@pytest.mark.long
def test_int8_engine_that_is_slower_is_listed_with_the_reason() -> None:
    with Daemon() as daemon, daemon.client() as client:
        models.save(classifier(), daemon.home / "m.onnx")
        client.add_model("m", daemon.home / "m.onnx", settings=INT8)
        engines = daemon.settled("m")
        (model,) = (each for each in client.models() if each.name == "m")
    speeds = {engine.key: engine.speed or 0.0 for engine in engines if engine.state in ("ready", "serving")}
    exact = max(speeds[engine.key] for engine in engines if engine.precision == EXACT and engine.key in speeds)
    for engine in engines:
        if engine.precision == EXACT or engine.key not in speeds:
            continue
        if speeds[engine.key] <= exact:
            assert engine.state == "ready"
            assert engine.reason.endswith("as fast as fp32, not used")
    assert model.precision_reason
    assert msgspec.json.encode(model)
