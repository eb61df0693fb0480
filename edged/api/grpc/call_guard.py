"""Runs each call of gRPC: admit or refuse it, keep it within its client's limits, call its handler, end it with the
status of the error, and record it if it was a command.

What the address and the headers decide is decided before the first message is read, so that a client without the role
cannot fill the memory; only a certificate is not known before the call itself.

gRPC frees a call when the call's task ends, and using its context after that crashes the process. So the context stays
in this module and in that task: gRPC gets coroutines, which end after the handler has, never a generator, which it
would leave to asyncio to close later. Handlers get a `Context`, which is values, and their requests from an object that
reads nothing once the call has ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, NoReturn, TypeAlias, cast

import grpc
from google.protobuf.message import Message

from edged.api.auth import identity, policy
from edged.api.auth.audit import about
from edged.api.auth.guard import Guard
from edged.api.auth.limits import LARGE, ClientLimits, LargeMessage, Usage
from edged.api.auth.policy import Caller
from edged.api.grpc.grpc_limits import Traffic
from edged.api.grpc.rpc import Context, Method, Service
from edged.api.grpc.status import describe, trailing
from edged.errors import ClientLimited, EdgedError, InvalidInput

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
GrpcContext: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
# Find the caller, by the peer and, if `asks_connection`, the connection's authentication context.
Identify: TypeAlias = Callable[[str, Mapping[str, Iterable[bytes]]], Caller]

_LOG = logging.getLogger("edged.calls")  # logs only at verbose levels
_ROOM_SECONDS = 0.01  # between two checks of a client's bytes


class CallGuard:
    """Runs the calls of one method by one kind of caller."""

    def __init__(self, guard: Guard, method: Method, identify: Identify, *, asks_connection: bool = False) -> None:
        """`asks_connection`: the caller, and so its roles, depend on the connection."""
        self._guard, self._method, self._identify, self._asks_connection = guard, method, identify, asks_connection
        self._is_audited = policy.is_audited(method.path)
        self._is_stream = method.takes_many or method.gives_many
        # Requests of methods without a role are small.
        self._takes_contents = policy.METHODS.get(method.path, policy.NOBODY) is not policy.ANYBODY

    def handler(self) -> Handler:
        """The handler for gRPC, from bytes to bytes. To gRPC every call takes a stream, which is the same on the wire:
        so a single message is read here too, once its connection is known."""
        run = self._run if self._method.takes_many else self._run_one
        if self._method.gives_many:
            return grpc.stream_stream_rpc_method_handler(cast(Any, run))  # the stubs know only generators
        return grpc.stream_unary_rpc_method_handler(run)

    async def _run_one(self, _: object, call: GrpcContext) -> bytes | None:
        """Run a call of one message."""
        traffic = self._guard.traffic.begin(call.peer())
        traffic.open += self._takes_contents
        data: Any = None
        try:
            data = await call.read()
        finally:
            traffic.open -= self._takes_contents
            # Also if it exceeds gRPC's limit: gRPC reads it until the client stops.
            traffic.cut += self._takes_contents and data in (None, grpc.aio.EOF)
        if data is grpc.aio.EOF:
            await end(call, InvalidInput("the call has no message; use a client of the same protocol"))
        traffic.add(len(data))  # also if the call is refused next
        return await self._run(data, call)

    async def _run(self, data: Any, call: GrpcContext) -> bytes | None:
        """Run a call; `data` are the bytes of its single message, if it has one."""
        method, guard, limits = self._method, self._guard, self._guard.limits
        context, began = _context_of(call), time.perf_counter()
        size = 0 if self._is_stream else len(data)
        traffic = guard.traffic.begin(context.peer)
        try:
            who = self._admit(context, call)
            identity.CURRENT.set(who)
            usage = limits.usage(who.key, who.name, time.monotonic())
            if self._is_stream:
                limits.stream(usage, time.monotonic())
            else:
                limits.request(usage, size, time.monotonic())
        except EdgedError as error:
            # A stream above the limit has begun to send.
            traffic.cut += method.takes_many and self._takes_contents and isinstance(error, ClientLimited)
            await end(call, error)
        large = LargeMessage(guard.budget, context.peer, who)
        traffic.open += self._takes_contents
        requests = (
            _Requests(call, method, usage, limits, large, traffic, self._is_audited) if method.takes_many else None
        )
        outcome, message = grpc.StatusCode.CANCELLED.name, ""
        try:
            if size >= LARGE:
                await large.begin(size, is_patient=False)
            with guard.under_way(who) if self._is_audited or who.has_shown else contextlib.nullcontext():
                request = method.read(data) if requests is None else requests
                response = None
                if method.gives_many:
                    await _write_all(call, method.answer(request, context), method)
                else:
                    response = method.write(await method.answer(request, context))
            outcome = grpc.StatusCode.OK.name
            return response
        except grpc.aio.BaseError:  # the call has ended
            raise
        except Exception as error:
            code, message = describe(error)
            outcome = code.name
            await abort(call, code, message, trailing(error, code, message))
        finally:
            if requests is not None:
                requests.end()
            large.end()
            traffic.open -= self._takes_contents
            traffic.cut += outcome == grpc.StatusCode.CANCELLED.name and requests is not None
            if self._is_stream:
                limits.end_stream(usage)
            else:
                limits.end(usage, size)
            _LOG.debug("%s: %s, %.1f ms", method.path, outcome, (time.perf_counter() - began) * 1e3)
            if self._is_audited:
                what = data if requests is None else requests.about
                guard.record(method.path, who, context.peer, what, outcome, message, began)

    def _admit(self, context: Context, call: GrpcContext) -> Caller:
        """The caller. Unauthenticated, Forbidden."""
        if not self._asks_connection:
            return self._identify(context.peer, {})
        who = self._identify(context.peer, call.auth_context())
        self._guard.require_allowed(self._method.path, who, context.peer)
        return who


def refusing(guard: Guard, method: str, identify: Identify, error: EdgedError) -> Handler:
    """A handler that ends calls before any message is read."""

    async def refuse(requests: object, call: GrpcContext) -> bytes:
        peer = call.peer()
        guard.refuse(method, identify(peer, {}), peer, error)
        await end(call, error)

    return grpc.stream_unary_rpc_method_handler(cast(Any, refuse))  # a unary handler would read the message first


class _Requests:
    """The messages of a call as they come, no faster than its client may send, until `end`. `about` has the names in
    the first, if the call is recorded.

    Tasks of a handler may outlive their call and still ask for the next message; iteration then stops.
    """

    def __init__(
        self,
        call: GrpcContext,
        method: Method,
        usage: Usage,
        limits: ClientLimits,
        large: LargeMessage,
        traffic: Traffic,
        is_audited: bool,
    ) -> None:
        self.about: dict[str, str] = {}
        self._call: GrpcContext | None = call
        self._read, self._usage, self._limits, self._is_first = method.read, usage, limits, is_audited
        self._large, self._traffic = large, traffic
        self._size = 0  # of the message that the handler holds

    def __aiter__(self) -> _Requests:
        return self

    async def __anext__(self) -> Any:
        self._give_back()
        if self._call is None:
            raise StopAsyncIteration
        data: Any = await self._call.read()
        if data is grpc.aio.EOF:
            raise StopAsyncIteration
        self._traffic.add(len(data))
        usage, bounds = self._usage, self._limits.bounds
        while wait := usage.wait(time.monotonic(), bounds.rate):  # noqa: ASYNC110 # time has no event
            await asyncio.sleep(wait)
        while usage.size and usage.size + len(data) > bounds.size:  # noqa: ASYNC110 # rare, and never for long
            await asyncio.sleep(_ROOM_SECONDS)
        if len(data) >= LARGE:
            await self._large.begin(len(data))
        self._size = len(data)
        usage.size += self._size
        if self._has_ended():
            self._give_back()
            raise StopAsyncIteration
        request = self._read(data)
        if self._is_first and isinstance(request, Message):
            self._is_first = False
            self.about = about(request)
        return request

    def end(self) -> None:
        """The call ends: read nothing from now on."""
        self._call = None
        self._give_back()

    def _has_ended(self) -> bool:
        return self._call is None

    def _give_back(self) -> None:
        self._usage.size -= self._size
        self._size = 0
        self._large.end()


async def _write_all(call: GrpcContext, responses: AsyncGenerator[Any, None], method: Method) -> None:
    """Write all responses; the handler has ended when this ends."""
    async with aclosing(responses):
        async for response in responses:
            await call.write(method.write(response))


def _context_of(call: GrpcContext) -> Context:
    seconds = call.time_remaining()
    return Context(
        call.peer(),
        tuple((str(key), value) for key, value in call.invocation_metadata() or ()),
        None if seconds is None else time.monotonic() + seconds,
    )


_AUTHORIZATION = "authorization"
Details: TypeAlias = "grpc.HandlerCallDetails"


class GuardedMethods(grpc.GenericRpcHandler):
    """The methods of the services at one address, with the guard for each kind of caller."""

    def __init__(self, guard: Guard, address: str, services: Iterable[Service]) -> None:
        """ConfigError for an address that is not allowed."""
        self._guard, self._address = guard, address
        self._methods = {path: method for service in services for path, method in service.methods.items()}
        self.listener = guard.listener(address)
        self._generation = guard.generation
        self._anonymous: dict[str, Handler] = {}  # for callers without credentials, if all are alike

    def register(self, server: grpc.aio.Server) -> None:
        """Guard all calls of a server that has not been started."""
        server.add_generic_rpc_handlers((self,))

    def service(self, handler_call_details: Details) -> Handler | None:
        """The handler of a call; None for an unknown method."""
        method = self._methods.get(handler_call_details.method)
        if method is None:
            return None
        shown = _shown(handler_call_details.invocation_metadata)
        if self._generation != self._guard.generation:
            self._generation, self.listener = self._guard.generation, self._guard.listener(self._address)
            self._anonymous.clear()
        if shown is not None or not self.listener.is_local:
            return self._guarded(method, shown)
        handler = self._anonymous.get(method.path)
        if handler is None:
            handler = self._anonymous[method.path] = self._guarded(method, None)
        return handler

    def _guarded(self, method: Method, shown: str | None) -> Handler:
        guard, listener = self._guard, self.listener

        def by_connection(peer: str, authentication: Mapping[str, Iterable[bytes]]) -> Caller:
            return guard.caller(listener, shown, peer, authentication)

        def by_peer(peer: str, _: Mapping[str, Iterable[bytes]]) -> Caller:
            return guard.caller(listener, shown, peer)

        if listener.asks_certificates:
            return CallGuard(guard, method, by_connection, asks_connection=True).handler()
        # Names and keys may depend on the peer, known with the call; roles do not.
        who = guard.caller(listener, shown)
        error = policy.refusal(method.path, who)
        if error is not None:
            return refusing(guard, method.path, by_peer, error)
        if who.key.startswith("host "):
            return CallGuard(guard, method, by_peer).handler()
        return CallGuard(guard, method, lambda peer, authentication: who).handler()


def _shown(metadata: object) -> str | None:
    """The header `authorization`, None if absent. Several are joined, which is not a valid token: none is preferred."""
    found = [value for key, value in metadata or () if key == _AUTHORIZATION]  # type: ignore[attr-defined]
    return ", ".join(map(str, found)) if found else None


_PROPAGATED_SECONDS = 0.1  # after which the error has left every handler


async def end(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> NoReturn:
    """End a call with the status of an error, and keep nothing of the call."""
    status, message = describe(error)
    await abort(context, status, message, trailing(error, status, message))


async def abort(
    context: grpc.aio.ServicerContext[Any, Any],
    code: grpc.StatusCode,
    message: str,
    metadata: tuple[tuple[str, str | bytes], ...] = (),
) -> NoReturn:
    """End a call with a status, and keep nothing of the call.

    gRPC keeps the exception that it raises here, whose traceback holds the call with all that was sent: many megabytes
    that would stay until the garbage collector runs.
    """
    try:
        await context.abort(code, message, metadata)
    except grpc.aio.AbortError as aborted:
        asyncio.get_running_loop().call_later(_PROPAGATED_SECONDS, _forget, aborted)
        raise
    raise AssertionError("abort returned")


def _forget(error: BaseException | None) -> None:
    """Drop the tracebacks of an error and of its causes."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__
