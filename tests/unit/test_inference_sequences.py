"""Sequences of requests: state from one to the next, one at a time, until they end or are forgotten."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from edged.api.inference.requests import Options
from edged.api.inference.sequences import Sequences, SequenceTable, StateTensor
from edged.errors import DeadlineExceeded, InvalidInput, Overloaded

KEY = ("model", 7)
FOREVER = float("inf")


def state(size: int = 4, fill: bytes = b"a") -> dict[str, StateTensor]:
    return {"h": StateTensor((size,), fill * size)}


def answered(book: SequenceTable, now: float, starts: bool = False, ends: bool = False, size: int = 4) -> object:
    """One request from its arrival to its answer; what it began with."""
    sequence = book.arrive(KEY, starts, 1.0, now)
    try:
        begins = book.state(sequence, 7, starts)
        book.commit(sequence, state(size, b"%d" % int(now)), ends)
        return begins
    finally:
        book.leave(KEY, sequence, now)


def test_a_request_begins_with_what_the_one_before_kept() -> None:
    book = SequenceTable()
    assert answered(book, 1, starts=True) is None
    assert answered(book, 1.5) == state(4, b"1")
    assert answered(book, 2, starts=True) is None  # begins anew
    assert answered(book, 2.5) == state(4, b"2")


def test_a_sequence_that_was_not_begun_or_has_ended_is_unknown() -> None:
    book = SequenceTable()
    with pytest.raises(InvalidInput, match="'7'"):
        answered(book, 1)
    answered(book, 1, starts=True, ends=True)
    assert len(book) == book.size == 0
    with pytest.raises(InvalidInput, match="sequence_start"):
        answered(book, 1)


def test_a_sequence_that_says_nothing_for_too_long_is_forgotten() -> None:
    book = SequenceTable()
    answered(book, 1, starts=True)
    assert book.expire(1.9) == 2.0
    answered(book, 1.99)
    assert book.expire(2.5) == 2.99
    assert book.expire(3.0) is None
    assert len(book) == book.size == 0
    answered(book, 4, starts=True)
    with pytest.raises(InvalidInput, match="idle too long"):
        answered(book, 5)  # also where nobody looked in between


def test_a_sequence_with_a_request_under_way_is_not_forgotten() -> None:
    book = SequenceTable()
    sequence = book.arrive(KEY, True, 1.0, 1.0)
    assert book.expire(100.0) == 101.0
    book.commit(sequence, state(), False)
    book.leave(KEY, sequence, 100.0)
    assert answered(book, 100.5) == state()


def test_a_first_request_that_fails_leaves_nothing() -> None:
    book = SequenceTable()
    book.leave(KEY, book.arrive(KEY, True, 1.0, 1.0), 1.0)
    assert len(book) == 0


def test_there_are_no_more_sequences_than_there_may_be_and_those_that_are_over_give_way() -> None:
    book = SequenceTable(most=2)
    for number in (1, 2):
        sequence = book.arrive(("model", number), True, 1.0, 1.0)
        book.commit(sequence, state(), False)
        book.leave(("model", number), sequence, 1.0)
    with pytest.raises(Overloaded, match="2 sequences"):
        book.arrive(("model", 3), True, 1.0, 1.5)
    book.arrive(("model", 3), True, 1.0, 2.5)
    assert len(book) == 1


def test_states_take_no_more_memory_than_they_may_and_what_was_kept_stays() -> None:
    book = SequenceTable(most_bytes=1 << 20)
    answered(book, 1, starts=True, size=1 << 20)
    with pytest.raises(Overloaded, match="1 MiB"):
        answered(book, 1.5, size=(1 << 20) + 1)
    assert book.size == 1 << 20
    assert answered(book, 1.6, size=8) == state(1 << 20, b"1")
    assert book.size == 8


# -- on the event loop ----------------------------------------------------------------------------------------------


def run(test: Callable[[Sequences], Awaitable[None]]) -> None:
    async def main() -> None:
        sequences = Sequences()
        try:
            await asyncio.wait_for(test(sequences), 30)
        finally:
            sequences.close()

    asyncio.run(main())


def said(identifier: int | str = 7, starts: bool = False, ends: bool = False) -> Options:
    return Options(identifier, starts, ends)


def test_requests_of_one_sequence_go_one_after_the_other_as_they_came() -> None:
    async def test(sequences: Sequences) -> None:
        seen: list[int] = []
        busy = 0

        async def ask(number: int) -> None:
            nonlocal busy
            expires = FOREVER if number % 3 else time.monotonic() + 60
            async with sequences.turn("model", said(starts=number == 0), 60.0, expires) as turn:
                busy += 1
                assert busy == 1
                assert turn.state == (state(number) if number else None)
                await asyncio.sleep(0.002 * (number % 2))
                turn.commit(state(number + 1))
                seen.append(number)
                busy -= 1

        await asyncio.gather(*map(ask, range(20)))
        assert seen == list(range(20))

    run(test)


def test_sequences_do_not_wait_for_each_other() -> None:
    async def test(sequences: Sequences) -> None:
        async with (
            sequences.turn("model", said(1, starts=True), 60.0, FOREVER),
            sequences.turn("model", said("1", starts=True), 60.0, FOREVER),
            sequences.turn("other", said(1, starts=True), 60.0, FOREVER),
        ):
            pass

    run(test)


def test_a_request_that_is_cancelled_or_late_gives_its_turn_to_the_next() -> None:
    async def test(sequences: Sequences) -> None:
        order: list[str] = []

        async def ask(name: str, expires: float = FOREVER) -> None:
            async with sequences.turn("model", said(), 60.0, expires):
                order.append(name)

        async with sequences.turn("model", said(starts=True), 60.0, FOREVER) as turn:
            gone = asyncio.create_task(ask("gone"))
            late = asyncio.create_task(ask("late", time.monotonic() + 0.01))
            last = asyncio.create_task(ask("last"))
            with pytest.raises(DeadlineExceeded, match="deadline"):
                await late
            gone.cancel()
            turn.commit(state())
        await last
        assert order == ["last"]
        # Cancelled when it has just been given the turn.
        async with sequences.turn("model", said(), 60.0, FOREVER):
            gone, last = asyncio.create_task(ask("gone")), asyncio.create_task(ask("last"))
            await asyncio.sleep(0)
        gone.cancel()
        await last
        assert order == ["last", "last"]

    run(test)


def test_what_waits_behind_the_end_of_its_sequence_is_told_so() -> None:
    async def test(sequences: Sequences) -> None:
        async def ask() -> None:
            async with sequences.turn("model", said(), 60.0, FOREVER):
                raise AssertionError

        async with sequences.turn("model", said(starts=True, ends=True), 60.0, FOREVER) as turn:
            behind = asyncio.create_task(ask())
            await asyncio.sleep(0)
            turn.commit(state())
        with pytest.raises(InvalidInput, match="has ended"):
            await behind

    run(test)


def test_a_request_that_fails_changes_nothing() -> None:
    async def test(sequences: Sequences) -> None:
        async with sequences.turn("model", said(starts=True), 60.0, FOREVER) as turn:
            turn.commit(state(3))
        with pytest.raises(RuntimeError):
            async with sequences.turn("model", said(ends=True), 60.0, FOREVER):
                raise RuntimeError
        async with sequences.turn("model", said(), 60.0, FOREVER) as turn:
            assert turn.state == state(3)

    run(test)


def test_memory_of_forgotten_sequences_is_given_back_by_itself() -> None:
    async def test(sequences: Sequences) -> None:
        book = SequenceTable()
        own = Sequences(book)
        for number in range(3):
            async with own.turn("model", said(number + 1, starts=True), 0.01, FOREVER) as turn:
                turn.commit(state())
        while len(book):  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.02)
        assert book.size == 0
        own.close()

    run(test)


def test_no_more_requests_of_one_sequence_wait_than_may_wait_for_a_model() -> None:
    book = SequenceTable()
    held = [book.arrive(KEY, True, 1.0, 1) for _ in range(64)]
    with pytest.raises(Overloaded):
        book.arrive(KEY, True, 1.0, 1)
    book.leave(KEY, held[0], 1)
    book.arrive(KEY, True, 1.0, 1)
