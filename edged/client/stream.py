"""One camera's stream, blocking: frames go out in gRPC's sender thread, results come in where they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import grpc

from edged.client import ending
from edged.client.calls import DETECT, serialize
from edged.client.ledger import Ledger
from edged.client.outgoing import Outgoing
from edged.client.result import Result, from_proto
from edged.proto import cameras_pb2 as pb

if TYPE_CHECKING:
    from typing_extensions import Self


class Stream(Iterator[Result]):
    """Results in the order they come. Ends when the frames have ended and all are answered.

    Raises what the frames raised, once what was sent before is answered; NotReady when the daemon goes away; and
    DeadlineExceeded when frames wait for `patience` seconds without any answer (0 waits for ever). `ledger` is the
    account of the frames. `close`, also from another thread, cancels the call and closes the frames, as does the end
    of a `with` block or of the last reference.
    """

    def __init__(self, channel: grpc.Channel, outgoing: Outgoing, target: str, patience: float) -> None:
        self.ledger = outgoing.ledger
        self._outgoing = outgoing
        self._target = target
        self._patience = patience
        self._over = threading.Event()
        detect = channel.stream_stream(DETECT, request_serializer=serialize, response_deserializer=pb.Result.FromString)
        self._call = detect(outgoing)
        if patience > 0:
            # The thread knows nothing of this object, so that dropping the last reference still ends the stream.
            watch = (self.ledger, self._call, self._over, patience)
            threading.Thread(target=_watch, args=watch, name="edged-watch", daemon=True).start()

    def __next__(self) -> Result:
        if self._over.is_set():
            raise StopIteration
        try:
            message = next(self._call, None)
            result = None if message is None else from_proto(message)
        except grpc.RpcError as error:
            if self._over.is_set():  # closed by another thread while this one waited
                raise StopIteration from None
            self.close()
            raise ending.of_failure(error, self.ledger, self._target, self._patience) from None
        except BaseException:
            self.close()
            raise
        if result is None:
            self._complete()
        self._outgoing.on_result(result)
        return result

    def close(self) -> None:
        self._over.set()
        self._call.cancel()
        self._outgoing.stop()

    def _complete(self) -> NoReturn:
        exhausted = self._outgoing.exhausted
        self.close()
        reason = ending.of_completion(self._outgoing.failure, exhausted, self._target)
        raise reason or StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_call"):  # the call may never have started
            self.close()


def _watch(ledger: Ledger, call: grpc.Future[object], over: threading.Event, patience: float) -> None:
    while not over.wait(patience / 4):
        if ledger.silence() > patience:
            ledger.gave_up = True
            call.cancel()
            return
