"""Services: handlers are found by the names of methods, and malformed messages are errors of their senders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.descriptor import ServiceDescriptor

from edged.api.grpc.rpc import Context, Service
from edged.errors import InvalidInput, Unsupported
from edged.proto import cameras_pb2, operations_pb2
from edged.proto import open_inference_pb2 as pb

INFERENCE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
CAMERAS = cameras_pb2.DESCRIPTOR.services_by_name["Cameras"]
OPERATIONS = operations_pb2.DESCRIPTOR.services_by_name["Operations"]
CONTEXT = Context("unix:")


async def one(request: Any, context: Context) -> pb.ModelReadyResponse:
    return pb.ModelReadyResponse(ready=True)


async def many(request: Any, context: Context) -> AsyncIterator[pb.ModelReadyResponse]:
    yield pb.ModelReadyResponse(ready=True)


async def encoded(request: bytes, context: Context) -> bytes:
    return request


@pytest.mark.parametrize(
    ("descriptor", "method", "handler", "takes_many", "gives_many"),
    [
        (INFERENCE, "ModelReady", one, False, False),
        (OPERATIONS, "WatchEvents", many, False, True),
        (OPERATIONS, "AddModel", one, True, False),
        (CAMERAS, "Detect", many, True, True),
    ],
)
def test_service_method_of_each_kind_parses_messages(
    descriptor: ServiceDescriptor, method: str, handler: Any, takes_many: bool, gives_many: bool
) -> None:
    name = "".join(f"_{each.lower()}" if each.isupper() else each for each in method)[1:]
    service = Service(descriptor, SimpleNamespace(), SimpleNamespace(**{name: handler}))
    ((path, found),) = service.methods.items()
    assert path == f"/{service.name}/{method}"
    assert (found.takes_many, found.gives_many, found.answer) == (takes_many, gives_many, handler)
    assert (path in service.requests) is not takes_many
    assert found.read(b"").DESCRIPTOR.name == descriptor.methods_by_name[method].input_type.name
    with pytest.raises(InvalidInput):
        found.read(b"\xff\xff")


def test_service_bytes_handler_answers_by_grpc_and_message_handler_by_message() -> None:
    service = Service(INFERENCE, SimpleNamespace(model_ready=one, model_ready_bytes=encoded))
    (method,) = service.methods.values()
    assert method.write(asyncio.run(method.answer(method.read(b"\xff"), CONTEXT))) == b"\xff"
    answer = asyncio.run(service.call("ModelReady", pb.ModelReadyRequest(), pb.ModelReadyResponse, CONTEXT))
    assert answer.ready


def test_call_method_without_handler_is_unsupported() -> None:
    with pytest.raises(Unsupported):
        asyncio.run(Service(INFERENCE).call("ModelReady", pb.ModelReadyRequest(), pb.ModelReadyResponse, CONTEXT))
