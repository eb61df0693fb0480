"""The client for event loops. It wraps the blocking client, whose calls become futures and whose iterators run in
threads.

gRPC's own asynchronous interface is not used: it loses the daemon's status if a write fails
(https://github.com/grpc/grpc/issues/36066), and streams would need a second implementation.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterator
from concurrent import futures
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import grpc

from edged.client.calls import Call, DaemonCalls, StreamCall
from edged.client.client import Client, Target
from edged.client.credentials import Credentials
from edged.client.frames import Captured, Picture
from edged.client.result import Result
from edged.client.stream import Stream, Updates

Answer = TypeVar("Answer")
Item = TypeVar("Item", covariant=True)
Value = TypeVar("Value")


class AsyncClient(DaemonCalls, AbstractAsyncContextManager["AsyncClient"]):
    """A connection to one daemon, for event loops. Methods have the same arguments and errors as those of `Client`.
    Each stream and each call with several answers runs in its own thread."""

    def __init__(
        self,
        target: Target = None,
        *,
        timeout: float = 30.0,
        credentials: Credentials | grpc.ChannelCredentials | None = None,
    ) -> None:
        self._client = Client(target, timeout=timeout, credentials=credentials)
        self.target, self.timeout = self._client.target, timeout

    async def close(self) -> None:
        """Close the connection and all its streams."""
        self._client.close()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, describe: Callable[[], Call[Answer]]) -> Answer:
        call = await asyncio.to_thread(describe)
        try:
            answer = await _outcome(
                self._client.sender(call).future(call.request, timeout=call.timeout or self.timeout)
            )
        except grpc.RpcError as error:
            raise self._client.failure(call, error) from None
        return call.parse(answer)

    def _watch(self, describe: Callable[[], Call[Answer]]) -> AsyncUpdates[Answer]:
        return AsyncUpdates(self._client.watch(describe()))

    async def _command(self, describe: Callable[[], Call[Answer]]) -> AsyncUpdates[Answer]:
        return await self._watch(describe).begin(self.timeout)

    def _stream(self, describe: Callable[[], StreamCall]) -> AsyncStream:
        call = describe()
        if isinstance(call.frames, AsyncIterable):
            call = replace(call, frames=_LoopFrames(call.frames))
        return AsyncStream(self._client.open(call))


async def _outcome(call: Any) -> Any:
    """Wait for a gRPC call without a thread, and return its answer. Cancelling the wait cancels the call."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()

    def on_over(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(over.set)

    call.add_done_callback(on_over)
    try:
        await over.wait()
    except asyncio.CancelledError:
        call.cancel()
        raise
    return call.result()


class _Closable(Protocol[Item]):
    """An iterator that one thread may close while another waits for its next item."""

    def __next__(self) -> Item: ...
    def close(self) -> None: ...


class _Threaded(AsyncIterator[Item]):
    """Makes a blocking iterator asynchronous: a thread pulls one item for each `anext`.

    The iterator is closed by `aclose`, at the end of an `async with` block, when the last reference is dropped, and
    when a wait for an item is cancelled.
    """

    def __init__(self, items: _Closable[Item]) -> None:
        self._items = items
        self._asked: queue.SimpleQueue[futures.Future[list[Item]] | None] = queue.SimpleQueue()
        self._started = self._closed = False

    async def __anext__(self) -> Item:
        if self._closed:
            raise StopAsyncIteration
        if not self._started:
            self._started = True
            # The thread does not refer to this object, so dropping the last reference to the object ends the thread.
            work = (self._items, self._asked)
            threading.Thread(target=_pull_items, args=work, name="edged-answers", daemon=True).start()
        answer: futures.Future[list[Item]] = futures.Future()
        answer.set_running_or_notify_cancel()
        self._asked.put(answer)
        try:
            got = await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if not got:
            raise StopAsyncIteration
        return got[0]

    async def aclose(self) -> None:
        self._end()

    async def __aexit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        self._closed = True
        self._items.close()
        self._asked.put(None)

    def __del__(self) -> None:
        self._end()


def _pull_items(items: _Closable[Value], asked: queue.SimpleQueue[futures.Future[list[Value]] | None]) -> None:
    while (answer := asked.get()) is not None:
        try:
            answer.set_result([items.__next__()])
        except StopIteration:
            answer.set_result([])
        except Exception as error:
            answer.set_exception(error)


class AsyncStream(_Threaded[Result], AbstractAsyncContextManager["AsyncStream"]):
    """A `Stream` for event loops. The call is cancelled and the frames are closed by `aclose`, at the end of an `async
    with` block, when the last reference is dropped, and when a wait for a result is cancelled."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self.counts = stream.counts


class AsyncUpdates(_Threaded[Answer], AbstractAsyncContextManager["AsyncUpdates[Answer]"]):
    """`Updates` for event loops. The call is cancelled by `aclose`, at the end of an `async with` block, when the last
    reference is dropped, and when a wait for an answer is cancelled."""

    def __init__(self, updates: Updates[Answer]) -> None:
        super().__init__(updates)
        self._updates = updates

    async def begin(self, patience: float) -> AsyncUpdates[Answer]:
        """Wait for the first answer, as `Updates.begin` does."""
        try:
            await asyncio.to_thread(self._updates.begin, patience)
        except asyncio.CancelledError:
            await self.aclose()
            raise
        return self


class _LoopFrames(Iterator[Picture | Captured]):
    """Gives asynchronous frames to the sending thread. The frames are pulled in the event loop that was running when
    this object was created."""

    def __init__(self, frames: AsyncIterable[Picture | Captured]) -> None:
        self._frames, self._loop = aiter(frames), asyncio.get_running_loop()
        self._answer: futures.Future[Picture | Captured] | None = None
        self._pulling: asyncio.Task[Any] | None = None
        self._over = False

    def __next__(self) -> Picture | Captured:
        self._answer = self._run(self._pull())
        if self._answer is None or self._over:  # checked after the assignment: `interrupt` may be called meanwhile
            self.interrupt()
            raise StopIteration
        try:
            return self._answer.result()
        except (StopAsyncIteration, futures.CancelledError):
            raise StopIteration from None

    def interrupt(self) -> None:
        """End the iteration, even while the sending thread waits for a frame."""
        self._over = True
        if self._answer is not None:
            self._answer.cancel()

    def close(self) -> None:
        """Let the event loop close the frames, without waiting until they are closed."""
        self.interrupt()
        self._closing = self._run(self._close())  # kept, since event loops hold only weak references

    def _run(self, work: Coroutine[Any, Any, Value]) -> futures.Future[Value] | None:
        """Schedule a coroutine in the loop and return its future; None if the loop is closed."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            return None

    async def _pull(self) -> Picture | Captured:
        self._pulling = asyncio.current_task()
        return await anext(self._frames)

    async def _close(self) -> None:
        if self._pulling is not None:
            await asyncio.wait([self._pulling])
        close = getattr(self._frames, "aclose", None)
        if close is not None:
            await close()
