"""Calls that go on being answered, in an event loop; `edged.client.updates` is the blocking twin."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from grpc import aio

from edged.client.calls import Call, serialize
from edged.client.status import from_rpc_error, late

if TYPE_CHECKING:
    from typing_extensions import Self

Answer = TypeVar("Answer")


class AsyncUpdates(AsyncIterator[Answer]):
    """Answers in the order they come; arguments and errors as in `edged.client.updates.Updates`.

    `aclose`, the end of an `async with` block, of the last reference, or a cancelled wait for an answer hangs up.
    """

    def __init__(self, channel: aio.Channel, call: Call[Answer], target: str, timeout: float | None) -> None:
        self._call, self._target = call, target
        self._over = False
        self._first: Any = None
        send = channel.unary_stream(call.path, request_serializer=serialize, response_deserializer=call.read)
        self._answers: aio.UnaryStreamCall[Any, Any] = send(call.request, timeout=timeout)

    async def begin(self, patience: float) -> Self:
        """As in the blocking twin."""
        try:
            self._first = await asyncio.wait_for(self._next(), patience)
        except asyncio.TimeoutError:
            raise late(self._target) from None
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Answer:
        if self._over:
            raise StopAsyncIteration
        message, self._first = self._first, None
        message = message or await self._next()
        if message is None:
            raise StopAsyncIteration
        return self._call.parse(message)

    async def aclose(self) -> None:
        self._end()

    async def _next(self) -> Any:
        """The next message, or None at the end."""
        try:
            message: Any = await self._answers.read()
        except grpc.RpcError as error:
            self._end()
            raise from_rpc_error(error, self._target) from None
        except asyncio.CancelledError:
            if self._over:  # closed by another task while this one waited
                return None
            self._end()
            raise
        return None if message is aio.EOF else message

    def _end(self) -> None:
        self._over = True
        self._answers.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if hasattr(self, "_answers") and not self._over:
            with contextlib.suppress(RuntimeError):  # the event loop may be closed already
                self._end()
