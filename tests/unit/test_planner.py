"""A model gets the engines it should have, each with what the disk knows of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from edged.backends.contract import Recipe
from edged.config import Engines
from edged.engines.desired import desired
from edged.engines.engine import EngineState, PlannedEngine, Request
from edged.engines.plan import PlannedModel, Planner, missing, trial
from edged.engines.views import actual
from edged.store.attempts import AttemptLog
from edged.store.key import EngineKey
from edged.store.record import EngineRecord
from edged.store.store import Store
from tests.unit.control_room import box, key_of, model, planned_model, put, record_of

S = EngineState
RECIPE = Recipe("openvino")
OTHER_PROCESSOR = {"cpu__model": "N97"}  # an engine of it may be tried here
OTHER_RUNTIME = {"runtime__openvino": "1"}  # an engine of it may not


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def log(store: Store) -> AttemptLog:
    return AttemptLog(store.root)


def planner(store: Store, **settings: object) -> Planner:
    return Planner.of(store, box(), msgspec.convert(settings, Engines))


def planned(store: Store, **settings: object) -> PlannedModel:
    into = planned_model()
    planner(store, **settings).plan(into, model())
    return into


def last(of: PlannedModel) -> PlannedEngine:
    return list(of.engines.values())[-1]


def stored(**more: object) -> EngineRecord:
    """An engine of the model as it is wanted here."""
    standard = desired(box(), {"m": model()})["m"][-1].standard
    return record_of(key_of(model(), RECIPE), RECIPE, **({"standard": standard} | more))  # type: ignore[arg-type]


def of_another(made: float = 1.0, recipe: Recipe = RECIPE, accepted: bool = True, **facts: str) -> EngineRecord:
    """An engine of the same model for a box with other facts."""
    return record_of(key_of(model(), recipe, **(facts or OTHER_PROCESSOR)), recipe, accepted=accepted, made=made)


# -- what the store holds -------------------------------------------------------------------------------------------


def test_an_empty_store_leaves_everything_to_be_made(store: Store) -> None:
    found = planned(store)
    assert [e.recipe.backend for e in found.engines.values()] == ["onnxruntime", "onnxruntime", "openvino"]
    assert {(e.state, e.trial, e.failures) for e in found.engines.values()} == {(S.ABSENT, "", 0)}


def test_what_the_store_holds_is_not_made_again(store: Store) -> None:
    put(store, stored())
    assert (last(planned(store)).state, last(planned(store)).request) == (S.READY, Request.NONE)


def test_what_was_rejected_is_not_made_again(store: Store) -> None:
    put(store, stored(accepted=False))
    found = last(planned(store))
    assert (found.state, found.reason) == (S.REJECTED, "cosine 0.5 is below 0.999")


def test_what_gave_way_is_known_to_have_been_good(store: Store) -> None:
    store.strip(msgspec.structs.replace(stored(), evicted=True))
    found = last(planned(store))
    assert (found.state, found.record is not None and found.record.cost) == (S.EVICTED, 0.5)


def test_what_was_judged_by_another_standard_is_judged_again_and_what_was_rejected_by_it_is_built_again(
    store: Store,
) -> None:
    put(store, stored(standard="of another release"))
    assert (last(planned(store)).state, last(planned(store)).request) == (S.READY, Request.REVIEW)
    put(store, stored(accepted=False, standard="of another release"))
    assert (last(planned(store)).state, last(planned(store)).record) == (S.ABSENT, None)


def test_every_engine_that_is_looked_for_is_counted_as_found_or_missed(store: Store) -> None:
    put(store, stored())
    planned(store)
    assert (store.counts.hits, store.counts.misses) == (1, 2)


def test_an_engine_that_is_planned_already_keeps_what_is_known_of_it(store: Store) -> None:
    into, plans = planned_model(), planner(store)
    plans.plan(into, model())
    engine = last(into)
    engine.failures = 2
    put(store, stored())
    plans.plan(into, model())
    assert last(into) is engine
    assert (engine.state, engine.failures) == (S.ABSENT, 2), "what the store holds is for the next look"


def test_the_device_may_change_between_two_plans(store: Store) -> None:
    into, plans = planned_model(), planner(store)
    plans.plan(into, model())
    plans.fingerprint = box(**OTHER_RUNTIME)
    plans.plan(into, model())
    assert last(into).key == key_of(model(), RECIPE, **OTHER_RUNTIME)


def test_every_step_of_a_new_engine_is_told(store: Store) -> None:
    told = list[tuple[str, EngineState]]()
    put(store, stored())
    into = planned_model()
    planner(store).plan(into, model(), lambda engine: told.append((engine.digest, engine.state)))
    assert told == [(last(into).digest, S.READY)]
    reference = next(iter(into.engines.values()))
    reference.move(S.QUEUED)
    assert told[1:] == [(reference.digest, S.QUEUED)]


# -- what failed before ---------------------------------------------------------------------------------------------


def fail(log: AttemptLog, times: int) -> None:
    for _ in range(times):
        log.begin(key_of(model(), RECIPE).digest)
        log.failed(key_of(model(), RECIPE).digest, "no memory")


def test_an_engine_that_failed_goes_on_where_the_daemon_before_left_off(store: Store, log: AttemptLog) -> None:
    fail(log, 3)
    assert (last(planned(store)).state, last(planned(store)).failures) == (S.ABSENT, 3)


def test_an_engine_that_failed_too_often_is_not_tried_by_the_next_daemon_either(store: Store, log: AttemptLog) -> None:
    fail(log, 4)
    found = last(planned(store))
    assert (found.state, found.reason) == (S.QUARANTINED, "failed 4 times, the last time: no memory")
    assert last(planned(store, attempts=5)).state is S.ABSENT
    assert last(planned(store, attempts=2)).state is S.QUARANTINED
    assert [e.state for e in planned(store).engines.values()][:2] == [S.ABSENT, S.ABSENT]


@pytest.mark.parametrize("stopped", ["hopeless", "cancelled"])
def test_plan_engine_that_was_stopped_is_quarantined_by_the_next_daemon_too(
    store: Store, log: AttemptLog, stopped: str
) -> None:
    key = key_of(model(), RECIPE).digest
    if stopped == "cancelled":
        log.cancelled(key, "by an operator")
    else:
        log.failed(key, "no kernel", is_hopeless=True)
    found = last(planned(store))
    assert found.state is S.QUARANTINED
    assert found.is_held is (stopped == "cancelled")


def test_an_engine_that_is_there_is_used_however_often_it_failed_before(store: Store, log: AttemptLog) -> None:
    fail(log, 9)
    put(store, stored())
    assert last(planned(store)).state is S.READY


# -- trials ---------------------------------------------------------------------------------------------------------


def test_an_engine_for_another_driver_is_tried_before_one_is_built(store: Store) -> None:
    source = put(store, of_another())
    found = last(planned(store))
    assert (found.state, found.trial) == (S.ABSENT, source)
    assert source[:12] in found.reason
    assert [e.trial for e in planned(store).engines.values()][:2] == ["", ""]


def test_whoever_wants_everything_rebuilt_gets_no_trial(store: Store) -> None:
    put(store, of_another())
    assert last(planned(store, on_driver_change="rebuild")).trial == ""


def test_an_engine_of_another_runtime_is_not_tried(store: Store) -> None:
    put(store, of_another(**OTHER_RUNTIME))
    assert last(planned(store)).trial == ""


def test_an_engine_that_failed_too_often_is_not_tried_with_other_files(store: Store, log: AttemptLog) -> None:
    put(store, of_another())
    fail(log, 4)
    assert (last(planned(store)).state, last(planned(store)).trial) == (S.QUARANTINED, "")


def test_an_engine_that_is_there_or_was_rejected_here_needs_no_trial(store: Store) -> None:
    put(store, of_another())
    for accepted in (True, False):
        put(store, stored(accepted=accepted))
        assert last(planned(store)).trial == ""


def by_key(*records: EngineRecord) -> dict[str, EngineRecord]:
    return {EngineKey(record.parts).digest: record for record in records}


def test_the_newest_of_those_that_may_do_is_tried() -> None:
    wanted = PlannedEngine(key_of(model(), RECIPE), RECIPE)
    old, new = of_another(1.0), of_another(2.0, cpu__model="N200", cpu__signature="7")
    ours, other = of_another(9.0, **OTHER_RUNTIME), of_another(9.0, Recipe("onnxruntime"))
    for records in ((old, new, ours, other), (ours, new, old, other)):
        assert trial(wanted, by_key(*records)) == EngineKey(new.parts).digest


@pytest.mark.parametrize(
    "record",
    [
        of_another(accepted=False),
        msgspec.structs.replace(of_another(), files={}, evicted=True),
        msgspec.structs.replace(of_another(), evicted=True),
        msgspec.structs.replace(of_another(), files={}),
        of_another(recipe=Recipe("openvino", precision="bf16")),
        record_of(key_of(model(content="other"), RECIPE, **OTHER_PROCESSOR), RECIPE),
        record_of(key_of(model(), RECIPE), RECIPE),
    ],
    ids=["rejected", "evicted", "evicted, files left", "no files", "precision", "model", "itself"],
)
def test_what_has_no_files_answers_wrongly_or_is_something_else_is_not_tried(record: EngineRecord) -> None:
    wanted = PlannedEngine(key_of(model(), RECIPE), RECIPE)
    assert trial(wanted, by_key(record)) == ""
    assert trial(wanted, {}) == ""


# -- built ahead ----------------------------------------------------------------------------------------------------


def built_ahead(accepted: bool = False, **facts: str) -> EngineRecord:
    record = record_of(key_of(model(), RECIPE, **facts), RECIPE)
    verdict = msgspec.structs.replace(record.verdict, accepted=accepted, reason="built ahead")
    return msgspec.structs.replace(record, ahead="sm_86", verdict=verdict)


@pytest.mark.parametrize("driver_change", ["verify", "rebuild"])
def test_an_engine_that_was_built_ahead_is_tried_first_and_never_used_untried(store: Store, driver_change: str) -> None:
    key = put(store, built_ahead())
    found = last(planned(store, on_driver_change=driver_change))
    assert (found.digest, found.state, found.trial, found.is_usable) == (key, S.ABSENT, key, False)
    assert "built ahead" in found.reason
    (view,) = (e for m in actual(store, [planned(store)]) for e in m.engines if e.key == key)
    assert (view.usable, view.state, view.trial) == (False, S.ABSENT, key)


def test_once_it_is_proven_it_is_an_engine_like_others(store: Store) -> None:
    standard = desired(box(), {"m": model()})["m"][-1].standard
    put(store, msgspec.structs.replace(built_ahead(accepted=True), standard=standard))
    found = last(planned(store))
    assert (found.state, found.trial) == (S.READY, "")


def test_one_that_was_built_ahead_for_another_device_is_left_alone(store: Store) -> None:
    put(store, built_ahead(runtime__openvino="1"))
    assert last(planned(store)).trial == ""


# -- what cannot be made --------------------------------------------------------------------------------------------


def test_an_engine_that_cannot_be_made_says_why_and_an_attempt_that_took_the_box_down_ends_trials(
    store: Store, log: AttemptLog
) -> None:
    into = planned_model()
    of = model(precisions="int8")
    Planner.of(store, box(), Engines()).plan(into, of)
    made = [engine for engine in into.engines.values() if not engine.recipe.is_reference]
    assert made
    for engine in made:
        assert (engine.state, engine.reason) == (S.UNSUITABLE, engine.problem)
        assert engine.problem.startswith("int8 is calibrated on pictures")
    key = put(store, built_ahead())
    log.failed(key, "the box went down")
    assert last(planned(store)).trial == ""


# -- why an engine is not there -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "recipe", "reason"),
    [
        ({"runtime__openvino": "3"}, {}, "runtime"),
        ({"cpu__isa": "avx512"}, {}, "cpu"),
        ({}, {"threads": 7}, "recipe"),
        ({"runtime__openvino": "3"}, {"threads": 7}, "several"),
    ],
)
def test_a_miss_is_told_by_the_kind_of_what_differs(facts: dict[str, str], recipe: dict[str, int], reason: str) -> None:
    of = model()
    stored = key_of(of, Recipe("openvino"))
    wanted = key_of(of, Recipe("openvino", **recipe), **facts)
    assert missing(wanted.parts, {stored.digest: record_of(stored, Recipe("openvino"))}) == reason


def test_engines_of_other_models_and_backends_explain_no_miss() -> None:
    of, recipe = model(), Recipe("openvino")
    other, backend = key_of(model(content="other"), recipe), key_of(of, Recipe("onnxruntime"))
    stored = {key.digest: record_of(key, recipe) for key in (other, backend)}
    assert missing(key_of(of, recipe).parts, stored) == "new"
