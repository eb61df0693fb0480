"""Health, metadata, configurations, statistics, and the repository: from HTTP to gRPC's messages and back."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from edged.api.http.aside import aside
from edged.api.http.calls import Calls
from edged.api.http.exchange import DONE, Answer, Ask, decoded, failed, told, wanted
from edged.api.http.plain import fields
from edged.errors import ErrorCode, InvalidInput
from edged.proto import open_inference_pb2 as pb

_FILE = "file:"


class _Index(msgspec.Struct, frozen=True):
    ready: bool = False


class _Load(msgspec.Struct, frozen=True):
    parameters: dict[str, bool | int | str] = {}


async def live(calls: Calls, ask: Ask) -> Answer:
    answer = await calls(ask, "ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse)
    return (
        DONE if answer.live else failed(HTTPStatus.BAD_REQUEST, ErrorCode.DAEMON_UNAVAILABLE, "the server is not live")
    )


async def ready(calls: Calls, ask: Ask) -> Answer:
    answer = await calls(ask, "ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse)
    if answer.ready:
        return DONE
    return failed(HTTPStatus.BAD_REQUEST, ErrorCode.MODEL_NOT_READY, "not every model can answer yet; ask again")


async def server(calls: Calls, ask: Ask) -> Answer:
    return told(fields(await calls(ask, "ServerMetadata", pb.ServerMetadataRequest(), pb.ServerMetadataResponse)))


async def model(calls: Calls, ask: Ask, model: str, version: str) -> Answer:
    request = pb.ModelMetadataRequest(name=model, version=version)
    return told(fields(await calls(ask, "ModelMetadata", request, pb.ModelMetadataResponse)))


async def model_ready(calls: Calls, ask: Ask, model: str, version: str) -> Answer:
    request = pb.ModelReadyRequest(name=model, version=version)
    answer = await calls(ask, "ModelReady", request, pb.ModelReadyResponse)
    why = f"model {model!r} is not ready; the index says what exists"
    return DONE if answer.ready else failed(HTTPStatus.BAD_REQUEST, ErrorCode.MODEL_NOT_READY, why)


async def config(calls: Calls, ask: Ask, model: str, version: str) -> Answer:
    request = pb.ModelConfigRequest(name=model, version=version)
    return told(fields((await calls(ask, "ModelConfig", request, pb.ModelConfigResponse)).config))


async def statistics(calls: Calls, ask: Ask, model: str, version: str) -> Answer:
    request = pb.ModelStatisticsRequest(name=model, version=version)
    return told(fields(await calls(ask, "ModelStatistics", request, pb.ModelStatisticsResponse)))


async def index(calls: Calls, ask: Ask, repository: str) -> Answer:
    said = wanted(ask.body, _Index, "the request")
    request = pb.RepositoryIndexRequest(repository_name=repository, ready=said.ready)
    answer = await calls(ask, "RepositoryIndex", request, pb.RepositoryIndexResponse)
    return told([{name: value for name, value in fields(each).items() if value} for each in answer.models])


async def load(calls: Calls, ask: Ask, repository: str, model: str) -> Answer:
    """Files come as base64."""
    request = await aside(len(ask.body), lambda: _load_request(ask.body, repository, model))
    await calls(ask, "RepositoryModelLoad", request, pb.RepositoryModelLoadResponse)
    return DONE


async def unload(calls: Calls, ask: Ask, repository: str, model: str) -> Answer:
    said = wanted(ask.body, _Load, "the request")
    request = pb.RepositoryModelUnloadRequest(repository_name=repository, model_name=model)
    for key, value in said.parameters.items():
        _set(request.parameters[key], key, value)
    await calls(ask, "RepositoryModelUnload", request, pb.RepositoryModelUnloadResponse)
    return DONE


def _load_request(body: bytes, repository: str, model: str) -> pb.RepositoryModelLoadRequest:
    said = wanted(body, _Load, "the request")
    request = pb.RepositoryModelLoadRequest(repository_name=repository, model_name=model)
    for key, value in said.parameters.items():
        if key.startswith(_FILE):
            request.parameters[key].bytes_param = decoded(key, value)
        else:
            _set(request.parameters[key], key, value)
    return request


def _set(parameter: pb.ModelRepositoryParameter, key: str, value: bool | int | str) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, str):
        parameter.string_param = value
    elif -(1 << 63) <= value < 1 << 63:
        parameter.int64_param = value
    else:
        raise InvalidInput(f"parameter {key[:60]!r} does not fit 64 bits")
