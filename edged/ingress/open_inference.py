"""inference.GRPCInferenceService: the Open Inference Protocol, so that clients of Triton work unchanged."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable

from edged.backend.profile import Profile
from edged.control.controller import Controller
from edged.control.plan import PlannedModel
from edged.errors import InvalidInput, NotFound, NotReady
from edged.ingress import tensor_request as wire
from edged.ingress.rpc import Context, Service
from edged.ingress.status import describe
from edged.model.model import Model
from edged.proto import open_inference_pb2 as pb
from edged.serving.work import TensorWork
from edged.tensors import TensorSpec
from edged.version import __version__

# Only what works is claimed.
_EXTENSIONS = ("binary_tensor_data",)
_STREAM_WINDOW = 16  # requests of one stream under way; more are not read


class InferenceService:
    """Answers the protocol's calls from the controller's plans and slots."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._readers: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Takes no more requests on streams: each ends once what it sent is answered."""
        for reader in self._readers:
            reader.cancel()

    def service(self) -> Service:
        service = Service("inference.GRPCInferenceService")
        service.unary("ServerLive", pb.ServerLiveRequest, self.server_live)
        service.unary("ServerReady", pb.ServerReadyRequest, self.server_ready)
        service.unary("ModelReady", pb.ModelReadyRequest, self.model_ready)
        service.unary("ServerMetadata", pb.ServerMetadataRequest, self.server_metadata)
        service.unary("ModelMetadata", pb.ModelMetadataRequest, self.model_metadata)
        service.unary("ModelInfer", pb.ModelInferRequest, self.model_infer)
        service.duplex("ModelStreamInfer", pb.ModelInferRequest, self.model_stream_infer)
        return service

    async def server_live(self, request: pb.ServerLiveRequest, context: Context) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def server_ready(self, request: pb.ServerReadyRequest, context: Context) -> pb.ServerReadyResponse:
        """Ready once every model that can serve does; a refused model does not hold the others back."""
        models = self._controller.models.values()
        return pb.ServerReadyResponse(ready=all(m.serving is not None or m.problem is not None for m in models))

    async def model_ready(self, request: pb.ModelReadyRequest, context: Context) -> pb.ModelReadyResponse:
        """False while it loads. A model that cannot serve is an error: some clients look at the status alone."""
        planned = self._find(request.name, request.version)
        if planned.problem is not None:
            raise NotReady(f"model {request.name!r} cannot be served: {planned.problem}")
        return pb.ModelReadyResponse(ready=planned.serving is not None)

    async def server_metadata(self, request: pb.ServerMetadataRequest, context: Context) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(name="edged", version=__version__, extensions=_EXTENSIONS)

    async def model_metadata(self, request: pb.ModelMetadataRequest, context: Context) -> pb.ModelMetadataResponse:
        planned = self._find(request.name, request.version)
        model = await self._loaded(planned)
        return pb.ModelMetadataResponse(
            name=model.name,
            versions=[model.entry.version],
            platform="onnx",
            inputs=_tensors(model.inspection.signature.inputs),
            outputs=_tensors(model.inspection.signature.outputs),
        )

    async def model_infer(self, request: pb.ModelInferRequest, context: Context) -> pb.ModelInferResponse:
        return await self._infer(request, context.time_remaining())

    async def model_stream_infer(
        self, requests: AsyncIterator[pb.ModelInferRequest], context: Context
    ) -> AsyncIterator[pb.ModelStreamInferResponse]:
        """Answers in the order of the requests. One that fails is told in its response; the stream goes on.

        A client that asks for it by the metadata `triton_grpc_error: true` gets a status, and the stream ends.
        """
        metadata = {str(key): value for key, value in context.invocation_metadata() or ()}
        strict = metadata.get("triton_grpc_error") == "true"
        readers = self._readers
        window: deque[tuple[str, asyncio.Task[pb.ModelInferResponse]]] = deque()
        arrived, room, ended = asyncio.Event(), asyncio.Semaphore(_STREAM_WINDOW), False

        async def read() -> None:
            nonlocal ended
            try:
                async for request in requests:
                    await room.acquire()
                    window.append((request.id, asyncio.create_task(self._infer(request, None, patient=True))))
                    arrived.set()
            finally:
                ended = True
                arrived.set()

        reader = asyncio.create_task(read())
        readers.add(reader)
        try:
            while True:
                while window:
                    identifier, task = window.popleft()
                    yield await _settle(identifier, task, strict)
                    room.release()
                if ended:
                    return
                arrived.clear()
                await arrived.wait()
        finally:
            readers.discard(reader)
            reader.cancel()
            for _, task in window:
                task.cancel()

    async def _infer(
        self, request: pb.ModelInferRequest, seconds: float | None, patient: bool = False
    ) -> pb.ModelInferResponse:
        """Answers one request that is worth answering for so many seconds; `patient` waits while too many wait."""
        planned = self._find(request.model_name, request.model_version)
        model = await self._loaded(planned)
        signature = model.inspection.signature
        inputs = wire.inputs_of(request, signature, Profile() if model.is_static else planned.profile)
        expires = math.inf if seconds is None else time.monotonic() + seconds
        work = TensorWork(inputs, wire.outputs_of(request, signature), expires)
        if patient:
            await planned.slot.push_when_room(work)
        else:
            planned.slot.push(work)
        try:
            answer = await work.future
        finally:
            work.future.cancel()  # a client that has gone is not worth an inference
        return wire.response(request, model.name, model.entry.version, answer)

    def _find(self, name: str, version: str) -> PlannedModel:
        if not name:
            raise InvalidInput("the request names no model; set its name")
        planned = self._controller.find(name)
        if version and version != planned.entry.version:
            raise NotFound(f"model {name!r} has version {planned.entry.version}, not {version[:40]!r}")
        return planned

    @staticmethod
    async def _loaded(planned: PlannedModel) -> Model:
        """The model, waiting while it is being read for the first time."""
        while planned.model is None and planned.reading is not None and not planned.reading.done():
            await asyncio.wait([planned.reading])
        if planned.model is None:
            reason = planned.problem or "it was removed"
            raise NotReady(f"model {planned.entry.name!r} cannot be served: {reason}")
        return planned.model


async def _settle(
    identifier: str, task: asyncio.Task[pb.ModelInferResponse], strict: bool
) -> pb.ModelStreamInferResponse:
    try:
        return pb.ModelStreamInferResponse(infer_response=await task)
    except asyncio.CancelledError:
        task.cancel()
        raise
    except Exception as error:
        if strict:
            raise
        _, message = describe(error)
        failed = pb.ModelInferResponse(id=identifier)
        return pb.ModelStreamInferResponse(error_message=message, infer_response=failed)


def _tensors(specs: Iterable[TensorSpec]) -> list[pb.ModelMetadataResponse.TensorMetadata]:
    return [pb.ModelMetadataResponse.TensorMetadata(name=s.name, datatype=s.datatype, shape=s.dims) for s in specs]
