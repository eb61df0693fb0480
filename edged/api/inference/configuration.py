"""What the server and its models are: ModelReady, ServerMetadata, ModelMetadata, ModelConfig."""

from __future__ import annotations

from collections.abc import Iterable

from edged.api.grpc.rpc import Context, Service
from edged.api.inference import model_config
from edged.api.inference.models import find, loaded
from edged.engines.controller import Controller
from edged.engines.readiness import readiness
from edged.errors import NotFound, NotReady
from edged.proto import open_inference_pb2 as pb
from edged.tensors import TensorSpec
from edged.version import __version__

# Only what works is claimed.
EXTENSIONS = (
    "model_configuration",
    "model_repository",
    "model_repository(unload_dependents)",
    "binary_tensor_data",
    "classification",
    "parameters",
    "schedule_policy",
    "sequence",
    "system_shared_memory",
    "statistics",
    "trace",
    "logging",
)


class ConfigurationHandlers:
    """Answers from the controller's plans."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def register(self, service: Service) -> None:
        service.unary("ModelReady", pb.ModelReadyRequest, self.model_ready)
        service.unary("ServerMetadata", pb.ServerMetadataRequest, self.server_metadata)
        service.unary("ModelMetadata", pb.ModelMetadataRequest, self.model_metadata)
        service.unary("ModelConfig", pb.ModelConfigRequest, self.model_config)

    async def model_ready(self, request: pb.ModelReadyRequest, context: Context) -> pb.ModelReadyResponse:
        """False while requests would wait, and for what does not exist, as in Triton. NotReady for a model that exists
        and cannot be served: there are clients that look at the status alone."""
        try:
            planned = find(self._controller, request.name, request.version)
        except NotFound:
            return pb.ModelReadyResponse(ready=False)
        found = readiness(planned, self._controller.health)
        if not found.can_serve:
            raise NotReady(f"model {request.name!r} is not ready: {found.reason}")
        return pb.ModelReadyResponse(ready=found.is_ready)

    async def server_metadata(self, request: pb.ServerMetadataRequest, context: Context) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(name="edged", version=__version__, extensions=EXTENSIONS)

    async def model_metadata(self, request: pb.ModelMetadataRequest, context: Context) -> pb.ModelMetadataResponse:
        planned = find(self._controller, request.name, request.version)
        model = await loaded(planned)
        versions = self._controller.catalogue.versions(model.entry.model)
        return pb.ModelMetadataResponse(
            name=model.entry.model,
            versions=sorted({each.version for each in versions}, key=int),
            platform=model_config.PLATFORM,
            inputs=_tensors((*model_config.clients_inputs(model), *model.inspection.optional)),
            outputs=_tensors(model_config.clients_outputs(model)),
        )

    async def model_config(self, request: pb.ModelConfigRequest, context: Context) -> pb.ModelConfigResponse:
        planned = find(self._controller, request.name, request.version)
        model = await loaded(planned)
        return pb.ModelConfigResponse(config=model_config.config_of(model, planned.slot.batching_policy))


def _tensors(specs: Iterable[TensorSpec]) -> list[pb.ModelMetadataResponse.TensorMetadata]:
    return [pb.ModelMetadataResponse.TensorMetadata(name=s.name, datatype=s.datatype, shape=s.dims) for s in specs]
