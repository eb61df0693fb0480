"""Registers typed handlers with gRPC and turns whatever they raise into a status, in one place.

Handlers are plain functions of messages; they raise `EdgedError` and never touch status codes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from edged.errors import EdgedError, InvalidInput, Unsupported
from edged.ingress.ending import end
from edged.ingress.status import code_of

_LOG = logging.getLogger("edged.calls")  # says something only where it is asked to be verbose

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Unary: TypeAlias = Callable[[Request, Context], Awaitable[Response]]
Feed: TypeAlias = Callable[[Request, Context], AsyncIterator[Response]]
Upload: TypeAlias = Callable[[AsyncIterator[Request], Context], Awaitable[Response]]
Duplex: TypeAlias = Callable[[AsyncIterator[Request], Context], AsyncIterator[Response]]
EncodedDuplex: TypeAlias = Callable[[AsyncIterator[bytes], Context], AsyncIterator[bytes]]


class Service:
    """Collects the methods of one gRPC service."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        self._unary: dict[str, Callable[..., Awaitable[Any]]] = {}
        self.requests: dict[str, type[Message]] = {}  # what comes as bytes, by the path of its method

    def unary(
        self,
        method: str,
        request: type[Request],
        handler: Unary[Request, Response],
        encoded: Callable[[bytes, Context], Awaitable[bytes]] | None = None,
    ) -> None:
        """One message in, one out; `encoded` answers those that come by gRPC, from bytes to bytes."""
        self._unary[method] = handler
        self.requests[f"/{self._path(method)}"] = request
        if encoded is not None:
            self._methods[method] = grpc.unary_unary_rpc_method_handler(_answering(self._path(method), encoded))
            return
        read = _reading(request)

        async def answer(data: bytes, context: Context) -> Response:
            return await handler(read(data), context)

        self._methods[method] = grpc.unary_unary_rpc_method_handler(
            _answering(self._path(method), answer), None, _serialize
        )

    def upload(self, method: str, request: type[Request], handler: Upload[Request, Response]) -> None:
        """Many messages in, one out."""
        self._methods[method] = grpc.stream_unary_rpc_method_handler(
            _answering(self._path(method), handler), _reading(request), _serialize
        )

    def feed(self, method: str, request: type[Request], handler: Feed[Request, Response]) -> None:
        """One message in, many out."""
        self.requests[f"/{self._path(method)}"] = request
        read = _reading(request)

        def answer(data: bytes, context: Context) -> AsyncIterator[Response]:
            return handler(read(data), context)

        self._methods[method] = grpc.unary_stream_rpc_method_handler(
            _streaming(self._path(method), answer), None, _serialize
        )

    def duplex(self, method: str, request: type[Request], handler: Duplex[Request, Response]) -> None:
        """Many messages in, many out."""
        self._methods[method] = grpc.stream_stream_rpc_method_handler(
            _streaming(self._path(method), handler), _reading(request), _serialize
        )

    def duplex_encoded(self, method: str, handler: EncodedDuplex) -> None:
        """As `duplex`, from the bytes of messages to bytes."""
        self._methods[method] = grpc.stream_stream_rpc_method_handler(_streaming(self._path(method), handler))

    async def call(self, method: str, request: Message, response: type[Response], context: Context) -> Response:
        """Has a unary method answer a message that came in some other way than by gRPC; raises what it raises.

        `response` is the type of its answer.
        """
        if method not in self._unary:
            raise Unsupported(f"this build of edged has no {method}")
        answer: Response = await self._unary[method](request, context)
        return answer

    def _path(self, method: str) -> str:
        return f"{self.name}/{method}"

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the service to a server that has not been started."""
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(self.name, self._methods),))


def _reading(request: type[Request]) -> Callable[[bytes], Request]:
    """Messages from their bytes. What is none is its sender's fault, which gRPC would not say: so handlers, or their
    iteration, get InvalidInput for it."""

    def read(data: bytes) -> Request:
        try:
            return request.FromString(data)
        except DecodeError:
            name = request.DESCRIPTOR.name
            raise InvalidInput(f"the bytes of the call are no {name}; use a client of the same protocol") from None

    return read


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _answering(path: str, handler: Callable[..., Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
    async def call(request: Any, context: Context) -> Any:
        began = time.perf_counter()
        try:
            response = await handler(request, context)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            _tell(path, began, "cancelled")
            raise
        except Exception as error:
            await _refuse(path, began, error, context)
        else:
            _tell(path, began, "OK")
            return response

    return call


def _streaming(path: str, handler: Callable[..., AsyncIterator[Any]]) -> Callable[[Any, Context], AsyncIterator[Any]]:
    async def call(requests: Any, context: Context) -> AsyncIterator[Any]:
        began = time.perf_counter()
        try:
            async for response in handler(requests, context):
                yield response
        except (asyncio.CancelledError, GeneratorExit, grpc.aio.AbortError):
            _tell(path, began, "cancelled")
            raise
        except Exception as error:
            await _refuse(path, began, error, context)
        else:
            _tell(path, began, "OK")

    return call


async def _refuse(path: str, began: float, error: Exception, context: Context) -> NoReturn:
    _tell(path, began, code_of(error).name if isinstance(error, EdgedError) else grpc.StatusCode.INTERNAL.name)
    await end(context, error)


def _tell(path: str, began: float, outcome: str) -> None:
    _LOG.debug("%s: %s, %.1f ms", path, outcome, (time.perf_counter() - began) * 1e3)
