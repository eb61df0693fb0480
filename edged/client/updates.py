"""Calls that go on being answered: events, and the progress of engines that are made."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from edged.client.calls import Call, serialize
from edged.client.status import from_rpc_error, late

if TYPE_CHECKING:
    from typing_extensions import Self

Answer = TypeVar("Answer")


class Updates(Iterator[Answer]):
    """Answers in the order they come. The request is on its way when this is made; see `begin`.

    `close`, also from another thread, hangs up, as does the end of a `with` block or of the last reference. `timeout`
    is the longest that the whole call may take, in seconds; None for one that may go on for ever.
    """

    def __init__(self, channel: grpc.Channel, call: Call[Answer], target: str, timeout: float | None) -> None:
        self._call, self._target = call, target
        self._over = self._late = False
        self._first: Any = None
        send = channel.unary_stream(call.path, request_serializer=serialize, response_deserializer=call.read)
        self._answers = send(call.request, timeout=timeout)

    def begin(self, patience: float) -> Self:
        """Waits for the first answer, so that what the daemon refuses is raised here, and what it accepts is under way.

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_answers"):  # the call may never have started
            self.close()
