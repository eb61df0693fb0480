"""Which engines give way: never one that is needed, the least worth and the longest unused first, no more than must."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edged.engines.eviction import Choice, EvictionClass, StoredEngine, choose

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
def test_choose_keeps_what_ranks_higher(engines: list[StoredEngine], need: int, free: int) -> None:
    by_key, choice = {h.key: h for h in engines}, choose(engines, need, free)
    gone = [(by_key[key].eviction_class, by_key[key].used) for key in choice.evict]
    assert gone == sorted(gone)
    stays = [h for h in engines if h.key not in choice.evict and h.eviction_class is not NEEDED and h.size]
    assert all((h.eviction_class, h.used) >= gone[-1] for h in stays if gone)


@given(HELD, NEEDS, ROOMS, st.randoms(use_true_random=False))
def test_choose_ignores_the_order_of_its_input(engines: list[StoredEngine], need: int, free: int, random) -> None:  # type: ignore[no-untyped-def]
    shuffled = random.sample(engines, len(engines))
    assert choose(shuffled, need, free) == choose(engines, need, free)
