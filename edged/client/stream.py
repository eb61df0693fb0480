"""Iterators over the answers of a call: one camera's stream, and updates such as events and the progress of builds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from google.protobuf.message import Message

from edged.backoff import Backoff
from edged.client.requests import FrameCounts, FrameRequests
from edged.client.result import Result, from_proto, skips_of
from edged.client.status import from_rpc_error, late
from edged.errors import DaemonUnavailable, DeadlineExceeded, EdgedError, NotReady
from edged.proto import cameras_pb2 as pb

if TYPE_CHECKING:
    from edged.client.calls import Call

Answer = TypeVar("Answer")

_DETECT = "/edged.v1.Cameras/Detect"
_log = logging.getLogger("edged.client")


def serialize(message: Message | bytes) -> bytes:
    """Return a message's bytes; an already serialized message is returned as is."""
    return message if isinstance(message, bytes) else message.SerializeToString()


class Stream(Iterator[Result], AbstractContextManager["Stream"]):
    """Iterator over a stream's results in the order of arrival. Ends when the frames have ended and every frame is
    answered or skipped.

    If the frames raise an exception, the iterator raises it after the answers to earlier frames. Raises NotReady when
    the daemon goes away, and DeadlineExceeded if frames wait `patience` seconds without any result or skip report (0:
    no limit). With `backoff`, the stream calls the daemon again instead of raising these two errors. It does so only
    after at least one answer, and while the user's frames have not ended. `counts` counts the frames.

    The call is cancelled and the frames are closed by `close` (from any thread), at the end of a `with` block, and when
    the last reference is dropped.
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
            _DETECT, request_serializer=serialize, response_deserializer=pb.Result.FromString
        )
        self._begin(requests.new_call())

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
                self._end_or_call_again(self._failure(error))
                continue
            except BaseException:
                self.close()
                raise
            if result is None:
                self._end_or_call_again(self._completion())
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

    def _begin(self, requests: Iterator[bytes]) -> None:
        self._answering_since = None
        self._call = self._detect(requests)
        if self._patience > 0:
            # The thread does not refer to this object, so that dropping the last reference ends the stream.
            watch = (self.counts, self._call, self._over, self._patience)
            threading.Thread(target=_watch, args=watch, name="edged-watch", daemon=True).start()

    def _end_or_call_again(self, reason: Exception | None) -> None:
        """After a call has ended, call again if `backoff` allows it. Otherwise raise `reason`, or StopIteration
        if `reason` is None."""
        gone = isinstance(reason, (NotReady, DeadlineExceeded)) and not self._requests.exhausted
        if self._backoff is None or not self._ever_answered or not gone:
            self.close()
            raise reason or StopIteration from None
        requests = self._requests.new_call()
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

    def _failure(self, error: grpc.RpcError) -> EdgedError:
        """Return the error of a failed call."""
        if self.counts.gave_up:
            silence = f"sent no result for {self._patience:g} s; to see what the daemon does: edged events"
            return DeadlineExceeded(f"the edged daemon at {self._target} {silence}")
        return from_rpc_error(error, self._target)

    def _completion(self) -> Exception | None:
        """Return the error to raise after a call that ended with status OK. The error is the exception that the user's
        frames raised, or DaemonUnavailable if the daemon ended the stream early. Return None if there is no error."""
        if self._requests.failure is None and not self._requests.exhausted:
            early = "ended the stream before the frames ended; open the stream again"
            return DaemonUnavailable(f"the edged daemon at {self._target} {early}")
        return self._requests.failure

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


class Updates(Iterator[Answer], AbstractContextManager["Updates[Answer]"]):
    """Iterator over a call's answers in the order of arrival. The request is sent when this object is created.

    The call is cancelled by `close` (from any thread), at the end of a `with` block, and when the last reference is
    dropped. The deadline of the whole call is `call.timeout` or else `timeout`, in seconds. With `call.follow` and
    without `call.timeout`, there is no deadline.
    """

    def __init__(self, channel: grpc.Channel, call: Call[Answer], target: str, timeout: float) -> None:
        self._call, self._target = call, target
        self._over = self._late = False
        self._first: Any = None
        send: Any = channel.unary_stream(
            call.path, request_serializer=serialize, response_deserializer=call.kind.FromString
        )
        self._answers = send(call.request, timeout=call.timeout or (None if call.follow else timeout))

    def begin(self, patience: float) -> Updates[Answer]:
        """Wait for the first answer and return self. The answer means that the daemon has accepted the command and that
        the work has begun.

        Raises the daemon's error if it refuses the command, DeadlineExceeded after `patience` seconds.
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
        """Return the next message, or None at the end."""
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
