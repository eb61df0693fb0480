"""The maker with a scripted builder: states of engines, the log of attempts, and build lanes."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from edged.backends.contract import Recipe
from edged.engines.builder import OnProgress, Reserve, Task
from edged.engines.child import ChildLost
from edged.engines.engine import EngineState, PlannedEngine, Request
from edged.engines.maker import reason_to_give_up
from edged.engines.reconcile import Action, Adopt, Make, Verify
from edged.errors import (
    BuildFailed,
    EdgedError,
    EngineUnusable,
    OutOfMemory,
    OutOfSpace,
    Superseded,
    Unsuitable,
    WrongAnswers,
)
from edged.events import EngineEvicted, EngineProgress
from edged.ipc.job_messages import Progress
from edged.store import attempts as attempts_module
from edged.store.attempts import AttemptLog, Attempts
from edged.store.record import EngineRecord, Verdict
from tests.unit.control_room import (
    MB,
    Clock,
    ControlRoom,
    Unexpected,
    emitted,
    key_of,
    model,
    put,
    record_of,
    settle,
    stop_time,
)
from tests.waiting import until

S = EngineState


class Workshop(ControlRoom):
    """One model with a reference and two engines, and a real maker."""

    def start(self, kind: type[Action] = Make, engine: PlannedEngine | None = None, source: str = "") -> None:
        key = (engine or self.engine).digest
        self.maker.start(self.planned, Adopt("m", key, source) if kind is Adopt else kind("m", key))  # type: ignore[call-arg]

    async def make(
        self, outcome: bool | BaseException = True, kind: type[Action] = Make, source: str = ""
    ) -> PlannedEngine:
        """Make the engine with this outcome, and wait for the end."""
        self.builder.outcomes.append(outcome)
        self.start(kind, source=source)
        await self.idle()
        return self.engine

    def attempts(self) -> Attempts:
        return self.log.of(self.engine.digest)


@pytest.fixture(autouse=True)
def clock() -> Iterator[Clock]:
    with pytest.MonkeyPatch.context() as patch:
        yield stop_time(patch)


@pytest.fixture
def shop(tmp_path: Path, clock: Clock) -> Workshop:
    return Workshop(tmp_path, clock)


@pytest.fixture
def reboot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "boot_id"
    place.write_text("first")
    monkeypatch.setattr(attempts_module, "_BOOT", place)
    return place


# -- verdicts -------------------------------------------------------------------------------------------------------


async def test_make_accepted_engine_is_ready_and_stored(shop: Workshop) -> None:
    engine = await shop.make()
    assert (engine.state, engine.is_usable, engine.making, engine.request) == (S.READY, True, None, Request.NONE)
    assert engine.record == shop.store.records()[engine.digest]
    assert shop.states == ["queued", "building", "verifying", "ready"]
    assert shop.attempts() == Attempts()
    assert shop.looks == 1, "the control loop runs after the end of a task"


async def test_make_rejected_engine_keeps_its_reason_and_counts_no_failure(shop: Workshop) -> None:
    engine = await shop.make(False)
    assert (engine.state, engine.is_usable) == (S.REJECTED, False)
    assert "cosine" in engine.reason
    assert not shop.store.records()[engine.digest].verdict.accepted
    assert shop.attempts() == Attempts()


async def test_make_occupies_the_device_and_reports_progress(shop: Workshop, clock: Clock) -> None:
    shop.builder.estimate = 40.0
    await shop.at_work()
    assert shop.maker.busy == {"cpu"}
    assert shop.maker.is_making(shop.engine)
    assert not shop.maker.is_making(shop.other)
    clock.now += 7
    assert shop.engine.making is not None
    assert (shop.engine.making.phase, shop.engine.making.elapsed_s) == ("verifying", 7.0)
    assert shop.engine.making.estimate_s == 40.0
    shop.builder.gate.set()
    await shop.idle()
    assert shop.maker.busy == frozenset()
    assert not shop.maker.is_making(shop.engine)


async def test_make_for_two_devices_runs_in_parallel(shop: Workshop) -> None:
    recipe = Recipe("onnxruntime", device="cuda:0")
    gpu = PlannedEngine(key_of(model(), recipe), recipe, lane="cuda:0")
    shop.planned.engines[gpu.digest] = gpu
    await shop.at_work()
    shop.start(engine=gpu)
    assert shop.maker.busy == {"cpu", "cuda:0"}
    await until(lambda: len(shop.builder.did) == 2, "both are at work")
    shop.maker.cancel(gpu, "cancelled")
    await until(lambda: shop.maker.busy == {"cpu"}, "one of them ends")
    shop.builder.gate.set()
    await shop.idle()
    assert (shop.engine.state, gpu.state) == (S.READY, S.QUARANTINED)


async def test_make_does_not_evict_its_engine_or_its_source(tmp_path: Path, clock: Clock) -> None:
    shop, recipe = Workshop(tmp_path, clock, budget_mb=1), Recipe("openvino", threads=1)
    content = bytes(MB // 2)
    source = put(shop.store, record_of(key_of(model(), recipe, cpu__model="N97"), recipe, content=content), content)
    shop.builder.gate.clear()
    shop.start(Adopt, source=source)
    await until(lambda: bool(shop.builder.did), "a child is at work")
    with pytest.raises(OutOfSpace):
        await shop.maker.eviction.wait_for_capacity(MB)
    assert source in shop.store.records()
    shop.builder.gate.set()
    await shop.idle()
    await shop.maker.eviction.wait_for_capacity(MB // 2)
    assert [event.bytes for event in emitted(shop.events, EngineEvicted)] == [MB // 2]


# -- failures -------------------------------------------------------------------------------------------------------


async def test_make_failing_engine_is_retried_with_less_effort_until_quarantined(tmp_path: Path, clock: Clock) -> None:
    shop = Workshop(tmp_path, clock, attempts=6)
    for number in range(1, 6):
        engine = await shop.make(BuildFailed(f"failure {number}"))
        assert (engine.state, engine.reason, engine.failures) == (S.FAILED, f"failure {number}", number)
        assert engine.retry_at > clock.now
        assert shop.attempts() == Attempts(number, f"failure {number}")
    await shop.make(BuildFailed("failure 6"))
    assert engine.state is S.QUARANTINED
    assert engine.reason == "failed 6 times; last error: failure 6"
    assert shop.attempts() == Attempts(6, "failure 6")
    assert shop.builder.efforts == ["full", "full", "reduced", "least", "least", "least"]


async def test_make_engine_that_hangs_twice_is_quarantined_and_similar_ones_after_one_try(shop: Workshop) -> None:
    hang = ChildLost("build child was stopped, because it reported no progress for 120 s", "late")
    assert (await shop.make(hang)).state is S.FAILED
    assert (await shop.make(hang)).state is S.QUARANTINED
    shop.builder.outcomes.append(hang)
    shop.start(engine=shop.other)
    await shop.idle()
    assert (shop.other.state, shop.other.failures) == (S.QUARANTINED, 1)
    assert shop.attempts().stopped == shop.log.of(shop.other.digest).stopped == "hopeless"


async def test_slow_lane_is_listed_after_a_long_build_if_memory_is_free(shop: Workshop, clock: Clock) -> None:
    await shop.at_work()
    assert shop.maker.slow(lambda: 8192) == frozenset()
    clock.now += 61.0
    assert shop.maker.slow(lambda: 8192) == {"cpu"}
    assert shop.maker.slow(lambda: 500) == frozenset()
    recipe, shop.engine.recipe = shop.engine.recipe, Recipe("tensorrt")
    assert shop.maker.slow(lambda: 8192) == frozenset(), "it times kernels, so it must run alone"
    shop.engine.recipe = recipe
    shop.start(engine=shop.other)
    await until(lambda: len(shop.builder.did) == 2, "another build starts")
    assert shop.maker.slow(lambda: 8192) == frozenset()
    shop.builder.gate.set()
    await shop.idle()
    assert (shop.engine.state, shop.other.state, shop.maker.busy) == (S.READY, S.READY, frozenset())


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (Unsuitable("it would not keep int64 exact"), S.UNSUITABLE),
        (Superseded("it was replaced"), S.FAILED),
        (OutOfSpace("it does not fit"), S.FAILED),
    ],
)
async def test_make_without_outcome_counts_no_failure(
    shop: Workshop, clock: Clock, error: EdgedError, state: EngineState, reboot: Path
) -> None:
    engine = await shop.make(error)
    assert (engine.state, engine.reason, engine.failures) == (state, str(error), 0)
    assert (engine.retry_at > clock.now) is (state is S.FAILED)
    assert shop.planned.is_superseded is isinstance(error, Superseded)
    reboot.write_text("second")
    assert shop.attempts() == Attempts()


async def test_make_engine_larger_than_the_space_counts_no_failure(tmp_path: Path, clock: Clock) -> None:
    shop = Workshop(tmp_path, clock, budget_mb=1)
    shop.builder.content = bytes(2 * MB)
    engine = await shop.make()
    assert (engine.state, engine.failures, shop.builder.did) == (S.FAILED, 0, [])
    assert "does not fit" in engine.reason


async def test_make_unexpected_error_frees_the_device_and_is_retried_later(
    shop: Workshop, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "edged.engines"):
        engine = await shop.make(Unexpected("a bug"))
    assert (engine.state, engine.making, shop.maker.busy) == (S.FAILED, None, frozenset())
    assert engine.retry_at > clock.now
    assert "Unexpected" in engine.reason
    assert (await shop.make()).state is S.READY
    assert [record.exc_info is not None for record in caplog.records] == [True]


async def test_make_for_a_refused_model_frees_the_device(shop: Workshop) -> None:
    shop.start()
    shop.planned.model, shop.planned.engines = None, {}
    shop.maker.abandon()
    await shop.idle()
    assert shop.maker.busy == frozenset()


async def test_make_interrupted_by_a_crash_of_the_box_counts_after_restart(shop: Workshop, reboot: Path) -> None:
    await shop.at_work()
    reboot.write_text("second")
    assert shop.attempts().failures == 1


# -- engines that exist already -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Make, Verify])
@pytest.mark.parametrize("requested", [Request.BUILD, Request.VERIFY, Request.REVIEW])
@pytest.mark.parametrize("outcome", [BuildFailed("no memory"), Unexpected("a bug"), Unsuitable("no")], ids=type)
async def test_make_again_without_outcome_keeps_the_engine_and_ends_the_request(
    shop: Workshop, kind: type[Action], requested: Request, outcome: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    before = (await shop.make()).record
    shop.engine.request = requested
    with caplog.at_level(logging.ERROR, "edged.engines"):
        engine = await shop.make(outcome, kind)
    assert bool(caplog.records) is isinstance(outcome, Unexpected)
    assert (engine.state, engine.record, bool(engine.last_attempt_failed)) == (S.READY, before, True)
    assert (engine.request, shop.store.records()[engine.digest]) == (Request.NONE, before)
    assert engine.reason


@pytest.mark.parametrize(("kind", "state"), [(Make, S.READY), (Verify, S.REJECTED)])
async def test_make_again_with_wrong_answers_keeps_the_old_build_only(
    shop: Workshop, kind: type[Action], state: EngineState
) -> None:
    await shop.make()
    shop.engine.request = Request.BUILD
    engine = await shop.make(False, kind)
    assert (engine.state, engine.is_usable, engine.request) == (state, state is S.READY, Request.NONE)
    assert bool(engine.last_attempt_failed) is (state is S.READY)
    assert engine.reason


async def test_make_again_keeps_the_good_engine_usable(shop: Workshop) -> None:
    await shop.make()
    shop.builder.did.clear()
    await shop.at_work()
    assert (shop.engine.state, shop.engine.is_usable) == (S.VERIFYING, True)
    shop.maker.cancel(shop.engine, "cancelled by a test")
    await shop.idle()
    assert (shop.engine.state, shop.engine.reason, shop.engine.last_attempt_failed) == (
        S.READY,
        "",
        "cancelled by a test",
    )


async def test_verify_good_engine_gets_new_figures(shop: Workshop) -> None:
    await shop.make()
    shop.builder.cost, shop.engine.request = 0.9, Request.VERIFY
    engine = await shop.make(kind=Verify)
    assert (engine.state, engine.request, bool(engine.last_attempt_failed)) == (S.READY, Request.NONE, False)
    assert engine.record is not None
    assert engine.record.cost == pytest.approx(0.9)
    assert [verb for verb, _ in shop.builder.did] == ["make", "verify"]


async def test_verify_engine_missing_in_the_store_is_absent(shop: Workshop) -> None:
    await shop.make()
    shop.store.remove(shop.engine.digest)
    shop.engine.request = Request.VERIFY
    engine = await shop.make(kind=Verify)
    assert (engine.state, engine.is_usable) == (S.ABSENT, False)


# -- adoptions ---------------------------------------------------------------------------------------------------------


def source_for(shop: Workshop) -> str:
    """Store an engine of another processor, which may work here."""
    recipe = shop.engine.recipe
    shop.engine.adoptable = put(shop.store, record_of(key_of(model(), recipe, cpu__model="N97"), recipe))
    return shop.engine.adoptable


async def test_adoption_passed_adopts_the_engine(shop: Workshop) -> None:
    source = source_for(shop)
    engine = await shop.make(kind=Adopt, source=source)
    assert (engine.state, engine.is_usable, engine.adoptable) == (S.READY, True, "")
    assert source[:12] in engine.reason
    assert shop.builder.sources == [source]
    assert shop.store.records()[engine.digest].adopted_from == source
    assert source in shop.store.records()


@pytest.mark.parametrize("outcome", [False, BuildFailed("it crashed"), Unsuitable("no"), None], ids=type)
async def test_adoption_failed_builds_the_engine_and_counts_no_failure(
    shop: Workshop, outcome: bool | EdgedError | None
) -> None:
    source = source_for(shop)
    if outcome is None:  # the source was evicted
        shop.store.remove(source)
    engine = await shop.make(True if outcome is None else outcome, Adopt, source)
    assert (engine.state, engine.adoptable, engine.failures) == (S.ABSENT, "", 0)
    assert source[:12] in engine.reason
    assert shop.attempts() == Attempts()
    assert (await shop.make()).state is S.READY


def ahead_for(shop: Workshop) -> str:
    """Store an engine with the wanted key that was built ahead on another box."""
    engine = shop.engine
    verdict = Verdict(False, "built ahead for sm_86; the engine is verified there before it serves", {})
    record = record_of(engine.key, engine.recipe)
    engine.adoptable = put(shop.store, msgspec.structs.replace(record, ahead="sm_86", verdict=verdict))
    return engine.adoptable


@pytest.mark.parametrize("error", [WrongAnswers("cosine 0.5"), Unsuitable("another version built it")], ids=type)
async def test_adoption_failed_removes_the_engine_built_ahead_and_keeps_its_pin(
    shop: Workshop, error: EdgedError
) -> None:
    source = ahead_for(shop)
    shop.store.pin(source)
    engine = await shop.make(error, Adopt, source)
    assert (engine.state, engine.adoptable, engine.failures) == (S.ABSENT, "", 0)
    assert str(error) in engine.reason
    assert source not in shop.store.records()
    assert shop.store.is_pinned(source)


@pytest.mark.parametrize("error", [BuildFailed("it crashed"), EngineUnusable("out of memory")], ids=type)
async def test_adoption_without_outcome_is_repeated_for_an_engine_built_ahead(
    shop: Workshop, error: EdgedError
) -> None:
    source = ahead_for(shop)
    for failures in range(1, 4):
        engine = await shop.make(error, Adopt, source)
        assert (engine.state, engine.adoptable, engine.failures) == (S.FAILED, source, failures)
        assert shop.attempts() == Attempts()
    engine = await shop.make(error, Adopt, source)
    assert (engine.state, engine.adoptable, engine.failures) == (S.ABSENT, "", 0)
    assert source in shop.store.records(), "it stays until a build replaces it"


async def test_adoption_interrupted_by_a_crash_of_the_box_counts_after_restart(shop: Workshop, reboot: Path) -> None:
    source = ahead_for(shop)
    shop.builder.gate.clear()
    shop.start(Adopt, source=source)
    await until(lambda: bool(shop.builder.did), "the adoption")
    reboot.write_text("another boot")
    assert shop.attempts().failures == 1
    shop.builder.gate.set()
    await shop.idle()
    assert shop.attempts() == Attempts()


@pytest.mark.parametrize("error", [Superseded("it was replaced"), OutOfSpace("it does not fit")])
async def test_adoption_superseded_or_without_space_is_retried(shop: Workshop, clock: Clock, error: EdgedError) -> None:
    source = source_for(shop)
    engine = await shop.make(error, Adopt, source)
    assert (engine.state, engine.adoptable, engine.retry_at > clock.now) == (S.FAILED, source, True)


# -- cancelling -----------------------------------------------------------------------------------------------------


async def test_cancel_during_a_build_is_not_retried_and_counts_no_failure(shop: Workshop, reboot: Path) -> None:
    await shop.at_work()
    shop.engine.request = Request.BUILD
    shop.maker.cancel(shop.engine, "cancelled by a test")
    await shop.idle()
    assert (shop.engine.state, shop.engine.reason) == (S.QUARANTINED, "cancelled by a test")
    assert (shop.engine.making, shop.engine.request, shop.engine.failures) == (None, Request.NONE, 0)
    assert shop.engine.digest not in shop.store.records()
    reboot.write_text("second")
    assert shop.attempts().failures == 0
    shop.builder.gate.set()
    assert (await shop.make()).state is S.READY, "the device is free again"


@pytest.mark.parametrize("when", ["while it waits", "before it began", "while it is made"])
async def test_cancel_absent_engine_holds_after_restart_until_commanded(
    shop: Workshop, tmp_path: Path, when: str
) -> None:
    if when == "before it began":
        shop.start()
    elif when == "while it is made":
        await shop.at_work()
    shop.maker.cancel(shop.engine, "cancelled by a test")
    await until(lambda: AttemptLog(tmp_path).of(shop.engine.digest).stopped == "cancelled", "it is on disk")
    await shop.idle()
    assert (shop.engine.state, shop.engine.making, shop.maker.busy) == (S.QUARANTINED, None, frozenset())
    assert AttemptLog(tmp_path).of(shop.engine.digest) == Attempts(0, "cancelled by a test", stopped="cancelled")
    shop.maker.forgive(shop.engine)
    assert AttemptLog(tmp_path).of(shop.engine.digest) == Attempts()


async def test_stop_of_the_daemon_records_no_cancellation(shop: Workshop, tmp_path: Path) -> None:
    await shop.at_work()
    await shop.tasks.stop()
    assert AttemptLog(tmp_path).of(shop.engine.digest) == Attempts()


@pytest.mark.parametrize("outcome", [True, False])
async def test_cancel_request_keeps_the_finished_engine(shop: Workshop, outcome: bool) -> None:
    state = (await shop.make(outcome)).state
    shop.engine.request = Request.BUILD
    shop.maker.cancel(shop.engine, "cancelled by a test")
    assert (shop.engine.state, shop.engine.request) == (state, Request.NONE)


async def test_abandon_stops_builds_that_no_model_needs(shop: Workshop) -> None:
    await shop.at_work()
    gone = shop.engine
    shop.maker.abandon()
    await settle()
    assert shop.maker.is_making(gone), "the build is wanted"
    shop.plan("m", "other")
    for _ in range(2):
        shop.maker.abandon()
    await shop.idle()
    assert not shop.maker.is_making(gone)
    assert gone.digest not in shop.store.records()


# -- events and progress --------------------------------------------------------------------------------------------


def progress(shop: Workshop) -> list[tuple[str, float | None]]:
    return [(event.phase, event.fraction) for event in emitted(shop.events, EngineProgress)]


async def test_progress_reports_each_phase_of_the_engine_once_until_its_end(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, make = [], shop.builder.make

    async def remember(task: Task, tell: OnProgress, reserve: Reserve) -> EngineRecord:
        told.append(tell)
        return await make(task, tell, reserve)

    monkeypatch.setattr(shop.builder, "make", remember)
    phases = ("asking the reference", "building", "building", "verifying", "verifying", "timing", "timing")
    shop.builder.says, shop.builder.estimate = [Progress(phase) for phase in phases], 40.0
    await shop.make()
    told[0](Progress("building", 0.5))
    assert [phase for phase, _ in progress(shop)] == ["building", *dict.fromkeys(phases)]
    assert shop.states == ["queued", "building", "verifying", "ready"]
    first = emitted(shop.events, EngineProgress)[0]
    assert (first.phase, first.estimate_s, first.elapsed_s) == ("building", 40.0, 0.0)
    events = [e async for e in shop.events.follow(live=False) if isinstance(e.what, EngineProgress)]
    assert {(e.model, e.engine) for e in events} == {("m", shop.engine.digest)}


@pytest.mark.parametrize("step", [0.01, 0.03, 0.25])
async def test_progress_is_reported_in_steps_of_a_tenth(shop: Workshop, step: float) -> None:
    shop.builder.says = [Progress("building", number * step) for number in range(int(1 / step) + 1)]
    await shop.make()
    shares = [share for _, share in progress(shop) if share is not None]
    gaps = [after - before for before, after in itertools.pairwise(shares)]
    assert max(shares) > 0.85
    assert all(0.0999 < gap <= max(0.1 + step, step) for gap in gaps)


async def test_make_records_the_attempt_without_blocking_the_loop(shop: Workshop) -> None:
    threads, begin = list[int](), shop.log.begin
    shop.log.begin = lambda key: (threads.append(threading.get_ident()), begin(key))[1]  # type: ignore
    await shop.make()
    assert len(threads) == 1
    assert threads != [threading.get_ident()]


HANG = "build child was stopped, because it reported no progress for 120 s"
CASES: dict[str, tuple[EdgedError, str, str, list[str], str]] = {
    "first failure": (EngineUnusable("no kernel"), "openvino", "", [], ""),
    "another failure": (EngineUnusable("no kernel"), "openvino", HANG, [], ""),
    "the same again": (EngineUnusable("no kernel"), "openvino", "no kernel", [], "twice in the same way"),
    "the same with other numbers": (
        EngineUnusable("node 'a_17' at /tmp/x: 12.5 MB"),
        "onnxruntime",
        "node 'b' at /var/y: 3 MB",
        [],
        "twice in the same way",
    ),
    "a hang again": (ChildLost(HANG, "late"), "openvino", HANG.replace("120", "180"), [], "twice in the same way"),
    "a crash again": (
        ChildLost("was killed by SIGSEGV", "crashed"),
        "openvino",
        "was killed by SIGSEGV",
        [],
        "twice in the same way",
    ),
    "killed from outside again": (ChildLost("was killed", "killed"), "openvino", "was killed", [], ""),
    "too large again": (ChildLost("used more than 5 MiB", "too large"), "openvino", "used more than 5 MiB", [], ""),
    "no memory again": (OutOfMemory("no memory"), "onnxruntime", "no memory", [], ""),
    "no process again": (BuildFailed("cannot start"), "openvino", "cannot start", [], ""),
    "full disk again": (OutOfSpace("full"), "openvino", "full", [], ""),
    "less effort may help": (EngineUnusable("no tactic"), "tensorrt", "no tactic", [], ""),
    "another precision": (
        ChildLost(HANG, "late"),
        "openvino",
        "",
        [HANG],
        "in the same way as another engine of the same runtime",
    ),
    "another precision of TensorRT": (
        EngineUnusable("no op"),
        "tensorrt",
        "",
        ["no op"],
        "in the same way as another engine of the same runtime",
    ),
    "another precision failed otherwise": (EngineUnusable("no bf16"), "openvino", "", [HANG], ""),
}


@pytest.mark.parametrize("case", CASES)
def test_reason_to_give_up_only_for_repeated_failures(case: str) -> None:
    error, backend, before, kin, expected = CASES[case]
    assert reason_to_give_up(error, backend, before, kin) == expected
