"""Turns typed handlers into the methods of gRPC services.

Handlers are plain functions of messages and a `Context`, which contains only values. Handlers raise `EdgedError` and
never use status codes. `edged.api.grpc.call_guard` runs the handlers.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from edged.api.grpc.wire import Contents, parse
from edged.errors import Unsupported

Response = TypeVar("Response", bound=Message)
T = TypeVar("T")


class Context(msgspec.Struct, frozen=True):
    """A call as its handler sees it. `peer` is the client as gRPC names it; `expires` is the deadline in seconds of
    time.monotonic(), None for no deadline."""

    peer: str
    metadata: tuple[tuple[str, str | bytes], ...] = ()
    expires: float | None = None

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline; None if the call has none."""
        return None if self.expires is None else max(0.0, self.expires - time.monotonic())


class Method(NamedTuple):
    """One method. `takes_many`: the client sends a stream. `gives_many`: the server sends a stream, and `answer` is an
    async generator function. Otherwise `answer` is a coroutine function.

    `read` parses a request from bytes, or raises InvalidInput; `write` serialises a response.
    """

    path: str
    answer: Callable[[Any, Context], Any]
    read: Callable[[Contents], Any]
    write: Callable[[Any], bytes]
    takes_many: bool = False
    gives_many: bool = False


class Service:
    """The methods of a gRPC service that `handlers` answer. `methods` is a mapping from the path of a method, such as
    `/edged.v1.Cameras/Detect`, to the method. `requests` is a mapping from the path to the request type, without
    methods that take a stream.

    As with gRPC's own servicers, a handler is found by name: `model_infer` of one of the objects answers ModelInfer. If
    an object has `model_infer_bytes`, gRPC calls use this handler instead, with bytes as request and response.
    """

    def __init__(self, descriptor: ServiceDescriptor, *handlers: object) -> None:
        self.name = str(descriptor.full_name)
        self.methods: dict[str, Method] = {}
        self.requests: dict[str, type[Message]] = {}
        self._unary: dict[str, Callable[[Message, Context], Awaitable[Any]]] = {}
        for method in descriptor.methods:
            self._add(method, handlers)

    def _add(self, method: MethodDescriptor, handlers: tuple[object, ...]) -> None:
        name, path = _snake_case(method.name), f"/{self.name}/{method.name}"
        kind, many = GetMessageClass(method.input_type), (method.client_streaming, method.server_streaming)
        handler, encoded = _find(handlers, name), _find(handlers, f"{name}_bytes")
        if handler is not None and many == (False, False):
            self._unary[method.name] = handler
        if encoded is not None:
            self.methods[path] = Method(path, encoded, _unchanged, _unchanged, *many)
        elif handler is not None:
            self.methods[path] = Method(path, handler, partial(parse, kind=kind), _serialize, *many)
        if path in self.methods and not method.client_streaming:
            self.requests[path] = kind

    async def call(self, method: str, request: Message, response: type[Response], context: Context) -> Response:
        """Call a unary method for another protocol; `response` is the response type. Raises Unsupported."""
        if method not in self._unary:
            raise Unsupported(f"this version of edged has no method {method}")
        answer: Response = await self._unary[method](request, context)
        return answer


def _find(handlers: tuple[object, ...], name: str) -> Callable[..., Any] | None:
    return next((getattr(each, name) for each in handlers if hasattr(each, name)), None)


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _unchanged(data: T) -> T:
    return data
