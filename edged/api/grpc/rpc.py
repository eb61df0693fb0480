"""Collects typed handlers as the methods of gRPC services.

Handlers are plain functions of messages and of a `Context`, which is values only; they raise `EdgedError` and never
touch status codes. What stands between them and gRPC is `edged.api.grpc.call_guard`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
from google.protobuf.message import Message

from edged.api.grpc.wire import parse
from edged.errors import Unsupported

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class Context(msgspec.Struct, frozen=True):
    """What a handler may know of its call: `peer` as gRPC names it, the call's `metadata`, and when the call `expires`,
    of time.monotonic(), None for never.

    It is copied when the call begins. gRPC's own context points to memory that is freed when the call ends, which may
    be before a handler's generator or its tasks end; using it then crashes the process."""

    peer: str
    metadata: tuple[tuple[str, str | bytes], ...] = ()
    expires: float | None = None

    def time_remaining(self) -> float | None:
        """In seconds."""
        return None if self.expires is None else max(0.0, self.expires - time.monotonic())


Unary: TypeAlias = Callable[[Request, Context], Awaitable[Response]]
Feed: TypeAlias = Callable[[Request, Context], AsyncIterator[Response]]
Upload: TypeAlias = Callable[[AsyncIterator[Request], Context], Awaitable[Response]]
Duplex: TypeAlias = Callable[[AsyncIterator[Request], Context], AsyncIterator[Response]]
EncodedDuplex: TypeAlias = Callable[[AsyncIterator[bytes], Context], AsyncIterator[bytes]]


class Method(NamedTuple):
    """One method: `answer` is a coroutine function, or with `gives_many` an async generator function.

    `read` makes a request of bytes, or raises InvalidInput; `write` makes bytes of a response.
    """

    path: str
    answer: Callable[[Any, Context], Any]
    read: Callable[[bytes], Any]
    write: Callable[[Any], bytes]
    takes_many: bool = False
    gives_many: bool = False


class Service:
    """Collects the methods of one gRPC service. `methods` are by path, such as `/edged.v1.Cameras/Detect`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.methods: dict[str, Method] = {}
        self.requests: dict[str, type[Message]] = {}  # of methods with a single request, by path
        self._unary: dict[str, Callable[..., Awaitable[Any]]] = {}

    def unary(
        self,
        method: str,
        request: type[Request],
        handler: Unary[Request, Response],
        encoded: Callable[[bytes, Context], Awaitable[bytes]] | None = None,
    ) -> None:
        """One message in, one out; `encoded` handles calls by gRPC, from bytes to bytes."""
        self._unary[method] = handler
        self.requests[self._path(method)] = request
        if encoded is not None:
            self._add(method, encoded, _as_it_is, _as_it_is)
        else:
            self._add(method, handler, partial(parse, kind=request), _serialize)

    def upload(self, method: str, request: type[Request], handler: Upload[Request, Response]) -> None:
        """Many messages in, one out."""
        self._add(method, handler, partial(parse, kind=request), _serialize, takes_many=True)

    def feed(self, method: str, request: type[Request], handler: Feed[Request, Response]) -> None:
        """One message in, many out."""
        self.requests[self._path(method)] = request
        self._add(method, handler, partial(parse, kind=request), _serialize, gives_many=True)

    def duplex(self, method: str, request: type[Request], handler: Duplex[Request, Response]) -> None:
        """Many messages in, many out."""
        self._add(method, handler, partial(parse, kind=request), _serialize, takes_many=True, gives_many=True)

    def duplex_encoded(self, method: str, handler: EncodedDuplex) -> None:
        """As `duplex`, from the bytes of messages to bytes."""
        self._add(method, handler, _as_it_is, _as_it_is, takes_many=True, gives_many=True)

    async def call(self, method: str, request: Message, response: type[Response], context: Context) -> Response:
        """Call a unary method for a request that did not come by gRPC; `response` is the type of its answer."""
        if method not in self._unary:
            raise Unsupported(f"this build of edged has no {method}")
        answer: Response = await self._unary[method](request, context)
        return answer

    def _path(self, method: str) -> str:
        return f"/{self.name}/{method}"

    def _add(
        self,
        method: str,
        answer: Callable[[Any, Context], Any],
        read: Callable[[bytes], Any],
        write: Callable[[Any], bytes],
        *,
        takes_many: bool = False,
        gives_many: bool = False,
    ) -> None:
        path = self._path(method)
        self.methods[path] = Method(path, answer, read, write, takes_many, gives_many)


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _as_it_is(data: bytes) -> bytes:
    return data
