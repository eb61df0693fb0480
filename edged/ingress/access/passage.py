"""A call that is let in, on its way through: counted against its client's limits, written down where it commands, and
ended where what its caller showed is no longer good."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NoReturn, TypeAlias, cast

import grpc
from google.protobuf.message import Message

from edged.errors import EdgedError
from edged.ingress.access import policy
from edged.ingress.access.about import about
from edged.ingress.access.callers import Caller
from edged.ingress.access.guard import Guard
from edged.ingress.access.limits import Usage
from edged.ingress.ending import end
from edged.ingress.rpc import Context

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Identify: TypeAlias = Callable[[Context], Caller]
_Unary: TypeAlias = Callable[[Any, Context], Awaitable[Any]]
_Streaming: TypeAlias = Callable[[Any, Context], AsyncIterator[Any]]

_ROOM_SECONDS = 0.01  # between two looks whether a client's bytes have become fewer


class Passage:
    """The way of calls of one method by one kind of caller."""

    def __init__(self, guard: Guard, method: str, identify: Identify, *, is_open: bool = False) -> None:
        """`is_open`: whether it is yet to be decided if the caller may."""
        self._guard, self._method, self._identify, self._is_open = guard, method, identify, is_open
        self._is_audited = policy.is_audited(method)

    def around(self, handler: Handler) -> Handler:
        """The handler with the way before it."""
        read, write = handler.request_deserializer, handler.response_serializer
        inner: Any = handler  # whose stubs know gRPC's blocking handlers alone
        if handler.request_streaming and handler.response_streaming:
            stream = self._streaming(inner.stream_stream, takes_many=True)
            return grpc.stream_stream_rpc_method_handler(stream, read, write)
        if handler.response_streaming:
            feed = self._streaming(inner.unary_stream, takes_many=False)
            return grpc.unary_stream_rpc_method_handler(feed, read, write)
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(self._upload(inner.stream_unary), read, write)
        return grpc.unary_unary_rpc_method_handler(self._unary(inner.unary_unary), read, write)

    def _unary(self, inner: _Unary) -> _Unary:
        limits = self._guard.limits

        async def answer(request: Any, context: Context) -> Any:
            size = _size(request)
            try:
                who, usage = self._enter(context)
                limits.request(usage, size, time.monotonic())
            except EdgedError as error:
                await end(context, error)
            try:
                if not (self._is_audited or who.has_shown):
                    return await inner(request, context)
                async with self._watched(who, context, request) as heard:
                    return await inner(request, heard)
            finally:
                limits.end(usage, size)

        return answer

    def _upload(self, inner: _Unary) -> _Unary:
        async def answer(requests: AsyncIterator[Any], context: Context) -> Any:
            usage, who = await self._begin(context)
            first: dict[str, str] = {}
            try:
                async with self._watched(who, context, first) as heard:
                    return await inner(self._paced(requests, usage, first), heard)
            finally:
                self._guard.limits.end_stream(usage)

        return answer

    def _streaming(self, inner: _Streaming, *, takes_many: bool) -> _Streaming:
        async def answer(asked: Any, context: Context) -> AsyncIterator[Any]:
            usage, who = await self._begin(context)
            request = self._paced(asked, usage, {}) if takes_many else asked
            try:
                if not (self._is_audited or who.has_shown):
                    async with aclosing(cast(Any, inner(request, context))) as responses:
                        async for response in responses:
                            yield response
                    return
                watched = self._watched(who, context, asked)
                async with watched as heard, aclosing(cast(Any, inner(request, heard))) as responses:
                    async for response in responses:
                        yield response
            finally:
                self._guard.limits.end_stream(usage)

        return answer

    def _enter(self, context: Context) -> tuple[Caller, Usage]:
        """Who calls. Unauthenticated or Forbidden where it may not."""
        who = self._identify(context)
        if self._is_open:
            error = policy.refusal(self._method, who)
            if error is not None:
                self._guard.turn_away(self._method, who, context.peer(), error)
                raise error
        return who, self._guard.limits.usage(who.key, who.name, time.monotonic())

    async def _begin(self, context: Context) -> tuple[Usage, Caller]:
        try:
            who, usage = self._enter(context)
            self._guard.limits.stream(usage, time.monotonic())
        except EdgedError as error:
            await end(context, error)
        return usage, who

    async def _paced(self, requests: AsyncIterator[Any], usage: Usage, first: dict[str, str]) -> AsyncIterator[Any]:
        """The messages of a stream, no faster than its client may send. What the first is about goes into `first`."""
        limits, is_first = self._guard.limits, self._is_audited
        async for request in requests:
            if is_first and isinstance(request, Message):
                first.update(about(request))
                is_first = False
            size = _size(request)
            while wait := usage.wait(time.monotonic(), limits.bounds.rate):  # noqa: ASYNC110 # time is no event
                await asyncio.sleep(wait)
            while usage.size and usage.size + size > limits.bounds.size:  # noqa: ASYNC110 # rare, and never for long
                await asyncio.sleep(_ROOM_SECONDS)
            usage.size += size
            try:
                yield request
            finally:
                usage.size -= size

    @contextlib.asynccontextmanager
    async def _watched(self, who: Caller, context: Context, what: object) -> AsyncIterator[Context]:
        """A context that knows how its call ends, for what is written down then."""
        heard, began, guard = _Heard(context), time.perf_counter(), self._guard
        try:
            with guard.under_way(who):
                yield cast(Context, heard)
        except asyncio.CancelledError:
            error = guard.lost(who)
            if error is not None:
                await end(cast(Context, heard), error)
            heard.outcome = grpc.StatusCode.CANCELLED.name
            raise
        except GeneratorExit:
            heard.outcome = grpc.StatusCode.CANCELLED.name
            raise
        finally:
            if self._is_audited:
                guard.record(self._method, who, context.peer(), what, heard.outcome, heard.message, began)


class _Heard:
    """A call's context that remembers how the call was ended."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.outcome, self.message = grpc.StatusCode.OK.name, ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        self.outcome, self.message = code.name, details
        await self._context.abort(code, details, trailing_metadata)
        raise AssertionError("a call that was ended goes on")


def _size(request: Any) -> int:
    return len(request) if isinstance(request, bytes) else request.ByteSize()
