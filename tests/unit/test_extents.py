"""Statistics of request shapes, in bounded memory."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from edged.backends.profile import Range
from edged.serving.extents import MOST_KINDS, Kind, Seen, Traffic


def noted(*shapes: tuple[int, ...]) -> Traffic:
    traffic = Traffic()
    for shape in shapes:
        traffic.note((("x", shape),))
    return traffic


def test_range_has_the_most_frequent_size_of_each_dimension() -> None:
    seen = noted((1, 8), (1, 8), (2, 8), (2, 9), (2, 7)).seen()
    assert (seen.requests, Seen().range("x")) == (5, None)
    assert seen.kinds[0] == Kind({"x": (1, 8)}, 2)
    assert seen.range("x") == Range("x", (1, 7), (2, 8), (2, 9))


def test_look_version_grows_with_new_kinds_of_shapes() -> None:
    traffic = noted((1, 8))
    version = traffic.look()
    traffic.note((("x", (1, 8)),))
    assert traffic.look() == version
    traffic.note((("x", (1, 9)),))
    assert traffic.look() == version + 1


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=600))
def test_seen_has_exact_bounds_in_bounded_memory(shapes: list[tuple[int, int]]) -> None:
    seen = noted(*shapes).seen()
    assert len(seen.kinds) <= MOST_KINDS
    assert seen.requests == len(shapes)
    counts = [kind.count for kind in seen.kinds]
    assert counts == sorted(counts, reverse=True)
    if shapes:
        assert seen.smallest["x"] == tuple(min(shape[axis] for shape in shapes) for axis in range(2))
        assert seen.largest["x"] == tuple(max(shape[axis] for shape in shapes) for axis in range(2))


def test_seen_keeps_frequent_kinds_and_the_newest() -> None:
    traffic = noted((1, 1), (1, 1), (1, 1))
    for n in range(10_000):
        traffic.note((("x", (2, n)),))
    seen = traffic.seen()
    assert seen.kinds[0] == Kind({"x": (1, 1)}, 3)
    assert {"x": (2, 9_999)} in [kind.shapes for kind in seen.kinds]


def test_note_halves_old_counts() -> None:
    traffic = Traffic(Seen(1 << 20, (Kind({"x": (1,)}, 1 << 20),), {"x": (1,)}, {"x": (1,)}))
    traffic.note((("x", (2,)),))
    assert [kind.count for kind in traffic.seen().kinds] == [1 << 19, 1]


def test_traffic_continues_from_stored_shapes() -> None:
    seen = noted((1, 8), (2, 9), (2, 9)).seen()
    again = Traffic(msgspec.json.decode(msgspec.json.encode(seen), type=Seen))
    assert again.seen() == seen
    again.note((("x", (4, 1)),))
    assert again.seen().range("x") == Range("x", (1, 1), (2, 9), (4, 9))


def test_seen_of_an_input_of_any_rank_ignores_other_ranks_than_the_first() -> None:
    seen = noted((1, 8), (3,), ()).seen()
    assert (seen.smallest["x"], seen.largest["x"], seen.requests) == ((1, 8), (1, 8), 3)
