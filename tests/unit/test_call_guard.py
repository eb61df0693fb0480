"""Abandoned calls: the handler ends before its call does, and nothing asks gRPC about a call that has ended."""

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
from tests.waiting import run, until

_INGRESS = Path(edged.api.__file__).parent
# What gRPC gives to handlers, and how it is told of handlers.
_OF_GRPC = {"ServicerContext", "unary_unary_rpc_method_handler", "unary_stream_rpc_method_handler"}
_OF_GRPC |= {"stream_unary_rpc_method_handler", "stream_stream_rpc_method_handler"}


class Call:
    """gRPC's end of a call that sends messages for ever. `freed` is set once gRPC would have freed it."""

    def __init__(self) -> None:
        self.is_freed = False
        self.crashes: list[str] = []  # what was asked after that
        self.written: list[bytes] = []
        self.status: grpc.StatusCode | None = None

    def _ask(self, what: str) -> None:
        if self.is_freed:
            self.crashes.append(what)

    def peer(self) -> str:
        self._ask("peer")
        return "unix:"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        self._ask("metadata")
        return (("name", "value"),)

    def time_remaining(self) -> float | None:
        self._ask("time")
        return None

    def auth_context(self) -> dict[str, list[bytes]]:
        self._ask("authentication")
        return {}

    async def read(self) -> bytes:
        self._ask("read")
        await asyncio.sleep(0)
        return b"message"

    async def write(self, data: bytes) -> None:
        self._ask("write")
        self.written.append(data)
        await asyncio.sleep(0)

    async def abort(self, code: grpc.StatusCode, message: str = "", trailing: object = ()) -> None:
        self._ask("abort")
        self.status = code
        raise grpc.aio.AbortError


class Handlers:
    """Never end by themselves, and leave a task behind that goes on to read. `ended` says how they ended."""

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


def guarded(folder: Path, handlers: Handlers, takes_many: bool, gives_many: bool) -> Callable[..., Any]:
    """What gRPC calls."""
    guard = Guard(Access(), Tls(), folder)
    answer = handlers.many if gives_many else handlers.single
    method = Method("/test.Service/Method", answer, bytes, bytes, takes_many, gives_many)
    handler = CallGuard(guard, method, lambda peer, authentication: Caller("test", ALL, "test")).handler()
    found: Callable[..., Any] = next(
        each
        for each in (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
        if each is not None
    )
    assert guard.limits.usage("test", "test", 0.0).is_idle
    return found


@pytest.mark.parametrize("gives_many", [False, True])
@pytest.mark.parametrize("takes_many", [False, True])
def test_call_guard_cancelled_call_ends_handler_first_and_uses_no_freed_call(
    tmp_path: Path, takes_many: bool, gives_many: bool
) -> None:
    async def work() -> None:
        call, handlers = Call(), Handlers()
        answer = guarded(tmp_path, handlers, takes_many, gives_many)
        task = asyncio.create_task(answer(None if takes_many else b"message", call))
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

    run(work())


def test_call_guard_error_of_handler_becomes_status_of_call(tmp_path: Path) -> None:
    class Failing(Handlers):
        async def many(self, asked: Any, context: Context) -> AsyncIterator[bytes]:
            yield b"answer"
            raise RuntimeError("no")

    async def work() -> None:
        call = Call()
        with pytest.raises(grpc.aio.AbortError):
            await guarded(tmp_path, Failing(), False, True)(b"message", call)
        assert (call.status, call.written) == (grpc.StatusCode.INTERNAL, [b"answer"])

    run(work())


@pytest.mark.parametrize("takes_many", [False, True])
def test_call_guard_call_refused_for_limits_accounts_for_what_it_sent(tmp_path: Path, takes_many: bool) -> None:
    class Remote(Call):
        def peer(self) -> str:
            return "ipv4:127.0.0.1:4711"

        async def read(self) -> bytes:
            return bytes(3 << 20)

    async def work() -> None:
        guard = Guard(Access(), Tls(), tmp_path)
        guard.limits.bounds = Bounds(streams=0, requests=0, size=1 << 20, rate=1000.0)
        method = Method("/test.Service/Method", Handlers().single, bytes, bytes, takes_many, False)
        handler = CallGuard(guard, method, lambda peer, authentication: Caller("test", ALL, "test")).handler()
        call = Remote()
        with pytest.raises(grpc.aio.AbortError):
            await handler.stream_unary(None, call)
        assert call.status == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert guard.traffic.begin(call.peer()).accounted(max_message=3 << 20) > 3 << 20

    run(work())


def test_call_guard_message_that_grpc_refuses_for_its_size_is_accounted_for(tmp_path: Path) -> None:
    class TooLarge(Call):
        def peer(self) -> str:
            return "ipv4:127.0.0.1:4711"

        async def read(self) -> Any:
            return grpc.aio.EOF

    async def work() -> None:
        guard, call = Guard(Access(), Tls(), tmp_path), TooLarge()
        method = Method("/test.Service/Method", Handlers().single, bytes, bytes)
        handler = CallGuard(guard, method, lambda peer, authentication: Caller("test", ALL, "test")).handler()
        with pytest.raises(grpc.aio.AbortError):
            await handler.stream_unary(None, call)
        assert guard.traffic.begin(call.peer()).accounted(max_message=3 << 20) > 3 << 20

    run(work())


def modules() -> list[tuple[str, ast.Module]]:
    return [(path.relative_to(_INGRESS).as_posix(), ast.parse(path.read_text())) for path in _INGRESS.rglob("*.py")]


def test_no_generator_is_iterated_without_being_closed() -> None:
    """One that is made in the `async for` itself is closed by asyncio, some time after the task that left it."""
    package = _INGRESS.parent
    found = [
        f"{path.relative_to(package)}:{node.lineno}"
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.AsyncFor, ast.comprehension)) and isinstance(node.iter, ast.Call)
        if isinstance(node, ast.AsyncFor) or node.is_async
    ]
    assert found == []


def test_grpc_context_is_known_to_the_call_guard_alone() -> None:
    found = {
        name
        for name, tree in modules()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in _OF_GRPC)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str) and "ServicerContext" in node.value)
    }
    assert found == {"grpc/call_guard.py"}


def test_call_guard_has_no_generator_and_cleans_up_without_the_call() -> None:
    (tree,) = (tree for name, tree in modules() if name == "grpc/call_guard.py")
    assert not [node for node in ast.walk(tree) if isinstance(node, (ast.Yield, ast.YieldFrom))]
    final = [each for node in ast.walk(tree) if isinstance(node, ast.Try) for each in node.finalbody]
    assert final
    for node in (node for each in final for node in ast.walk(each)):
        assert not (isinstance(node, ast.Name) and node.id == "call")


class AbortedCall:
    """A call's context, which keeps what it raises, as gRPC does."""

    def __init__(self) -> None:
        self.ended: tuple[Any, ...] = ()
        self.raised: BaseException | None = None

    async def abort(self, *said: Any) -> None:
        self.ended = said
        self.raised = grpc.aio.AbortError("ended")
        raise self.raised


class Request:
    """Stands for many megabytes."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def refuse(call: AbortedCall, request: Request, error: Exception) -> None:
    try:
        raise error  # as a handler does, with the request in its frame
    except Exception as caught:
        await end(cast(Any, call), caught)


def test_a_call_ends_with_the_status_of_its_error() -> None:
    call = AbortedCall()
    with pytest.raises(grpc.aio.AbortError):
        run(refuse(call, Request(), ClientLimited("too many at a time", 0.25)))
    code, message, metadata = call.ended
    assert (code, message) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too many at a time")
    assert dict(metadata)["grpc-retry-pushback-ms"] == "250"


@pytest.mark.usefixtures("no_collector")
def test_nothing_of_a_call_stays_with_the_error_that_grpc_keeps() -> None:
    async def work() -> None:
        call, request = AbortedCall(), Request()
        there = weakref.ref(request)
        with pytest.raises(grpc.aio.AbortError):
            await refuse(call, request, InvalidInput("no"))
        del request
        for _ in range(100):
            if there() is None:
                break
            await asyncio.sleep(0.02)
        assert call.raised is not None
        assert there() is None

    run(work())
