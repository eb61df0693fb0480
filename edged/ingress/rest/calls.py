"""Asks the gRPC services' handlers what an HTTP request wants to know, in their own messages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NoReturn, TypeAlias, TypeVar, cast

import grpc
from google.protobuf.message import Message

from edged.ingress.inference import wire
from edged.ingress.inference.infer import Caller, Inference
from edged.ingress.rest.exchange import Ask
from edged.ingress.rest.tensors import Asked
from edged.ingress.rpc import Context, Service
from edged.proto import open_inference_pb2 as pb

Response = TypeVar("Response", bound=Message)
Inferred: TypeAlias = "tuple[pb.ModelInferResponse, tuple[bytes, ...]]"


class Aborted(Exception):
    """A handler ended its call with a gRPC status of its own choice."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class HttpContext:
    """As much of a gRPC context as handlers of unary calls look at: who asks, with which headers, and until when.

    HTTP has no deadlines, so `expires`, of time.monotonic(), is None where whoever asks gave none.
    """

    def __init__(self, peer: str, metadata: tuple[tuple[str, str], ...], expires: float | None = None) -> None:
        self._peer, self._metadata, self._expires = peer, metadata, expires

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    def time_remaining(self) -> float | None:
        return None if self._expires is None else max(0.0, self._expires - time.monotonic())

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: object = ()) -> NoReturn:
        raise Aborted(code, details)


class Calls:
    """The Open Inference Protocol's service, asked by a method's name, and its inference."""

    def __init__(self, service: Service, inference: Inference) -> None:
        self.service, self._inference = service, inference

    async def __call__(self, ask: Ask, method: str, request: Message, response: type[Response]) -> Response:
        return await self.service.call(method, request, response, context_of(ask))

    async def infer(self, ask: Ask, asked: Asked) -> Inferred:
        """The answer to an inference: its message, and the raw contents of each output."""
        request = wire.Request(asked.message, asked.raw)
        (inferred,) = await self._inference.answer(request, Caller(ask.peer), _kept)
        return inferred


def context_of(ask: Ask) -> Context:
    """The context of a call, for the handlers of the gRPC services."""
    return cast(Context, HttpContext(ask.peer, tuple(ask.headers.items())))


def _kept(message: pb.ModelInferResponse, raw: Sequence[wire.Contents]) -> Inferred:
    """Copies the contents, since they are soon gone, and writing them as JSON may take longer than others can wait."""
    return message, tuple(map(bytes, raw))
