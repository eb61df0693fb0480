"""Shared memory: no two spans overlap, all of it comes back, and both ends see the same bytes."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.errors import Overloaded, TooLarge
from edged.ipc.arena import Arena, FreeList, SharedView, Span
from tests.waiting import descriptors

CAPACITY = 64 * 40


@given(st.lists(st.tuples(st.booleans(), st.integers(0, CAPACITY + 100)), max_size=60), st.randoms())
def test_spans_never_overlap_and_all_of_it_comes_back(steps: list[tuple[bool, int]], chance: random.Random) -> None:
    free, held = FreeList(CAPACITY), dict[int, int]()
    for take, size in steps:
        if take or not held:
            try:
                offset = free.take(size)
            except TooLarge:
                assert size > CAPACITY
                continue
            except Overloaded:
                assert sum(held.values()) + size > 0
                continue
            assert offset % 64 == 0
            assert 0 <= offset <= offset + size <= CAPACITY
            assert all(offset + size <= o or o + s <= offset for o, s in held.items() if s and size)
            assert offset not in held
            held[offset] = size
        else:
            offset = chance.choice(sorted(held))
            del held[offset]
            free.give(offset)
        assert free.taken >= sum(held.values())
    for offset in chance.sample(sorted(held), len(held)):
        free.give(offset)
    assert free.taken == 0
    assert free.take(CAPACITY) == 0  # one hole again


def test_a_hole_is_used_as_soon_as_it_is_large_enough() -> None:
    free = FreeList(64 * 4)
    offsets = [free.take(64) for _ in range(4)]
    with pytest.raises(Overloaded):
        free.take(1)
    free.give(offsets[1])
    with pytest.raises(Overloaded):
        free.take(65)
    free.give(offsets[2])
    assert free.take(65) == offsets[1]


def test_what_can_never_fit_is_too_large_even_when_all_is_free() -> None:
    with pytest.raises(TooLarge, match=f"{CAPACITY + 1} bytes"):
        FreeList(CAPACITY).take(CAPACITY + 1)


def test_nothing_is_given_back_twice() -> None:
    free = FreeList(CAPACITY)
    offset = free.take(10)
    free.give(offset)
    with pytest.raises(KeyError):
        free.give(offset)


def test_empty_pieces_have_places_of_their_own() -> None:
    free = FreeList(CAPACITY)
    assert free.take(0) != free.take(0)


def test_both_ends_see_the_same_bytes() -> None:
    arena = Arena(1 << 16)
    shared = SharedView(arena.handle)
    span = arena.store(b"from the daemon")
    assert bytes(shared.at(span)) == b"from the daemon"
    reply = arena.reserve(5)
    shared.at(reply)[:] = b"hello"
    assert bytes(arena.read(reply)) == b"hello"
    assert arena.taken == 128
    arena.release(span)
    arena.release(reply)
    assert arena.taken == 0
    arena.close()


@pytest.mark.parametrize("span", [Span(-1, 5), Span(0, -1), Span(1 << 16, 1), Span(0, (1 << 16) + 1), Span(1 << 60, 1)])
def test_a_span_outside_is_refused(span: Span) -> None:
    arena = Arena(1 << 16)
    with pytest.raises(ValueError, match="outside"):
        SharedView(arena.handle).at(span)
    arena.close()


def test_a_store_that_does_not_fit_takes_nothing() -> None:
    arena = Arena(4096)
    arena.store(bytes(4000))
    taken = arena.taken
    with pytest.raises(Overloaded):
        arena.store(bytes(200))
    with pytest.raises(TooLarge):
        arena.store(bytes(5000))
    assert arena.taken == taken
    arena.close()


def test_an_arena_leaves_no_descriptor_and_no_name() -> None:
    before = descriptors()
    arena = Arena(1 << 16)
    assert "memfd:edged-arena" in os.readlink(f"/proc/self/fd/{arena.handle}")
    assert not os.get_inheritable(arena.handle)
    arena.close()
    assert descriptors() == before


def test_an_arena_that_someone_reads_is_not_closed_under_them() -> None:
    arena = Arena(4096)
    view = arena.read(arena.store(b"bytes"))
    with pytest.raises(BufferError):
        arena.close()
    assert bytes(view) == b"bytes"
    view.release()
    arena.close()
