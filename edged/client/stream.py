"""One camera's stream: frames are sent in the background, results are iterated over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, TypeAlias

import grpc
from grpc import aio

from edged.client.backoff import Backoff
from edged.client.calls import DETECT, serialize
from edged.client.frame_counts import FrameCounts
from edged.client.requests import AsyncFrameRequests, FrameRequests, ThreadedRequests
from edged.client.result import Result, from_proto, skips_of
from edged.client.status import Statuses, from_rpc_error
from edged.errors import DaemonUnavailable, DeadlineExceeded, EdgedError, NotReady
from edged.proto import cameras_pb2 as pb

_log = logging.getLogger("edged.client")


_Call: TypeAlias = aio.StreamStreamCall[Any, Any]
AsyncRequests: TypeAlias = ThreadedRequests | AsyncFrameRequests


class Stream(Iterator[Result], AbstractContextManager["Stream"]):
    """Results in the order they come. Ends when the frames have ended and all are answered.

    Raises what the frames raised, once what was sent before is answered; NotReady when the daemon goes away; and
    DeadlineExceeded when frames wait for `patience` seconds without any answer (0: no limit). With `backoff` a daemon
    that has answered once is called again instead. `counts` counts the frames. `close`, also from another thread,
    cancels the call and closes the frames, as does the end of a `with` block or of the last reference.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        requests: FrameRequests,
        target: str,
        patience: float,
        backoff: Backoff | None = None,
    ) -> None:
        self.counts = requests.counts
        self._requests = requests
        self._target = target
        self._patience = patience
        self._backoff = backoff
        self._answering_since: float | None = None
        self._ever_answered = False
        self._over = threading.Event()
        self._detect = channel.stream_stream(
            DETECT, request_serializer=serialize, response_deserializer=pb.Result.FromString
        )
        self._begin(requests)

    def __next__(self) -> Result:
        while not self._over.is_set():
            try:
                message = next(self._call, None)
                if message is not None and message.only_skips:
                    self._requests.on_skips(message.skipped, skips_of(message))
                    continue
                result = None if message is None else from_proto(message)
            except grpc.RpcError as error:
                if self._over.is_set():  # closed by another thread while this one waited
                    break
                self._end_or_call_again(_failure(error, self.counts, self._target, self._patience))
                continue
            except BaseException:
                self.close()
                raise
            if result is None:
                reason = _completion(self._requests.failure, self._requests.exhausted, self._target)
                self._end_or_call_again(reason)
                continue
            if self._answering_since is None:
                self._answering_since, self._ever_answered = time.monotonic(), True
            return self._requests.on_result(result)
        raise StopIteration

    def close(self) -> None:
        self._over.set()
        self._call.cancel()
        self._requests.stop()
        self._requests.finish()

    def _begin(self, requests: Iterator[pb.Frame]) -> None:
        self._answering_since = None
        self._call = self._detect(requests)
        if self._patience > 0:
            # The thread does not refer to this object, so that dropping the last reference ends the stream.
            watch = (self.counts, self._call, self._over, self._patience)
            threading.Thread(target=_watch, args=watch, name="edged-watch", daemon=True).start()

    def _end_or_call_again(self, reason: Exception | None) -> None:
        """After the end of a call: call again if that may help, otherwise raise `reason`, or StopIteration for None."""
        gone = isinstance(reason, (NotReady, DeadlineExceeded)) and not self._requests.exhausted
        if self._backoff is None or not self._ever_answered or not gone:
            self.close()
            raise reason or StopIteration from None
        requests = self._requests.renew()
        worked = 0.0 if self._answering_since is None else time.monotonic() - self._answering_since
        pause = self._backoff.after(worked)
        _log.warning("%s; calling again in %g s", reason, pause)
        try:
            self._over.wait(pause)
        except BaseException:  # Ctrl-C
            self.close()
            raise
        if not self._over.is_set():
            self._begin(requests)

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_call"):  # the call may never have started
            self.close()


def _watch(counts: FrameCounts, call: grpc.Future[object], over: threading.Event, patience: float) -> None:
    while not over.wait(patience / 4) and not call.done():
        if counts.silence() > patience:
            counts.gave_up = True
            call.cancel()
            return


class AsyncStream(AsyncIterator[Result], AbstractAsyncContextManager["AsyncStream"]):
    """The same for an event loop. `aclose`, the end of an `async with` block, or a cancelled wait for a result cancels
    the call and closes the frames."""

    def __init__(self, channel: aio.Channel, requests: AsyncRequests, target: str, patience: float) -> None:
        self.counts = requests.counts
        self._requests = requests
        self._target = target
        self._patience = patience
        self._over = False
        detect = channel.stream_stream(DETECT, request_serializer=serialize, response_deserializer=pb.Result.FromString)
        self._call: _Call = detect()
        self._statuses = Statuses(self._call)
        # The tasks do not refer to this object, so that dropping the last reference ends the stream.
        self._tasks = [asyncio.ensure_future(_send(self._call, requests))]
        if patience > 0:
            self._tasks.append(asyncio.ensure_future(_watch_call(self.counts, self._call, patience)))

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
            if self.counts.gave_up:
                raise _silence(self._target, self._patience) from None
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
        await self._requests.aclose()
        self._requests.finish()

    async def _complete(self) -> None:
        exhausted = self._requests.exhausted
        await self.aclose()
        reason = _completion(self._requests.failure, exhausted, self._target)
        if reason is not None:
            raise reason

    def _end(self) -> None:
        self._over = True
        self._call.cancel()
        for task in self._tasks:
            task.cancel()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if hasattr(self, "_tasks") and not self._over:
            with contextlib.suppress(RuntimeError):  # the event loop may be closed already
                self._end()


async def _send(call: _Call, requests: AsyncRequests) -> None:
    try:
        async for frame in requests:
            await call.write(frame)
        await call.done_writing()
    except Exception:  # noqa: S110 - the receiving side raises the call's; `requests` keeps the user's
        pass
    finally:
        await requests.aclose()


async def _watch_call(counts: FrameCounts, call: _Call, patience: float) -> None:
    while not call.done():
        await asyncio.sleep(patience / 4)
        if counts.silence() > patience:
            counts.gave_up = True
            call.cancel()


def _failure(error: grpc.RpcError, counts: FrameCounts, target: str, patience: float) -> EdgedError:
    """The error of a call that failed."""
    return _silence(target, patience) if counts.gave_up else from_rpc_error(error, target)


def _completion(failure: Exception | None, exhausted: bool, target: str) -> Exception | None:
    """The error of a call that ended: what the user's frames raised, or None."""
    if failure is None and not exhausted:
        return DaemonUnavailable(f"the edged daemon at {target} ended the stream before its frames did; open it again")
    return failure


def _silence(target: str, patience: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the edged daemon at {target} answered no frame for {patience:g} s; see what it does: edged events"
    )
