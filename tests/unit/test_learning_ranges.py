"""How far a range is widened for what came: rounding, bounds, which kinds count, when it is due."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.backends.contract import Signature
from edged.backends.profile import Profile
from edged.engines.learning import Demand, down, recent, up, widened
from edged.engines.shape_book import largest_bytes
from edged.serving.extents import Kind, Seen
from edged.tensors import ANY_SHAPE, Dim, TensorSpec

MB = 1 << 20


def signature(**shapes: tuple[Dim, ...]) -> Signature:
    return Signature(tuple(TensorSpec(name, "FP32", shape) for name, shape in shapes.items()), ())


IDS = signature(ids=("batch", "seq"))


def seen(*kinds: tuple[dict[str, tuple[int, ...]], int]) -> Seen:
    return Seen(sum(count for _, count in kinds), tuple(Kind(shapes, count) for shapes, count in kinds))


def ids(*shapes: tuple[int, ...]) -> Seen:
    return seen(*(({"ids": shape}, 1) for shape in shapes))


def widen(now: str, came: Seen, given: Signature = IDS, most: int = 128 * MB, usual: bool = True) -> str:
    return str(widened(Profile.parse(now), given, came, most, usual=usual))


@given(st.integers(1, 1 << 31), st.integers(0, 10))
def test_rounding_is_outwards_by_a_quarter_at_most_and_keeps_powers_of_two(n: int, power: int) -> None:
    n <<= power
    high, low = up(n), down(n)
    assert low <= n <= high
    assert high <= (n * 1.25 if n >= 16 else 2 * n)
    assert low >= (n * 0.75 if n >= 16 else n / 2)
    assert (up(high), down(low)) == (high, low)
    assert high % (1 << power) == low % (1 << power) == 0 or n < 16


def test_few_sizes_are_left_of_many() -> None:
    assert sorted({up(n) for n in range(1, 129)}) == [1, 2, 4, 8, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128]
    assert [down(n) for n in (1, 3, 15, 16, 33, 100)] == [1, 2, 8, 16, 32, 96]


def test_what_lies_in_the_range_changes_nothing() -> None:
    now = "ids=1x1:1x64:4x128"
    assert widen(now, ids((4, 128), (1, 1), (2, 77))) == now
    assert widen(now, Seen()) == now


def test_a_range_grows_only_where_it_has_to_and_what_was_set_stays() -> None:
    assert widen("ids=1x3:1x64:5x100", ids((1, 130))) == "ids=1x3:1x130:5x160"
    assert widen("ids=1x3:1x64:5x100", ids((6, 2))) == "ids=1x2:6x2:8x100"


def test_without_a_range_it_is_what_came() -> None:
    assert widen("", ids((1, 17), (1, 5), (3, 33))) == "ids=1x4:1x17:4x40"


def test_the_most_frequent_kind_is_the_one_to_be_fast_at_or_what_pictures_have() -> None:
    came = seen(({"ids": (2, 200)}, 9), ({"ids": (1, 64)}, 3))
    assert widen("ids=1x1:1x64:4x128", came) == "ids=1x1:2x200:4x224"
    assert widen("ids=1x1:1x64:4x128", came, usual=False) == "ids=1x1:1x64:4x224"


def test_one_request_does_not_command_more_memory_than_is_allowed_and_others_count_all_the_same() -> None:
    came = seen(({"ids": (1, 1 << 28)}, 99), ({"ids": (1, 200)}, 1), ({"ids": (1 << 20, 1)}, 1))
    found = Profile.parse(widen("ids=1x1:1x64:4x128", came, most=MB))
    assert str(found) == "ids=1x1:1x200:4x224"
    assert largest_bytes(found, IDS) == 4 * 224 * 4


def test_what_was_set_larger_than_is_allowed_stays_but_does_not_grow() -> None:
    now = "ids=1x1:1x64:1024x1024"
    assert widen(now, ids((1025, 1)), most=MB) == now


def test_inputs_of_one_dimension_grow_together_and_fixed_ones_stay() -> None:
    given = signature(a=("n", 3), b=("n", "m"), c=(7,))
    came = seen(({"a": (9, 3), "b": (9, 17)}, 1))
    assert widen("", came, given) == "a=8x3:9x3:16x3;b=8x16:9x17:16x20"


@pytest.mark.parametrize(
    "came",
    [
        ids((0, 5)),  # no elements
        seen(({"other": (1, 2)}, 1)),
        ids((1,)),
        ids((1 << 40, 1 << 40)),
    ],
)
def test_what_no_engine_could_be_built_for_changes_nothing(came: Seen) -> None:
    for now in ("", "ids=1x1:1x64:4x128"):
        assert widen(now, came, most=1 << 62) == now


def test_tensors_of_any_rank_or_of_too_many_dimensions_have_no_range() -> None:
    assert widen("", seen(({"x": (1, 2)}, 1)), signature(x=ANY_SHAPE)) == ""
    assert widen("", seen(({"x": (1,) * 9}, 1)), signature(x=("n",) * 9)) == ""
    assert widen("", seen(({"x": (1, 2)}, 1)), signature(x=(1, 2))) == ""


shapes = st.tuples(st.integers(0, 5000), st.integers(0, 5000))


@given(st.lists(st.tuples(shapes, st.integers(1, 50)), max_size=20), st.lists(shapes, max_size=5))
def test_it_never_shrinks_never_exceeds_its_bound_and_is_done_after_one_step(
    kinds: list[tuple[tuple[int, int], int]], later: list[tuple[int, int]]
) -> None:
    came = seen(*(({"ids": shape}, count) for shape, count in kinds))
    first = widened(Profile(), IDS, came, MB, usual=True)
    assert widened(first, IDS, came, MB, usual=True) == first
    assert not first.problem()
    assert not first.ranges or largest_bytes(first, IDS) <= MB
    second = widened(first, IDS, ids(*later), MB, usual=True)
    for each in first.ranges:
        assert second.contains("ids", each.minimum)
        assert second.contains("ids", each.maximum)


def test_a_demand_is_due_when_it_was_quiet_or_never_is() -> None:
    one, other = Profile.parse("x=1:1:2"), Profile.parse("x=1:1:4")
    demand = Demand(one, 100.0, 100.0)
    assert demand.updated(one, 105.0) is demand
    assert not demand.is_due(129.0, 30.0)
    assert demand.is_due(130.0, 30.0)
    grown = demand.updated(other, 129.0)
    assert (grown.profile, grown.since, grown.settled) == (other, 100.0, 129.0)
    assert not grown.is_due(158.0, 30.0)
    assert grown.updated(one, 399.0).is_due(400.0, 30.0)  # it has been ten times as long


def test_only_the_last_hour_counts_and_a_clock_that_was_set_back_forgets() -> None:
    assert recent((0.0, 1000.0, 4000.0, 9000.0), 5000.0) == (4000.0,)
