"""What is kept of each engine of a model between two looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.backend.contract import Recipe
from edged.build.builder import REFERENCE
from edged.control.plan import PlannedEngine, PlannedModel
from edged.control.policy import candidates
from edged.control.states import EngineState
from edged.device.fingerprint import Fingerprint
from edged.errors import BuildFailed, ConfigError, EngineUnusable
from edged.model.inspect import inspect
from edged.model.model import Model
from edged.model.repository import plain_entry
from edged.serving.slot import Slot
from edged.store.key import EngineKey
from edged.store.record import BuildFacts, EngineRecord, Verdict
from edged.store.store import Store
from tests import models

FACTS = {"runtime.onnxruntime": "1", "runtime.openvino": "2", "cpu.isa": "avx2"}


def record(engine: PlannedEngine, *, accepted: bool = True) -> EngineRecord:
    verdict = Verdict(accepted, "" if accepted else "cosine", {})
    facts = BuildFacts(0.0, 0.0, 0.0, "test")
    return EngineRecord(
        engine.key.parts, "m", engine.recipe, {}, facts, verdict, *((5.0, 10.0) if accepted else (None, None))
    )


def engine() -> PlannedEngine:
    return PlannedEngine(EngineKey({"format": "1", "model": "m"}), Recipe("openvino"))


def made(planned: PlannedEngine) -> PlannedEngine:
    for state in (EngineState.QUEUED, EngineState.BUILDING, EngineState.VERIFYING):
        planned.move(state)
    return planned


def test_an_engine_goes_through_its_life() -> None:
    planned = engine()
    made(planned).finish(record(planned))
    assert planned.state is EngineState.READY
    planned.lose()
    assert planned.state is EngineState.ABSENT
    assert planned.record is None


def test_a_rejected_engine_keeps_its_reason() -> None:
    planned = engine()
    made(planned).finish(record(planned, accepted=False))
    assert planned.state is EngineState.REJECTED
    assert planned.reason == "cosine"


def test_a_step_that_the_table_lacks_is_an_error_and_changes_nothing() -> None:
    planned = engine()
    with pytest.raises(ValueError):
        planned.move(EngineState.READY)
    assert planned.state is EngineState.ABSENT


def test_each_failure_is_waited_for_longer_up_to_a_bound_and_a_success_forgives() -> None:
    planned, waits = engine(), []
    for _ in range(8):
        made(planned).fail(BuildFailed("no memory"), now=100.0)
        waits.append(planned.retry_at - 100.0)
        assert planned.state is EngineState.FAILED
        assert planned.reason == "no memory"
    assert waits == sorted(waits)
    assert waits[0] < waits[3]
    assert waits[-1] == waits[-2] <= 3600
    made(planned).finish(record(planned))
    planned.opened()
    planned.lose()
    made(planned).fail(BuildFailed("x"), now=100.0)
    assert planned.retry_at - 100.0 == waits[0]


def test_an_engine_that_builds_but_never_opens_is_built_less_and_less_often() -> None:
    planned, waits = engine(), []
    for _ in range(4):
        made(planned).finish(record(planned))
        planned.lose()  # as the controller does when the host refuses it
        planned.move(EngineState.QUEUED)
        planned.move(EngineState.BUILDING)
        planned.fail(EngineUnusable("cannot be opened"), now=100.0)
        waits.append(planned.retry_at)
    assert waits[0] < waits[-1]


# -- a model --------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def read(folder: Path, **settings: str) -> Model:
    path = models.save(models.matmul(), folder / "model.onnx")
    return Model.of(plain_entry("m", path, settings), inspect(path))


def planned_model(model: Model, store: Store) -> PlannedModel:
    planned = PlannedModel(model.entry, Slot("m"))
    planned.plan(model, Fingerprint(FACTS), store)
    return planned


def test_the_reference_comes_first_then_every_installed_backend(tmp_path: Path, store: Store) -> None:
    planned = planned_model(read(tmp_path), store)
    recipes = [e.recipe for e in planned.engines.values()]
    assert recipes == [REFERENCE, Recipe("onnxruntime"), Recipe("openvino")]
    assert all(e.state is EngineState.ABSENT for e in planned.engines.values())
    assert planned.view().engines[0].recipe.is_reference
    assert planned.view().serving is None


def test_settings_narrow_the_backends_and_give_the_threads() -> None:
    recipes = candidates({"backends": "null", "threads": "3"}, FACTS)
    assert [(r.backend, r.threads) for r in recipes] == [("onnxruntime", 3), ("null", 3)]
    assert recipes[0].is_reference
    with pytest.raises(ConfigError):
        candidates({"backends": "tensorflow"}, FACTS)


def test_a_box_without_any_runtime_still_has_the_reference() -> None:
    assert candidates({}, {}) == (REFERENCE,)


def test_what_the_store_holds_is_not_made_again(tmp_path: Path, store: Store) -> None:
    model = read(tmp_path)
    for each, accepted in zip(planned_model(model, store).engines.values(), (True, True, False), strict=True):
        with store.stage() as out:
            store.commit(out, record(each, accepted=accepted))
    states = [e.state for e in planned_model(model, store).engines.values()]
    assert states == [EngineState.READY, EngineState.READY, EngineState.REJECTED]
    assert [e.cost for e in planned_model(model, store).view().engines] == [0.5, 0.5, None]


def test_reading_a_model_again_keeps_what_is_known_of_engines_that_stay(tmp_path: Path, store: Store) -> None:
    model = read(tmp_path)
    planned = planned_model(model, store)
    before = dict(planned.engines)
    next(iter(before.values())).failures = 3
    planned.plan(model, Fingerprint(FACTS | {"runtime.openvino": "3"}), store)
    kept = [key for key in planned.engines if key in before]
    assert len(kept) == 2
    assert all(planned.engines[key] is before[key] for key in kept)


def test_a_model_is_hopeless_only_when_its_reference_was_refused_and_nothing_else_is_ready(
    tmp_path: Path, store: Store
) -> None:
    planned = planned_model(read(tmp_path), store)
    reference, built, _ = planned.engines.values()
    assert not planned.is_hopeless()
    reference.open_at = float("inf")
    assert planned.is_hopeless()
    made(built).finish(record(built))
    assert not planned.is_hopeless()
