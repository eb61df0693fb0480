"""Runs each gRPC call: checks its caller, enforces the client's limits, and calls the handler. A failed call ends with
the status of its error. The audit log records calls that need the role `operate`.

Credentials and roles are checked before the first message is read, so that a client without the role cannot fill the
memory. A large message is read only when the budget has room for it, and must not arrive slowly while others wait.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from functools import partial
from typing import Any

from google.protobuf.message import Message as ProtobufMessage

from edged.api.auth import identity, policy
from edged.api.auth.audit import about
from edged.api.auth.guard import Guard
from edged.api.auth.limits import LARGE, ClientLimits, LargeMessage, Usage
from edged.api.auth.policy import Caller
from edged.api.grpc.rpc import Context, Method, Service
from edged.api.grpc.status import describe, trailing
from edged.api.http2.call import Call, Message
from edged.api.http2.headers import Status
from edged.errors import EdgedError, InvalidInput

_LOG = logging.getLogger("edged.calls")  # this logger writes only at verbose levels
_ROOM_SECONDS = 0.01  # seconds between two checks whether the client's bytes fit


class CallGuard:
    """Runs the calls of all services at one address."""

    def __init__(self, guard: Guard, address: str, services: Iterable[Service]) -> None:
        """Raises ConfigError if `address` is not allowed."""
        self._guard, self._address = guard, address
        self._methods = {path: method for service in services for path, method in service.methods.items()}
        self._generation = guard.generation
        self.listener = guard.listener(address)

    async def run(self, call: Call) -> None:
        """Run a call to its end."""
        method = self._methods.get(call.head.path)
        if method is None:
            lacks = f"this version of edged lacks the method {call.head.path[:100]}; see the protos of this version"
            call.finish(Status.UNIMPLEMENTED, lacks)
            return
        try:
            who = self._caller(call)
            self._guard.require_allowed(method.path, who, call.peer)
            identity.CURRENT.set(who)
            run = _RunningCall(self._guard, method, who, call)
            await (run.stream() if method.takes_many or method.gives_many else run.single())
        except EdgedError as error:
            end(call, error)

    def _caller(self, call: Call) -> Caller:
        """Return the caller. A connection remembers a caller without credentials until roles change."""
        connection, shown, guard = call.connection, call.head.authorization, self._guard
        if self._generation != guard.generation:
            self._generation, self.listener = guard.generation, guard.listener(self._address)
        if shown is None and connection.certificate is None:
            known = connection.memory
            if known is None or known[0] != self._generation:
                known = connection.memory = (self._generation, guard.caller(self.listener, None, call.peer))
            who: Caller = known[1]
            return who
        return guard.caller(self.listener, shown, call.peer, connection.certificate)


class _RunningCall:
    """One call of a caller that is allowed to make this call."""

    def __init__(self, guard: Guard, method: Method, who: Caller, call: Call) -> None:
        self._guard, self._limits, self._method, self._who, self._call = guard, guard.limits, method, who, call
        self._context = Context(call.peer, call.head.metadata, call.expires)
        self._began = time.perf_counter()
        self._usage = guard.limits.usage(who.key, who.name, time.monotonic())
        self._is_audited = policy.is_audited(method.path)

    async def single(self) -> None:
        """Run a call of one message and one answer. Raises ClientLimited if the client may not begin another call."""
        call, method, limits = self._call, self._method, self._limits
        limits.request(self._usage, 0, time.monotonic())  # the call counts even before its message arrives
        outcome, message, data, large, held = Status.CANCELLED, "", None, None, 0
        try:
            size = await call.announced()
            if size is None:
                raise InvalidInput("the call has no message; send the method's request message")
            limits.hold(self._usage, size)
            held = size
            if size >= LARGE:
                large = LargeMessage(self._guard.budget, self._context.peer, self._who)
                await large.begin(size, is_patient=False)
            data = await (call.read() if large is None else _read_large(call, large))
            assert data is not None  # the message was announced, and a call that is reset is cancelled
            with self._guard.watched(self._who, method.path, is_stream=False):
                response = method.write(await method.answer(method.read(data), self._context))
            outcome = Status.OK
            if large is not None:
                large.end()  # a client that does not read its answer must not keep others waiting
            await call.reply(response)
        except Exception as error:
            outcome, message = end(call, error)
        finally:
            if large is not None:
                large.end()
            limits.end(self._usage, held)
            self._end(outcome, message, data)

    async def stream(self) -> None:
        """Run a call of many messages or answers. Raises ClientLimited if the client may not begin another stream."""
        call, method, limits = self._call, self._method, self._limits
        limits.stream(self._usage, time.monotonic())
        large = LargeMessage(self._guard.budget, self._context.peer, self._who)
        requests = _Requests(call, method, self._usage, limits, large)
        outcome, message, data = Status.CANCELLED, "", None
        try:
            request: Any = requests
            if not method.takes_many:
                data = await anext(requests, None)
                if data is None:
                    raise InvalidInput("the call has no message; send the method's request message")
                request = data
            with self._guard.watched(self._who, method.path, is_stream=True):
                if method.gives_many:
                    await _write_all(call, method.answer(request, self._context), method)
                    call.finish(Status.OK)
                else:
                    await call.reply(method.write(await method.answer(request, self._context)))
            outcome = Status.OK
        except Exception as error:
            outcome, message = end(call, error)
        finally:
            requests.end()
            limits.end_stream(self._usage)
            self._end(outcome, message, requests.about if method.takes_many else data)

    def _end(self, outcome: Status, message: str, what: object) -> None:
        path, began = self._method.path, self._began
        if _LOG.isEnabledFor(logging.DEBUG):
            _LOG.debug("%s: %s, %.1f ms", path, outcome.name, (time.perf_counter() - began) * 1e3)
        if self._is_audited:
            self._guard.record(path, self._who, self._context.peer, what, outcome.name, message, began)


class _Requests:
    """Yields the messages of a call as they arrive, within the client's limits, until `end` is called. `about` has the
    fields of the first message that the audit log records; empty if the method is not audited, or if the message is not
    a protobuf message.

    If a task of the handler outlives the call and asks for the next message, the iteration ends.
    """

    def __init__(self, call: Call, method: Method, usage: Usage, limits: ClientLimits, large: LargeMessage) -> None:
        self.about: dict[str, str] = {}
        self._call: Call | None = call
        self._read, self._usage, self._limits, self._large = method.read, usage, limits, large
        self._is_first = policy.is_audited(method.path)
        self._size = 0  # bytes of the message that the handler holds

    def __aiter__(self) -> _Requests:
        return self

    async def __anext__(self) -> Any:
        self._give_back()
        call = self._call
        if call is None or (size := await call.announced()) is None:
            raise StopAsyncIteration
        usage, bounds = self._usage, self._limits.bounds
        while wait := usage.wait(time.monotonic(), bounds.rate):  # noqa: ASYNC110 # time has no event
            await asyncio.sleep(wait)
        while usage.size and usage.size + size > bounds.size:  # noqa: ASYNC110 # rare, and never for long
            await asyncio.sleep(_ROOM_SECONDS)
        if size >= LARGE:
            await self._large.begin(size)
        self._size = size
        usage.size += size
        data = await (_read_large(call, self._large) if size >= LARGE else call.read())
        if self._has_ended() or data is None:
            self._give_back()
            raise StopAsyncIteration
        if size >= LARGE:
            self._large.held()
        request = self._read(data)
        if self._is_first and isinstance(request, ProtobufMessage):
            self._is_first = False
            self.about = about(request)
        return request

    def end(self) -> None:
        """End the call: read no more messages."""
        self._call = None
        self._give_back()

    def _has_ended(self) -> bool:
        return self._call is None

    def _give_back(self) -> None:
        self._usage.size -= self._size
        self._size = 0
        self._large.end()


async def _read_large(call: Call, large: LargeMessage) -> Message | None:
    """Return a large message, or None if no message comes. Raises DeadlineExceeded, and ends the call at once, if the
    message arrives slowly and others wait: the handler may still wait until the client reads earlier answers."""
    large.expect(partial(end, call))
    try:
        data = await call.read()
    finally:
        large.arrived()
    if large.failure is not None:
        raise large.failure
    return data


async def _write_all(call: Call, responses: AsyncGenerator[Any, None], method: Method) -> None:
    """Write all responses, and wait for the end of the handler."""
    async with aclosing(responses):
        async for response in responses:
            await call.write(method.write(response))


def end(call: Call, error: Exception) -> tuple[Status, str]:
    """End a call with the status of an error; return the status and the message."""
    status, message = describe(error)
    call.finish(status, message, trailing(error, status, message))
    traceback.clear_frames(error.__traceback__)  # stack frames hold large messages until garbage is collected
    return status, message
