"""Operators' commands, and the requests that they set on engines for the control loop."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from edged.api_types import EngineProgress
from edged.engines import commands as commands_module
from edged.engines.commands import Commands, Ordered, Selection
from edged.engines.desired import desired
from edged.engines.engine import EngineState, PlannedEngine, Request
from edged.engines.plan import PlannedModel
from edged.engines.reconcile import Open, reconcile
from edged.engines.views import actual
from edged.errors import BuildFailed, EdgedError, InvalidInput, NotFound, OutOfSpace, Refused
from edged.events import Commanded, EngineEvicted
from edged.store.store import Store
from tests.unit.control_room import (
    Clock,
    ControlRoom,
    box,
    emitted,
    model,
    put,
    record_of,
    settle,
    stop_time,
)
from tests.waiting import run, until

S = EngineState
ALL, M = Selection(everything=True), Selection(model="m")


def keys(ordered: tuple[Ordered, ...]) -> tuple[str, ...]:
    return tuple(each.key for each in ordered)


class Desk(ControlRoom):
    """Two models with a reference and two engines each. `look` runs one round of the control loop."""

    def __init__(self, root: Path, clock: Clock) -> None:
        super().__init__(root, clock, "mn")
        self.wakes = 0
        catalogue: Any = SimpleNamespace(models=self.models, find=self._find)
        self.commands = Commands(catalogue, self.store, self.maker, self.events, self._wake)

    def _find(self, name: str) -> PlannedModel:
        if name not in self.models:
            raise NotFound(f"no model {name!r}")
        return self.models[name]

    def _wake(self) -> None:
        self.wakes += 1

    def of(self, name: str = "m", number: int = 1) -> PlannedEngine:
        return list(self.models[name].engines.values())[number]

    def selection(self, name: str = "m", number: int = 1) -> Selection:
        return Selection(engine=self.of(name, number).digest)

    def digests(self, name: str = "m") -> tuple[str, ...]:
        return tuple(self.models[name].engines)

    def have(self, name: str = "m", number: int = 1, cost: float = 0.5, accepted: bool = True) -> PlannedEngine:
        """Put an engine into the store as if it was made before."""
        engine = self.of(name, number)
        record = record_of(engine.key, engine.recipe, cost=cost, accepted=accepted, standard=engine.standard)
        put(self.store, msgspec.structs.replace(record, model=name))
        engine.adopt(self.store.records()[engine.digest])
        return engine

    async def look(self) -> None:
        for action in reconcile(actual(self.store, self.models.values()), self.clock.now, self.maker.busy):
            if not isinstance(action, Open):
                self.maker.start(self.models[action.model], action)
        await settle()

    async def until_quiet(self) -> None:
        for _ in range(20):
            await self.look()
            await self.idle()

    async def follow(self, ordered: tuple[Ordered, ...]) -> list[EngineProgress]:
        """Return all updates until the command is done, while the control loop runs."""

        async def look() -> None:
            while True:
                await self.look()
                await asyncio.sleep(0.001)

        looking = asyncio.create_task(look())
        try:
            return [status async for status in self.commands.follow(ordered)]
        finally:
            looking.cancel()

    def commanded(self) -> list[str]:
        return [event.verb for event in emitted(self.events, Commanded)]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    monkeypatch.setattr(commands_module, "_FOLLOW_SECONDS", 0.0)
    with pytest.MonkeyPatch.context() as patch:
        yield stop_time(patch)


@pytest.fixture
def desk(tmp_path: Path, clock: Clock) -> Desk:
    return Desk(tmp_path, clock)


# -- which engines --------------------------------------------------------------------------------------------------


def every_command(desk: Desk) -> list[Callable[[Selection], object]]:
    commands = desk.commands
    return [
        lambda selection: commands.rebuild(selection, False),
        commands.verify,
        commands.cancel,
        lambda selection: run(commands.pin(selection)),
        lambda selection: run(commands.unpin(selection)),
        lambda selection: run(commands.evict(selection)),
    ]


@pytest.mark.parametrize(
    ("selection", "error"),
    [
        (Selection(), InvalidInput),
        (Selection(model="m", everything=True), InvalidInput),
        (Selection(engine="abcdef", everything=True), InvalidInput),
        (Selection(model="nothing"), NotFound),
        (Selection(engine="0" * 32), NotFound),
        (Selection(model="n", engine="0" * 32), NotFound),
    ],
    ids=str,
)
def test_commands_refuse_an_invalid_selection(desk: Desk, selection: Selection, error: type[EdgedError]) -> None:
    desk.have()
    for command in every_command(desk):
        with pytest.raises(error):
            command(selection)


def test_select_by_a_key_prefix(desk: Desk) -> None:
    engine = desk.have()
    for command in every_command(desk):
        with pytest.raises(InvalidInput, match="too short"):
            command(Selection(engine=engine.digest[:5]))
    assert keys(desk.commands.verify(Selection(engine=engine.digest[:6]))) == (engine.digest,)
    assert keys(desk.commands.verify(Selection(model="m", engine=engine.digest[:6]))) == (engine.digest,)
    with pytest.raises(NotFound):
        desk.commands.verify(Selection(model="n", engine=engine.digest[:6]))


def test_select_by_an_ambiguous_prefix_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands_module, "_SHORTEST", 1)
    of = model(backends="openvino,onnxruntime", threads="1,2,3,4,5,6,7,8")
    desk.models["m"].plan(of, desired(box(), of))
    digits = [key[0] for key in desk.digests()]
    assert len(digits) == 17, "more engines than hexadecimal digits"
    shared = max(digits, key=digits.count)
    with pytest.raises(InvalidInput, match=f"engine keys begin with '{shared}'; give more characters"):
        desk.commands.rebuild(Selection(model="m", engine=shared), True)
    whole = next(key for key in desk.digests() if key[0] == shared)
    assert keys(desk.commands.rebuild(Selection(model="m", engine=whole), True)) == (whole,)


async def test_rebuild_engine_of_two_models_builds_once(desk: Desk) -> None:
    desk.plan("n", "content")
    assert desk.digests("m") == desk.digests("n")
    for name in "mn":
        for number in range(3):
            desk.have(name, number)
    desk.builder.content = b"built again"
    key = keys(desk.commands.rebuild(desk.selection(), True))
    assert key == (desk.of().digest,) * 2, "one for each model"
    await desk.until_quiet()
    assert desk.builder.did == [("make", key[0])]
    assert desk.of("m").edition == desk.of("n").edition == desk.store.records()[key[0]].edition


# -- rebuild --------------------------------------------------------------------------------------------------------


def test_rebuild_builds_missing_engines_only(desk: Desk) -> None:
    desk.have(number=1)
    assert keys(desk.commands.rebuild(M, False)) == (desk.digests()[0], desk.digests()[2])
    assert [e.request for e in desk.models["m"].engines.values()] == [Request.BUILD, Request.NONE, Request.BUILD]
    assert [e.request for e in desk.models["n"].engines.values()] == [Request.NONE] * 3
    assert desk.commanded() == ["rebuild", "rebuild"]
    assert desk.wakes == 1


async def test_rebuild_by_force_builds_every_selected_engine(desk: Desk) -> None:
    desk.have(number=1)
    desk.have(number=2, accepted=False)
    assert keys(desk.commands.rebuild(M, True)) == desk.digests()
    seen = await asyncio.wait_for(desk.follow(desk.commands.rebuild(ALL, True)), 10)
    last = {status.key: status for status in seen}
    assert set(last) == {*desk.digests("m"), *desk.digests("n")}
    assert all(status.done and status.succeeded for status in last.values())


@pytest.mark.parametrize("state", [S.FAILED, S.QUARANTINED, S.EVICTED, S.UNSUITABLE])
def test_rebuild_retries_quarantined_and_failed_engines(desk: Desk, state: EngineState) -> None:
    engine = desk.of()
    if state in (S.FAILED, S.UNSUITABLE):
        engine.move(S.QUEUED)
        engine.move(S.BUILDING)
    engine.move(state)
    engine.failures, engine.retry_at = 3, desk.clock.now + 600
    desk.log.failed(engine.digest, "no memory")
    assert engine.digest in keys(desk.commands.rebuild(M, False))
    assert (engine.request, engine.failures, engine.retry_at) == (Request.BUILD, 0, 0.0)
    assert desk.log.of(engine.digest).failures == 0


def test_rebuild_rejected_engine_only_if_named_or_by_force(desk: Desk) -> None:
    engine = desk.have(accepted=False)
    assert engine.digest not in keys(desk.commands.rebuild(M, False))
    assert engine.request is Request.NONE
    assert keys(desk.commands.rebuild(desk.selection(), False)) == (engine.digest,)
    assert engine.request is Request.BUILD


def test_rebuild_by_force_skips_the_adoption(desk: Desk) -> None:
    desk.of(number=1).adoptable = desk.of(number=2).adoptable = "source"
    desk.commands.rebuild(desk.selection(number=1), True)
    assert desk.of(number=1).adoptable == ""
    assert desk.of(number=2).adoptable == "source"


async def test_rebuild_engine_in_progress_is_followed_not_repeated(desk: Desk) -> None:
    desk.builder.gate.clear()
    await desk.look()
    reference = desk.of(number=0)
    assert reference.state not in (S.ABSENT, S.READY)
    assert reference.digest in keys(desk.commands.rebuild(M, True))
    assert reference.request is Request.NONE
    desk.builder.gate.set()
    await desk.until_quiet()
    assert desk.builder.did.count(("make", reference.digest)) == 1


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_rebuild_by_force_of_an_engine_that_is_verified_builds_it_afterwards(
    desk: Desk, is_cancelled: bool
) -> None:
    engine = desk.have()
    desk.commands.verify(desk.selection())
    desk.builder.gate.clear()
    await desk.look()
    assert engine.state not in (S.ABSENT, S.READY)
    ordered = desk.commands.rebuild(desk.selection(), True)
    assert keys(ordered) == (engine.digest,)
    if is_cancelled:
        desk.commands.cancel(desk.selection())
    desk.builder.gate.set()
    seen = await asyncio.wait_for(desk.follow(ordered), 10)
    assert seen[-1].done
    assert desk.builder.did.count(("make", engine.digest)) == (not is_cancelled)
    assert engine.state is S.READY


def test_rebuild_by_force_of_an_engine_refused_for_good_lets_it_open_again(desk: Desk) -> None:
    engine = desk.have()
    engine.open_at = math.inf
    record = record_of(engine.key, engine.recipe, standard=engine.standard)
    for state in (S.QUEUED, S.BUILDING, S.VERIFYING):
        engine.move(state)
    engine.finish(record, record)
    assert engine.open_at == 0.0


# -- verify ---------------------------------------------------------------------------------------------------------


def test_verify_engine_without_files_is_refused(desk: Desk) -> None:
    with pytest.raises(Refused, match="is in the store"):
        desk.commands.verify(M)
    engine = desk.have()
    desk.have(number=2, accepted=False)
    assert keys(desk.commands.verify(M)) == (engine.digest,)
    assert [e.request for e in desk.models["m"].engines.values()] == [Request.NONE, Request.VERIFY, Request.NONE]
    assert (desk.commanded(), desk.wakes) == (["verify"], 1)


# -- cancel ---------------------------------------------------------------------------------------------------------


async def test_cancel_ends_running_queued_and_requested_builds(desk: Desk) -> None:
    ready = desk.have(number=2)
    ready.request = Request.BUILD
    desk.have("n", 1)
    await desk.at_work()
    assert desk.commands.cancel(M) == desk.digests()
    await desk.idle()
    reference, other, _ = desk.planned.engines.values()
    assert (reference.state, other.state, ready.state) == (S.QUARANTINED, S.QUARANTINED, S.READY)
    assert ready.request is Request.NONE
    desk.builder.gate.set()
    await desk.until_quiet()
    assert {key for _, key in desk.builder.did} & set(desk.digests("m")) == {other.digest}, "no other build"
    assert desk.of("n").state is S.READY


# -- pin and evict --------------------------------------------------------------------------------------------------


def test_pin_engine_without_files_is_refused(desk: Desk) -> None:
    with pytest.raises(NotFound):
        run(desk.commands.pin(M))
    engine = desk.have()
    assert run(desk.commands.pin(M)) == (engine.digest,)
    assert desk.store.is_pinned(engine.digest)
    assert run(desk.commands.unpin(ALL)) == (engine.digest,)
    assert not desk.store.is_pinned(engine.digest)
    assert desk.commanded() == ["pin", "unpin"]


def spare(desk: Desk) -> PlannedEngine:
    """Return the slower of two engines, which is not needed."""
    desk.have(number=1, cost=0.3)
    return desk.have(number=2, cost=0.6)


def test_evict_removes_files_and_keeps_the_record(desk: Desk) -> None:
    engine = spare(desk)
    assert run(desk.commands.evict(desk.selection(number=2))) == (engine.digest,)
    assert (engine.state, engine.is_usable) == (S.EVICTED, False)
    assert desk.store.records()[engine.digest].evicted
    assert [event.reason for event in emitted(desk.events, EngineEvicted)] == ["by command"]
    assert (desk.commanded(), desk.wakes) == (["evict"], 1)
    assert run(desk.commands.evict(desk.selection(number=2))) == (), "it has no files left"


@pytest.mark.parametrize("is_whole_model", [False, True])
@pytest.mark.parametrize("why", ["it serves or is about to", "pinned; unpin it first"])
def test_evict_needed_engine_is_refused(desk: Desk, why: str, is_whole_model: bool) -> None:
    desk.have(number=0, cost=1.0)  # a reference has no files to evict
    engine = desk.have()
    selection = M if is_whole_model else desk.selection()
    if why.startswith("pinned"):
        desk.store.pin(engine.digest)
    with pytest.raises(Refused, match=why):
        run(desk.commands.evict(selection))
    assert engine.state is S.READY


def test_evict_all_removes_unneeded_engines_without_errors(desk: Desk) -> None:
    assert run(desk.commands.evict(ALL)) == ()
    engine = spare(desk)
    desk.have("n", 1)
    assert run(desk.commands.evict(ALL)) == (engine.digest,)


def test_evict_all_skips_an_engine_that_another_task_removes_meanwhile(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = [desk.have(number=1).digest, desk.have(number=2).digest]
    desk.plan("m", "another content")
    remove = desk.store.remove
    monkeypatch.setattr(desk.store, "remove", lambda key: [remove(each) for each in stale])
    assert run(desk.commands.evict(ALL)) == (stale[0],)


def test_evict_unplanned_engine_by_key_or_model(desk: Desk) -> None:
    stale = desk.have().digest
    desk.plan("m", "another content")
    assert stale not in desk.models["m"].engines
    desk.store.pin(stale)
    with pytest.raises(Refused, match="pinned"):
        run(desk.commands.evict(M))
    desk.store.unpin(stale)
    assert run(desk.commands.evict(M)) == (stale,)
    assert stale not in desk.store.records()


# -- progress of commands --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "state", "succeeded"),
    [(True, "ready", True), (False, "rejected", False), (BuildFailed("no memory"), "failed", False)],
    ids=type,
)
async def test_follow_yields_every_change_until_the_end(
    desk: Desk, outcome: bool | BuildFailed, state: str, succeeded: bool
) -> None:
    desk.builder.outcomes.append(outcome)
    key = desk.commands.rebuild(desk.selection(), True)
    seen = await asyncio.wait_for(desk.follow(key), 10)
    assert (seen[0].phase, seen[0].done) == ("waiting", False)
    assert (seen[-1].state, seen[-1].done, seen[-1].succeeded, seen[-1].phase) == (state, True, succeeded, "")
    assert all(one != other for one, other in itertools.pairwise(seen))
    assert {s.key for s in seen} == set(keys(key))


@pytest.mark.parametrize("outcome", [True, False])
async def test_follow_models_that_share_an_engine_each_gets_its_outcome(desk: Desk, outcome: bool) -> None:
    desk.plan("n", "content")
    for name in "mn":
        desk.have(name)
    desk.builder.outcomes.append(outcome)
    seen = await asyncio.wait_for(desk.follow(desk.commands.rebuild(desk.selection(), True)), 10)
    last = {status.model: status for status in seen}
    assert {name: (s.done, s.succeeded) for name, s in last.items()} == dict.fromkeys("mn", (True, outcome))


def test_statuses_of_a_removed_model_are_done(desk: Desk) -> None:
    ordered = desk.commands.rebuild(desk.selection(), True)
    del desk.models["m"]
    (status,) = desk.commands.statuses(ordered)
    assert (status.model, status.state, status.done) == ("m", "gone", True)


@pytest.mark.parametrize("verb", ["rebuild", "verify"])
@pytest.mark.parametrize("is_begun", [False, True])
async def test_cancel_work_on_a_good_engine_keeps_it_ready_without_success(
    desk: Desk, verb: str, is_begun: bool
) -> None:
    desk.have(number=0, cost=1.0)
    engine = desk.have()
    desk.builder.gate.clear()
    commands = desk.commands
    ordered = commands.verify(desk.selection()) if verb == "verify" else commands.rebuild(desk.selection(), True)
    if is_begun:
        await desk.look()
    commands.cancel(desk.selection())
    desk.builder.gate.set()
    seen = await asyncio.wait_for(desk.follow(ordered), 10)
    assert (engine.state, engine.reason) == (S.READY, "")
    assert (seen[-1].state, seen[-1].done, seen[-1].succeeded) == ("ready", True, False)
    assert "cancelled" in seen[-1].reason


async def test_follow_verification_ends_if_the_engine_is_evicted(desk: Desk) -> None:
    spare(desk)
    key = desk.commands.verify(desk.selection(number=2))
    await desk.commands.evict(desk.selection(number=2))
    (status,) = desk.commands.statuses(key)
    assert (status.state, status.done, status.succeeded) == ("evicted", True, False)


def test_follow_on_a_paused_box_names_the_reason(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tmp_path, clock)
    key = desk.commands.rebuild(desk.selection(), True)
    monkeypatch.setattr(Store, "problem", "the disk is read-only")
    desk.maker.eviction.look()
    (status,) = desk.commands.statuses(key)
    assert (status.phase, status.done) == ("waiting", False)
    assert "the disk is read-only" in status.reason


async def test_follow_build_without_space_waits_with_the_reason(desk: Desk, clock: Clock) -> None:
    for number in range(3):
        desk.have(number=number, cost=1.0)
        desk.have("n", number, cost=1.0)
    desk.builder.outcomes.extend([OutOfSpace("it does not fit")] * 2)
    key = desk.commands.rebuild(desk.selection(), True)
    for _ in range(5):
        await desk.look()
        await desk.idle()
    (status,) = desk.commands.statuses(key)
    assert (status.done, status.reason) == (False, "it does not fit")
    assert len(desk.builder.did) == 1, "it waits before the next attempt"
    clock.now += 600
    await desk.look()
    await desk.idle()
    assert len(desk.builder.did) == 2


async def test_making_lists_builds_in_progress(desk: Desk) -> None:
    assert desk.commands.making() == []
    desk.builder.gate.clear()
    desk.builder.estimate = 40.0
    await desk.look()
    await until(lambda: bool(desk.builder.did), "a child is at work")
    desk.clock.now += 4
    (status,) = desk.commands.making()
    assert (status.model, status.backend, status.phase) == ("m", "onnxruntime", "verifying")
    assert (status.elapsed_s, status.estimate_s, status.done) == (4.0, 40.0, False)
    desk.builder.gate.set()
    await desk.until_quiet()


def test_rebuild_unsuitable_engine_is_refused_with_the_reason(desk: Desk) -> None:
    engine = desk.of()
    engine.problem = "input x leaves dimension 1 (length) open"
    engine.move(EngineState.UNSUITABLE, engine.problem)
    for selection in (desk.selection(), desk.selection()):
        with pytest.raises(Refused, match="cannot be made: input x leaves dimension 1"):
            desk.commands.rebuild(selection, True)
    made = desk.commands.rebuild(M, True)
    assert engine.digest not in made
    assert len(made) == len(desk.digests()) - 1
    assert engine.request is Request.NONE
