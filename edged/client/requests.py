"""The requests of a stream: the user's frames, pulled one by one by the thread or the event loop that sends."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from edged.client.frame_counts import FrameCounts
from edged.client.frames import Captured, FrameMaker, Picture
from edged.client.result import Result, Skips
from edged.errors import InvalidInput
from edged.proto import cameras_pb2 as pb

_FRESH_NS = 1_000_000_000
_WINDOW = 6  # with `every_frame`; one more leaves, which is still fewer than the slots of a shared ring


class _Requests:
    """What the requests of a stream have in common: the counts of their frames, and why no more come.

    An exception from the user's frames ends the requests and is kept in `failure`: what was sent before it is still
    answered, then the receiving side raises it. With `lossless` the next frame leaves only when none waits for its
    answer, so that the daemon never skips one.
    """

    def __init__(self, maker: FrameMaker, lossless: bool) -> None:
        self.counts = FrameCounts()
        self.failure: Exception | None = None
        self.exhausted = False
        self._maker = maker
        # How many frames may wait for their answers when another one leaves; None for any number.
        self._most_waiting = 0 if lossless else _WINDOW if maker.every_frame else None

    def on_result(self, result: Result) -> Result:
        """Count an answer, and let the next frame out. Return the result with the skips that no earlier one told."""
        self._maker.on_result(result)
        whole = self.counts.on_result(result)
        self._on_turn()
        return whole

    def on_skips(self, skipped: int, skips: Sequence[Skips]) -> None:
        """The same for frames that the daemon says it skipped."""
        self.counts.on_skips(skipped, skips)
        self._on_turn()

    def finish(self) -> None:
        """The stream is over: release what frames needed until they were answered."""
        self._maker.close()

    def _on_turn(self) -> None:
        """Fewer frames wait for their answers."""
        raise NotImplementedError


class FrameRequests(_Requests, Iterator[pb.Frame]):
    """The requests of one stream, which may take several calls: `renew` begins another one."""

    def __init__(self, frames: Iterable[Picture | Captured], maker: FrameMaker, *, lossless: bool = False) -> None:
        if isinstance(frames, (str, bytes, os.PathLike)):  # a text is an iterable as well, of single characters
            raise InvalidInput(f"frames cannot be a {type(frames).__name__}; give edged.open_source(...) of the video")
        super().__init__(maker, lossless)
        self._frames = iter(frames)
        self._stopped = False
        self._closed = False
        self._changed = threading.Condition()
        self._pulling = threading.Lock()
        self._leaving = threading.Lock()
        self._call = 0
        self._introduced = -1  # the call whose first frame has left
        self._kept: pb.Frame | None = None

    def __next__(self) -> pb.Frame:
        return self._next(self._call)

    def renew(self) -> Iterator[pb.Frame]:
        """Return the requests of another call, after the daemon went away; frames in flight are lost. The sender of
        the call before, which may still wait for the user's next frame, gets no more."""
        with self._leaving:
            self._call += 1
            self.counts.on_lost()
        self._on_turn()
        return _CallRequests(self, self._call)

    def _on_turn(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def stop(self) -> None:
        """Send no more and close the user's frames, from any thread. A generator that is running cannot be closed;
        it is closed as soon as it has given its frame."""
        self._stopped = True
        self._on_turn()
        interrupt = getattr(self._frames, "interrupt", None)
        if interrupt is not None:
            interrupt()
        if self._pulling.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._pulling.release()

    def _next(self, call: int) -> pb.Frame:
        with self._pulling:
            frame, self._kept = (self._take_kept() or self._pull()), None
            leaves = frame is not None and self._may_leave(frame, call)
            if not leaves:
                self._kept = frame  # for the call that came after
        if self._stopped:  # after the lock is free, since `stop` leaves closing to the holder of the lock
            self.stop()
            raise StopIteration
        if frame is None or not leaves:
            raise StopIteration
        return frame

    def _take_kept(self) -> pb.Frame | None:
        """Return a frame that no call has sent yet, unless it has become old: a camera has a newer one."""
        frame = self._kept
        if frame is None or self._most_waiting is not None or not frame.captured_mono_ns:
            return frame
        return frame if time.monotonic_ns() - frame.captured_mono_ns < _FRESH_NS else None

    def _may_leave(self, frame: pb.Frame, call: int) -> bool:
        with self._leaving:
            if call != self._call or self._stopped:
                return False
            if self._introduced != call:
                self._introduced = call
                self._maker.introduce(frame)
            self.counts.on_sent()
            return True

    def _pull(self) -> pb.Frame | None:
        """Return the next frame; None at the end or after a failure."""
        if self._stopped or self.exhausted:
            return None
        try:
            item = next(self._frames)
            taken = item if isinstance(item, Captured) else Captured.now(item)
            self._wait_for_turn()
            # Only now, since an earlier answer may have said that the daemon cannot read shared memory.
            return self._maker.make(taken)
        except StopIteration:
            self._close()
            return None
        except Exception as error:  # the user's own, of any class
            self.failure = error
            self._close()
            return None

    def _wait_for_turn(self) -> None:
        most = self._most_waiting
        if most is not None:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self.counts.waiting <= most)

    def _close(self) -> None:
        self.exhausted = True
        close = getattr(self._frames, "close", None)
        if self._closed or close is None:
            return
        self._closed = True
        try:
            close()
        except Exception as error:
            self.failure = self.failure or error


class _CallRequests(Iterator[pb.Frame]):
    """Those of one call."""

    def __init__(self, requests: FrameRequests, call: int) -> None:
        self._requests, self._call = requests, call

    def __next__(self) -> pb.Frame:
        return self._requests._next(self._call)


Item = TypeVar("Item")


class ThreadedIterator(AsyncIterator[Item], Generic[Item]):
    """An ordinary iterator as an asynchronous one. A thread pulls one item for each `anext`, so that a camera's wait
    holds up neither the event loop nor its pool of threads."""

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
        """End the iteration; the thread ends once it has the item that it is pulling."""
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
        except RuntimeError:  # the loop is closed
            return


def _settle(future: asyncio.Future[list[Item]], got: list[Item], failure: Exception | None) -> None:
    if future.done():  # cancelled meanwhile
        return
    if failure is None:
        future.set_result(got)
    else:
        future.set_exception(failure)


class ThreadedRequests(FrameRequests):
    """Requests for an event loop from an ordinary iterable, which a thread pulls."""

    def __init__(self, frames: Iterable[Picture | Captured], maker: FrameMaker, *, lossless: bool = False) -> None:
        super().__init__(frames, maker, lossless=lossless)
        self._pulled = ThreadedIterator(self)

    def __aiter__(self) -> AsyncIterator[pb.Frame]:
        return self._pulled

    async def aclose(self) -> None:
        self.stop()
        self._pulled.close()


class AsyncFrameRequests(_Requests, AsyncIterator[pb.Frame]):
    """Requests for an event loop from an asynchronous iterable."""

    def __init__(self, frames: AsyncIterable[Picture | Captured], maker: FrameMaker, *, lossless: bool = False) -> None:
        super().__init__(maker, lossless)
        self._frames = aiter(frames)
        self._turn = asyncio.Event()

    def _on_turn(self) -> None:
        self._turn.set()

    async def __anext__(self) -> pb.Frame:
        try:
            frame = self._maker.make(await anext(self._frames))
        except StopAsyncIteration:
            self.exhausted = True
            raise
        except Exception as error:  # the user's own, of any class
            self.exhausted, self.failure = True, error
            raise StopAsyncIteration from None
        while self._most_waiting is not None and self.counts.waiting > self._most_waiting:
            self._turn.clear()
            await self._turn.wait()
        if self.counts.sent == 0:
            self._maker.introduce(frame)
        self.counts.on_sent()
        return frame

    async def aclose(self) -> None:
        close = getattr(self._frames, "aclose", None)
        if close is None:
            return
        try:
            await close()
        except Exception as error:
            self.failure = self.failure or error
