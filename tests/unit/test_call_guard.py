"""The call guard between a connection and the handlers: permission, limits, and the end of each call."""

from __future__ import annotations

import ast
import asyncio
import itertools
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import edged
from edged.api.auth.guard import Guard
from edged.api.auth.limits import Bounds, Budget
from edged.api.grpc.call_guard import CallGuard, end
from edged.api.grpc.rpc import Context, Method, Service
from edged.api.http2.call import Call, Message
from edged.api.http2.headers import Metadata, Status
from edged.config import Access, Tls
from edged.errors import ClientLimited, InvalidInput
from tests.fake_call import FakeCall
from tests.http2_peer import Peer
from tests.waiting import until

SOURCE = Path(edged.__file__).parent
PATH = "/inference.GRPCInferenceService/ModelInfer"  # any method that needs a role
ADDRESS, PEER = "localhost:8001", "ipv4:127.0.0.1:4711"


def calling(message: Message | None = b"message", path: str = PATH) -> FakeCall:
    """Return a call that sends the same message without end, or no message."""
    return FakeCall(path, () if message is None else itertools.repeat(message), (("name", "value"),), peer=PEER)


class Handlers:
    """Handlers that run until cancelled, and leave a task that continues to read. `ended` has peers of ended calls."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.read = asyncio.Event()
        self.readers: list[asyncio.Task[int]] = []

    async def single(self, asked: Any, context: Context) -> bytes:
        async for answer in self.many(asked, context):
            assert answer
        return b""

    async def many(self, asked: Any, context: Context) -> AsyncIterator[bytes]:
        if not isinstance(asked, bytes):
            self.readers.append(asyncio.create_task(self._read(asked)))
        try:
            while True:
                await asyncio.sleep(0)
                yield b"answer"
        finally:
            await asyncio.sleep(0)
            self.ended.append(context.peer)

    async def _read(self, requests: AsyncIterator[bytes]) -> int:
        count = 0
        async for _ in requests:
            count += 1
            self.read.set()
        return count


def guarded(guard: Guard, answer: Any, takes_many: bool = False, gives_many: bool = False) -> CallGuard:
    method = Method(PATH, answer, bytes, bytes, takes_many, gives_many)
    return CallGuard(guard, ADDRESS, [cast(Service, SimpleNamespace(methods={PATH: method}))])


async def run(guard: CallGuard, call: FakeCall) -> FakeCall:
    await guard.run(cast(Call, call))
    return call


async def echo(asked: bytes, context: Context) -> bytes:
    return asked


@pytest.fixture
def guard(tmp_path: Path) -> Guard:
    return Guard(Access(), Tls(), tmp_path)


async def test_run_single_call_is_answered(guard: Guard) -> None:
    call = await run(guarded(guard, echo), calling())
    assert (call.written, call.status) == ([b"message"], Status.OK)


async def test_run_unknown_method_is_unimplemented(guard: Guard) -> None:
    assert (await run(guarded(guard, echo), calling(path="/a/b"))).status is Status.UNIMPLEMENTED


@pytest.mark.parametrize("gives_many", [False, True])
async def test_run_call_without_a_message_is_invalid(guard: Guard, gives_many: bool) -> None:
    handler = Handlers().many if gives_many else echo
    call = await run(guarded(guard, handler, gives_many=gives_many), calling(None))
    assert call.status is Status.INVALID_ARGUMENT


async def test_run_caller_without_the_role_is_refused_before_its_message_is_read(tmp_path: Path) -> None:
    guard = Guard(Access(loopback=()), Tls(), tmp_path)
    call = await run(guarded(guard, echo), calling())
    assert (call.status, call.reads) == (Status.UNAUTHENTICATED, 0)
    assert guard.refused["UNAUTHENTICATED"] == 1


@pytest.mark.parametrize("takes_many", [False, True])
async def test_run_caller_over_its_limit_is_refused_before_its_message_is_read(guard: Guard, takes_many: bool) -> None:
    guard.limits.bounds = Bounds(streams=0, requests=0, size=1 << 20, rate=1000.0)
    call = await run(guarded(guard, echo, takes_many), calling())
    assert (call.status, call.reads) == (Status.RESOURCE_EXHAUSTED, 0)
    assert call.ended is not None
    assert "grpc-retry-pushback-ms" in dict(call.ended[2])


async def test_run_call_counts_against_the_limit_before_its_message_arrives(guard: Guard) -> None:
    class Silent(FakeCall):
        async def announced(self) -> int | None:
            await asyncio.Event().wait()
            return None

    guard.limits.bounds = Bounds(streams=1, requests=1, size=1 << 20, rate=1000.0)
    silent = asyncio.create_task(run(guarded(guard, echo), Silent(PATH, (), peer=PEER)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (await run(guarded(guard, echo), calling())).status is Status.RESOURCE_EXHAUSTED
    silent.cancel()
    await asyncio.gather(silent, return_exceptions=True)
    assert (await run(guarded(guard, echo), calling())).status is Status.OK
    assert guard.limits.together().is_idle


async def test_run_message_over_the_bytes_of_its_client_is_refused_unread(guard: Guard) -> None:
    guard.limits.bounds = Bounds(streams=1, requests=9, size=1 << 20, rate=1000.0)
    usage = guard.limits.usage("loopback", "loopback", 0.0)
    usage.size = 1 << 20
    call = await run(guarded(guard, echo), calling())
    assert (call.status, call.reads, usage.size) == (Status.RESOURCE_EXHAUSTED, 0, 1 << 20)


@pytest.mark.parametrize("takes_many", [False, True])
async def test_run_large_message_waits_for_the_budget(guard: Guard, takes_many: bool) -> None:
    async def first(asked: Any, context: Context) -> bytes:
        data: bytes = await anext(asked) if takes_many else asked
        assert guard.budget.used == len(data)
        return b"done"

    call = calling(bytes(2 << 20))
    await guard.budget.take("another", guard.budget.total)
    running = asyncio.create_task(run(guarded(guard, first, takes_many), call))
    await asyncio.sleep(0.05)
    assert (call.reads, running.done()) == (0, False)
    guard.budget.give_back("another", guard.budget.total, 60.0)
    await running
    assert (call.status, call.reads) == (Status.OK, 1)


class Stalled(FakeCall):
    """A call whose client announces a message of 2 MiB, and sends the rest when `sends` is set."""

    def __init__(self) -> None:
        super().__init__(PATH, (bytes(2 << 20),), peer=PEER)
        self.sends = asyncio.Event()

    async def read(self) -> Message | None:
        await self.sends.wait()
        return await super().read() if self.status is None else None

    def finish(self, status: Status, message: str = "", metadata: Metadata = ()) -> None:
        super().finish(status, message, metadata)
        self.sends.set()


@pytest.mark.parametrize("takes_many", [False, True])
async def test_run_slow_large_message_gives_way_to_a_waiting_message(guard: Guard, takes_many: bool) -> None:
    guard.budget, call, handlers = Budget(slow_after=-2.0), Stalled(), Handlers()
    answer = handlers.single if takes_many else echo
    running = asyncio.create_task(run(guarded(guard, answer, takes_many), call))
    await until(lambda: guard.budget.used > 0)
    await asyncio.wait_for(guard.budget.take("another", guard.budget.total), 10)
    await until(lambda: call.status is not None)
    assert call.status is Status.DEADLINE_EXCEEDED, "at once, even if the handler continues"
    if takes_many:
        running.cancel()
    await asyncio.gather(running, *handlers.readers, return_exceptions=True)
    assert guard.budget.used == guard.budget.total
    assert guard.limits.together().is_idle


async def test_run_large_message_that_a_stream_holds_for_long_gives_way_to_a_waiting_message(guard: Guard) -> None:
    """The client of a stream may not read its answers, so the stream asks for no further message."""
    guard.budget, call, goes_on = Budget(slow_after=0.05), FakeCall(PATH, (bytes(2 << 20),), peer=PEER), asyncio.Event()

    async def stuck(asked: Any, context: Context) -> bytes:
        data: bytes = await anext(asked)
        await goes_on.wait()
        return data

    running = asyncio.create_task(run(guarded(guard, stuck, True), call))
    await until(lambda: guard.budget.used > 0)
    await asyncio.sleep(0.1)
    assert guard.budget.used == 2 << 20, "no other message waits"
    await asyncio.wait_for(guard.budget.take("another", guard.budget.total), 10)
    goes_on.set()
    await running
    assert call.status is Status.OK
    assert guard.budget.used == guard.budget.total


@pytest.mark.parametrize("takes_many", [False, True])
async def test_run_slow_large_message_may_take_any_time_while_no_other_waits(guard: Guard, takes_many: bool) -> None:
    async def first(asked: Any, context: Context) -> bytes:
        data: bytes = await anext(asked) if takes_many else asked
        return data

    guard.budget, call = Budget(slow_after=-2.0), Stalled()
    running = asyncio.create_task(run(guarded(guard, first, takes_many), call))
    await guard.budget.take("another", guard.budget.total - (2 << 20))
    await asyncio.sleep(0.05)
    assert not running.done()
    call.sends.set()
    await running
    assert (call.status, call.reads) == (Status.OK, 1)


@pytest.mark.parametrize("gives_many", [False, True])
@pytest.mark.parametrize("takes_many", [False, True])
async def test_run_cancelled_call_ends_its_handler_first(guard: Guard, takes_many: bool, gives_many: bool) -> None:
    call, handlers = calling(), Handlers()
    answer = handlers.many if gives_many else handlers.single
    task = asyncio.create_task(run(guarded(guard, answer, takes_many, gives_many), call))
    await until(lambda: bool(call.written) or not gives_many)
    if takes_many:
        await handlers.read.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert handlers.ended == [call.peer] or not gives_many
    await asyncio.gather(*handlers.readers)  # they end by themselves
    assert guard.limits.together().is_idle


@pytest.mark.parametrize("takes_many", [False, True])
async def test_run_stream_ends_when_its_address_loses_the_role(guard: Guard, takes_many: bool) -> None:
    call, handlers = calling(), Handlers()
    running = asyncio.create_task(run(guarded(guard, handlers.many, takes_many, gives_many=True), call))
    await until(lambda: bool(call.written))
    await guard.reconfigure(Access(loopback=("infer",)), [ADDRESS])
    await asyncio.sleep(0.01)
    assert not running.done()
    await guard.reconfigure(Access(loopback=("read",)), [ADDRESS])
    await asyncio.wait_for(running, 10)
    assert (call.status, handlers.ended) == (Status.PERMISSION_DENIED, [PEER])
    assert guard.limits.together().is_idle
    await asyncio.gather(*handlers.readers)


async def test_run_error_of_the_handler_sets_the_status(guard: Guard) -> None:
    async def failing(asked: Any, context: Context) -> AsyncIterator[bytes]:
        yield b"answer"
        raise RuntimeError("no")

    call = await run(guarded(guard, failing, gives_many=True), calling())
    assert (call.status, call.written) == (Status.INTERNAL, [b"answer"])


async def test_run_client_limited_error_has_a_retry_time(guard: Guard) -> None:
    async def limited(asked: Any, context: Context) -> bytes:
        raise ClientLimited("too many at a time", 0.25)

    call = await run(guarded(guard, limited), calling())
    assert call.ended is not None
    status, message, metadata = call.ended
    assert (status, message) == (Status.RESOURCE_EXHAUSTED, "too many at a time")
    assert dict(metadata)["grpc-retry-pushback-ms"] == "250"


def test_sources_close_every_async_generator_that_they_iterate() -> None:
    """A generator created in the `async for` line is closed by asyncio, at some time after the loop was left."""
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.AsyncFor, ast.comprehension)) and isinstance(node.iter, ast.Call)
        if isinstance(node, ast.AsyncFor) or node.is_async
    ]
    assert found == []


async def test_end_with_an_error_frees_the_message_even_if_the_error_is_kept() -> None:
    kept = list[weakref.ref[object]]()

    def read() -> None:
        message = np.zeros(1)
        kept.append(weakref.ref(message))
        raise InvalidInput("unfit")

    async def answer(call: Call) -> None:
        try:
            read()
        except InvalidInput as error:
            end(call, error)
            errors.append(error)

    errors = list[Exception]()
    peer = Peer(answer)
    peer.begin(1)
    await peer.end()
    assert errors
    assert kept[0]() is None
    peer.lose()
