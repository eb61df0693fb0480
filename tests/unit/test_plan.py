"""What is kept of each engine of a model between two looks, and what a look makes of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from edged.backends.contract import REFERENCE, Recipe
from edged.engines.desired import DesiredEngine, desired
from edged.engines.engine import EngineState, Making, PlannedEngine, Request
from edged.engines.plan import PlannedModel
from edged.engines.reconcile import Open, Refuse, Replan, reconcile
from edged.engines.views import actual
from edged.errors import BuildFailed, EngineUnusable, NotReady
from edged.ipc.job_messages import Progress
from edged.models.entries import stamp
from edged.models.model import Model
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


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


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


def test_an_engine_goes_through_its_life() -> None:
    planned = engine()
    made = record(planned)
    making(planned).finish(made, made)
    assert (planned.state, planned.is_usable, planned.edition) == (S.READY, True, made.edition)
    planned.lose()
    assert (planned.state, planned.is_usable, planned.edition) == (S.ABSENT, False, "")


def test_every_step_is_told_after_it_was_taken() -> None:
    planned, told = engine(), list[tuple[EngineState, str]]()
    planned.on_change = lambda e: told.append((e.state, e.reason))
    making(planned).fail(BuildFailed("no memory"))
    assert told == [(S.QUEUED, ""), (S.BUILDING, ""), (S.VERIFYING, ""), (S.FAILED, "no memory")]


def test_a_step_that_the_table_lacks_is_an_error_and_changes_nothing() -> None:
    planned, told = engine(), list[EngineState]()
    planned.reason, planned.on_change = "as it was", lambda e: told.append(e.state)
    with pytest.raises(ValueError, match="from absent to verifying"):
        planned.move(S.VERIFYING, "never")
    assert (planned.state, planned.reason, told) == (S.ABSENT, "as it was", [])


def test_a_rejected_engine_keeps_its_reason_and_cannot_be_used() -> None:
    planned = engine()
    making(planned).finish(record(planned, accepted=False), None)
    assert (planned.state, planned.is_usable) == (S.REJECTED, False)
    assert "cosine" in planned.reason


def test_a_new_build_that_is_rejected_does_not_take_away_a_good_one() -> None:
    planned = ready()
    before = planned.record
    planned.request = Request.BUILD
    making(planned).finish(record(planned, accepted=False), before)
    assert (planned.state, planned.record, bool(planned.last_attempt_failed), planned.request) == (
        S.READY,
        before,
        True,
        Request.NONE,
    )
    assert "the one before stays" in planned.reason


def test_a_new_build_that_is_accepted_is_another_edition_and_no_setback() -> None:
    planned = ready()
    before, planned.last_attempt_failed = planned.edition, "rejected"
    again = record(planned, content=b"another")
    making(planned).finish(again, again)
    assert (planned.state, planned.edition != before, bool(planned.last_attempt_failed)) == (S.READY, True, False)


def test_an_engine_that_turns_out_to_be_wrong_is_rejected_whatever_it_was() -> None:
    planned = ready()
    wrong = record(planned, accepted=False)
    making(planned).finish(wrong, wrong)
    assert (planned.state, planned.is_usable) == (S.REJECTED, False)


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


def test_an_engine_that_fails_too_often_is_no_longer_tried() -> None:
    planned = engine()
    for _ in range(3):
        making(planned).fail(BuildFailed("no memory"), most=4)
        assert planned.state is S.FAILED
    making(planned).fail(BuildFailed("no time"), most=4)
    assert (planned.state, planned.reason) == (S.QUARANTINED, "failed 4 times, the last time: no time")


def test_making_a_good_engine_anew_may_fail_for_ever_and_it_stays(clock: Clock) -> None:
    planned = ready()
    for _ in range(6):
        planned.request = Request.REVIEW
        making(planned).fail(BuildFailed("no memory"), most=4)
        assert (planned.state, planned.is_usable, bool(planned.last_attempt_failed)) == (S.READY, True, True)
        assert (planned.request, planned.retry_at > clock.now) == (Request.NONE, True)
    assert "no memory; the one before stays" in planned.reason


def test_an_engine_that_serves_is_forgiven_what_went_wrong_before(clock: Clock) -> None:
    planned = engine()
    making(planned).fail(BuildFailed("no memory"))
    first = planned.retry_at
    making(planned).fail(BuildFailed("no memory"))
    making(planned).finish(record(planned), None)
    planned.open_at = clock.now + 10
    planned.opened()
    assert (planned.failures, planned.open_at) == (0, 0.0)
    planned.lose()
    making(planned).fail(BuildFailed("no memory"))
    assert planned.retry_at == first


def test_an_engine_that_builds_but_never_opens_is_built_less_and_less_often_and_then_no_more(clock: Clock) -> None:
    planned, waits = engine(), []
    for _ in range(4):
        making(planned).finish(record(planned), None)
        planned.record = None  # the runtime refused it, and it was thrown away
        planned.fail(EngineUnusable("cannot be opened"), most=4)
        waits.append(planned.retry_at - clock.now)
    assert waits == sorted(waits)
    assert waits[0] < waits[-1]
    assert planned.state is S.QUARANTINED


@pytest.mark.parametrize("state", [S.QUEUED, S.BUILDING, S.VERIFYING])
def test_what_could_not_even_be_tried_is_tried_later_and_counts_for_nothing(state: EngineState, clock: Clock) -> None:
    for planned, expected in ((engine(), S.FAILED), (ready(), S.READY)):
        planned.move(S.QUEUED)
        if state is not S.QUEUED:
            planned.move(state)
        planned.postpone("the disk is full", 30.0)
        assert (planned.state, planned.reason, planned.failures) == (expected, "the disk is full", 0)
        assert planned.retry_at == clock.now + 30


def test_what_is_postponed_is_still_wished() -> None:
    planned = ready()
    planned.request = Request.BUILD
    making(planned).postpone("the disk is full", 30.0)
    assert planned.request is Request.BUILD


def test_what_is_no_longer_tried_is_not_wished_either() -> None:
    planned = engine()
    planned.request = Request.BUILD
    planned.quarantine("cancelled")
    assert (planned.state, planned.reason, planned.request) == (S.QUARANTINED, "cancelled", Request.NONE)


# -- what the store holds -------------------------------------------------------------------------------------------


def test_an_engine_of_the_store_is_as_the_store_knows_it() -> None:
    good, bad, gone = engine(standard="s"), engine(standard="s"), engine(standard="s")
    good.adopt(record(good, standard="s"))
    bad.adopt(record(bad, accepted=False, standard="s"))
    gone.adopt(msgspec.structs.replace(record(gone, standard="s"), files={}, evicted=True))
    assert [e.state for e in (good, bad, gone)] == [S.READY, S.REJECTED, S.EVICTED]
    assert [e.is_usable for e in (good, bad, gone)] == [True, False, False]
    assert [e.request for e in (good, bad, gone)] == [Request.NONE] * 3
    assert "cosine" in bad.reason


def test_an_engine_that_was_judged_by_another_standard_is_used_and_judged_again() -> None:
    planned = engine(standard="new")
    planned.adopt(record(planned, standard="old"))
    assert (planned.state, planned.request) == (S.READY, Request.REVIEW)


def test_an_engine_that_was_rejected_by_another_standard_is_built_again() -> None:
    planned = engine(standard="new")
    planned.adopt(record(planned, accepted=False, standard="old"))
    assert (planned.state, planned.record) == (S.ABSENT, None)


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


def test_the_share_of_what_nobody_knows_is_not_guessed(clock: Clock) -> None:
    unknown = Making(clock.now)
    for phase in ("building", "verifying"):
        clock.now += 5
        unknown.update(Progress(phase))
        assert unknown.fraction is None


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


def test_a_model_of_other_content_has_nothing_in_common_with_the_one_before() -> None:
    planned = planned_model()
    before = plan(planned, model())
    assert len(plan(planned, model(content="other"))) == len(before)
    assert not {e.digest for e in before} & set(planned.engines)


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


def test_external_data_that_changes_is_noticed_once(tmp_path: Path) -> None:
    planned = planned_model()
    assert not planned.weights
    planned.entry = msgspec.structs.replace(planned.entry, path=str(tmp_path / "model.onnx"))
    (tmp_path / "weights.bin").write_bytes(b"1")
    planned.weights = (tmp_path / "weights.bin",)
    planned.weights_changed(stamp(planned.weights))
    assert not planned.weights_changed(stamp(planned.weights))
    (tmp_path / "weights.bin").write_bytes(b"22")
    assert planned.weights_changed(stamp(planned.weights))
    assert not planned.weights_changed(stamp(planned.weights))


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


def test_a_look_shows_every_engine_as_it_is() -> None:
    planned = planned_model()
    reference, _, last = plan(planned, model())
    made = record(last)
    making(last).finish(made, made)
    last.open_at, last.request, reference.retry_at = 7.0, Request.VERIFY, 8.0
    (view,) = actual_views(planned)
    assert [e.key for e in view.engines] == list(planned.engines)
    seen = view.engines[2]
    assert (seen.state, seen.usable, seen.cost, seen.edition) == (S.READY, True, 0.5, made.edition)
    assert (seen.open_at, seen.request, view.engines[0].retry_at) == (7.0, "verify", 8.0)
    assert view.engines[0].recipe.is_reference
    assert (view.name, view.serving, view.opening, view.outdated) == ("m", None, False, False)


def test_a_look_shows_which_build_of_which_engine_serves() -> None:
    planned = planned_model()
    last = plan(planned, model())[-1]
    serve(planned, last.digest, edition="first")
    (view,) = actual_views(planned)
    assert (view.serving, view.edition, view.outdated) == (last.digest, "first", False)


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


def test_a_look_takes_up_what_others_brought_into_the_store() -> None:
    planned = planned_model()
    last = plan(planned, model())[-1]
    actual_views(planned, shelf=ModelSelection(record(last, standard=last.standard)))
    assert (last.state, last.is_usable) == (S.READY, True)


@pytest.mark.parametrize("state", [S.FAILED, S.EVICTED, S.QUARANTINED])
def test_what_others_made_is_taken_up_also_where_it_failed_or_gave_way_before(state: EngineState) -> None:
    """Two models of one content have their engines in common, and the second need not make what the first made."""
    planned = planned_model()
    last = plan(planned, model())[-1]
    if state is S.FAILED:
        last.move(S.QUEUED)
    last.move(state)
    actual_views(planned, shelf=ModelSelection(record(last, standard=last.standard)))
    assert (last.state, last.is_usable) == (S.READY, True)


def test_what_others_built_anew_is_taken_up() -> None:
    planned = planned_model()
    last = plan(planned, model())[-1]
    making(last).finish(record(last, standard=last.standard), None)
    anew = record(last, standard=last.standard, content=b"built anew")
    (view,) = actual_views(planned, shelf=ModelSelection(anew))
    assert view.engines[-1].edition == anew.edition


def test_what_others_found_to_be_wrong_is_used_no_more() -> None:
    planned = planned_model()
    last = plan(planned, model())[-1]
    making(last).finish(record(last, standard=last.standard), None)
    (view,) = actual_views(planned, shelf=ModelSelection(record(last, accepted=False, standard=last.standard)))
    assert (view.engines[-1].state, view.engines[-1].usable) == (S.REJECTED, False)


# Two models of one content may be held to different standards.


def judged(*, accepted: bool) -> tuple[PlannedModel, PlannedEngine]:
    planned = planned_model()
    last = plan(planned, model())[-1]
    made = record(last, accepted=accepted, standard=last.standard)
    making(last).finish(made, made)
    return planned, last


def test_a_good_engine_that_another_model_accepts_by_its_own_standard_is_not_judged_again_in_turns() -> None:
    planned, last = judged(accepted=True)
    for _ in range(2):
        actual_views(planned, shelf=ModelSelection(record(last, standard="of another model")))
        assert (last.state, last.request) == (S.READY, Request.NONE)


def test_what_another_model_accepts_by_its_own_standard_stays_rejected_here() -> None:
    planned, last = judged(accepted=False)
    actual_views(planned, shelf=ModelSelection(record(last, standard="of another model")))
    assert (last.state, last.is_usable) == (S.REJECTED, False)
    actual_views(planned, shelf=ModelSelection(record(last, standard=last.standard)))
    assert (last.state, last.is_usable) == (S.READY, True)


def test_a_good_engine_whose_files_went_by_the_standard_of_another_model_is_built_again() -> None:
    planned, last = judged(accepted=True)
    actual_views(planned, shelf=ModelSelection(record(last, accepted=False, standard="of another model")))
    assert (last.state, last.is_usable) == (S.ABSENT, False), "it cannot be opened, and by its own standard it may do"


@pytest.mark.parametrize("cause", ["failed", "gave way"])
def test_what_others_found_to_be_wrong_is_not_made_to_find_it_out_again(cause: str) -> None:
    planned = planned_model()
    last = plan(planned, model())[-1]
    if cause == "failed":
        making(last).fail(BuildFailed("no memory"))
        actual_views(planned, shelf=ModelSelection(record(last, accepted=False, standard=last.standard)))
        assert last.state is S.REJECTED
    else:
        last.move(S.QUEUED)
        last.postpone("it does not fit", 30.0)
        gone = msgspec.structs.replace(record(last, standard=last.standard), files={}, evicted=True)
        actual_views(planned, shelf=ModelSelection(gone))
        assert last.state is S.FAILED, "it is tried again when it is time, not at once"


def test_an_engine_that_failed_waits_for_its_time_whatever_another_standard_said_of_it() -> None:
    planned = planned_model()
    last = plan(planned, model())[-1]
    last.move(S.QUEUED)
    last.postpone("the disk is full", 30.0)
    for _ in range(2):
        actual_views(planned, shelf=ModelSelection(record(last, accepted=False, standard="of another release")))
        assert last.state is S.FAILED


def test_what_is_being_made_is_left_to_its_outcome() -> None:
    planned = planned_model()
    last = plan(planned, model())[-1]
    last.move(S.QUEUED)
    actual_views(planned, shelf=ModelSelection(record(last, standard=last.standard)))
    assert last.state is S.QUEUED


def test_what_gave_way_in_the_store_is_not_taken_for_there() -> None:
    planned = planned_model()
    last = plan(planned, model())[-1]
    gone = msgspec.structs.replace(record(last, standard=last.standard), files={}, evicted=True)
    for _ in range(2):
        actual_views(planned, shelf=ModelSelection(gone))
        assert (last.state, last.is_usable) == (S.EVICTED, False)


def test_a_reference_that_serves_is_not_opened_anew_because_it_was_measured() -> None:
    planned = planned_model()
    reference = plan(planned, model(backends="null"))[0]
    serve(planned, reference.digest, edition=reference.edition)  # opened at once, before anything was made
    making(reference).finish(record(reference), None)
    assert reconcile(actual_views(planned), 1e9, frozenset({"cpu"})) == []


def test_what_the_store_holds_is_ready_when_it_is_planned(store: Store) -> None:
    planned = planned_model()
    last = plan(planned, model())[-1]
    put(store, record(last, standard=last.standard))
    actual(store, [planned])
    assert last.state is S.READY


def test_equal_engines_are_wanted_once() -> None:
    planned = planned_model()
    twice = desired(box(), {"m": model()})["m"] * 2
    assert isinstance(twice[0], DesiredEngine)
    assert len(planned.plan(model(), twice)) == len(planned.engines) == len(twice) // 2
