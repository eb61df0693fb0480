"""ModelInfer and ModelStreamInfer as calls: bytes in, bytes out."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from functools import partial

from edged.ingress.inference import wire
from edged.ingress.inference.infer import Caller, Inference
from edged.ingress.inference.wire import Contents, Request
from edged.ingress.rpc import Context, Service
from edged.ingress.status import describe
from edged.proto import open_inference_pb2 as pb

_STREAM_WINDOW = 16  # requests of one stream under way; more are not read
_write_streamed = partial(wire.write, streamed=True)


class InferHandlers:
    """Answers single requests and streams of them."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._readers: set[asyncio.Task[None]] = set()

    def register(self, service: Service) -> None:
        service.unary("ModelInfer", pb.ModelInferRequest, self.model_infer, self.model_infer_bytes)
        service.duplex_encoded("ModelStreamInfer", self.model_stream_infer)

    def stop(self) -> None:
        """Takes no more requests on streams: each ends once what it sent is answered."""
        for reader in self._readers:
            reader.cancel()

    async def model_infer(self, request: pb.ModelInferRequest, context: Context) -> pb.ModelInferResponse:
        """The answer as a message, for whoever has the request as one."""
        (response,) = await self._inference.answer(Request.of(request), _caller(context), _message)
        return response

    async def model_infer_bytes(self, request: bytes, context: Context) -> bytes:
        (response,) = await self._inference.answer(wire.read(request), _caller(context), wire.write)
        return response

    async def model_stream_infer(self, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        """Answers in the order of the requests. One that fails is told in its response; the stream goes on.

        A client that asks for it by the metadata `triton_grpc_error: true` gets a status, and the stream ends.
        """
        metadata = {str(key): value for key, value in context.invocation_metadata() or ()}
        strict = metadata.get("triton_grpc_error") == "true"
        caller = Caller(context.peer(), patient=True, streamed=True)
        window: deque[asyncio.Task[list[bytes]]] = deque()
        arrived, room, ended = asyncio.Event(), asyncio.Semaphore(_STREAM_WINDOW), False

        async def read() -> None:
            nonlocal ended
            try:
                await room.acquire()  # before it is read: what was read is answered, whoever stops this
                async for request in requests:
                    window.append(asyncio.create_task(self._answer(request, caller, strict)))
                    arrived.set()
                    await room.acquire()
            finally:
                ended = True
                arrived.set()

        reader = asyncio.create_task(read())
        self._readers.add(reader)
        try:
            while True:
                while window:
                    for response in await window[0]:
                        yield response
                    window.popleft()
                    room.release()
                if ended:
                    return
                arrived.clear()
                await arrived.wait()
        finally:
            self._readers.discard(reader)
            reader.cancel()
            for task in window:
                task.cancel()
                task.add_done_callback(_see)  # whatever it ends with, nobody waits for it

    async def _answer(self, data: bytes, caller: Caller, strict: bool) -> list[bytes]:
        """The responses of one request; without `strict` an error is one, too."""
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


def _see(task: asyncio.Task[list[bytes]]) -> None:
    if not task.cancelled():
        task.exception()


def _caller(context: Context) -> Caller:
    seconds = context.time_remaining()
    return Caller(context.peer(), math.inf if seconds is None else time.monotonic() + seconds)


def _message(response: pb.ModelInferResponse, raw: Sequence[Contents]) -> pb.ModelInferResponse:
    response.raw_output_contents.extend(map(bytes, raw))
    return response
