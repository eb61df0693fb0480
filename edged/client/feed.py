"""Ordinary and asynchronous iterables of frames as one kind of thing: requests that an event loop can await."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from edged.client.frames import Captured, FrameMaker, Picture
from edged.client.ledger import Ledger
from edged.client.outgoing import Outgoing, most_waiting
from edged.client.result import Result, Skips
from edged.proto import cameras_pb2 as pb

Item = TypeVar("Item")


class Feed(AsyncIterator[Item], Generic[Item]):
    """An ordinary iterator as an asynchronous one. A thread of its own pulls, one item each time it is asked, so that
    a camera's wait never holds up the event loop, nor a pool of threads that others need."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._items = items
        self._asked: queue.SimpleQueue[asyncio.Future[list[Item]] | None] = queue.SimpleQueue()
        self._started = self._closed = False
        self._waiting: asyncio.Future[list[Item]] | None = None

    async def __anext__(self) -> Item:
        if self._closed:  # grpc.aio asks once more after a call is over
            raise StopAsyncIteration
        loop = asyncio.get_running_loop()
        if not self._started:
            self._started = True
            threading.Thread(
                target=_serve, args=(self._items, self._asked, loop), name="edged-frames", daemon=True
            ).start()
        future: asyncio.Future[list[Item]] = loop.create_future()
        self._waiting = future
        self._asked.put(future)
        got = await future
        if not got:
            raise StopAsyncIteration
        return got[0]

    def close(self) -> None:
        """Tells whoever waits that there is no more, and the thread to end once it has the item that it is pulling."""
        self._closed = True
        if self._waiting is not None:
            _settle(self._waiting, [], None)
        self._asked.put(None)

    def __del__(self) -> None:
        self._asked.put(None)


def _serve(
    items: Iterator[Item],
    asked: queue.SimpleQueue[asyncio.Future[list[Item]] | None],
    loop: asyncio.AbstractEventLoop,
) -> None:
    while (future := asked.get()) is not None:
        got: list[Item] = []
        failure: Exception | None = None
        try:
            got.append(next(items))
        except StopIteration:
            pass
        except Exception as error:
            failure = error
        try:
            loop.call_soon_threadsafe(_settle, future, got, failure)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return


def _settle(future: asyncio.Future[list[Item]], got: list[Item], failure: Exception | None) -> None:
    if future.done():  # cancelled meanwhile
        return
    if failure is None:
        future.set_result(got)
    else:
        future.set_exception(failure)


class Requests(Protocol):
    """The requests of one asynchronous stream."""

    ledger: Ledger

    @property
    def failure(self) -> Exception | None: ...
    @property
    def exhausted(self) -> bool: ...
    def __aiter__(self) -> AsyncIterator[pb.Frame]: ...
    def on_result(self, result: Result) -> Result: ...
    def on_skips(self, skipped: int, skips: Sequence[Skips]) -> None: ...
    def finish(self) -> None: ...
    async def stop(self) -> None: ...


class FromIterable:
    """Requests from an ordinary iterable, pulled in a thread."""

    def __init__(self, outgoing: Outgoing) -> None:
        self.ledger = outgoing.ledger
        self.on_result = outgoing.on_result
        self.on_skips = outgoing.on_skips
        self.finish = outgoing.finish
        self._outgoing = outgoing
        self._feed = Feed(outgoing)

    @property
    def failure(self) -> Exception | None:
        return self._outgoing.failure

    @property
    def exhausted(self) -> bool:
        return self._outgoing.exhausted

    def __aiter__(self) -> AsyncIterator[pb.Frame]:
        return self._feed

    async def stop(self) -> None:
        self._outgoing.stop()
        self._feed.close()


class FromAsyncIterable:
    """Requests from an asynchronous iterable; `edged.client.outgoing` says how failures and `lossless` behave."""

    def __init__(
        self, frames: AsyncIterable[Picture | Captured], maker: FrameMaker, ledger: Ledger, *, lossless: bool
    ) -> None:
        self.ledger = ledger
        self.failure: Exception | None = None
        self.exhausted = False
        self._frames = aiter(frames)
        self._maker = maker
        self._most_waiting = most_waiting(maker, lossless)
        self._turn = asyncio.Event()

    def on_result(self, result: Result) -> Result:
        self._maker.on_result(result)
        whole = self.ledger.on_result(result)
        self._turn.set()
        return whole

    def on_skips(self, skipped: int, skips: Sequence[Skips]) -> None:
        self.ledger.on_skips(skipped, skips)
        self._turn.set()

    def __aiter__(self) -> AsyncIterator[pb.Frame]:
        return self

    async def __anext__(self) -> pb.Frame:
        try:
            frame = self._maker.make(await anext(self._frames))
        except StopAsyncIteration:
            self.exhausted = True
            raise
        except Exception as error:  # the user's own, of any class
            self.exhausted, self.failure = True, error
            raise StopAsyncIteration from None
        while self._most_waiting is not None and self.ledger.waiting > self._most_waiting:
            self._turn.clear()
            await self._turn.wait()
        if self.ledger.sent == 0:
            self._maker.introduce(frame)
        self.ledger.on_sent()
        return frame

    def finish(self) -> None:
        self._maker.close()

    async def stop(self) -> None:
        close = getattr(self._frames, "aclose", None)
        if close is None:
            return
        try:
            await close()
        except Exception as error:
            self.failure = self.failure or error
