"""One camera's stream in an event loop; `edged.client.stream` is its blocking twin."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc
from grpc import aio

from edged.client import ending
from edged.client.aio_status import Statuses
from edged.client.calls import DETECT, serialize
from edged.client.feed import Requests
from edged.client.ledger import Ledger
from edged.client.result import Result, from_proto, skips_of
from edged.proto import cameras_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Self

_Call = aio.StreamStreamCall[Any, Any]


class AsyncStream(AsyncIterator[Result]):
    """Results in the order they come; errors and `ledger` as in `edged.client.stream.Stream`.

    `aclose`, the end of an `async with` block, or a cancelled wait for a result cancels the call and closes the
    frames.
    """

    def __init__(self, channel: aio.Channel, requests: Requests, target: str, patience: float) -> None:
        self.ledger = requests.ledger
        self._requests = requests
        self._target = target
        self._patience = patience
        self._over = False
        detect = channel.stream_stream(DETECT, request_serializer=serialize, response_deserializer=pb.Result.FromString)
        self._call: _Call = detect()
        self._statuses = Statuses(self._call)
        # The tasks know nothing of this object, so that dropping the last reference still ends the stream.
        self._tasks = [asyncio.ensure_future(_send(self._call, requests))]
        if patience > 0:
            self._tasks.append(asyncio.ensure_future(_watch(self.ledger, self._call, patience)))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Result:
        if self._over:
            raise StopAsyncIteration
        try:
            message: Any = await self._call.read()
            while message is not aio.EOF and message.only_skips:
                self._requests.on_skips(message.skipped, skips_of(message))
                message = await self._call.read()
            result = None if message is aio.EOF else from_proto(message)
        except grpc.RpcError as error:
            reason = await self._statuses.error(error, self._target)
            await self.aclose()
            raise reason from None
        except asyncio.CancelledError:
            if self._over:  # closed by another task while this one waited
                raise StopAsyncIteration from None
            await self.aclose()
            if self.ledger.gave_up:
                raise ending.silence(self._target, self._patience) from None
            raise
        except BaseException:
            await self.aclose()
            raise
        if result is None:
            await self._complete()
            raise StopAsyncIteration
        return self._requests.on_result(result)

    async def aclose(self) -> None:
        if self._over:
            return
        self._end()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._requests.stop()
        self._requests.finish()

    async def _complete(self) -> None:
        exhausted = self._requests.exhausted
        await self.aclose()
        reason = ending.of_completion(self._requests.failure, exhausted, self._target)
        if reason is not None:
            raise reason

    def _end(self) -> None:
        self._over = True
        self._call.cancel()
        for task in self._tasks:
            task.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if hasattr(self, "_tasks") and not self._over:
            with contextlib.suppress(RuntimeError):  # the event loop may be closed already
                self._end()


async def _send(call: _Call, requests: Requests) -> None:
    try:
        async for frame in requests:
            await call.write(frame)
        await call.done_writing()
    except Exception:  # noqa: S110 - of the call, and met by the receiving side; `requests` keeps the user's own
        pass
    finally:
        await requests.stop()


async def _watch(ledger: Ledger, call: _Call, patience: float) -> None:
    while not call.done():
        await asyncio.sleep(patience / 4)
        if ledger.silence() > patience:
            ledger.gave_up = True
            call.cancel()
