"""The arena in shared memory: spans do not overlap, all memory is released, and both ends see the same bytes."""

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
def test_free_list_spans_never_overlap_and_all_are_released(
    steps: list[tuple[bool, int]], chance: random.Random
) -> None:
    free, held = FreeList(CAPACITY), dict[int, int]()
    for take, size in steps:
        if take or not held:
            try:
                offset = free.take(size)
            except TooLarge:
                assert size > CAPACITY
                continue
            except Overloaded:
                taken = sorted((o, o + max(64, -(-s // 64) * 64)) for o, s in held.items())
                holes = zip([0, *(end for _, end in taken)], [*(start for start, _ in taken), CAPACITY], strict=True)
                assert all(end - start < max(64, size) for start, end in holes)
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
    assert free.take(CAPACITY) == 0  # the free spans are joined again


def test_free_list_span_given_back_twice_raises() -> None:
    free = FreeList(CAPACITY)
    offset = free.take(10)
    free.give(offset)
    with pytest.raises(KeyError):
        free.give(offset)


def test_arena_and_view_share_bytes() -> None:
    arena = Arena(1 << 16)
    shared = SharedView(arena.handle)
    span = arena.reserve(15)
    arena.read(span)[:] = b"from the daemon"
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
def test_view_refuses_spans_outside(span: Span) -> None:
    arena = Arena(1 << 16)
    with pytest.raises(ValueError, match="outside"):
        SharedView(arena.handle).at(span)
    arena.close()


def test_arena_has_no_name_and_closes_its_descriptor() -> None:
    before = descriptors()
    arena = Arena(1 << 16)
    assert "memfd:edged-arena" in os.readlink(f"/proc/self/fd/{arena.handle}")
    assert not os.get_inheritable(arena.handle)
    arena.close()
    assert descriptors() <= before  # fewer if something of an earlier test was closed


def test_arena_close_while_it_is_read_raises() -> None:
    arena = Arena(4096)
    view = arena.read(arena.reserve(5))
    with pytest.raises(BufferError):
        arena.close()
    view.release()
    arena.close()
