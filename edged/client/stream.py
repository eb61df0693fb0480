"""One camera's stream, blocking: frames go out in gRPC's sender thread, results come in where they are asked for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import grpc

from edged.client import ending
from edged.client.backoff import Backoff
from edged.client.calls import DETECT, serialize
from edged.client.ledger import Ledger
from edged.client.outgoing import Outgoing
from edged.client.result import Result, from_proto, skips_of
from edged.errors import DeadlineExceeded, NotReady
from edged.proto import cameras_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger("edged.client")


class Stream(Iterator[Result]):
    """Results in the order they come. Ends when the frames have ended and all are answered.

    Raises what the frames raised, once what was sent before is answered; NotReady when the daemon goes away; and
    DeadlineExceeded when frames wait for `patience` seconds without any answer (0 waits for ever). With `backoff` a
    daemon that has answered once is called again after such an end instead. `ledger` is the account of the frames.
    `close`, also from another thread, cancels the call and closes the frames, as does the end of a `with` block or of
    the last reference.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        outgoing: Outgoing,
        target: str,
        patience: float,
        backoff: Backoff | None = None,
    ) -> None:
        self.ledger = outgoing.ledger
        self._outgoing = outgoing
        self._target = target
        self._patience = patience
        self._backoff = backoff
        self._answering_since: float | None = None
        self._ever_answered = False
        self._over = threading.Event()
        self._detect = channel.stream_stream(
            DETECT, request_serializer=serialize, response_deserializer=pb.Result.FromString
        )
        self._begin(outgoing)

    def __next__(self) -> Result:
        while not self._over.is_set():
            try:
                message = next(self._call, None)
                if message is not None and message.only_skips:
                    self._outgoing.on_skips(message.skipped, skips_of(message))
                    continue
                result = None if message is None else from_proto(message)
            except grpc.RpcError as error:
                if self._over.is_set():  # closed by another thread while this one waited
                    break
                self._end_or_call_again(ending.of_failure(error, self.ledger, self._target, self._patience))
                continue
            except BaseException:
                self.close()
                raise
            if result is None:
                reason = ending.of_completion(self._outgoing.failure, self._outgoing.exhausted, self._target)
                self._end_or_call_again(reason)
                continue
            if self._answering_since is None:
                self._answering_since, self._ever_answered = time.monotonic(), True
            return self._outgoing.on_result(result)
        raise StopIteration

    def close(self) -> None:
        self._over.set()
        self._call.cancel()
        self._outgoing.stop()
        self._outgoing.finish()

    def _begin(self, requests: Iterator[pb.Frame]) -> None:
        self._answering_since = None
        self._call = self._detect(requests)
        if self._patience > 0:
            # The thread knows nothing of this object, so that dropping the last reference still ends the stream.
            watch = (self.ledger, self._call, self._over, self._patience)
            threading.Thread(target=_watch, args=watch, name="edged-watch", daemon=True).start()

    def _end_or_call_again(self, reason: Exception | None) -> None:
        """After the end of a call. Raises `reason`, or StopIteration for none, unless another call may do better."""
        gone = isinstance(reason, (NotReady, DeadlineExceeded)) and not self._outgoing.exhausted
        if self._backoff is None or not self._ever_answered or not gone:
            self.close()
            raise reason or StopIteration from None
        requests = self._outgoing.renew()
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_call"):  # the call may never have started
            self.close()


def _watch(ledger: Ledger, call: grpc.Future[object], over: threading.Event, patience: float) -> None:
    while not over.wait(patience / 4) and not call.done():
        if ledger.silence() > patience:
            ledger.gave_up = True
            call.cancel()
            return
