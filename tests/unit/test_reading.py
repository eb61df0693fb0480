"""Messages are handed over on the event loop: large ones one at a time, with room between them for small ones."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref

import pytest

from edged.ingress.access.budget import LARGE
from edged.ingress.reading import Sender, SlowLane, read
from tests.waiting import run, until

_COPY_SECONDS = 0.02


class Call:
    """gRPC's end of a call: a message arrives, and is copied when the reader is resumed."""

    def __init__(self, name: str, message: object, handed_over: list[str], copy_seconds: float = 0.0) -> None:
        self.arrived = asyncio.Event()
        self.ended_by: BaseException | None = None
        self._name, self._message, self._handed_over, self._copy_seconds = name, message, handed_over, copy_seconds

    async def read(self) -> object:
        try:
            await self.arrived.wait()
        except BaseException as error:
            self.ended_by = error
            raise
        time.sleep(self._copy_seconds)  # noqa: ASYNC251 # as gRPC does
        self._handed_over.append(self._name)
        return self._message


def _light() -> Sender:
    sender = Sender()
    sender.is_light = True
    return sender


@pytest.mark.parametrize("is_known", [False, True])
def test_read_small_message_of_a_light_sender_passes_large_ones_that_arrived_before(is_known: bool) -> None:
    async def story() -> None:
        lane, order = SlowLane(), list[str]()
        calls = [Call(f"large {number}", bytes(LARGE), order, _COPY_SECONDS) for number in range(4)]
        calls.append(Call("small", b"x", order))
        sender = _light() if is_known else Sender()
        senders = [Sender() for _ in calls[1:]] + [sender]
        reads = [asyncio.ensure_future(read(call, who, lane)) for call, who in zip(calls, senders, strict=True)]
        await asyncio.sleep(0)
        for call in calls:
            call.arrived.set()
        await asyncio.gather(*reads)
        assert order.index("small") == (1 if is_known else 4)
        assert [who.is_light for who in senders] == [False] * 4 + [True]

    run(story())


def test_read_large_messages_leaves_the_loop_free_between_them_for_longer_than_a_copy_takes() -> None:
    async def story() -> None:
        lane, order = SlowLane(), list[str]()
        calls = [Call(str(number), bytes(LARGE), order, _COPY_SECONDS) for number in range(3)]
        reads = [asyncio.ensure_future(read(call, Sender(), lane)) for call in calls]
        await asyncio.sleep(0)
        for call in calls:
            call.arrived.set()
        began = time.monotonic()
        await asyncio.gather(*reads)
        assert time.monotonic() - began > 3 * _COPY_SECONDS + 2 * _COPY_SECONDS
        assert order == ["0", "1", "2"]

    run(story())


def test_read_that_is_cancelled_in_the_lane_takes_its_message_all_the_same_and_leaves_the_lane_to_others() -> None:
    """gRPC frees the memory of a message only when it is handed over."""

    async def story() -> None:
        lane, order = SlowLane(), list[str]()
        await lane.enter()
        waiting, next_one = Call("waiting", b"", order), Call("next", b"a", order)
        reads = [asyncio.ensure_future(read(call, Sender(), lane)) for call in (waiting, next_one)]
        await asyncio.sleep(0)
        waiting.arrived.set()
        next_one.arrived.set()
        await asyncio.sleep(0.01)
        reads[0].cancel()
        await until(reads[0].done)
        assert reads[0].cancelled()
        assert order == ["waiting"]
        lane.leave(0.0)
        assert await reads[1] == b"a"
        assert order == ["waiting", "next"]
        await lane.enter()  # nothing holds it

    run(story())


def test_read_that_is_cancelled_before_its_message_comes_ends_the_call() -> None:
    async def story() -> None:
        call = Call("none", b"", [])
        reading = asyncio.ensure_future(read(call, Sender(), SlowLane()))
        await asyncio.sleep(0)
        reading.cancel()
        await until(reading.done)
        assert isinstance(call.ended_by, asyncio.CancelledError)

    run(story())


def test_read_end_of_a_call_is_given_on_and_says_nothing_of_its_sender() -> None:
    async def story() -> None:
        lane, sender, end = SlowLane(), Sender(), object()
        call = Call("end", end, [])
        reading = asyncio.ensure_future(read(call, sender, lane))
        await asyncio.sleep(0)
        call.arrived.set()
        assert await reading is end
        assert not sender.is_light
        await lane.enter()

    run(story())


def test_read_that_is_cancelled_leaves_nothing_to_the_garbage_collector() -> None:
    """What the callers hold, such as the message before, would be kept until it runs."""

    class Held:
        pass

    async def story() -> None:
        gc.disable()
        try:
            for arrives in (False, True):
                lane, call, held = SlowLane(), Call("none", b"", []), Held()
                await lane.enter()

                async def caller(call: Call = call, lane: SlowLane = lane, held: Held = held) -> object:
                    return await read(call, Sender(), lane)

                gone, reading = weakref.ref(held), asyncio.ensure_future(caller())
                await asyncio.sleep(0)
                if arrives:
                    call.arrived.set()
                    await asyncio.sleep(0.01)
                reading.cancel()
                await asyncio.wait([reading])
                call.ended_by = None
                del caller, held, reading
                await asyncio.sleep(0)
                assert gone() is None
        finally:
            gc.enable()

    run(story())
