"""inference.GRPCInferenceService: the Open Inference Protocol. Triton's clients work without changes."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from edged.api.grpc import wire
from edged.api.grpc.rpc import Context, Service
from edged.api.grpc.status import describe
from edged.api.grpc.wire import Contents, Request
from edged.api.inference.administration import AdministrationHandlers, LogHandlers
from edged.api.inference.infer import Inference
from edged.api.inference.models import ConfigurationHandlers
from edged.api.inference.requests import Caller
from edged.api.inference.shared_memory import SharedMemoryAccess
from edged.api.language import generate
from edged.api.language.service import LanguageService
from edged.engines.controller import Controller
from edged.proto import open_inference_pb2 as pb
from edged.serving.trace import Tracing
from edged.tasks import retrieve_exception


class InferenceService:
    """Answers the protocol's calls for the models of a controller."""

    def __init__(
        self,
        controller: Controller,
        tracing: Tracing,
        shared_memory_over_tcp: bool = False,
        language: LanguageService | None = None,
    ) -> None:
        self._controller = controller
        self._access = SharedMemoryAccess(over_tcp=shared_memory_over_tcp)
        self.inference = Inference(controller, tracing, self._access)
        self._inferring = InferHandlers(self.inference, language or LanguageService(controller))
        self._logs = LogHandlers()
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
        """Apply the log settings of clients once more, because the configuration of the log changed."""
        self._logs.again()

    def allow_shared_memory_over_tcp(self, allowed: bool) -> None:
        """Set whether clients over TCP may register shared memory."""
        self._access.over_tcp = allowed

    def stop(self) -> None:
        """Accept no more requests on streams: each stream ends once its requests are answered."""
        self._inferring.stop()
        self.inference.close()

    async def server_live(self, request: pb.ServerLiveRequest, context: Context) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def server_ready(self, request: pb.ServerReadyRequest, context: Context) -> pb.ServerReadyResponse:
        """Return whether every model is ready, refused models aside; always true with strict_readiness = false."""
        return pb.ServerReadyResponse(ready=self._controller.is_ready)


# Limits of the requests in progress of one stream, and of their bytes; at either limit, no more requests are read.
_STREAM_WINDOW = 16
_STREAM_BYTES = 64 << 20
_write_streamed = partial(wire.write, streamed=True)


class InferHandlers:
    """Answers ModelInfer and ModelStreamInfer."""

    def __init__(self, inference: Inference, language: LanguageService) -> None:
        self._inference, self._language = inference, language
        self._readers: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Accept no more requests on streams: each stream ends once its requests are answered."""
        for reader in self._readers:
            reader.cancel()

    async def model_infer(self, request: pb.ModelInferRequest, context: Context) -> pb.ModelInferResponse:
        """Return the response as a message, for calls that do not come by gRPC."""
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
        window, arrived = _Window(), asyncio.Event()

        async def read() -> None:
            async for request in requests:  # requests that were already read are answered even after `stop`
                window.begin(_Answers(partial(self._answer, request, caller, strict)), len(request))
                arrived.set()
                await window.room()

        reader = asyncio.create_task(read())
        reader.add_done_callback(retrieve_exception)
        reader.add_done_callback(lambda _: arrived.set())
        self._readers.add(reader)
        try:
            while True:
                while (first := window.first) is not None:
                    while (response := await first.next()) is not None:
                        yield response
                    window.end()
                if reader.done():
                    if not reader.cancelled():
                        reader.result()  # raises the error of the stream, such as a message that arrived too slowly
                    return
                arrived.clear()
                await arrived.wait()
        finally:
            self._readers.discard(reader)
            reader.cancel()
            window.cancel()

    async def _answer(self, data: bytes, caller: Caller, strict: bool, give: Callable[[Iterable[bytes]], None]) -> None:
        """Answer one request: call `give` with its responses, several times if they are made one by one. Without
        `strict`, the response of a failed request has the error."""
        identifier = ""
        try:
            request = wire.read(data)
            message, identifier = request.message, request.id
            planned = self._language.of(message.model_name, message.model_version)
            if planned is None:
                give(await self._inference.answer(request, caller, _write_streamed))
                return
            async with aclosing(generate.responses(self._language, planned, request, caller.peer)) as responses:
                async for response in responses:
                    give((response,))
        except Exception as error:
            if strict:
                raise
            _, text = describe(error)
            failed = pb.ModelInferResponse(id=identifier)
            give((pb.ModelStreamInferResponse(error_message=text, infer_response=failed).SerializeToString(),))


class _Answers:
    """The responses of one request. A task makes them while the responses of earlier requests are sent."""

    def __init__(self, answer: Callable[[Callable[[Iterable[bytes]], None]], Coroutine[Any, Any, None]]) -> None:
        """`answer` answers the request, and calls its argument with the responses."""
        self._made = deque[bytes]()  # unbounded: the models limit the responses
        self._news: asyncio.Future[None] | None = None
        self._task = asyncio.create_task(answer(self._give))
        self._task.add_done_callback(self._wake)

    async def next(self) -> bytes | None:
        """Return the next response; None after the last one. Raises the error of the request."""
        while not self._made:
            if self._task.done():
                self._task.result()
                return None
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        return self._made.popleft()

    def cancel(self) -> None:
        self._task.cancel()
        self._task.add_done_callback(retrieve_exception)

    def _give(self, responses: Iterable[bytes]) -> None:
        self._made.extend(responses)
        self._wake()

    def _wake(self, _: object = None) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


class _Window:
    """The requests in progress of one stream, in their order, and the bytes of these requests."""

    def __init__(self) -> None:
        self._answers: deque[tuple[_Answers, int]] = deque()
        self._bytes = 0
        self._ended = asyncio.Event()

    @property
    def first(self) -> _Answers | None:
        return self._answers[0][0] if self._answers else None

    def begin(self, answers: _Answers, size: int) -> None:
        self._answers.append((answers, size))
        self._bytes += size

    def end(self) -> None:
        """Remove the first request, whose responses were sent."""
        _, size = self._answers.popleft()
        self._bytes -= size
        self._ended.set()

    async def room(self) -> None:
        """Wait until another request may be read. That request's size is not known yet, and does not count here."""
        while len(self._answers) >= _STREAM_WINDOW or self._bytes >= _STREAM_BYTES:
            self._ended.clear()
            await self._ended.wait()

    def cancel(self) -> None:
        for answers, _ in self._answers:
            answers.cancel()


def _caller(context: Context) -> Caller:
    return Caller(context.peer, math.inf if context.expires is None else context.expires)


def _message(response: pb.ModelInferResponse, raw: Sequence[Contents]) -> pb.ModelInferResponse:
    response.raw_output_contents.extend(map(bytes, raw))
    return response
