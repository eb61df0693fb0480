"""Registers typed handlers with gRPC and turns whatever they raise into a status, in one place.

Handlers are plain functions of messages; they raise `EdgedError` and never touch status codes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message

from edged.ingress.status import describe, named

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

Unary: TypeAlias = Callable[[Request, Context], Awaitable[Response]]
Feed: TypeAlias = Callable[[Request, Context], AsyncIterator[Response]]
Upload: TypeAlias = Callable[[AsyncIterator[Request], Context], Awaitable[Response]]
Duplex: TypeAlias = Callable[[AsyncIterator[Request], Context], AsyncIterator[Response]]


class Service:
    """Collects the methods of one gRPC service."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def unary(self, method: str, request: type[Request], handler: Unary[Request, Response]) -> None:
        """One message in, one out."""
        self._methods[method] = grpc.unary_unary_rpc_method_handler(_answering(handler), request.FromString, _serialize)

    def upload(self, method: str, request: type[Request], handler: Upload[Request, Response]) -> None:
        """Many messages in, one out."""
        self._methods[method] = grpc.stream_unary_rpc_method_handler(
            _answering(handler), request.FromString, _serialize
        )

    def feed(self, method: str, request: type[Request], handler: Feed[Request, Response]) -> None:
        """One message in, many out."""
        self._methods[method] = grpc.unary_stream_rpc_method_handler(
            _streaming(handler), request.FromString, _serialize
        )

    def duplex(self, method: str, request: type[Request], handler: Duplex[Request, Response]) -> None:
        """Many messages in, many out."""
        self._methods[method] = grpc.stream_stream_rpc_method_handler(
            _streaming(handler), request.FromString, _serialize
        )

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the service to a server that has not been started."""
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(self.name, self._methods),))


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _answering(handler: Callable[..., Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
    async def call(request: Any, context: Context) -> Any:
        try:
            return await handler(request, context)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except Exception as error:
            await context.abort(*describe(error), named(error))

    return call


def _streaming(handler: Callable[..., AsyncIterator[Any]]) -> Callable[[Any, Context], AsyncIterator[Any]]:
    async def call(requests: Any, context: Context) -> AsyncIterator[Any]:
        try:
            async for response in handler(requests, context):
                yield response
        except (asyncio.CancelledError, GeneratorExit, grpc.aio.AbortError):
            raise
        except Exception as error:
            await context.abort(*describe(error), named(error))

    return call
