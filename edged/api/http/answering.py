"""From a request to its answer: who may ask, what is asked for, which handler tells, and what becomes of its errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus

from edged.api.grpc.cameras import CameraService
from edged.api.grpc.status import describe, error_code, http_of
from edged.api.http import access, administration, models, pictures, routes, tensors
from edged.api.http.access import HttpGuard
from edged.api.http.aside import aside
from edged.api.http.calls import Calls
from edged.api.http.exchange import Answer, Ask, failed
from edged.api.http.routes import Route
from edged.errors import ClientLimited, EdgedError, ErrorCode, Forbidden, InvalidInput, Unauthenticated
from edged.proto import open_inference_pb2 as pb


class Answering:
    """Answers requests by the handlers of the inference service and of the cameras'."""

    def __init__(self, calls: Calls, cameras: CameraService, guard: HttpGuard) -> None:
        self._calls, self._cameras, self._guard = calls, cameras, guard

    def refusal(self, ask: Ask) -> Answer | None:
        """The answer to what goes nowhere or may not be asked, from its head alone; None for the rest."""
        why = access.refusal(ask.headers, ask.peer)
        if why is not None:
            return failed(HTTPStatus.FORBIDDEN, ErrorCode.PERMISSION_DENIED, why)
        route = routes.find(ask.method, ask.path)
        if isinstance(route, Answer):
            return route
        try:
            self._guard.admit(route, ask)
        except EdgedError as error:
            return access.refused(error)
        return None

    async def answer(self, ask: Ask) -> Answer:
        """The answer to a request that is not refused, also where that is an error."""
        try:
            route = routes.find(ask.method, ask.path)
            if isinstance(route, Answer):
                return route
            return await self._guard.carry(route, ask, lambda: self._ask(route, ask))
        except (Unauthenticated, Forbidden, ClientLimited) as error:
            return access.refused(error)
        except Exception as error:
            return failure(error)

    async def _ask(self, route: Route, ask: Ask) -> Answer:
        calls, names = self._calls, route.names
        model, version = names.get("model", ""), names.get("version", "")
        repository, region = names.get("repository", ""), names.get("region", "")
        if route.what == "infer":
            return await self._infer(ask, model, version)
        others: dict[str, Callable[[], Awaitable[Answer]]] = {
            "detect": lambda: pictures.detect(self._cameras, ask, model),
            "server": lambda: models.server(calls, ask),
            "live": lambda: models.live(calls, ask),
            "ready": lambda: models.ready(calls, ask),
            "model": lambda: models.model(calls, ask, model, version),
            "model_ready": lambda: models.model_ready(calls, ask, model, version),
            "config": lambda: models.config(calls, ask, model, version),
            "statistics": lambda: models.statistics(calls, ask, model, version),
            "index": lambda: models.index(calls, ask, repository),
            "load": lambda: models.load(calls, ask, repository, model),
            "unload": lambda: models.unload(calls, ask, repository, model),
            "system_regions": lambda: administration.system_regions(calls, ask, region),
            "register_system": lambda: administration.register_system(calls, ask, region),
            "unregister_system": lambda: administration.unregister_system(calls, ask, region),
            "cuda_regions": lambda: administration.cuda_regions(calls, ask, region),
            "register_cuda": lambda: administration.register_cuda(calls, ask, region),
            "unregister_cuda": lambda: administration.unregister_cuda(calls, ask, region),
            "trace": lambda: administration.trace(calls, ask, model),
            "logging": lambda: administration.logging(calls, ask),
        }
        return await others[route.what]()

    async def _infer(self, ask: Ask, model: str, version: str) -> Answer:
        length = _header_length(ask)
        if length == 0:
            request = pb.ModelMetadataRequest(name=model, version=version)
            metadata = await self._calls(ask, "ModelMetadata", request, pb.ModelMetadataResponse)
            if len(metadata.inputs) > 1:
                wanted = pb.ModelConfigRequest(name=model, version=version)
                config = (await self._calls(ask, "ModelConfig", wanted, pb.ModelConfigResponse)).config
                metadata = tensors.without_optional(metadata, config)
            asked = tensors.raw_request(model, version, metadata, ask.body)
        else:
            json_size = len(ask.body) if length is None else length
            asked = await aside(json_size, lambda: tensors.read(model, version, ask.body, length))
        message, raw = await self._calls.infer(ask, asked)
        text = sum(
            len(data)
            for output, data in zip(message.outputs, raw, strict=True)
            if not asked.wish.is_binary(output.name)
        )
        return await aside(text, lambda: tensors.write(message, raw, asked.wish))


def failure(error: Exception) -> Answer:
    """The answer to a request that failed."""
    code, message = describe(error)
    return failed(http_of(code, error), error_code(error), message)


def _header_length(ask: Ask) -> int | None:
    text = ask.headers.get(tensors.HEADER_LENGTH)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise InvalidInput(f"header {tensors.HEADER_LENGTH} is {text[:40]!r}; give the bytes of the JSON")
    return int(text)
