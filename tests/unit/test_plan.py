"""What is kept of each engine of a model between two looks, and what a look makes of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from edged.backends.contract import REFERENCE, Recipe
from edged.engines.desired import DesiredEngine, desired
from edged.engines.engine import EngineState, Making, PlannedEngine, Request
from edged.engines.plan import PlannedModel
from edged.engines.reconcile import Open, Refuse, Replan, reconcile
from edged.engines.views import actual
from edged.errors import BuildFailed, NotReady
from edged.ipc.job_messages import Progress
from edged.models.model import Model
from edged.store.key import EngineKey
from edged.store.record import EngineRecord
from tests.unit.control_room import (
    Clock,
    box,
    key_of,
    model,
    planned_model,
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


def test_a_step_that_the_table_lacks_is_an_error_and_changes_nothing() -> None:
    planned, told = engine(), list[EngineState]()
    planned.reason, planned.on_change = "as it was", lambda e: told.append(e.state)
    with pytest.raises(ValueError, match="from absent to verifying"):
        planned.move(S.VERIFYING, "never")
    assert (planned.state, planned.reason, told) == (S.ABSENT, "as it was", [])


# -- failures -------------------------------------------------------------------------------------------------------


def test_each_failure_is_waited_for_longer_up_to_a_bound(clock: Clock) -> None:
    planned, waits = engine(), []
    for _ in range(8):
        making(planned).fail(BuildFailed("no memory"))
        waits.append(planned.retry_at - clock.now)
        assert (planned.state, planned.reason) == (S.FAILED, "no memory")
    assert waits == sorted(waits)
    assert 0 < waits[0] < waits[3]
    assert waits[-1] == waits[-2] <= 3600


# -- what the store holds -------------------------------------------------------------------------------------------


def test_a_reference_is_held_to_no_standard_but_its_own() -> None:
    planned = engine(REFERENCE, standard="new")
    planned.adopt(record(planned, standard="old"))
    assert (planned.state, planned.request) == (S.READY, Request.NONE)


# -- how far it is --------------------------------------------------------------------------------------------------


def test_the_share_of_a_build_is_what_the_child_says_or_else_follows_the_estimate(clock: Clock) -> None:
    making_it = Making(clock.now, estimate_s=100.0)
    clock.now += 25
    making_it.update(Progress("building"))
    assert (making_it.phase, making_it.fraction, making_it.elapsed_s) == ("building", 0.25, 25.0)
    making_it.update(Progress("building", 0.75))
    assert making_it.fraction == 0.75


def test_a_build_that_takes_longer_than_estimated_is_never_said_to_be_done(clock: Clock) -> None:
    making_it = Making(clock.now, estimate_s=10.0)
    clock.now += 1000
    making_it.update(Progress("building"))
    assert making_it.fraction is not None
    assert 0.9 < making_it.fraction < 1


# -- a model --------------------------------------------------------------------------------------------------------


def plan(planned: PlannedModel, of: Model, **facts: str) -> list[PlannedEngine]:
    return planned.plan(of, desired(box(**facts), {"m": of})["m"])


def test_what_is_planned_first_is_absent_and_told_to_be_new() -> None:
    planned = planned_model()
    planned.problem = NotReady("it was not there")
    added = plan(planned, model())
    assert [e.recipe for e in added] == [REFERENCE, Recipe("onnxruntime"), RECIPE]
    assert list(planned.engines) == [e.digest for e in added]
    assert all(e.state is S.ABSENT and e.standard for e in added)
    assert planned.reference is added[0]
    assert planned.problem is None
    assert planned_model().reference is None


def test_planning_again_keeps_what_is_known_of_engines_that_stay() -> None:
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
    """The last engine of a plan, made and judged by the standard of now."""
    last = list(planned.engines.values())[-1]
    making(last).finish(record(last, accepted=accepted, standard=last.standard), None)
    return last


def test_a_new_standard_has_a_good_engine_judged_again_and_a_rejected_one_built_again() -> None:
    for accepted, expected in ((True, (S.READY, Request.REVIEW)), (False, (S.ABSENT, Request.NONE))):
        planned = planned_model()
        plan(planned, model())
        last = settled(planned, accepted=accepted)
        assert plan(planned, model(**STRICT)) == []
        assert (last.state, last.request) == expected
        assert plan(planned, model(**STRICT)) == [], "once"
        assert last.standard == desired(box(), {"m": model(**STRICT)})["m"][-1].standard


def test_a_new_standard_does_not_take_the_place_of_a_command() -> None:
    planned = planned_model()
    plan(planned, model())
    last = settled(planned, accepted=True)
    last.request = Request.BUILD
    plan(planned, model(**STRICT))
    assert last.request is Request.BUILD


@pytest.mark.parametrize(
    ("accepted", "expected"), [(True, (S.READY, Request.REVIEW)), (False, (S.ABSENT, Request.NONE))]
)
def test_a_verdict_by_a_standard_that_changed_while_it_was_reached_is_out_of_date(
    accepted: bool, expected: tuple[EngineState, Request]
) -> None:
    planned = planned_model()
    plan(planned, model())
    last = making(list(planned.engines.values())[-1])
    old = last.standard
    plan(planned, model(**STRICT))
    last.finish(record(last, accepted=accepted, standard=old), None)
    assert (last.state, last.request) == expected


def test_a_standard_is_nothing_to_a_reference() -> None:
    planned = planned_model()
    reference = plan(planned, model())[0]
    making(reference).finish(record(reference), None)
    plan(planned, model(**STRICT))
    assert (reference.state, reference.request) == (S.READY, Request.NONE)


# -- hopeless models ------------------------------------------------------------------------------------------------


def test_a_model_is_hopeless_only_when_its_reference_was_refused_and_nothing_else_is_ready() -> None:
    planned = planned_model()
    assert not planned.is_hopeless(), "nothing is planned yet"
    reference, built, _ = plan(planned, model())
    assert not planned.is_hopeless()
    reference.open_at = math.inf
    assert planned.is_hopeless()
    making(built).finish(record(built), None)
    assert not planned.is_hopeless()
    built.open_at = math.inf
    assert planned.is_hopeless()


def test_a_model_is_not_hopeless_while_something_serves() -> None:
    planned = planned_model()
    reference, built, _ = plan(planned, model())
    reference.open_at = math.inf
    serve(planned, built.digest)
    assert not planned.is_hopeless()


def test_a_model_of_which_every_engine_answered_wrongly_has_its_reference_still() -> None:
    """What it answers is what is right, also where its answers differ from run to run."""
    planned = planned_model()
    reference, *_ = plan(planned, model())
    for each in planned.engines.values():
        making(each).finish(record(each, accepted=False, standard=each.standard), None)
    assert not planned.is_hopeless()
    assert Open("m", reference.digest) in reconcile(actual_views(planned), 1e9, frozenset())
    reference.open_at = math.inf
    assert reconcile(actual_views(planned), 1e9, frozenset()) == [Replan("m"), Refuse("m")]
    assert planned.is_hopeless(), "whoever waits would wait for ever"


# -- a look ---------------------------------------------------------------------------------------------------------


class ModelSelection:
    """As much of a store as a look takes."""

    def __init__(self, *records: EngineRecord) -> None:
        self._records = {EngineKey(each.parts).digest: each for each in records}

    def records(self) -> dict[str, EngineRecord]:
        return dict(self._records)


def actual_views(*models: PlannedModel, shelf: ModelSelection | None = None):  # type: ignore[no-untyped-def]
    return actual(shelf or ModelSelection(), models)  # type: ignore[arg-type]


def test_an_engine_of_the_device_as_it_was_is_outdated_and_one_of_another_model_does_not_serve() -> None:
    planned = planned_model()
    last = plan(planned, model())[-1]
    serve(planned, last.digest)
    plan(planned, model(), runtime__openvino="3")
    (view,) = actual_views(planned)
    assert (view.serving, view.outdated) == (last.digest, True)
    plan(planned, model(content="other"))
    (view,) = actual_views(planned)
    assert (view.serving, view.outdated, view.edition) == (None, False, "")


def test_nothing_is_begun_for_a_model_that_is_being_read(clock: Clock) -> None:
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


# Two models of one content may be held to different standards.


def test_a_reference_that_serves_is_not_opened_anew_because_it_was_measured() -> None:
    planned = planned_model()
    reference = plan(planned, model(backends="null"))[0]
    serve(planned, reference.digest, edition=reference.edition)  # opened at once, before anything was made
    making(reference).finish(record(reference), None)
    assert reconcile(actual_views(planned), 1e9, frozenset({"cpu"})) == []


def test_equal_engines_are_wanted_once() -> None:
    planned = planned_model()
    twice = desired(box(), {"m": model()})["m"] * 2
    assert isinstance(twice[0], DesiredEngine)
    assert len(planned.plan(model(), twice)) == len(planned.engines) == len(twice) // 2


# -- models of one content share engines, and may be held to different standards --------------------------------------

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
def test_actual_takes_up_what_others_brought_into_the_store(case: str) -> None:
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
