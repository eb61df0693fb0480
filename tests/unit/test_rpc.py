"""Handlers as gRPC calls: what is no message is refused as its sender's fault, however it comes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from edged.api.auth.guard import Guard
from edged.api.auth.policy import ALL, Caller
from edged.api.grpc.call_guard import CallGuard
from edged.api.grpc.rpc import Context, Service
from edged.config import Access, Tls
from edged.proto import open_inference_pb2 as pb
from tests.waiting import run

_GARBAGE = b"\xff\xff"


async def unary(request: pb.ModelReadyRequest, context: Context) -> pb.ModelReadyResponse:
    return pb.ModelReadyResponse(ready=True)


async def feed(request: pb.ModelReadyRequest, context: Context) -> AsyncIterator[pb.ModelReadyResponse]:
    yield pb.ModelReadyResponse(ready=True)


async def upload(requests: AsyncIterator[pb.ModelReadyRequest], context: Context) -> pb.ModelReadyResponse:
    async for _ in requests:
        pass
    return pb.ModelReadyResponse(ready=True)


async def duplex(
    requests: AsyncIterator[pb.ModelReadyRequest], context: Context
) -> AsyncIterator[pb.ModelReadyResponse]:
    async for _ in requests:
        yield pb.ModelReadyResponse(ready=True)


@pytest.mark.parametrize("kind", ["unary", "feed", "upload", "duplex"])
def test_bytes_that_are_no_message_are_their_senders_fault(kind: str, tmp_path: Path) -> None:
    async def work() -> None:
        service = Service("test.Service")
        service.unary("unary", pb.ModelReadyRequest, unary)
        service.feed("feed", pb.ModelReadyRequest, feed)
        service.upload("upload", pb.ModelReadyRequest, upload)
        service.duplex("duplex", pb.ModelReadyRequest, duplex)
        server, folder = grpc.aio.server(), Path(tempfile.mkdtemp(prefix="edt-"))
        server.add_insecure_port(f"unix:{folder}/s")
        server.add_generic_rpc_handlers((handlers(service, tmp_path),))
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"unix:{folder}/s") as channel:
                whole = pb.ModelReadyRequest(name="m").SerializeToString()
                assert await answers(channel, kind, whole)
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await answers(channel, kind, _GARBAGE)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "ModelReadyRequest" in str(refused.value.details())
        finally:
            await server.stop(0)
            shutil.rmtree(folder)

    run(work())


def handlers(service: Service, state: Path) -> grpc.GenericRpcHandler:
    """The methods of a service for a caller who may do anything."""
    guard, who = Guard(Access(), Tls(), state), Caller("test", ALL, "test")
    found = {
        path.rpartition("/")[2]: CallGuard(guard, method, lambda peer, authentication: who).handler()
        for path, method in service.methods.items()
    }
    return grpc.method_handlers_generic_handler(service.name, found)


async def answers(channel: grpc.aio.Channel, kind: str, data: bytes) -> list[bytes]:
    path = f"/test.Service/{kind}"
    if kind == "unary":
        return [await channel.unary_unary(path)(data, timeout=30)]
    if kind == "upload":
        return [await channel.stream_unary(path)(iter([data]), timeout=30)]
    call = channel.unary_stream(path)(data, timeout=30) if kind == "feed" else None
    call = call or channel.stream_stream(path)(iter([data]), timeout=30)
    return [answer async for answer in call]
