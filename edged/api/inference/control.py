"""The extension `model_repository`: which models there are, and loading and unloading them by command."""

from __future__ import annotations

from collections.abc import Mapping

from edged.api.grpc.rpc import Context, Service
from edged.engines.controller import Controller
from edged.engines.loader import READY
from edged.errors import InvalidInput, Unsupported
from edged.proto import open_inference_pb2 as pb

_FILE = "file:"
_UNLOAD = "unload_dependents"


class ControlHandlers:
    """RepositoryIndex, RepositoryModelLoad, RepositoryModelUnload."""

    def __init__(self, controller: Controller) -> None:
        self._loader = controller.loader

    def register(self, service: Service) -> None:
        service.unary("RepositoryIndex", pb.RepositoryIndexRequest, self.index)
        service.unary("RepositoryModelLoad", pb.RepositoryModelLoadRequest, self.load)
        service.unary("RepositoryModelUnload", pb.RepositoryModelUnloadRequest, self.unload)

    async def index(self, request: pb.RepositoryIndexRequest, context: Context) -> pb.RepositoryIndexResponse:
        _require_the_repository(request.repository_name)
        rows = [row for row in await self._loader.listed() if row.state == READY or not request.ready]
        model = pb.RepositoryIndexResponse.ModelIndex
        return pb.RepositoryIndexResponse(
            models=[model(name=row.name, version=row.version, state=row.state, reason=row.reason) for row in rows]
        )

    async def load(self, request: pb.RepositoryModelLoadRequest, context: Context) -> pb.RepositoryModelLoadResponse:
        """Answers once the model can; see `Loader.load` for what it does not."""
        _require_the_repository(request.repository_name)
        config, files = overrides(request.parameters)
        await self._loader.load(request.model_name, config, files)
        return pb.RepositoryModelLoadResponse()

    async def unload(
        self, request: pb.RepositoryModelUnloadRequest, context: Context
    ) -> pb.RepositoryModelUnloadResponse:
        """`unload_dependents` changes nothing: no model is made of others here."""
        _require_the_repository(request.repository_name)
        for name, parameter in request.parameters.items():
            if name != _UNLOAD:
                raise InvalidInput(f"to unload a model there is no parameter {name[:80]!r}, only {_UNLOAD}")
            _require(name, parameter, "bool_param")
        await self._loader.unload(request.model_name)
        return pb.RepositoryModelUnloadResponse()


def overrides(parameters: Mapping[str, pb.ModelRepositoryParameter]) -> tuple[str | None, dict[str, bytes]]:
    """The configuration, None where there is none, and the files by path. InvalidInput for any other parameter."""
    config: str | None = None
    files: dict[str, bytes] = {}
    for name, parameter in parameters.items():
        if name == "config":
            _require(name, parameter, "string_param")
            config = parameter.string_param
        elif name.startswith(_FILE):
            _require(name, parameter, "bytes_param")
            files[name.removeprefix(_FILE)] = parameter.bytes_param
        else:
            raise InvalidInput(f"to load a model there is no parameter {name[:80]!r}, only config and file:PATH")
    return config, files


def _require(name: str, parameter: pb.ModelRepositoryParameter, kind: str) -> None:
    given = parameter.WhichOneof("parameter_choice")
    if given != kind:
        raise InvalidInput(f"parameter {name[:80]!r} comes as {kind}, not as {given or 'nothing'}")


def _require_the_repository(name: str) -> None:
    if name:
        raise Unsupported(f"there is one folder of models, which has no name; leave repository_name {name[:80]!r} away")
