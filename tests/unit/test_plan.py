"""The plan of a model: its engines, their states, and what they adopt from the store and earlier attempts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edged.backends.contract import REFERENCE, Recipe
from edged.config import Engines
from edged.engines.desired import DesiredEngine, desired
from edged.engines.engine import EngineState, Making, PlannedEngine, Request
from edged.engines.plan import PlannedModel, Planner, adoptable, missing
from edged.engines.reconcile import Open, Refuse, Replan, reconcile
from edged.engines.views import actual
from edged.errors import BuildFailed, NotReady
from edged.ipc.job_messages import Progress
from edged.models.collected import Collected
from edged.models.model import Model
from edged.store.attempts import AttemptLog
from edged.store.key import EngineKey
from edged.store.record import EngineRecord
from edged.store.store import Store
from tests.unit.control_room import (
    Clock,
    box,
    key_of,
    model,
    planned_model,
    put,
    record_of,
    serve,
    stop_time,
)

S = EngineState
RECIPE = Recipe("openvino")


@pytest.fixture(autouse=True)
def clock() -> Iterator[Clock]:
    with pytest.MonkeyPatch.context() as patch:
        yield stop_time(patch)


def engine(recipe: Recipe = RECIPE, standard: str = "") -> PlannedEngine:
    return PlannedEngine(key_of(model(), recipe), recipe, standard)


def record(of: PlannedEngine, *, accepted: bool = True, standard: str = "", content: bytes = b"engine") -> EngineRecord:
    return record_of(of.key, of.recipe, accepted=accepted, standard=standard, content=content)


def making(of: PlannedEngine) -> PlannedEngine:
    for state in (S.QUEUED, S.BUILDING, S.VERIFYING):
        of.move(state)
    return of


def ready(standard: str = "") -> PlannedEngine:
    of = engine(standard=standard)
    making(of).finish(record(of, standard=standard), None)
    assert of.state is S.READY
    return of


# -- one engine -----------------------------------------------------------------------------------------------------


def test_move_unknown_transition_is_an_error_and_changes_nothing() -> None:
    planned, seen = engine(), list[EngineState]()
    planned.reason, planned.on_change = "as it was", lambda e: seen.append(e.state)
    with pytest.raises(ValueError, match="from absent to verifying"):
        planned.move(S.VERIFYING, "never")
    assert (planned.state, planned.reason, seen) == (S.ABSENT, "as it was", [])


# -- failures -------------------------------------------------------------------------------------------------------


def test_retry_delay_grows_with_failures_up_to_a_bound(clock: Clock) -> None:
    planned, waits = engine(), []
    for _ in range(8):
        making(planned).fail(BuildFailed("no memory"))
        waits.append(planned.retry_at - clock.now)
        assert (planned.state, planned.reason) == (S.FAILED, "no memory")
    assert waits == sorted(waits)
    assert 0 < waits[0] < waits[3]
    assert waits[-1] == waits[-2] <= 3600


# -- progress -------------------------------------------------------------------------------------------------------


def test_fraction_is_the_childs_or_estimated_and_below_one(clock: Clock) -> None:
    making_it = Making(clock.now, estimate_s=100.0)
    clock.now += 25
    making_it.update(Progress("building"))
    assert (making_it.phase, making_it.fraction, making_it.elapsed_s) == ("building", 0.25, 25.0)
    clock.now += 1000
    assert making_it.fraction is not None
    assert 0.9 < making_it.fraction < 1
    making_it.update(Progress("building", 0.75))
    assert making_it.fraction == 0.75


# -- a model --------------------------------------------------------------------------------------------------------


def plan(planned: PlannedModel, of: Model, **facts: str) -> list[PlannedEngine]:
    return planned.plan(of, desired(box(**facts), of))


def test_plan_new_engine_is_absent_with_a_reason() -> None:
    planned = planned_model()
    planned.problem = NotReady("it was not there")
    added = plan(planned, model())
    assert [e.recipe for e in added] == [REFERENCE, Recipe("onnxruntime"), RECIPE]
    assert list(planned.engines) == [e.digest for e in added]
    assert all(e.state is S.ABSENT and e.standard for e in added)
    assert planned.reference is added[0]
    assert planned.problem is None
    assert planned_model().reference is None


@pytest.mark.parametrize("is_changed", [False, True])
def test_plan_changed_model_opens_a_refused_engine_again(is_changed: bool) -> None:
    """Its configuration may no longer have the warm-up that the engine refused."""
    planned, of = planned_model(), model()
    planned.plan(of, desired(box(), of))
    built = list(planned.engines.values())[1]
    built.open_at = math.inf
    if is_changed:
        of = Model.of(msgspec.structs.replace(of.entry, stamp="2"), of.inspection)
    planned.plan(of, desired(box(), of))
    assert planned.engines[built.digest] is built
    assert built.open_at == (0.0 if is_changed else math.inf)


def test_plan_again_keeps_engines_that_stay() -> None:
    planned = planned_model()
    before = plan(planned, model())
    before[0].failures = 3
    added = plan(planned, model(), runtime__openvino="3")
    assert [e.recipe.backend for e in added] == ["openvino"]
    assert list(planned.engines.values()) == [before[0], before[1], added[0]]
    assert planned.engines[before[0].digest] is before[0]
    assert plan(planned, model(), runtime__openvino="3") == []


STRICT = {"verify.fp32.cosine": "0.9999999"}


def settled(planned: PlannedModel, *, accepted: bool) -> PlannedEngine:
    """Finish the last engine of a plan, judged by the current standard. Return it."""
    last = list(planned.engines.values())[-1]
    making(last).finish(record(last, accepted=accepted, standard=last.standard), None)
    return last


@pytest.mark.parametrize(
    ("accepted", "request_", "expected"),
    [
        (True, Request.NONE, (S.READY, Request.REVIEW)),
        (True, Request.BUILD, (S.READY, Request.BUILD)),
        (False, Request.NONE, (S.ABSENT, Request.NONE)),
    ],
)
def test_plan_new_standard_verifies_good_engines_and_rebuilds_rejected_ones(
    accepted: bool, request_: Request, expected: tuple[EngineState, Request]
) -> None:
    planned = planned_model()
    reference = plan(planned, model())[0]
    reference.adopt(record(reference, standard="old"))
    last = settled(planned, accepted=accepted)
    last.request = request_
    for _ in range(2):
        assert plan(planned, model(**STRICT)) == []
        assert (last.state, last.request) == expected
    assert last.standard == desired(box(), model(**STRICT))[-1].standard
    assert (reference.state, reference.request) == (S.READY, Request.NONE), "the reference defines right answers"


@pytest.mark.parametrize(
    ("accepted", "expected"), [(True, (S.READY, Request.REVIEW)), (False, (S.ABSENT, Request.NONE))]
)
def test_plan_another_reference_verifies_engines_of_other_backends(
    accepted: bool, expected: tuple[EngineState, Request]
) -> None:
    planned = planned_model()
    plan(planned, model(backends="openvino"))
    last = settled(planned, accepted=accepted)
    assert last.recipe.backend == "openvino"
    plan(planned, model(backends="openvino"), runtime__onnxruntime="2")
    assert list(planned.engines.values())[-1] is last
    assert (last.state, last.request) == expected


@pytest.mark.parametrize(
    ("accepted", "expected"), [(True, (S.READY, Request.REVIEW)), (False, (S.ABSENT, Request.NONE))]
)
def test_finish_verdict_by_an_old_standard_is_out_of_date(
    accepted: bool, expected: tuple[EngineState, Request]
) -> None:
    planned = planned_model()
    plan(planned, model())
    last = making(list(planned.engines.values())[-1])
    old = last.standard
    plan(planned, model(**STRICT))
    last.finish(record(last, accepted=accepted, standard=old), None)
    assert (last.state, last.request) == expected


# -- hopeless models ------------------------------------------------------------------------------------------------


def test_hopeless_only_if_the_reference_is_refused_and_no_engine_is_ready_or_serves() -> None:
    planned = planned_model()
    assert not planned.is_hopeless(), "no engine is planned yet"
    reference, built, other = plan(planned, model())
    assert not planned.is_hopeless()
    reference.open_at = math.inf
    assert planned.is_hopeless()
    making(built).finish(record(built), None)
    assert not planned.is_hopeless()
    built.open_at = math.inf
    assert planned.is_hopeless()
    serve(planned, other.digest)
    assert not planned.is_hopeless()


def test_hopeless_is_false_if_only_engines_answered_wrongly() -> None:
    """The reference can still serve, because it defines the right answers."""
    planned = planned_model()
    reference, *_ = plan(planned, model())
    for each in planned.engines.values():
        making(each).finish(record(each, accepted=False, standard=each.standard), None)
    assert not planned.is_hopeless()
    assert Open("m", reference.digest) in reconcile(actual_views(planned), 1e9, frozenset())
    reference.open_at = math.inf
    assert reconcile(actual_views(planned), 1e9, frozenset()) == [Replan("m"), Refuse("m")]
    assert planned.is_hopeless(), "requests would wait for ever"


# -- views ----------------------------------------------------------------------------------------------------------


class ModelSelection:
    """A store that has only records."""

    def __init__(self, *records: EngineRecord) -> None:
        self._records = {EngineKey(each.parts).digest: each for each in records}

    def records(self) -> dict[str, EngineRecord]:
        return dict(self._records)


def actual_views(*models: PlannedModel, shelf: ModelSelection | None = None):  # type: ignore[no-untyped-def]
    return actual(shelf or ModelSelection(), models)  # type: ignore[arg-type]


def test_actual_serving_engine_of_the_old_device_is_outdated_and_of_another_model_is_ignored() -> None:
    planned = planned_model()
    last = plan(planned, model())[-1]
    serve(planned, last.digest)
    plan(planned, model(), runtime__openvino="3")
    (view,) = actual_views(planned)
    assert (view.serving, view.outdated) == (last.digest, True)
    plan(planned, model(content="other"))
    (view,) = actual_views(planned)
    assert (view.serving, view.outdated, view.edition) == (None, False, "")


def test_reconcile_model_being_read_has_no_actions(clock: Clock) -> None:
    class Reading:
        is_over = False

        def done(self) -> bool:
            return self.is_over

    planned, reading = planned_model(), Reading()
    plan(planned, model())
    planned.reading = reading  # type: ignore[assignment]
    assert reconcile(actual_views(planned), 1000.0, set()) == []
    reading.is_over = True
    assert reconcile(actual_views(planned), 1000.0, set())


def test_reconcile_measured_reference_is_not_reopened() -> None:
    planned = planned_model()
    reference = plan(planned, model(backends="null"))[0]
    serve(planned, reference.digest, edition=reference.edition)  # opened at once, before it was timed
    making(reference).finish(record(reference), None)
    assert reconcile(actual_views(planned), 1e9, frozenset({"cpu"})) == []


def test_plan_equal_engines_are_planned_once() -> None:
    planned = planned_model()
    twice = desired(box(), model()) * 2
    assert isinstance(twice[0], DesiredEngine)
    assert len(planned.plan(model(), twice)) == len(planned.engines) == len(twice) // 2


# -- models with equal content share engines, and may have different standards ----------------------------------------

OTHER = {"standard": "of another model"}
BAD: dict[str, Any] = {"accepted": False}
TAKEN_UP: dict[str, tuple[EngineState, dict[str, Any], EngineState]] = {
    "what another model made": (S.ABSENT, {}, S.READY),
    "what another model made after a failure here": (S.FAILED, {}, S.READY),
    "what another model made after an eviction": (S.EVICTED, {}, S.READY),
    "what another model made after it was given up": (S.QUARANTINED, {}, S.READY),
    "what another model made after a rejection": (S.REJECTED, {}, S.READY),
    "what another model built again": (S.READY, {"content": b"built again"}, S.READY),
    "what another model found wrong": (S.READY, BAD, S.REJECTED),
    "what another model found wrong after a failure here": (S.FAILED, BAD, S.REJECTED),
    "what another model accepts by its standard": (S.READY, OTHER, S.READY),
    "what another model accepts by its standard after a rejection": (S.REJECTED, OTHER, S.REJECTED),
    "what another model rejects by its standard": (S.READY, BAD | OTHER, S.ABSENT),
    "what another model rejects by its standard after a failure here": (S.FAILED, BAD | OTHER, S.FAILED),
    "what was evicted": (S.ABSENT, {"evicted": True}, S.EVICTED),
    "what was evicted after a failure here": (S.FAILED, {"evicted": True}, S.FAILED),
    "what is being made here": (S.QUEUED, {}, S.QUEUED),
}


@pytest.mark.parametrize("case", TAKEN_UP)
def test_actual_adopts_engines_that_appeared_in_the_store(case: str) -> None:
    before, found, after = TAKEN_UP[case]
    planned = planned_model()
    last = plan(planned, model())[-1]
    if before in (S.READY, S.REJECTED):
        made = record(last, accepted=before is S.READY, standard=last.standard)
        making(last).finish(made, made)
    elif before is not S.ABSENT:
        last.move(S.QUEUED)
        if before is not S.QUEUED:
            last.move(S.ABSENT if before is S.EVICTED else before)
        if before is S.EVICTED:
            last.move(before)
    known = last.record
    stored = record_of(last.key, last.recipe, **({"standard": last.standard} | found))
    if stored.evicted:
        stored = msgspec.structs.replace(stored, files={})
    for _ in range(2):
        actual_views(planned, shelf=ModelSelection(stored))
        assert (last.state, last.is_usable, last.request) == (after, after is S.READY, Request.NONE)
    if after is S.READY:
        assert last.record == (known if found == OTHER else stored)


OTHER_PROCESSOR = {"cpu__model": "N97"}  # an engine with this fact may be tried here
OTHER_RUNTIME = {"runtime__openvino": "1"}  # an engine with this fact may not


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def log(store: Store) -> AttemptLog:
    return AttemptLog(store.root)


def planner(store: Store, **settings: object) -> Planner:
    return Planner(store, box(), msgspec.convert(settings, Engines))


def planned(store: Store, **settings: object) -> PlannedModel:
    into = planned_model()
    planner(store, **settings).plan(into, model())
    return into


def last(of: PlannedModel) -> PlannedEngine:
    return list(of.engines.values())[-1]


def stored(**more: object) -> EngineRecord:
    """Return the record of an engine that is desired here."""
    standard = desired(box(), model())[-1].standard
    return record_of(key_of(model(), RECIPE), RECIPE, **({"standard": standard} | more))  # type: ignore[arg-type]


def of_another(made: float = 1.0, recipe: Recipe = RECIPE, accepted: bool = True, **facts: str) -> EngineRecord:
    """Return the record of an engine of the same model for a box with other facts."""
    return record_of(key_of(model(), recipe, **(facts or OTHER_PROCESSOR)), recipe, accepted=accepted, made=made)


# -- engines in the store -------------------------------------------------------------------------------------------


def test_plan_with_an_empty_store_has_only_absent_engines(store: Store) -> None:
    found = planned(store)
    assert [e.recipe.backend for e in found.engines.values()] == ["onnxruntime", "onnxruntime", "openvino"]
    assert {(e.state, e.adoptable, e.failures) for e in found.engines.values()} == {(S.ABSENT, "", 0)}


ANOTHER_RELEASE = {"standard": "of another release"}
STORED: dict[str, tuple[dict[str, Any], EngineState, Request]] = {
    "accepted": ({}, S.READY, Request.NONE),
    "rejected": ({"accepted": False}, S.REJECTED, Request.NONE),
    "evicted": ({"evicted": True}, S.EVICTED, Request.NONE),
    "accepted by another standard": (ANOTHER_RELEASE, S.READY, Request.REVIEW),
    "rejected by another standard": ({"accepted": False} | ANOTHER_RELEASE, S.ABSENT, Request.NONE),
}


@pytest.mark.parametrize(("fields", "state", "request_"), STORED.values(), ids=STORED)
def test_plan_adopts_the_stored_verdict(
    store: Store, fields: dict[str, Any], state: EngineState, request_: Request
) -> None:
    record = stored(**fields)
    if record.evicted:
        store.strip(record)
    else:
        put(store, record)
    found = last(planned(store))
    assert (found.state, found.request) == (state, request_)
    assert (found.record is None) == (state is S.ABSENT)
    if state is S.REJECTED:
        assert found.reason == record.verdict.reason


def test_plan_counts_hits_and_misses(store: Store) -> None:
    put(store, stored())
    planned(store)
    assert (store.counts.hits, store.counts.misses) == (1, 2)


def test_plan_known_engine_keeps_its_state(store: Store) -> None:
    into, plans = planned_model(), planner(store)
    plans.plan(into, model())
    engine = last(into)
    engine.failures = 2
    put(store, stored())
    plans.plan(into, model())
    assert last(into) is engine
    assert (engine.state, engine.failures) == (S.ABSENT, 2), "the store is read by the next `actual`"


def test_plan_reports_every_state_of_a_new_engine(store: Store) -> None:
    seen = list[tuple[str, EngineState]]()
    put(store, stored())
    into = planned_model()
    planner(store).plan(into, model(), lambda engine: seen.append((engine.digest, engine.state)))
    assert seen == [(last(into).digest, S.READY)]
    reference = next(iter(into.engines.values()))
    reference.move(S.QUEUED)
    assert seen[1:] == [(reference.digest, S.QUEUED)]


# -- earlier failures -----------------------------------------------------------------------------------------------


def fail(log: AttemptLog, times: int) -> None:
    for _ in range(times):
        log.begin(key_of(model(), RECIPE).digest)
        log.failed(key_of(model(), RECIPE).digest, "no memory")


FAILED = "failed 4 times; last error: no memory"
REMEMBERED: dict[str, tuple[int, str, dict[str, Any], bool, tuple[EngineState, int, str, bool]]] = {
    "failed a few times": (3, "", {}, False, (S.ABSENT, 3, "", False)),
    "failed too often": (4, "", {}, False, (S.QUARANTINED, 4, FAILED, False)),
    "failed too often for other settings": (4, "", {"attempts": 5}, False, (S.ABSENT, 4, "", False)),
    "failed, and is in the store": (9, "", {}, True, (S.READY, 0, "", False)),
    "is hopeless": (0, "hopeless", {}, False, (S.QUARANTINED, 1, "failed 1 time; last error: no kernel", False)),
    "was cancelled": (0, "cancelled", {}, False, (S.QUARANTINED, 0, "by an operator", True)),
}


@pytest.mark.parametrize("case", REMEMBERED)
def test_plan_after_restart_remembers_attempts_at_the_engine(store: Store, log: AttemptLog, case: str) -> None:
    failures, stopped, settings, is_stored, expected = REMEMBERED[case]
    key = key_of(model(), RECIPE).digest
    fail(log, failures)
    if stopped == "cancelled":
        log.cancelled(key, "by an operator")
    elif stopped:
        log.failed(key, "no kernel", is_hopeless=True)
    if is_stored:
        put(store, stored())
    found = planned(store, **settings)
    engine = last(found)
    assert (engine.state, engine.failures, engine.reason, engine.is_held) == expected
    assert [e.state for e in found.engines.values()][:2] == [S.ABSENT, S.ABSENT]


# -- adoption ---------------------------------------------------------------------------------------------------------


def test_adoption_of_an_engine_for_another_driver_comes_before_a_build(store: Store) -> None:
    source = put(store, of_another())
    found = last(planned(store))
    assert (found.state, found.adoptable) == (S.ABSENT, source)
    assert source[:12] in found.reason
    assert [e.adoptable for e in planned(store).engines.values()][:2] == ["", ""]


def by_key(*records: EngineRecord) -> dict[str, EngineRecord]:
    return {EngineKey(record.parts).digest: record for record in records}


def test_adoption_uses_the_newest_candidate() -> None:
    wanted = PlannedEngine(key_of(model(), RECIPE), RECIPE)
    old, new = of_another(1.0), of_another(2.0, cpu__model="N200", cpu__signature="7")
    ours, other = of_another(9.0, **OTHER_RUNTIME), of_another(9.0, Recipe("onnxruntime"))
    for records in ((old, new, ours, other), (ours, new, old, other)):
        assert adoptable(wanted, by_key(*records)) == EngineKey(new.parts).digest


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
def test_adoption_excludes_evicted_rejected_and_other_engines(record: EngineRecord) -> None:
    wanted = PlannedEngine(key_of(model(), RECIPE), RECIPE)
    assert adoptable(wanted, by_key(record)) == ""
    assert adoptable(wanted, {}) == ""


# -- built ahead ----------------------------------------------------------------------------------------------------


def built_ahead(accepted: bool = False, **facts: str) -> EngineRecord:
    record = record_of(key_of(model(), RECIPE, **facts), RECIPE)
    verdict = msgspec.structs.replace(record.verdict, accepted=accepted, reason="built ahead")
    return msgspec.structs.replace(record, ahead="sm_86", verdict=verdict)


@pytest.mark.parametrize("driver_change", ["verify", "rebuild"])
def test_adoption_of_an_engine_built_ahead_comes_before_its_use(store: Store, driver_change: str) -> None:
    key = put(store, built_ahead())
    found = last(planned(store, on_driver_change=driver_change))
    assert (found.digest, found.state, found.adoptable, found.is_usable) == (key, S.ABSENT, key, False)
    assert "built ahead" in found.reason
    (view,) = (e for m in actual(store, [planned(store)]) for e in m.engines if e.key == key)
    assert (view.usable, view.state, view.adoptable) == (False, S.ABSENT, key)


def test_adoption_of_an_engine_built_ahead_makes_it_an_ordinary_engine(store: Store) -> None:
    standard = desired(box(), model())[-1].standard
    put(store, msgspec.structs.replace(built_ahead(accepted=True), standard=standard))
    found = last(planned(store))
    assert (found.state, found.adoptable) == (S.READY, "")


# -- no adoption -------------------------------------------------------------------------------------------------------


NOT_TRIED: dict[str, tuple[list[EngineRecord], int, dict[str, str]]] = {
    "disabled": ([of_another()], 0, {"on_driver_change": "rebuild"}),
    "another runtime": ([of_another(**OTHER_RUNTIME)], 0, {}),
    "stored here": ([of_another(), stored()], 0, {}),
    "rejected here": ([of_another(), stored(accepted=False)], 0, {}),
    "failed too often here": ([of_another()], 4, {}),
    "built ahead for another device": ([built_ahead(runtime__openvino="1")], 0, {}),
    "tried when the box went down": ([built_ahead()], 1, {}),
}


@pytest.mark.parametrize("case", NOT_TRIED)
def test_adoption_is_not_planned(store: Store, log: AttemptLog, case: str) -> None:
    records, failures, settings = NOT_TRIED[case]
    for each in records:
        put(store, each)
    fail(log, failures)
    assert last(planned(store, **settings)).adoptable == ""


def test_plan_unsuitable_engine_has_a_reason(store: Store) -> None:
    into = planned_model()
    Planner(store, box(), Engines()).plan(into, model(precisions="int8"))
    made = [engine for engine in into.engines.values() if engine.recipe.precision == "int8"]
    assert made
    for engine in made:
        assert (engine.state, engine.reason) == (S.UNSUITABLE, engine.problem)
        assert engine.problem.startswith("int8 is calibrated on pictures")


def test_plan_model_knows_the_frames_that_were_collected_for_it(store: Store) -> None:
    found = {"m": Collected("0123456789ab", {"/a.jpg": "0" * 64}, {"/b.jpg": "1" * 64})}
    into, name = planned_model(), model().name
    made = Planner(store, box(), Engines(), collected=lambda asked: found["m"] if asked == name else None)
    made.plan(into, model())
    assert into.model is not None
    assert into.model.collected == found["m"]
    Planner(store, box(), Engines()).plan(into, into.model)
    assert into.model.collected is None


# -- reasons of misses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "recipe", "facts", "reason"),
    [
        ("content", RECIPE, {"runtime__openvino": "3"}, "runtime"),
        ("content", RECIPE, {"cpu__isa": "avx512"}, "cpu"),
        ("content", Recipe("openvino", threads=7), {}, "recipe"),
        ("content", Recipe("openvino", threads=7), {"runtime__openvino": "3"}, "several"),
        ("content", Recipe("onnxruntime"), {}, "new"),
        ("other", RECIPE, {}, "new"),
    ],
)
def test_misses_are_counted_by_the_kind_of_difference(
    content: str, recipe: Recipe, facts: dict[str, str], reason: str
) -> None:
    wanted = key_of(model(content=content), recipe, **facts)
    assert missing(wanted.parts, by_key(record_of(key_of(model(), RECIPE), RECIPE))) == reason
