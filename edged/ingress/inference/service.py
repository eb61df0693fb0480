"""inference.GRPCInferenceService: the Open Inference Protocol, so that clients of Triton work unchanged."""

from __future__ import annotations

from edged.control.controller import Controller
from edged.ingress.inference.access import Access
from edged.ingress.inference.configuration import ConfigurationHandlers
from edged.ingress.inference.control import ControlHandlers
from edged.ingress.inference.infer import Inference
from edged.ingress.inference.inferring import InferHandlers
from edged.ingress.inference.logs import LogHandlers
from edged.ingress.inference.regions import Regions
from edged.ingress.inference.shared_memory import SharedMemoryHandlers
from edged.ingress.inference.statistics import StatisticsHandlers
from edged.ingress.inference.trace import TraceHandlers
from edged.ingress.rpc import Context, Service
from edged.proto import open_inference_pb2 as pb
from edged.serving.trace import Tracing


class InferenceService:
    """Answers the protocol's calls from the controller's plans and slots."""

    def __init__(self, controller: Controller, tracing: Tracing, shared_memory_over_tcp: bool = False) -> None:
        self._controller, self._tracing = controller, tracing
        self._access = Access(Regions(), shared_memory_over_tcp)
        self.inference = Inference(controller, tracing, self._access)
        self._inferring = InferHandlers(self.inference)

    def stop(self) -> None:
        """Takes no more requests on streams: each ends once what it sent is answered."""
        self._inferring.stop()
        self.inference.close()

    def service(self) -> Service:
        service = Service("inference.GRPCInferenceService")
        service.unary("ServerLive", pb.ServerLiveRequest, self.server_live)
        service.unary("ServerReady", pb.ServerReadyRequest, self.server_ready)
        self._inferring.register(service)
        SharedMemoryHandlers(self._access).register(service)
        ConfigurationHandlers(self._controller).register(service)
        ControlHandlers(self._controller).register(service)
        StatisticsHandlers(self._controller).register(service)
        TraceHandlers(self._controller, self._tracing).register(service)
        LogHandlers().register(service)
        return service

    async def server_live(self, request: pb.ServerLiveRequest, context: Context) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def server_ready(self, request: pb.ServerReadyRequest, context: Context) -> pb.ServerReadyResponse:
        """Ready once every model that can serve does; a refused model does not hold the others back."""
        models = self._controller.models.values()
        return pb.ServerReadyResponse(ready=all(m.serving is not None or m.problem is not None for m in models))
