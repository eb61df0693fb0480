"""Calls with many answers: events, and the progress of engines that are made."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, TypeVar

import grpc
from grpc import aio

from edged.client.calls import Call, serialize
from edged.client.status import from_rpc_error, late

Answer = TypeVar("Answer")


class Updates(Iterator[Answer], AbstractContextManager["Updates[Answer]"]):
    """Answers in the order they come. The request is sent when this is made; see `begin`.

    `close`, also from another thread, ends the call, as does the end of a `with` block or of the last reference.
    `timeout` is the longest that the whole call may take, in seconds, unless `call.follow`.
    """

    def __init__(self, channel: grpc.Channel, call: Call[Answer], target: str, timeout: float) -> None:
        self._call, self._target = call, target
        self._over = self._late = False
        self._first: Any = None
        send = channel.unary_stream(call.path, request_serializer=serialize, response_deserializer=call.kind.FromString)
        self._answers = send(call.request, timeout=None if call.follow else timeout)

    def begin(self, patience: float) -> Updates[Answer]:
        """Wait for the first answer: what the daemon refuses is raised here, what it accepts is under way.

        DeadlineExceeded after `patience` seconds.
        """
        timer = threading.Timer(patience, self._give_up)
        timer.daemon = True
        timer.start()
        try:
            self._first = self._next()
        finally:
            timer.cancel()
        return self

    def __next__(self) -> Answer:
        if self._over:
            raise StopIteration
        message, self._first = self._first, None
        message = message or self._next()
        if message is None:
            raise StopIteration
        return self._call.parse(message)

    def close(self) -> None:
        self._over = True
        self._answers.cancel()

    def _next(self) -> Any:
        """The next message, or None at the end."""
        try:
            return next(self._answers, None)
        except grpc.RpcError as error:
            if self._over:  # closed by another thread while this one waited
                return None
            self.close()
            raise (late(self._target) if self._late else from_rpc_error(error, self._target)) from None
        except BaseException:
            self.close()
            raise

    def _give_up(self) -> None:
        self._late = True
        self._answers.cancel()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_answers"):  # the call may never have started
            self.close()


class AsyncUpdates(AsyncIterator[Answer], AbstractAsyncContextManager["AsyncUpdates[Answer]"]):
    """The same for an event loop: `aclose`, the end of an `async with` block or of the last reference, or a cancelled
    wait for an answer ends the call."""

    def __init__(self, channel: aio.Channel, call: Call[Answer], target: str, timeout: float) -> None:
        self._call, self._target = call, target
        self._over = False
        self._first: Any = None
        send = channel.unary_stream(call.path, request_serializer=serialize, response_deserializer=call.kind.FromString)
        self._answers: aio.UnaryStreamCall[Any, Any] = send(call.request, timeout=None if call.follow else timeout)

    async def begin(self, patience: float) -> AsyncUpdates[Answer]:
        """As `Updates.begin`."""
        try:
            self._first = await asyncio.wait_for(self._next(), patience)
        except asyncio.TimeoutError:
            raise late(self._target) from None
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

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if hasattr(self, "_answers") and not self._over:
            with contextlib.suppress(RuntimeError):  # the event loop may be closed already
                self._end()
