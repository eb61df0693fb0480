"""Abandoned calls: the handler ends before its call does, and nothing uses gRPC's context of a call that has ended."""

from __future__ import annotations

import ast
import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

import edged.api
from edged.api.auth.guard import Guard
from edged.api.auth.limits import Bounds
from edged.api.auth.policy import ALL, Caller
from edged.api.grpc.call_guard import CallGuard, end
from edged.api.grpc.rpc import Context, Method
from edged.config import Access, Tls
from edged.errors import ClientLimited, InvalidInput
from tests.waiting import asynchronous, run, until

API = Path(edged.api.__file__).parent
# What gRPC gives to handlers, and how handlers are made known to it.
OF_GRPC = {"ServicerContext", "unary_unary_rpc_method_handler", "unary_stream_rpc_method_handler"}
OF_GRPC |= {"stream_unary_rpc_method_handler", "stream_stream_rpc_method_handler"}
TCP, MOST = "ipv4:127.0.0.1:4711", 3 << 20


class Call:
    """gRPC's end of a call that sends the same message for ever. `is_freed` is set when gRPC would have freed it."""

    def __init__(self, peer: str = "unix:", message: Any = b"message") -> None:
        self._peer, self._message = peer, message
        self.is_freed = False
        self.crashes: list[str] = []  # what was used after that
        self.written: list[bytes] = []
        self.status: grpc.StatusCode | None = None

    def _use(self, what: str) -> None:
        if self.is_freed:
            self.crashes.append(what)

    def peer(self) -> str:
        self._use("peer")
        return self._peer

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        self._use("metadata")
        return (("name", "value"),)

    def time_remaining(self) -> float | None:
        self._use("time")
        return None

    def auth_context(self) -> dict[str, list[bytes]]:
        self._use("authentication")
        return {}

    async def read(self) -> Any:
        self._use("read")
        await asyncio.sleep(0)
        return self._message

    async def write(self, data: bytes) -> None:
        self._use("write")
        self.written.append(data)
        await asyncio.sleep(0)

    async def abort(self, code: grpc.StatusCode, message: str = "", trailing: object = ()) -> None:
        self._use("abort")
        self.status = code
        raise grpc.aio.AbortError


class Handlers:
    """Never end by themselves, and leave a task behind that goes on to read. `ended` has the peers of ended calls."""

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


def guarded(guard: Guard, handlers: Handlers, takes_many: bool = False, gives_many: bool = False) -> Callable[..., Any]:
    """The function that gRPC calls."""
    answer = handlers.many if gives_many else handlers.single
    method = Method("/test.Service/Method", answer, bytes, bytes, takes_many, gives_many)
    handler = CallGuard(guard, method, lambda peer, authentication: Caller("test", ALL, "test")).handler()
    found: Callable[..., Any] = handler.stream_stream if gives_many else handler.stream_unary
    return found


@pytest.fixture
def guard(tmp_path: Path) -> Guard:
    return Guard(Access(), Tls(), tmp_path)


@pytest.mark.parametrize("gives_many", [False, True])
@pytest.mark.parametrize("takes_many", [False, True])
@asynchronous
async def test_call_guard_cancelled_call_ends_handler_first_and_uses_no_freed_call(
    guard: Guard, takes_many: bool, gives_many: bool
) -> None:
    call, handlers = Call(), Handlers()
    task = asyncio.create_task(guarded(guard, handlers, takes_many, gives_many)(None, call))
    await until(lambda: bool(call.written) or not gives_many)
    if takes_many:
        await handlers.read.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    call.is_freed = True
    assert handlers.ended == ["unix:"] or not gives_many
    await asyncio.gather(*handlers.readers)  # which end by themselves
    gc.collect()
    await asyncio.sleep(0.05)
    assert call.crashes == []
    assert guard.limits.usage("test", "test", 0.0).is_idle


@asynchronous
async def test_call_guard_error_of_handler_becomes_status_of_call(guard: Guard) -> None:
    class Failing(Handlers):
        async def many(self, asked: Any, context: Context) -> AsyncIterator[bytes]:
            yield b"answer"
            raise RuntimeError("no")

    call = Call()
    with pytest.raises(grpc.aio.AbortError):
        await guarded(guard, Failing(), gives_many=True)(None, call)
    assert (call.status, call.written) == (grpc.StatusCode.INTERNAL, [b"answer"])


@pytest.mark.parametrize(
    ("takes_many", "message", "status"),
    [
        (False, bytes(MOST), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (True, bytes(MOST), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (False, grpc.aio.EOF, grpc.StatusCode.INVALID_ARGUMENT),  # of a message that gRPC refuses for its size
    ],
)
@asynchronous
async def test_call_guard_refused_call_accounts_for_its_message(
    guard: Guard, takes_many: bool, message: Any, status: grpc.StatusCode
) -> None:
    guard.limits.bounds = Bounds(streams=0, requests=0, size=1 << 20, rate=1000.0)
    call = Call(TCP, message)
    with pytest.raises(grpc.aio.AbortError):
        await guarded(guard, Handlers(), takes_many)(None, call)
    assert call.status == status
    assert guard.traffic.begin(TCP).accounted(max_message=MOST) > MOST


# -- rules of the source -----------------------------------------------------------------------------------------------


def trees(folder: Path) -> dict[str, ast.Module]:
    return {path.relative_to(folder).as_posix(): ast.parse(path.read_text()) for path in folder.rglob("*.py")}


def test_no_generator_is_iterated_without_being_closed() -> None:
    """asyncio closes one that is made in the `async for` itself, some time after the task that left it."""
    found = [
        f"{name}:{node.lineno}"
        for name, tree in trees(API.parent).items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.AsyncFor, ast.comprehension)) and isinstance(node.iter, ast.Call)
        if isinstance(node, ast.AsyncFor) or node.is_async
    ]
    assert found == []


def test_grpc_context_is_used_by_the_call_guard_alone() -> None:
    found = {
        name
        for name, tree in trees(API).items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in OF_GRPC)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str) and "ServicerContext" in node.value)
    }
    assert found == {"grpc/call_guard.py"}


def test_call_guard_has_no_generator_and_cleans_up_without_the_call() -> None:
    tree = trees(API)["grpc/call_guard.py"]
    assert not [node for node in ast.walk(tree) if isinstance(node, (ast.Yield, ast.YieldFrom))]
    final = [each for node in ast.walk(tree) if isinstance(node, ast.Try) for each in node.finalbody]
    assert final
    for node in (node for each in final for node in ast.walk(each)):
        assert not (isinstance(node, ast.Name) and node.id == "call")


# -- the end of a call -------------------------------------------------------------------------------------------------


class AbortedCall:
    """A call's context, which keeps the error that it raises, as gRPC does."""

    def __init__(self) -> None:
        self.ended: tuple[Any, ...] = ()
        self.raised: BaseException | None = None

    async def abort(self, *ended: Any) -> None:
        self.ended, self.raised = ended, grpc.aio.AbortError("ended")
        raise self.raised


class Request:
    """Stands for many megabytes."""


async def refuse(call: AbortedCall, request: Request, error: Exception) -> None:
    try:
        raise error  # as a handler does, with the request in its frame
    except Exception as caught:
        await end(cast(Any, call), caught)


def test_end_gives_the_status_of_the_error_and_when_to_try_again() -> None:
    call = AbortedCall()
    with pytest.raises(grpc.aio.AbortError):
        run(refuse(call, Request(), ClientLimited("too many at a time", 0.25)))
    code, message, metadata = call.ended
    assert (code, message) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too many at a time")
    assert dict(metadata)["grpc-retry-pushback-ms"] == "250"


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@asynchronous
async def test_end_keeps_nothing_of_the_call_with_the_error() -> None:
    call, request = AbortedCall(), Request()
    there = weakref.ref(request)
    with pytest.raises(grpc.aio.AbortError):
        await refuse(call, request, InvalidInput("no"))
    del request
    await until(lambda: there() is None)
    assert call.raised is not None
