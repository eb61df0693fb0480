"""The blocking client of a daemon. Its methods are in `edged.client.calls`; `edged.client.aio` has the same methods."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias, TypeVar

import grpc

from edged.client import address, balance
from edged.client.calls import Call, DaemonCalls, StreamCall
from edged.client.credentials import Credentials, channel, shared_by, with_metadata
from edged.client.frames import FrameMaker
from edged.client.requests import FrameRequests, most_waiting
from edged.client.shared import sharing
from edged.client.status import from_rpc_error
from edged.client.stream import Stream, Updates, serialize
from edged.client.upload import Upload
from edged.errors import InvalidInput

Answer = TypeVar("Answer")
Target: TypeAlias = str | os.PathLike[str] | list[str] | tuple[str, ...] | None


class Client(DaemonCalls, AbstractContextManager["Client"]):
    """A connection to one daemon, or to several; threads may share it.

    `target` is `unix:/path`, `/path`, `host:port` or `:port`, with `tls:` in front for TLS. None means EDGED_TARGET, or
    the daemon's default socket if this variable is unset. For a list of `host:port` the client calls the healthy
    daemons in turn, and each camera's stream stays with one of them (`edged.client.balance`). `timeout` is the deadline
    of one call in seconds. In a stream, it is the longest time that frames may wait while no result arrives.
    `credentials` are a CA, a certificate or a token, or gRPC's credentials; None reads them from the environment
    (`edged.client.credentials`).

    Methods raise subclasses of `edged.errors.EdgedError` with a one-line message, such as NotReady if no daemon
    answers.
    """

    def __init__(
        self,
        target: Target = None,
        *,
        timeout: float = 30.0,
        credentials: Credentials | grpc.ChannelCredentials | None = None,
    ) -> None:
        self.timeout = timeout
        if isinstance(target, (list, tuple)):
            several = balance.resolve(target)
            if len(several) > 1:
                self.target = ", ".join(several)
                place = balance.together(several)
                known = shared_by(several, credentials)
                self._channel = channel(several[0], known, balance.IN_TURN, place)
                self._streams: grpc.Channel | None = channel(several[0], known, balance.BY_CAMERA, place)
                return
            target = several[0]
        self.target = address.resolve(target)
        self._channel, self._streams = channel(self.target, credentials), None

    def close(self) -> None:
        """Close the connections and all their streams."""
        self._channel.close()
        if self._streams is not None:
            self._streams.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def sender(self, call: Call[Any]) -> Any:
        """Return gRPC's callable for a call with one answer. Its arguments are the request and a timeout."""
        kind = self._channel.stream_unary if isinstance(call.request, Upload) else self._channel.unary_unary
        return kind(call.path, request_serializer=serialize, response_deserializer=call.kind.FromString)

    def failure(self, call: Call[Any], error: grpc.RpcError) -> Exception:
        """Return the error to raise for a failed call: the error of reading an uploaded file if there was one,
        otherwise the error from the daemon."""
        unread = call.request.failure if isinstance(call.request, Upload) else None
        return unread or from_rpc_error(error, self.target)

    def watch(self, call: Call[Answer]) -> Updates[Answer]:
        """Begin a call with several answers."""
        return Updates(self._channel, call, self.target, self.timeout)

    def open(self, call: StreamCall) -> Stream:
        """Begin a stream. Raises InvalidInput if the frames are not an ordinary iterable of pictures."""
        if isinstance(call.frames, AsyncIterable):
            raise InvalidInput(
                "a Client cannot stream asynchronous frames; use an AsyncClient, or give an ordinary iterable"
            )
        most = most_waiting(call.lossless, call.options.every_frame)
        opened = self._channel
        if self._streams is not None:
            opened = with_metadata(self._streams, balance.key_of(call.camera))
        way = sharing(opened, self.target, call.model, call.shared, most)
        requests = FrameRequests(call.frames, FrameMaker(call.model, call.camera, call.options, way), most)
        return Stream(opened, requests, self.target, self.timeout, call.backoff)

    def _ask(self, describe: Callable[[], Call[Answer]]) -> Answer:
        call = describe()
        try:
            answer = self.sender(call)(call.request, timeout=call.timeout or self.timeout)
        except grpc.RpcError as error:
            raise self.failure(call, error) from None
        return call.parse(answer)

    def _watch(self, describe: Callable[[], Call[Answer]]) -> Updates[Answer]:
        return self.watch(describe())

    def _command(self, describe: Callable[[], Call[Answer]]) -> Updates[Answer]:
        return self.watch(describe()).begin(self.timeout)

    def _stream(self, describe: Callable[[], StreamCall]) -> Stream:
        return self.open(describe())
