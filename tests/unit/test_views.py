"""Views of models for the reconciler: engines that may be opened while a model is being read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from edged.backends.contract import Recipe
from edged.engines.engine import PlannedEngine
from edged.engines.plan import PlannedModel
from edged.engines.reconcile import Open, reconcile
from edged.engines.views import actual
from edged.store.store import Store
from tests.unit.control_room import key_of, model, planned_model, record_of, serve

REFERENCE, BUILT = Recipe("onnxruntime", optimization="none"), Recipe("openvino")


async def being_read(*recipes: Recipe, path: str = "") -> PlannedModel:
    """Return a model with these engines while another file of it is being read, at another path if `path` is set."""
    planned = planned_model()
    planned.model = model()
    for recipe in recipes:
        engine = PlannedEngine(key_of(planned.model, recipe), recipe)
        if not recipe.is_reference:
            engine.adopt(record_of(engine.key, recipe))
        planned.engines[engine.digest] = engine
    planned.entry = msgspec.structs.replace(planned.entry, stamp="2", path=path or planned.entry.path)
    planned.reading = asyncio.ensure_future(asyncio.sleep(3600))
    return planned


@pytest.mark.parametrize(
    ("recipes", "path", "opened"),
    [
        ((REFERENCE,), "/nowhere/m/2/model.onnx", REFERENCE),
        ((REFERENCE,), "", None),
        ((REFERENCE, BUILT), "", BUILT),
    ],
)
async def test_actual_model_being_read_without_host_opens_an_engine_whose_files_exist(
    tmp_path: Path, recipes: tuple[Recipe, ...], path: str, opened: Recipe | None
) -> None:
    planned = await being_read(*recipes, path=path)
    actions = reconcile(actual(Store(tmp_path), [planned]), 1000.0, set())
    keys = [engine.digest for engine in planned.engines.values() if engine.recipe == opened]
    assert actions == [Open("m", key) for key in keys]
    assert planned.reading is not None
    planned.reading.cancel()


async def test_actual_model_being_read_and_served_needs_no_action(tmp_path: Path) -> None:
    planned = await being_read(REFERENCE, BUILT, path="/nowhere/m/2/model.onnx")
    serve(planned, next(iter(planned.engines)))
    assert reconcile(actual(Store(tmp_path), [planned]), 1000.0, set()) == []
    assert planned.reading is not None
    planned.reading.cancel()


@pytest.mark.parametrize(
    ("cost", "serves", "opened"), [(0.5, True, BUILT), (5.0, True, None), (0.5, False, BUILT), (5.0, False, REFERENCE)]
)
def test_actual_untimed_reference_gives_way_only_to_a_faster_engine(
    tmp_path: Path, cost: float, serves: bool, opened: Recipe | None
) -> None:
    planned = planned_model()
    planned.model = model()
    reference, built = (PlannedEngine(key_of(planned.model, recipe), recipe) for recipe in (REFERENCE, BUILT))
    reference.adopt(record_of(reference.key, REFERENCE, accepted=False))  # its answers vary, so it is not timed
    built.adopt(record_of(built.key, BUILT, cost=cost))
    planned.engines = {each.digest: each for each in (built, reference)}
    if serves:
        serve(planned, reference.digest)
    actions = reconcile(actual(Store(tmp_path), [planned]), 1000.0, set())
    assert actions == [Open("m", each.digest) for each in (built, reference) if each.recipe == opened]
