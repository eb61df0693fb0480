"""inference.GRPCInferenceService: the Open Inference Protocol, with which clients of Triton work unchanged."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Sequence
from functools import partial

from edged.api.grpc import wire
from edged.api.grpc.rpc import Context, Service
from edged.api.grpc.status import describe
from edged.api.grpc.wire import Contents, Request
from edged.api.inference.administration import AdministrationHandlers, LogHandlers
from edged.api.inference.infer import Inference
from edged.api.inference.models import ConfigurationHandlers
from edged.api.inference.requests import Caller
from edged.api.inference.shared_memory import SharedMemoryAccess
from edged.engines.controller import Controller
from edged.engines.readiness import all_ready
from edged.proto import open_inference_pb2 as pb
from edged.serving.trace import Tracing


class InferenceService:
    """Answers the protocol's calls from the controller's plans and slots."""

    def __init__(self, controller: Controller, tracing: Tracing, shared_memory_over_tcp: bool = False) -> None:
        self._controller = controller
        self._access = SharedMemoryAccess(over_tcp=shared_memory_over_tcp)
        self.inference = Inference(controller, tracing, self._access)
        self._inferring, self._logs = InferHandlers(self.inference), LogHandlers()
        self.service = Service(
            pb.DESCRIPTOR.services_by_name["GRPCInferenceService"],
            self,
            self._inferring,
            self._logs,
            ConfigurationHandlers(controller),
            AdministrationHandlers(controller, tracing),
            self._access,
        )

    def log_again(self) -> None:
        """Apply the log settings of clients again, after the configuration of the log changed."""
        self._logs.again()

    def allow_shared_memory_over_tcp(self, allowed: bool) -> None:
        """Set whether clients over TCP may register shared memory."""
        self._access.over_tcp = allowed

    def stop(self) -> None:
        """Take no more requests on streams: each ends once its requests are answered."""
        self._inferring.stop()
        self.inference.close()

    async def server_live(self, request: pb.ServerLiveRequest, context: Context) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def server_ready(self, request: pb.ServerReadyRequest, context: Context) -> pb.ServerReadyResponse:
        """Return whether every model that can be served is ready; always true with strict_readiness = false."""
        return pb.ServerReadyResponse(ready=all_ready(self._controller.models.values(), self._controller.health))


# Limits of the requests in progress of one stream, and of their bytes; at either limit, no more requests are read.
_STREAM_WINDOW = 16
_STREAM_BYTES = 64 << 20
_write_streamed = partial(wire.write, streamed=True)


class InferHandlers:
    """Answers single requests and streams of them."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._readers: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Take no more requests on streams: each ends once its requests are answered."""
        for reader in self._readers:
            reader.cancel()

    async def model_infer(self, request: pb.ModelInferRequest, context: Context) -> pb.ModelInferResponse:
        """Return the response as a message, for calls of other protocols than gRPC."""
        (response,) = await self._inference.answer(Request.of(request), _caller(context), _message)
        return response

    async def model_infer_bytes(self, request: bytes, context: Context) -> bytes:
        (response,) = await self._inference.answer(wire.read(request), _caller(context), wire.write)
        return response

    async def model_stream_infer_bytes(self, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        """Yield responses in the order of the requests. A failed request gets a response with its error, and the stream
        continues; with the metadata `triton_grpc_error: true`, the stream ends with a status instead.
        """
        strict = ("triton_grpc_error", "true") in context.metadata
        caller = Caller(context.peer, patient=True, streamed=True)
        window, arrived, ended = _Window(), asyncio.Event(), False

        async def read() -> None:
            nonlocal ended
            try:
                async for request in requests:  # requests that were already read are answered even after `stop`
                    window.begin(asyncio.create_task(self._answer(request, caller, strict)), len(request))
                    arrived.set()
                    await window.room()
            finally:
                ended = True
                arrived.set()

        reader = asyncio.create_task(read())
        self._readers.add(reader)
        try:
            while True:
                while (first := window.first) is not None:
                    for response in await first:
                        yield response
                    window.end()
                if ended:
                    return
                arrived.clear()
                await arrived.wait()
        finally:
            self._readers.discard(reader)
            reader.cancel()
            window.cancel()

    async def _answer(self, data: bytes, caller: Caller, strict: bool) -> list[bytes]:
        """Return the responses of one request; without `strict`, a failed request has a response with the error."""
        identifier = ""
        try:
            request = wire.read(data)
            identifier = request.message.id
            return await self._inference.answer(request, caller, _write_streamed)
        except Exception as error:
            if strict:
                raise
            _, message = describe(error)
            failed = pb.ModelInferResponse(id=identifier)
            return [pb.ModelStreamInferResponse(error_message=message, infer_response=failed).SerializeToString()]


class _Window:
    """The requests of one stream in progress, in their order, and their bytes."""

    def __init__(self) -> None:
        self._tasks: deque[tuple[asyncio.Task[list[bytes]], int]] = deque()
        self._bytes = 0
        self._ended = asyncio.Event()

    @property
    def first(self) -> asyncio.Task[list[bytes]] | None:
        return self._tasks[0][0] if self._tasks else None

    def begin(self, task: asyncio.Task[list[bytes]], size: int) -> None:
        self._tasks.append((task, size))
        self._bytes += size

    def end(self) -> None:
        """Remove the first request, whose responses were sent."""
        _, size = self._tasks.popleft()
        self._bytes -= size
        self._ended.set()

    async def room(self) -> None:
        """Wait until another request may be read. That request's size is not known yet, and does not count here."""
        while len(self._tasks) >= _STREAM_WINDOW or self._bytes >= _STREAM_BYTES:
            self._ended.clear()
            await self._ended.wait()

    def cancel(self) -> None:
        for task, _ in self._tasks:
            task.cancel()
            task.add_done_callback(_retrieve_exception)


def _retrieve_exception(task: asyncio.Task[list[bytes]]) -> None:
    """Retrieve the error of a task that is not awaited, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


def _caller(context: Context) -> Caller:
    return Caller(context.peer, math.inf if context.expires is None else context.expires)


def _message(response: pb.ModelInferResponse, raw: Sequence[Contents]) -> pb.ModelInferResponse:
    response.raw_output_contents.extend(map(bytes, raw))
    return response
