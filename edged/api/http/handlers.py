"""HTTP handlers: each turns a request into a message of gRPC, calls the method, and turns the answer into JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from google.protobuf.message import Message

from edged import decoding
from edged.api.endpoints import result_json
from edged.api.grpc import wire
from edged.api.grpc.cameras import CameraService
from edged.api.grpc.rpc import Context, Service
from edged.api.http import tensors
from edged.api.http.exchange import (
    JSON,
    OK,
    HttpRequest,
    HttpResponse,
    decode_base64,
    error_response,
    json_response,
    message_fields,
    offload,
    parse_json,
)
from edged.api.http.tensors import InferRequest
from edged.api.inference.infer import Caller, Inference
from edged.decoding import explain
from edged.errors import ErrorCode, InvalidImage, InvalidInput
from edged.proto import cameras_pb2 as camera_pb
from edged.proto import open_inference_pb2 as pb

Response = TypeVar("Response", bound=Message)
Inferred: TypeAlias = "tuple[pb.ModelInferResponse, tuple[bytes, ...]]"


class Calls:
    """The services of gRPC behind HTTP: the Open Inference Protocol by message, inference, and the cameras."""

    def __init__(self, service: Service, inference: Inference, cameras: CameraService) -> None:
        self.service, self._inference, self.cameras = service, inference, cameras

    async def __call__(self, http: HttpRequest, request: Message, response: type[Response]) -> Response:
        """Call the method that the request's type is named after. HTTP has no deadlines."""
        method = request.DESCRIPTOR.name.removesuffix("Request")
        return await self.service.call(method, request, response, Context(http.peer, tuple(http.headers.items())))

    async def infer(self, http: HttpRequest, request: InferRequest) -> Inferred:
        """The response of an inference, and the raw contents of each output."""
        (inferred,) = await self._inference.answer(
            wire.Request(request.message, request.raw), Caller(http.peer), _copied
        )
        return inferred


def _copied(message: pb.ModelInferResponse, raw: Sequence[wire.Contents]) -> Inferred:
    """Copy the contents: they are freed soon, and writing them as JSON may take longer than others can wait."""
    return message, tuple(map(bytes, raw))


_FILE = "file:"


class _Index(msgspec.Struct, frozen=True):
    ready: bool = False


class _Load(msgspec.Struct, frozen=True):
    parameters: dict[str, bool | int | str] = {}


async def live(calls: Calls, http: HttpRequest) -> HttpResponse:
    answer = await calls(http, pb.ServerLiveRequest(), pb.ServerLiveResponse)
    return OK if answer.live else _not_ready(ErrorCode.DAEMON_UNAVAILABLE, "the server is not live")


async def ready(calls: Calls, http: HttpRequest) -> HttpResponse:
    answer = await calls(http, pb.ServerReadyRequest(), pb.ServerReadyResponse)
    return OK if answer.ready else _not_ready(ErrorCode.MODEL_NOT_READY, "not every model can answer yet; ask again")


async def server(calls: Calls, http: HttpRequest) -> HttpResponse:
    return json_response(message_fields(await calls(http, pb.ServerMetadataRequest(), pb.ServerMetadataResponse)))


async def model(calls: Calls, http: HttpRequest, model: str, version: str = "") -> HttpResponse:
    request = pb.ModelMetadataRequest(name=model, version=version)
    return json_response(message_fields(await calls(http, request, pb.ModelMetadataResponse)))


async def model_ready(calls: Calls, http: HttpRequest, model: str, version: str = "") -> HttpResponse:
    request = pb.ModelReadyRequest(name=model, version=version)
    answer = await calls(http, request, pb.ModelReadyResponse)
    why = f"model {model!r} is not ready; the index says what exists"
    return OK if answer.ready else _not_ready(ErrorCode.MODEL_NOT_READY, why)


def _not_ready(code: ErrorCode, why: str) -> HttpResponse:
    return error_response(HTTPStatus.BAD_REQUEST, code, why)


async def config(calls: Calls, http: HttpRequest, model: str, version: str = "") -> HttpResponse:
    request = pb.ModelConfigRequest(name=model, version=version)
    return json_response(message_fields((await calls(http, request, pb.ModelConfigResponse)).config))


async def statistics(calls: Calls, http: HttpRequest, model: str = "", version: str = "") -> HttpResponse:
    request = pb.ModelStatisticsRequest(name=model, version=version)
    return json_response(message_fields(await calls(http, request, pb.ModelStatisticsResponse)))


async def index(calls: Calls, http: HttpRequest, repository: str = "") -> HttpResponse:
    wanted = parse_json(http.body, _Index, "the request")
    request = pb.RepositoryIndexRequest(repository_name=repository, ready=wanted.ready)
    answer = await calls(http, request, pb.RepositoryIndexResponse)
    rows = map(message_fields, answer.models)
    return json_response([{name: value for name, value in row.items() if value} for row in rows])


async def load(calls: Calls, http: HttpRequest, model: str, repository: str = "") -> HttpResponse:
    """Files are base64."""
    request = await offload(len(http.body), lambda: _load_request(http.body, repository, model))
    await calls(http, request, pb.RepositoryModelLoadResponse)
    return OK


async def unload(calls: Calls, http: HttpRequest, model: str, repository: str = "") -> HttpResponse:
    wanted = parse_json(http.body, _Load, "the request")
    request = pb.RepositoryModelUnloadRequest(repository_name=repository, model_name=model)
    for key, value in wanted.parameters.items():
        _set(request.parameters[key], key, value)
    await calls(http, request, pb.RepositoryModelUnloadResponse)
    return OK


def _load_request(body: bytes, repository: str, model: str) -> pb.RepositoryModelLoadRequest:
    wanted = parse_json(body, _Load, "the request")
    request = pb.RepositoryModelLoadRequest(repository_name=repository, model_name=model)
    for key, value in wanted.parameters.items():
        if key.startswith(_FILE):
            request.parameters[key].bytes_param = decode_base64(key, value)
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


class _Region(msgspec.Struct, frozen=True):
    key: str
    byte_size: int
    offset: int = 0


class _Handle(msgspec.Struct, frozen=True):
    b64: str = ""


class _CudaRegion(msgspec.Struct, frozen=True):
    raw_handle: _Handle
    byte_size: int
    device_id: int = 0


async def system_regions(calls: Calls, http: HttpRequest, region: str = "") -> HttpResponse:
    request = pb.SystemSharedMemoryStatusRequest(name=region)
    answer = await calls(http, request, pb.SystemSharedMemoryStatusResponse)
    return json_response([message_fields(answer.regions[name]) for name in sorted(answer.regions)])


async def register_system(calls: Calls, http: HttpRequest, region: str) -> HttpResponse:
    wanted = parse_json(http.body, _Region, "the region")
    request = pb.SystemSharedMemoryRegisterRequest(
        name=region,
        key=wanted.key,
        offset=_size("offset", wanted.offset),
        byte_size=_size("byte_size", wanted.byte_size),
    )
    await calls(http, request, pb.SystemSharedMemoryRegisterResponse)
    return OK


async def unregister_system(calls: Calls, http: HttpRequest, region: str = "") -> HttpResponse:
    request = pb.SystemSharedMemoryUnregisterRequest(name=region)
    await calls(http, request, pb.SystemSharedMemoryUnregisterResponse)
    return OK


async def cuda_regions(calls: Calls, http: HttpRequest, region: str = "") -> HttpResponse:
    request = pb.CudaSharedMemoryStatusRequest(name=region)
    answer = await calls(http, request, pb.CudaSharedMemoryStatusResponse)
    return json_response([message_fields(answer.regions[name]) for name in sorted(answer.regions)])


async def register_cuda(calls: Calls, http: HttpRequest, region: str) -> HttpResponse:
    wanted = parse_json(http.body, _CudaRegion, "the region")
    request = pb.CudaSharedMemoryRegisterRequest(
        name=region,
        raw_handle=decode_base64("raw_handle", wanted.raw_handle.b64),
        device_id=_size("device_id", wanted.device_id),
        byte_size=_size("byte_size", wanted.byte_size),
    )
    await calls(http, request, pb.CudaSharedMemoryRegisterResponse)
    return OK


async def unregister_cuda(calls: Calls, http: HttpRequest, region: str = "") -> HttpResponse:
    request = pb.CudaSharedMemoryUnregisterRequest(name=region)
    await calls(http, request, pb.CudaSharedMemoryUnregisterResponse)
    return OK


async def trace(calls: Calls, http: HttpRequest, model: str = "") -> HttpResponse:
    """Null resets a setting to its value from before it was set."""
    request = pb.TraceSettingRequest(model_name=model)
    if http.method == "POST":
        wanted = parse_json(http.body, dict[str, list[str] | str | int | None], "the trace settings")
        for name, value in wanted.items():
            words = [] if value is None else value if isinstance(value, list) else [str(value)]
            request.settings[name].value.extend(words)
    answer = await calls(http, request, pb.TraceSettingResponse)
    return json_response({name: _words(name, list(answer.settings[name].value)) for name in sorted(answer.settings)})


async def logging(calls: Calls, http: HttpRequest) -> HttpResponse:
    request = pb.LogSettingsRequest()
    if http.method == "POST":
        wanted = parse_json(http.body, dict[str, bool | int | str], "the log settings")
        for name, value in wanted.items():
            if isinstance(value, bool):
                request.settings[name].bool_param = value
            elif isinstance(value, str):
                request.settings[name].string_param = value
            else:
                request.settings[name].uint32_param = _size(name, value, 32)
    answer = await calls(http, request, pb.LogSettingsResponse)
    choices = {name: next(iter(message_fields(answer.settings[name]).values()), "") for name in sorted(answer.settings)}
    return json_response(choices)


def _words(name: str, words: list[str]) -> list[str] | str:
    """Trace levels are a list, other settings one word."""
    return words[0] if name != "trace_level" and len(words) == 1 else words


def _size(key: str, value: int, bits: int = 63) -> int:
    if not 0 <= value < 1 << bits:
        raise InvalidInput(f"{key[:60]!r} is not a number from 0 to 2**{bits}")
    return value


# curl's default for --data-binary says nothing about the body.
_UNTYPED = ("", "application/octet-stream", "application/x-www-form-urlencoded")
_PICTURES = (*_UNTYPED, "image/jpeg", "image/jpg", "image/png")
_Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class _Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The query: fields of `edged.v1.Frame` by the same names, the region as X,Y,WIDTH,HEIGHT."""

    camera: str = ""
    score: float | None = None
    iou: float | None = None
    max_detections: _Size | None = None
    class_agnostic: bool | None = None
    rotation: _Size = 0
    region: str = ""


async def detect(calls: Calls, http: HttpRequest, model: str = "") -> HttpResponse:
    """Detect in the image of the body. Raw outputs are described without their bytes."""
    delivery = await calls.cameras.answer(frame_of(http, model))
    echo = result_json.Echo(delivery.camera, 0, delivery.tag.model)
    text = result_json.encode(result_json.delivered(echo, delivery))
    return HttpResponse(parts=(text,), headers=(("content-type", JSON),))


def frame_of(http: HttpRequest, model: str) -> camera_pb.Frame:
    """The frame of a request. InvalidImage; InvalidInput for an unknown name in the query."""
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _PICTURES:
        raise InvalidImage(f"content-type {kind[:60]!r} is not an image; send a JPEG or PNG with curl's --data-binary")
    if not http.body:
        raise InvalidImage("the request holds no image; send a JPEG or PNG with curl's --data-binary")
    said = _query(http.query)
    frame = camera_pb.Frame(model=model, camera=said.camera, encoded=http.body, rotation=said.rotation)
    limits = {name: getattr(said, name) for name in ("score", "iou", "max_detections", "class_agnostic")}
    given = {name: value for name, value in limits.items() if value is not None}
    if given:
        frame.thresholds.MergeFrom(camera_pb.Thresholds(**given))
    if said.region:
        frame.region.MergeFrom(_region(said.region))
    return frame


def _query(query: Mapping[str, str]) -> _Query:
    try:
        return msgspec.convert(query, decoding.ready(_Query), strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"invalid query: {explain(error, _Query.__struct_fields__)}") from None


def _region(text: str) -> camera_pb.Region:
    numbers = text.split(",")
    if len(numbers) != 4 or not all(each.isascii() and each.isdecimal() and len(each) < 10 for each in numbers):
        raise InvalidInput(f"region {text[:60]!r} is not X,Y,WIDTH,HEIGHT in pixels")
    x, y, width, height = map(int, numbers)
    return camera_pb.Region(x=x, y=y, width=width, height=height)


async def infer(calls: Calls, http: HttpRequest, model: str, version: str = "") -> HttpResponse:
    length = _header_length(http)
    if length == 0:
        request = pb.ModelMetadataRequest(name=model, version=version)
        metadata = await calls(http, request, pb.ModelMetadataResponse)
        if len(metadata.inputs) > 1:
            wanted = pb.ModelConfigRequest(name=model, version=version)
            config = (await calls(http, wanted, pb.ModelConfigResponse)).config
            metadata = tensors.without_optional(metadata, config)
        asked = tensors.raw_request(model, version, metadata, http.body)
    else:
        json_size = len(http.body) if length is None else length
        asked = await offload(json_size, lambda: tensors.read(model, version, http.body, length))
    message, raw = await calls.infer(http, asked)
    text = sum(
        len(data) for output, data in zip(message.outputs, raw, strict=True) if not asked.format.is_binary(output.name)
    )
    return await offload(text, lambda: tensors.write(message, raw, asked.format))


def _header_length(http: HttpRequest) -> int | None:
    text = http.headers.get(tensors.HEADER_LENGTH)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise InvalidInput(f"header {tensors.HEADER_LENGTH} is {text[:40]!r}; give the bytes of the JSON")
    return int(text)
