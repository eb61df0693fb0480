"""Eviction: which engines are evicted, which never are, and their state afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.backends.contract import Recipe
from edged.config import Engines
from edged.engines import eviction as eviction_module
from edged.engines.desired import desired
from edged.engines.engine import EngineState, PlannedEngine, Request
from edged.engines.eviction import Choice, EvictionClass, EvictionManager, StoredEngine, choose
from edged.engines.plan import PlannedModel
from edged.errors import OutOfSpace
from edged.events import EngineEvicted, EventLog
from edged.store.store import Store
from tests.unit.control_room import MB, box, emitted, key_of, model, planned_model, put, record_of, serve
from tests.waiting import run

S = EngineState


class House:
    """A store with three engines of one model, of 256 KiB each. The first is the fastest."""

    def __init__(self, root: Path) -> None:
        self.store, self.events, self.busy = Store(root), EventLog(), set[str]()
        self.planned = planned_model()
        of = model(backends="openvino", threads="1,2,3")
        self.planned.plan(of, desired(box(), of))
        self.models: dict[str, PlannedModel] = {"m": self.planned}
        self.reference, *self.engines = self.planned.engines.values()
        for number, engine in enumerate(self.engines):
            self.add(engine, cost=0.5 + number / 10, used=number)

    def add(self, engine: PlannedEngine, cost: float | None = 0.5, used: float = 0.0) -> str:
        content = engine.digest.encode() * (MB // 4 // 32)
        record = record_of(engine.key, engine.recipe, cost=cost, content=content, standard=engine.standard)
        key = put(self.store, record, content)
        os.utime(self.store.root / "engines" / key, (used, used))
        self.store.rescan()
        engine.adopt(record)
        return key

    def stale(self, used: float = 99.0) -> str:
        """Put an engine into the store that no model wants."""
        recipe = Recipe("openvino", threads=9)
        return self.add(PlannedEngine(key_of(model(content="gone"), recipe), recipe), used=used)

    def eviction(self, **settings: object) -> EvictionManager:
        wanted = msgspec.convert({"keep_free_mb": 0} | settings, Engines)
        return EvictionManager(self.store, wanted, self.models, self.events, lambda: self.busy)

    @property
    def held(self) -> set[str]:
        """Engines whose files are in the store."""
        return {key for key, record in self.store.records().items() if record.files}

    def twin(self) -> PlannedModel:
        """Add another model with the same content, so that it shares all engines."""
        twin, of = planned_model("twin"), model("twin", backends="openvino", threads="1,2,3")
        for engine in twin.plan(of, desired(box(), of)):
            if engine.digest in self.store.records():
                engine.adopt(self.store.records()[engine.digest])
        self.models["twin"] = twin
        return twin

    def evicted(self) -> list[EngineEvicted]:
        return emitted(self.events, EngineEvicted)


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path / "cache")


@pytest.fixture
def free() -> Iterator[Callable[[int], None]]:
    """A function that sets the number of free bytes on the disk."""
    with pytest.MonkeyPatch.context() as patch:

        def say(count: int) -> None:
            status = SimpleNamespace(f_bavail=count, f_frsize=1, f_bfree=10**15, f_flag=0)
            fake = SimpleNamespace(statvfs=lambda path: status)
            patch.setattr(eviction_module, "os", fake)

        yield say


# -- classes of engines ---------------------------------------------------------------------------------------------


def test_classify_best_engine_is_needed_and_others_are_spare(house: House) -> None:
    eviction_class = house.eviction().eviction_class
    assert [eviction_class(e.digest) for e in house.engines] == [
        EvictionClass.NEEDED,
        EvictionClass.SPARE,
        EvictionClass.SPARE,
    ]
    assert eviction_class(house.stale()) is EvictionClass.STALE


def test_classify_serving_outdated_engine_is_needed(house: House) -> None:
    key = house.stale()
    serve(house.planned, key)
    assert house.eviction().eviction_class(key) is EvictionClass.NEEDED


def test_classify_opening_building_and_pinned_engines_are_needed(house: House) -> None:
    stale, (_, one, two) = house.stale(), house.engines
    house.planned.opening_key, house.busy = one.digest, {two.digest}
    house.store.pin(stale)
    assert {house.eviction().eviction_class(key) for key in (stale, one.digest, two.digest)} == {EvictionClass.NEEDED}
    house.planned.opening_key, house.busy = "", set()
    house.store.unpin(stale)
    assert EvictionClass.NEEDED not in {house.eviction().eviction_class(key) for key in (stale, one.digest, two.digest)}


def test_classify_source_of_an_adoption_is_spare(house: House) -> None:
    key = house.stale()
    house.reference.adoptable = key
    assert house.eviction().eviction_class(key) is EvictionClass.SPARE


# -- waiting for capacity -------------------------------------------------------------------------------------------


def make(house: House, need: int, **settings: object) -> int:
    return run(house.eviction(**settings).wait_for_capacity(need))


def test_reserve_within_the_budget_evicts_nothing(house: House) -> None:
    before = house.held
    assert make(house, MB // 4, budget_mb=1) == MB // 4, "all of the remaining budget may be used"
    assert house.held == before


def test_reserve_evicts_stale_engines_before_spare_ones(house: House) -> None:
    stale = house.stale()
    make(house, MB // 4, budget_mb=1)
    assert stale not in house.store.records()
    assert not (house.store.root / "engines" / stale).exists()
    assert house.held == {e.digest for e in house.engines}
    (event,) = house.evicted()
    assert (event.bytes, event.reason) == (MB // 4, "to make room")


def test_reserve_evicts_the_least_recently_used_spare_engine_and_keeps_its_record(house: House) -> None:
    best, spare, newer = house.engines
    make(house, MB // 2, budget_mb=1)
    assert house.held == {best.digest, newer.digest}
    assert [e.state for e in house.engines] == [S.READY, S.EVICTED, S.READY]
    record = house.store.records()[spare.digest]
    assert (record.evicted, record.size, record.cost, record.verdict.accepted) == (True, 0, 0.6, True)
    assert spare.record == record
    assert not spare.is_usable
    again = PlannedEngine(spare.key, spare.recipe, spare.standard)
    again.adopt(Store(house.store.root).records()[spare.digest])
    assert again.state is S.EVICTED, "the state survives a restart"


def test_reserve_more_than_possible_is_refused_and_evicts_nothing(house: House) -> None:
    house.stale()
    before = house.held
    with pytest.raises(OutOfSpace, match=r"0\.2 MiB more are needed.*budget_mb"):
        make(house, MB, budget_mb=1)
    assert house.held == before
    assert house.evicted() == []


def test_reserve_after_a_lower_budget_evicts(house: House) -> None:
    house.stale()
    house.stale(used=0)
    with pytest.raises(OutOfSpace):
        make(house, MB, budget_mb=1)
    make(house, 0, budget_mb=1)
    assert house.store.size <= MB


def test_reserve_keeps_free_space_on_the_disk(house: House, free: Callable[[int], None]) -> None:
    free(10 * MB)
    assert make(house, MB // 2, keep_free_mb=8) == 2 * MB
    assert len(house.held) == 3
    free(8 * MB)
    make(house, MB // 2, keep_free_mb=8)
    assert house.held == {house.engines[0].digest}


def test_reserve_replaced_engine_counts_for_the_disk_not_the_budget(house: House, free: Callable[[int], None]) -> None:
    best, _, newer = house.engines
    house.store.pin(newer.digest)
    with pytest.raises(OutOfSpace):
        make(house, 3 * MB // 4, budget_mb=1)
    run(house.eviction(budget_mb=1).wait_for_capacity(MB // 2, best.digest))
    assert len(house.held) == 3, "the replaced engine does not count"
    free(MB)
    with pytest.raises(OutOfSpace):
        run(house.eviction(keep_free_mb=1).wait_for_capacity(MB // 2, best.digest))


def test_reserve_obeys_the_tighter_of_budget_and_disk(house: House, free: Callable[[int], None]) -> None:
    free(10 * MB)
    assert make(house, 1, budget_mb=2, keep_free_mb=1) == 2 * MB - 3 * MB // 4
    assert make(house, 1, budget_mb=64, keep_free_mb=9) == MB


def test_reserve_on_an_unreadable_disk_is_refused(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object) -> None:
        raise OSError(5, "input/output error")

    monkeypatch.setattr(eviction_module, "os", SimpleNamespace(statvfs=refuse))
    assert house.eviction().free_bytes == 0
    with pytest.raises(OutOfSpace):
        make(house, 100 * MB)


# -- evicting -------------------------------------------------------------------------------------------------------


def test_evict_engine_of_two_models_updates_both(house: House) -> None:
    twin, spare = house.twin(), house.engines[1].digest
    run(house.eviction().evict(spare, "by command"))
    assert house.engines[1].state is twin.engines[spare].state is S.EVICTED
    assert len(house.evicted()) == 1


@pytest.mark.parametrize("state", [S.FAILED, S.QUARANTINED])
def test_evict_shared_engine_that_another_model_could_not_build(house: House, state: EngineState) -> None:
    spare = house.engines[1].digest
    shared = house.twin().engines[spare] = PlannedEngine(house.engines[1].key, house.engines[1].recipe)
    shared.move(S.QUEUED)
    shared.move(state)
    run(house.eviction().evict(spare, "to make room"))
    assert spare not in house.held
    assert not shared.is_usable


@pytest.mark.parametrize("requested", [Request.VERIFY, Request.REVIEW])
def test_evict_drops_a_pending_verification(house: House, requested: Request) -> None:
    spare = house.engines[1]
    spare.request = requested
    run(house.eviction().evict(spare.digest, "to make room"))
    assert spare.request is Request.NONE, "a client that follows it would wait for ever"


def test_evict_engine_that_has_become_needed_is_kept(house: House) -> None:
    spare = house.engines[1]
    house.store.pin(spare.digest)
    assert not run(house.eviction().evict(spare.digest, "by command"))
    assert (spare.state, house.evicted()) == (S.READY, [])


def test_evict_engine_cannot_be_opened_meanwhile(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    spare, seen = house.engines[1], list[EngineState]()
    strip = house.store.strip
    monkeypatch.setattr(house.store, "strip", lambda record: (seen.append(spare.state), strip(record)))
    run(house.eviction().evict(spare.digest, "by command"))
    assert seen == [S.EVICTED]


# -- pauses ---------------------------------------------------------------------------------------------------------


def test_look_full_disk_pauses_builds_if_nothing_can_be_evicted(house: House, free: Callable[[int], None]) -> None:
    free(5 * MB)
    assert house.eviction(keep_free_mb=5).paused == ""
    assert house.eviction(keep_free_mb=6).paused == "", "spare engines can be evicted"
    for engine in house.engines:
        house.store.pin(engine.digest)
    paused = house.eviction(keep_free_mb=6).paused
    assert "has 5 MiB free" in paused
    assert "6 MiB must stay free" in paused
    assert "keep_free_mb" in paused


def test_look_full_disk_is_reported_despite_engines_without_files(house: House, free: Callable[[int], None]) -> None:
    for engine in house.engines[1:]:
        run(house.eviction().evict(engine.digest, "by command"))
    free(0)
    assert "has 0 MiB free" in house.eviction(keep_free_mb=1).paused


def test_look_read_only_disk_is_reported(small_disk: Path, make_read_only: Callable[[Path], None]) -> None:
    store = Store(small_disk / "cache")
    eviction = EvictionManager(store, Engines(keep_free_mb=0), {}, EventLog(), set)
    assert eviction.paused == ""
    make_read_only(small_disk)
    eviction.look()
    assert "read-only" in eviction.paused
    assert "existing engines continue to serve" in eviction.paused


NEEDED, SPARE, STALE = EvictionClass.NEEDED, EvictionClass.SPARE, EvictionClass.STALE


def held(key: str, size: int = 10, used: float = 0.0, eviction_class: EvictionClass = SPARE) -> StoredEngine:
    return StoredEngine(key, size, used, eviction_class)


HELD = st.lists(
    st.builds(
        StoredEngine,
        key=st.text("abcdef", min_size=1, max_size=3),
        size=st.integers(0, 20),
        used=st.sampled_from((0.0, 1.0, 2.0, 3.0)),
        eviction_class=st.sampled_from(EvictionClass),
    ),
    unique_by=lambda h: h.key,
    max_size=8,
)
NEEDS = st.integers(0, 60)
ROOMS = st.integers(-40, 60)


def test_choose_evicts_stale_before_spare_and_least_recently_used_first() -> None:
    engines = [held("young", used=9), held("old", used=1), held("stale", used=10, eviction_class=STALE)]
    assert choose(engines, need=10, free=0) == Choice(("stale",))
    assert choose(engines, need=11, free=0) == Choice(("stale", "old"))
    assert choose(engines, need=30, free=0) == Choice(("stale", "old", "young"))


@given(HELD, NEEDS, ROOMS)
def test_choose_never_evicts_needed_or_empty_engines(engines: list[StoredEngine], need: int, free: int) -> None:
    by_key = {h.key: h for h in engines}
    for key in choose(engines, need, free).evict:
        assert by_key[key].eviction_class is not NEEDED
        assert by_key[key].size > 0


@given(HELD, NEEDS, ROOMS)
def test_choose_evicts_no_more_than_needed(engines: list[StoredEngine], need: int, free: int) -> None:
    by_key, choice = {h.key: h for h in engines}, choose(engines, need, free)
    freed = [by_key[key].size for key in choice.evict]
    able = sum(h.size for h in engines if h.eviction_class is not NEEDED)
    if choice.short:
        assert not choice.evict
        assert choice.short == need - free - able > 0
    else:
        assert free + sum(freed) >= need
        assert not freed or free + sum(freed[:-1]) < need


@given(HELD, NEEDS, ROOMS)
def test_choose_keeps_engines_that_rank_higher(engines: list[StoredEngine], need: int, free: int) -> None:
    by_key, choice = {h.key: h for h in engines}, choose(engines, need, free)
    gone = [(by_key[key].eviction_class, by_key[key].used) for key in choice.evict]
    assert gone == sorted(gone)
    stays = [h for h in engines if h.key not in choice.evict and h.eviction_class is not NEEDED and h.size]
    assert all((h.eviction_class, h.used) >= gone[-1] for h in stays if gone)


@given(HELD, NEEDS, ROOMS, st.randoms(use_true_random=False))
def test_choose_ignores_the_order_of_its_input(engines: list[StoredEngine], need: int, free: int, random) -> None:  # type: ignore[no-untyped-def]
    shuffled = random.sample(engines, len(engines))
    assert choose(shuffled, need, free) == choose(engines, need, free)
