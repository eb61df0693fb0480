"""The HTTP listener in this process, on a unix socket, with a service that echoes tensors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from edged.api.auth.guard import Guard
from edged.api.auth.tokens import TokenFile
from edged.api.grpc.rpc import Service
from edged.api.grpc.wire import Request
from edged.api.http.app import HttpListener
from edged.api.http.handlers import Calls
from edged.config import Access, Http, Tls
from edged.proto import open_inference_pb2 as pb


class Echo:
    """Answers a request with its inputs when `gate` is set. Counts waiting and cancelled requests."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = self.cancelled = 0

    async def answer(self, request: Request, caller: Any, write: Callable[..., Any]) -> list[Any]:
        self.waiting += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1
        asked = request.message
        message = pb.ModelInferResponse(model_name=asked.model_name, model_version="1", id=asked.id)
        for tensor in asked.inputs:
            message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        return [write(message, request.raw)]


class World:
    def __init__(self, path: Path, echo: Echo, listener: HttpListener, guard: Guard) -> None:
        self.path, self.echo, self.listener, self.guard = path, echo, listener, guard
        self.tokens = TokenFile(path.parent / "access" / "tokens.json")

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(self.path)

    async def ask(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        """Send bytes on a new connection and return one answer."""
        reader, writer = await self.connect()
        try:
            writer.write(request)
            return await answer_of(reader)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def world(body_mb: int = 1) -> AsyncIterator[World]:
    folder = Path(tempfile.mkdtemp(prefix="edt-"))

    async def live(request: pb.ServerLiveRequest, context: Any) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def broken(request: pb.ServerMetadataRequest, context: Any) -> pb.ServerMetadataResponse:
        raise RuntimeError("a secret")

    echo, handlers = Echo(), SimpleNamespace(server_live=live, server_metadata=broken)
    service = Service(pb.DESCRIPTOR.services_by_name["GRPCInferenceService"], handlers)
    path = folder / "http.sock"
    guard = Guard(Access(), Tls(), folder)
    listener = HttpListener(
        Http(listen=f"unix:{path}", body_mb=body_mb),
        Calls(service, cast(Any, echo), cast(Any, None), cast(Any, None)),
        guard,
    )
    await listener.start()
    try:
        yield World(path, echo, listener, guard)
    finally:
        echo.gate.set()
        await listener.stop(1.0)
        shutil.rmtree(folder, ignore_errors=True)


async def answer_of(reader: asyncio.StreamReader, seconds: float = 20.0) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of the next answer on a connection."""

    async def read() -> tuple[int, dict[str, str], bytes]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return int(first.split()[1]), headers, body

    return await asyncio.wait_for(read(), seconds)


def post(body: bytes, path: str = "/v2/models/m/infer", headers: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: here\r\ncontent-length: {len(body)}\r\n{headers}\r\n".encode() + body


def get(path: str, headers: str = "", method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nhost: here\r\n{headers}\r\n".encode()


def inference(count: int = 2, **more: Any) -> bytes:
    tensor = {"name": "x", "datatype": "INT32", "shape": [count], "data": list(range(count))}
    return json.dumps({"inputs": [tensor], **more}).encode()
