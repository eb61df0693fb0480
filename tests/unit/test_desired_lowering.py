"""After an engine that answered wrongly one that is optimised less is tried, and only then."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import edged
from edged.backends.contract import Recipe
from edged.config import Engines
from edged.engines.desired import below, desired
from edged.engines.engine import EngineState
from edged.engines.plan import PlannedModel, Planner, is_lowering_due
from edged.store.record import EngineRecord
from edged.store.store import Store
from tests import models
from tests.unit.control_room import box, key_of, model, planned_model, put, record_of

S = EngineState
ORT = Recipe("onnxruntime")


def at(level: str) -> Recipe:
    return msgspec.structs.replace(ORT, optimization=level)


def judged(level: str, *, accepted: bool, standard: str = "") -> EngineRecord:
    held_to = standard or desired(box(), {"m": model()})["m"][1].standard
    return record_of(key_of(model(), at(level)), at(level), accepted=accepted, standard=held_to)


def plan(store: Store, into: PlannedModel | None = None) -> PlannedModel:
    into = into or planned_model()
    Planner.of(store, box(), Engines()).plan(into, model())
    return into


def levels(planned: PlannedModel) -> list[tuple[str, EngineState]]:
    own = (engine for engine in planned.engines.values() if engine.recipe.backend == "onnxruntime")
    return [(engine.recipe.optimization, engine.state) for engine in own if not engine.recipe.is_reference]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.mark.parametrize(
    ("recipe", "level"),
    [
        (at("all"), "extended"),
        (at("extended"), "basic"),
        (at("basic"), None),
        (at("none"), None),
        (Recipe("openvino"), None),
        (Recipe("onnxruntime", precision="int8"), None),
        (Recipe("onnxruntime", device="cuda:0"), "extended"),
    ],
)
def test_what_is_below(recipe: Recipe, level: str | None) -> None:
    lower = below(recipe)
    assert lower == (None if level is None else msgspec.structs.replace(recipe, optimization=level))


def test_nothing_lower_is_wanted_while_nothing_is_wrong(store: Store) -> None:
    assert levels(plan(store)) == [("all", S.ABSENT)]
    put(store, judged("all", accepted=True))
    found = plan(store)
    assert levels(found) == [("all", S.READY)]
    assert not is_lowering_due(found)


def test_what_was_rejected_before_is_followed_by_the_next_lower(store: Store) -> None:
    put(store, judged("all", accepted=False))
    assert levels(plan(store)) == [("all", S.REJECTED), ("extended", S.ABSENT)]
    put(store, judged("extended", accepted=False))
    put(store, judged("basic", accepted=True))
    found = plan(store)
    assert levels(found) == [("all", S.REJECTED), ("extended", S.REJECTED), ("basic", S.READY)]
    assert not is_lowering_due(found)
    last = list(found.engines.values())[3]
    assert last.key == key_of(model(), at("basic")), "it is the key that any other plan would give it"


def test_nothing_is_below_the_lowest(store: Store) -> None:
    for level in ("all", "extended", "basic"):
        put(store, judged(level, accepted=False))
    found = plan(store)
    assert [level for level, _ in levels(found)] == ["all", "extended", "basic"]
    assert not is_lowering_due(found)


def test_a_verdict_by_another_standard_says_nothing(store: Store) -> None:
    put(store, judged("all", accepted=False, standard="another"))
    assert levels(plan(store)) == [("all", S.ABSENT)]


def test_what_is_rejected_while_it_runs_is_followed_at_the_next_look(store: Store) -> None:
    found = plan(store)
    engine = next(e for e in found.engines.values() if e.recipe == ORT)
    for state in (S.QUEUED, S.BUILDING, S.VERIFYING):
        engine.move(state)
    engine.finish(judged("all", accepted=False), None)
    assert is_lowering_due(found)
    plan(store, found)  # the disk was too full even for its record
    assert levels(found) == [("all", S.REJECTED), ("extended", S.ABSENT)]
    assert not is_lowering_due(found)


@pytest.mark.long
def test_a_model_is_served_at_the_highest_level_that_is_right(tmp_path: Path) -> None:
    """From the file to the answer, with the real runtime: levels above `basic` answer otherwise."""
    path = models.save(models.scaled_matmul(), tmp_path / "m.onnx")
    with edged.load(path, cache=tmp_path / "cache", settings={"backends": "onnxruntime"}):
        verdicts = {r.recipe.optimization: r.verdict.accepted for r in Store(tmp_path / "cache").records().values()}
    assert verdicts == {"none": True, "all": False, "extended": False, "basic": True}
