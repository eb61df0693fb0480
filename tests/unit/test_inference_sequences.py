"""Sequences of requests: state between requests, their order, limits, and timeouts of idle sequences."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest
from google.protobuf import text_format
from msgspec.structs import replace

from edged.api.inference.models import config_of
from edged.api.inference.requests import Options
from edged.api.inference.sequences import Sequences, StateTensor
from edged.errors import DeadlineExceeded, InvalidInput, Overloaded
from edged.models.model import Model
from edged.models.triton_text import read_text
from edged.proto import model_config_pb2 as pb
from edged.serving.schedule import Batching, TensorBatching
from tests.unit.control_room import entry, inspection
from tests.waiting import until, within

FOREVER = float("inf")


STRATEGIES = (
    "oldest { max_candidate_sequences: 4 preferred_batch_size: [ 2, 4 ] max_queue_delay_microseconds: 300 }",
    "direct { max_queue_delay_microseconds: 700 }",
    "direct { }",
)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_config_of_sequences_has_the_strategy_of_the_file(strategy: str) -> None:
    control = 'control_input { name: "x" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }'
    text = f"sequence_batching {{ max_sequence_idle_microseconds: 5000000 {strategy} {control} }}"
    known = replace(entry(), triton=read_text(text.encode(), "m"))
    made = config_of(Model.of(known, inspection()), TensorBatching(Batching()))
    assert made.sequence_batching == text_format.Parse(text, pb.ModelConfig()).sequence_batching


def state(size: int = 4, fill: bytes = b"a") -> dict[str, StateTensor]:
    return {"h": StateTensor((size,), fill * size)}


def asked(identifier: int | str = 7, starts: bool = False, ends: bool = False) -> Options:
    return Options(identifier, starts, ends)


class Book:
    """Sequences with a clock that the test sets. A sequence may be idle for one second."""

    def __init__(self, most: int = 10, most_bytes: int = 1 << 20) -> None:
        self.now = 1.0
        self.sequences = Sequences(most, most_bytes, lambda: self.now)

    async def answer(self, now: float, starts: bool = False, ends: bool = False, size: int = 4, of: int = 7) -> object:
        """Answer one request, which stores the time as the new state. Return the state before it."""
        self.now = now
        async with self.sequences.turn("model", asked(of, starts, ends), 1.0, FOREVER) as turn:
            turn.commit(state(size, b"%d" % int(now)))
            return turn.state


@contextlib.asynccontextmanager
async def counting(**limits: int) -> AsyncIterator[Book]:
    book = Book(**limits)
    yield book
    book.sequences.close()


@within(counting)
async def test_request_begins_with_the_state_of_the_one_before(book: Book) -> None:
    assert await book.answer(1, starts=True) is None
    assert await book.answer(1.5) == state(4, b"1")
    assert await book.answer(2, starts=True) is None
    assert await book.answer(2.5) == state(4, b"2")


@within(counting)
async def test_request_of_a_sequence_that_has_not_begun_or_has_ended_is_refused(book: Book) -> None:
    with pytest.raises(InvalidInput, match="'7'"):
        await book.answer(1)
    await book.answer(1, starts=True, ends=True)
    assert len(book.sequences) == book.sequences.size == 0
    with pytest.raises(InvalidInput):
        await book.answer(1)


@within(counting)
async def test_sequence_that_is_idle_too_long_is_forgotten(book: Book) -> None:
    await book.answer(1, starts=True)
    book.now = 1.9
    assert book.sequences.expire() == 2.0
    await book.answer(1.99)
    book.now = 2.5
    assert book.sequences.expire() == 2.99
    book.now = 3.0
    assert book.sequences.expire() is None
    assert len(book.sequences) == book.sequences.size == 0
    await book.answer(4, starts=True)
    with pytest.raises(InvalidInput):
        await book.answer(5)  # even before `expire` is called


@within(counting)
async def test_sequence_with_a_running_request_is_not_forgotten(book: Book) -> None:
    async with book.sequences.turn("model", asked(starts=True), 1.0, FOREVER) as turn:
        book.now = 100.0
        assert book.sequences.expire() == 101.0
        turn.commit(state())
    assert await book.answer(100.5) == state()


@within(counting)
async def test_failed_request_changes_nothing(book: Book) -> None:
    async def fail(book: Book, options: Options) -> None:
        with pytest.raises(RuntimeError):
            async with book.sequences.turn("model", options, 1.0, FOREVER):
                raise RuntimeError

    await book.answer(1, starts=True, of=8)
    await fail(book, asked(starts=True))
    assert len(book.sequences) == 1
    await book.answer(1, starts=True)
    await fail(book, asked(ends=True))
    assert await book.answer(1) == state(4, b"1")


@within(counting, most=2)
async def test_sequences_over_the_limit_are_refused_unless_others_are_idle(book: Book) -> None:
    for number in (1, 2):
        await book.answer(1, starts=True, of=number)
    with pytest.raises(Overloaded):
        await book.answer(1.5, starts=True, of=3)
    await book.answer(2.5, starts=True, of=3)
    assert len(book.sequences) == 1


@within(counting)
async def test_state_over_the_limit_is_refused_and_the_previous_one_stays(book: Book) -> None:
    await book.answer(1, starts=True, size=1 << 20)
    with pytest.raises(Overloaded):
        await book.answer(1.5, size=(1 << 20) + 1)
    assert book.sequences.size == 1 << 20
    assert await book.answer(1.6, size=8) == state(1 << 20, b"1")
    assert book.sequences.size == 8


@within(counting)
async def test_requests_of_one_sequence_run_in_order_of_arrival(book: Book) -> None:
    seen: list[int] = []
    busy = 0

    async def ask(number: int) -> None:
        nonlocal busy
        expires = FOREVER if number % 3 else time.monotonic() + 60
        async with book.sequences.turn("model", asked(starts=number == 0), 60.0, expires) as turn:
            busy += 1
            assert busy == 1
            assert turn.state == (state(number) if number else None)
            await asyncio.sleep(0.002 * (number % 2))
            turn.commit(state(number + 1))
            seen.append(number)
            busy -= 1

    await asyncio.gather(*map(ask, range(20)))
    assert seen == list(range(20))


@within(counting)
async def test_sequences_of_other_ids_or_models_run_at_the_same_time(book: Book) -> None:
    async with (
        book.sequences.turn("model", asked(1, starts=True), 60.0, FOREVER),
        book.sequences.turn("model", asked("1", starts=True), 60.0, FOREVER),
        book.sequences.turn("other", asked(1, starts=True), 60.0, FOREVER),
    ):
        pass


@within(counting)
async def test_request_that_is_cancelled_or_late_passes_its_turn_on(book: Book) -> None:
    order: list[str] = []

    async def ask(name: str, expires: float = FOREVER) -> None:
        async with book.sequences.turn("model", asked(), 60.0, expires):
            order.append(name)

    async with book.sequences.turn("model", asked(starts=True), 60.0, FOREVER) as turn:
        gone = asyncio.create_task(ask("gone"))
        late = asyncio.create_task(ask("late", time.monotonic() + 0.01))
        last = asyncio.create_task(ask("last"))
        with pytest.raises(DeadlineExceeded):
            await late
        gone.cancel()
        turn.commit(state())
    await last
    assert order == ["last"]
    # The first request is cancelled just after it gets the turn.
    async with book.sequences.turn("model", asked(), 60.0, FOREVER):
        gone, last = asyncio.create_task(ask("gone")), asyncio.create_task(ask("last"))
        await asyncio.sleep(0)
    gone.cancel()
    await last
    assert order == ["last", "last"]


@within(counting)
async def test_request_that_waited_for_the_last_one_of_its_sequence_is_refused(book: Book) -> None:
    async with book.sequences.turn("model", asked(starts=True, ends=True), 60.0, FOREVER) as turn:
        behind = asyncio.create_task(book.answer(1))
        await asyncio.sleep(0)
        turn.commit(state())
    with pytest.raises(InvalidInput):
        await behind


@within(counting)
async def test_requests_over_the_limit_of_waiting_ones_are_refused(book: Book) -> None:
    async with book.sequences.turn("model", asked(starts=True), 60.0, FOREVER):
        waiting = [asyncio.create_task(book.answer(1)) for _ in range(63)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await book.answer(1)
        for task in waiting:
            task.cancel()


async def test_sequences_that_are_idle_are_freed_by_a_timer() -> None:
    sequences = Sequences()
    for number in range(3):
        async with sequences.turn("model", asked(number + 1, starts=True), 0.01, FOREVER) as turn:
            turn.commit(state())
    await until(lambda: not len(sequences))
    assert sequences.size == 0
    sequences.close()
