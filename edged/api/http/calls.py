"""Asks the gRPC services' handlers what an HTTP request wants to know, in their own messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

from google.protobuf.message import Message

from edged.api.grpc import wire
from edged.api.grpc.rpc import Context, Service
from edged.api.http.exchange import Ask
from edged.api.http.tensors import Asked
from edged.api.inference.infer import Caller, Inference
from edged.proto import open_inference_pb2 as pb

Response = TypeVar("Response", bound=Message)
Inferred: TypeAlias = "tuple[pb.ModelInferResponse, tuple[bytes, ...]]"


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
    """The context of a call, for the handlers of the gRPC services; HTTP has no deadlines."""
    return Context(ask.peer, tuple(ask.headers.items()))


def _kept(message: pb.ModelInferResponse, raw: Sequence[wire.Contents]) -> Inferred:
    """Copies the contents, since they are soon gone, and writing them as JSON may take longer than others can wait."""
    return message, tuple(map(bytes, raw))
