"""inference.GRPCInferenceService: the Open Inference Protocol, so that clients of Triton work unchanged."""

from __future__ import annotations

from edged.api.grpc.rpc import Context, Service
from edged.api.inference.access import Access
from edged.api.inference.configuration import ConfigurationHandlers
from edged.api.inference.control import ControlHandlers
from edged.api.inference.infer import Inference
from edged.api.inference.inferring import InferHandlers
from edged.api.inference.logs import LogHandlers
from edged.api.inference.shared_memory import SharedMemoryHandlers
from edged.api.inference.statistics import StatisticsHandlers
from edged.api.inference.trace import TraceHandlers
from edged.engines.controller import Controller
from edged.engines.readiness import all_ready
from edged.proto import open_inference_pb2 as pb
from edged.serving.trace import Tracing


class InferenceService:
    """Answers the protocol's calls from the controller's plans and slots."""

    def __init__(self, controller: Controller, tracing: Tracing, shared_memory_over_tcp: bool = False) -> None:
        self._controller, self._tracing = controller, tracing
        self._access = Access(over_tcp=shared_memory_over_tcp)
        self.inference = Inference(controller, tracing, self._access)
        self._inferring = InferHandlers(self.inference)
        self._logs = LogHandlers()

    def log_again(self) -> None:
        """The configuration of the log changed: what clients have set of it goes on top."""
        self._logs.again()

    def allow_shared_memory_over_tcp(self, allowed: bool) -> None:
        """Whether clients that come by TCP may register shared memory, from now on."""
        self._access.over_tcp = allowed

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
        self._logs.register(service)
        return service

    async def server_live(self, request: pb.ServerLiveRequest, context: Context) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def server_ready(self, request: pb.ServerReadyRequest, context: Context) -> pb.ServerReadyResponse:
        """Ready once every model is that can be served; with strict_readiness = false as soon as there is a daemon."""
        return pb.ServerReadyResponse(ready=all_ready(self._controller.models.values(), self._controller.health))
