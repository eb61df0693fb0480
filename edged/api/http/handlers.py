"""HTTP handlers: each converts a request to a gRPC message, calls the method, and converts the response to JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from google.protobuf.message import Message

from edged import decoding
from edged.api.endpoints.publisher import Echo, delivered, encode
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
from edged.api.inference.infer import Inference
from edged.api.inference.requests import Caller
from edged.api.language.service import LanguageService
from edged.decoding import explain
from edged.errors import ErrorCode, InvalidImage, InvalidInput
from edged.proto import cameras_pb2 as camera_pb
from edged.proto import open_inference_pb2 as pb

Response = TypeVar("Response", bound=Message)
Inferred: TypeAlias = "tuple[pb.ModelInferResponse, tuple[bytes, ...]]"


class Calls:
    """The gRPC services that are also reached over HTTP: the Open Inference Protocol, cameras, and language models."""

    def __init__(
        self, service: Service, inference: Inference, cameras: CameraService, language: LanguageService
    ) -> None:
        self.service, self._inference, self.cameras, self.language = service, inference, cameras, language

    async def __call__(self, http: HttpRequest, request: Message, response: type[Response]) -> Response:
        """Call the method that the type of `request` belongs to. The call has no deadline, because HTTP has none."""
        method = request.DESCRIPTOR.name.removesuffix("Request")
        return await self.service.call(method, request, response, Context(http.peer, tuple(http.headers.items())))

    async def infer(self, http: HttpRequest, request: InferRequest) -> Inferred:
        """Return the response of an inference, and the raw contents of each output."""
        asked = wire.Request(request.message, request.raw, request.message.id)
        (inferred,) = await self._inference.answer(asked, Caller(http.peer), _copied)
        return inferred


def _copied(message: pb.ModelInferResponse, raw: Sequence[wire.Contents]) -> Inferred:
    """Return the response with copies of its contents. Writing the contents as JSON may take long, and their shared
    memory is needed for other answers soon."""
    return message, tuple(map(bytes, raw))


# -- methods with small messages ---------------------------------------------------------------------------------------


def _ignore(request: Any, http: HttpRequest) -> None:
    """Ignore the body."""


def _as_json(request: Any, response: Message) -> HttpResponse:
    return json_response(message_fields(response))


def _done(request: Any, response: Any) -> HttpResponse:
    return OK


def _not_ready(code: ErrorCode, why: str) -> HttpResponse:
    return error_response(HTTPStatus.BAD_REQUEST, code, why)


def _live(request: Any, response: pb.ServerLiveResponse) -> HttpResponse:
    return OK if response.live else _not_ready(ErrorCode.DAEMON_UNAVAILABLE, "the server is not live")


def _ready(request: Any, response: pb.ServerReadyResponse) -> HttpResponse:
    return OK if response.ready else _not_ready(ErrorCode.MODEL_NOT_READY, "not every model can answer yet; try again")


def _model_ready(request: pb.ModelReadyRequest, response: pb.ModelReadyResponse) -> HttpResponse:
    why = f"model {request.name!r} is not ready; POST v2/repository/index lists all models"
    return OK if response.ready else _not_ready(ErrorCode.MODEL_NOT_READY, why)


def _config(request: Any, response: pb.ModelConfigResponse) -> HttpResponse:
    return json_response(message_fields(response.config))


class IndexBody(msgspec.Struct, frozen=True):
    ready: bool = False


def _fill_index(request: pb.RepositoryIndexRequest, http: HttpRequest) -> None:
    request.ready = parse_json(http.body, IndexBody, "the request").ready


def _index(request: Any, response: pb.RepositoryIndexResponse) -> HttpResponse:
    rows = map(message_fields, response.models)
    return json_response([{name: value for name, value in row.items() if value} for row in rows])


class LoadBody(msgspec.Struct, frozen=True):
    parameters: dict[str, bool | int | str] = {}


def _fill_load(request: Any, http: HttpRequest) -> None:
    """Set the parameters of loading or unloading a model. Files are base64."""
    for key, value in parse_json(http.body, LoadBody, "the request").parameters.items():
        parameter = request.parameters[key]
        if key.startswith("file:") and isinstance(request, pb.RepositoryModelLoadRequest):
            parameter.bytes_param = decode_base64(key, value)
        elif isinstance(value, bool):
            parameter.bool_param = value
        elif isinstance(value, str):
            parameter.string_param = value
        elif -(1 << 63) <= value < 1 << 63:
            parameter.int64_param = value
        else:
            raise InvalidInput(f"parameter {key[:60]!r} does not fit 64 bits")


class RegionBody(msgspec.Struct, frozen=True):
    key: str
    byte_size: int
    offset: int = 0


class CudaHandleBody(msgspec.Struct, frozen=True):
    b64: str = ""


class CudaRegionBody(msgspec.Struct, frozen=True):
    raw_handle: CudaHandleBody
    byte_size: int
    device_id: int = 0


def _fill_region(request: pb.SystemSharedMemoryRegisterRequest, http: HttpRequest) -> None:
    found = parse_json(http.body, RegionBody, "the region")
    request.key, request.offset = found.key, _size("offset", found.offset)
    request.byte_size = _size("byte_size", found.byte_size)


def _fill_cuda_region(request: pb.CudaSharedMemoryRegisterRequest, http: HttpRequest) -> None:
    found = parse_json(http.body, CudaRegionBody, "the region")
    request.raw_handle = decode_base64("raw_handle", found.raw_handle.b64)
    request.device_id, request.byte_size = _size("device_id", found.device_id), _size("byte_size", found.byte_size)


def _regions(request: Any, response: Any) -> HttpResponse:
    return json_response([message_fields(response.regions[name]) for name in sorted(response.regions)])


def _fill_trace(request: pb.TraceSettingRequest, http: HttpRequest) -> None:
    """Set the trace settings. Null resets a setting. A model's setting is reset to the global value, and a global
    setting is reset to its default."""
    if http.method == "POST":
        for name, value in parse_json(http.body, dict[str, list[str] | str | int | None], "the trace settings").items():
            words = [] if value is None else value if isinstance(value, list) else [str(value)]
            request.settings[name].value.extend(words)


def _trace(request: Any, response: pb.TraceSettingResponse) -> HttpResponse:
    """Return the trace settings. The value of trace_level is a list; a single value of another setting is a string."""
    found = {name: list(response.settings[name].value) for name in sorted(response.settings)}
    is_list = {name: name == "trace_level" or len(words) != 1 for name, words in found.items()}
    return json_response({name: words if is_list[name] else words[0] for name, words in found.items()})


def _fill_logging(request: pb.LogSettingsRequest, http: HttpRequest) -> None:
    if http.method == "POST":
        for name, value in parse_json(http.body, dict[str, bool | int | str], "the log settings").items():
            setting = request.settings[name]
            if isinstance(value, bool):
                setting.bool_param = value
            elif isinstance(value, str):
                setting.string_param = value
            else:
                setting.uint32_param = _size(name, value, 32)


def _logging(request: Any, response: pb.LogSettingsResponse) -> HttpResponse:
    settings = response.settings
    return json_response({name: next(iter(message_fields(settings[name]).values()), "") for name in sorted(settings)})


def _size(key: str, value: int, bits: int = 63) -> int:
    if not 0 <= value < 1 << bits:
        raise InvalidInput(f"{key[:60]!r} must be a number from 0 to 2**{bits} - 1")
    return value


Conversion: TypeAlias = tuple[Callable[[Any, HttpRequest], None], Callable[[Any, Any], HttpResponse]]
_USUAL: Conversion = (_ignore, _as_json)
# Functions that fill a method's message from a request's body, and convert its response; other methods use _USUAL.
_CONVERSIONS: dict[str, Conversion] = {
    "ServerLive": (_ignore, _live),
    "ServerReady": (_ignore, _ready),
    "ModelReady": (_ignore, _model_ready),
    "ModelConfig": (_ignore, _config),
    "RepositoryIndex": (_fill_index, _index),
    "RepositoryModelLoad": (_fill_load, _done),
    "RepositoryModelUnload": (_fill_load, _done),
    "SystemSharedMemoryStatus": (_ignore, _regions),
    "SystemSharedMemoryRegister": (_fill_region, _done),
    "SystemSharedMemoryUnregister": (_ignore, _done),
    "CudaSharedMemoryStatus": (_ignore, _regions),
    "CudaSharedMemoryRegister": (_fill_cuda_region, _done),
    "CudaSharedMemoryUnregister": (_ignore, _done),
    "TraceSetting": (_fill_trace, _trace),
    "LogSettings": (_fill_logging, _logging),
}


async def by_message(calls: Calls, http: HttpRequest, method: str, names: Mapping[str, str]) -> HttpResponse:
    """Call a method with small messages. `names` are the variable parts of the path. Each part becomes a field of the
    message. For example, the part `model` becomes the field `model`, `model_name` or `name`: the first of these that
    the message has."""
    kind = getattr(pb, f"{method}Request")
    known = kind.DESCRIPTOR.fields_by_name
    fill, answer = _CONVERSIONS.get(method, _USUAL)
    request = kind()
    for name, value in names.items():
        setattr(request, next(each for each in (name, f"{name}_name", "name") if each in known), value)
    await offload(len(http.body), lambda: fill(request, http))
    return answer(request, await calls(http, request, Message))


# -- methods with pictures and tensors ---------------------------------------------------------------------------------

# The content types of bodies without a declared type: curl's --data-binary sends the last of these by default.
_UNTYPED = ("", "application/octet-stream", "application/x-www-form-urlencoded")
_PICTURES = (*_UNTYPED, "image/jpeg", "image/jpg", "image/png")
_Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class DetectQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The query: fields named as in `edged.v1.Frame`, the region as X,Y,WIDTH,HEIGHT."""

    camera: str = ""
    score: float | None = None
    iou: float | None = None
    max_detections: _Size | None = None
    class_agnostic: bool | None = None
    rotation: _Size = 0
    region: str = ""


async def detect(calls: Calls, http: HttpRequest, model: str = "") -> HttpResponse:
    """Return the model's answer to the image in the body, as JSON. Of raw outputs, the answer has only descriptions."""
    delivery = await calls.cameras.answer(frame_of(http, model))
    text = encode(delivered(Echo(delivery.camera, 0, delivery.tag.model), delivery))
    return HttpResponse(parts=(text,), headers=(("content-type", JSON),))


def frame_of(http: HttpRequest, model: str) -> wire.FrameRequest:
    """Return the frame of a request, whose body is the picture. Raises InvalidImage, or InvalidInput for the query."""
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _PICTURES:
        raise InvalidImage(f"content-type {kind[:60]!r} is not an image; send a JPEG or PNG with curl's --data-binary")
    if not http.body:
        raise InvalidImage("the request holds no image; send a JPEG or PNG with curl's --data-binary")
    query = _query(http.query)
    frame = camera_pb.Frame(model=model, camera=query.camera, encoded=b"", rotation=query.rotation)
    for name in ("score", "iou", "max_detections", "class_agnostic"):
        if (value := getattr(query, name)) is not None:
            setattr(frame.thresholds, name, value)
    if query.region:
        frame.region.MergeFrom(_region(query.region))
    return wire.FrameRequest(frame, http.body)


def _query(query: Mapping[str, str]) -> DetectQuery:
    try:
        return msgspec.convert(query, decoding.ready(DetectQuery), strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"invalid query: {explain(error, DetectQuery.__struct_fields__)}") from None


def _region(text: str) -> camera_pb.Region:
    numbers = text.split(",")
    if len(numbers) != 4 or not all(each.isascii() and each.isdecimal() and len(each) < 10 for each in numbers):
        raise InvalidInput(f"invalid region {text[:60]!r}; give X,Y,WIDTH,HEIGHT in pixels")
    x, y, width, height = map(int, numbers)
    return camera_pb.Region(x=x, y=y, width=width, height=height)


async def infer(calls: Calls, http: HttpRequest, model: str, version: str = "") -> HttpResponse:
    length = _header_length(http)
    if length == 0:
        metadata = await calls(http, pb.ModelMetadataRequest(name=model, version=version), pb.ModelMetadataResponse)
        inputs = list(metadata.inputs)
        if len(inputs) > 1:  # the configuration says which inputs are optional
            wanted = pb.ModelConfigRequest(name=model, version=version)
            config = (await calls(http, wanted, pb.ModelConfigResponse)).config
            optional = {each.name for each in config.input if each.optional}
            inputs = [each for each in inputs if each.name not in optional]
        asked = tensors.raw_request(model, version, inputs, http.body)
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
        raise InvalidInput(f"header {tensors.HEADER_LENGTH!r} is {text[:40]!r}; give the size of the JSON in bytes")
    return int(text)
