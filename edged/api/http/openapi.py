"""The OpenAPI document of the HTTP API: paths from the table of routes, schemas from the types of the bodies.

Format: https://spec.openapis.org/oas/v3.1.0
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypedDict

import msgspec
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from edged.api.auth import policy
from edged.api.http import handlers, tensors
from edged.api.http.exchange import JSON
from edged.api.language.openai_requests import ChatBody, CompletionBody
from edged.errors import ErrorCode
from edged.proto import model_config_pb2 as config_pb
from edged.proto import open_inference_pb2 as pb
from edged.version import __version__
from edged.vision.roboflow import RoboflowImage, RoboflowPrediction

Schema = dict[str, Any]

_REFERENCE = "#/components/schemas/{name}"
_TEXTS: Schema = {"type": "object", "additionalProperties": {"type": ["string", "boolean", "integer"]}}
_TRACE: Schema = {
    "type": "object",
    "additionalProperties": {"type": ["string", "integer", "null", "array"], "items": {"type": "string"}},
}


_OBJECT: Schema = {"type": "object"}


class Error(TypedDict):
    """One line that says what happened, and a code of docs/errors.md."""

    error: str
    code: ErrorCode


class _OutputOptional(TypedDict, total=False):
    data: list[Any]
    parameters: tensors.Parameters


class OutputTensor(_OutputOptional):
    """An output. Without `data`, its contents are raw bytes after the JSON, or in shared memory."""

    name: str
    datatype: str
    shape: list[int]


class _InferOptional(TypedDict, total=False):
    id: str
    parameters: tensors.Parameters


class InferAnswer(_InferOptional):
    model_name: str
    model_version: str
    outputs: list[OutputTensor]


class OutputDescription(TypedDict):
    name: str
    datatype: str
    shape: list[int]


class Timings(TypedDict):
    queue_ms: float
    decode_ms: float
    prepare_ms: float
    infer_ms: float
    postprocess_ms: float
    total_ms: float


ClassPrediction = TypedDict("ClassPrediction", {"class": str, "class_id": int, "confidence": float})


class SecondStep(TypedDict):
    """The second step of a pipeline. In each prediction that was cropped, the field `nested` has the second model's
    answer."""

    model: str
    engine: str
    backend: str
    crops: int
    left_out: int
    timings: Timings


class _DetectOptional(TypedDict, total=False):
    predictions: list[Any]
    top: str
    outputs: list[OutputDescription]
    second: SecondStep


class DetectAnswer(_DetectOptional):
    """Detections, classes (`top` is the best), or, for other models, a description of the outputs."""

    camera: str
    model: str
    sequence: int
    captured_unix_ns: int
    received_unix_ns: int
    age_ms: float
    skipped: int
    skips: list[dict[str, Any]]
    timings: Timings
    engine: str
    backend: str
    image: RoboflowImage


class _Operation(NamedTuple):
    """One operation. `body` and `answer` are a type, a message or a schema, or None; `rows`: the answer is a list."""

    summary: str
    answer: Any = None
    body: Any = None
    rows: bool = False


_OPERATIONS: Final[Mapping[str, _Operation]] = {
    "ServerMetadata": _Operation("Name, version and extensions of the server", pb.ServerMetadataResponse),
    "ServerLive": _Operation("Status 200 while the server runs"),
    "ServerReady": _Operation("Status 200 if every model can answer, otherwise 400"),
    "ModelStatistics": _Operation("Counts and times of one model, or of all", pb.ModelStatisticsResponse),
    "ModelMetadata": _Operation("Inputs and outputs of a model", pb.ModelMetadataResponse),
    "ModelReady": _Operation("Status 200 if the model can answer, otherwise 400 or 503"),
    "ModelConfig": _Operation("The configuration of a model, as in Triton's config.pbtxt", config_pb.ModelConfig),
    "ModelInfer": _Operation("Inference on tensors", InferAnswer, tensors.InferBody),
    "TraceSetting": _Operation("Trace settings; POST changes them", _TRACE, _TRACE),
    "LogSettings": _Operation("Log settings; POST changes them", _TEXTS, _TEXTS),
    "RepositoryIndex": _Operation(
        "All models and their state", pb.RepositoryIndexResponse.ModelIndex, handlers.IndexBody, True
    ),
    "RepositoryModelLoad": _Operation("Load a model, or add one from its files", None, handlers.LoadBody),
    "RepositoryModelUnload": _Operation("Unload a model", None, handlers.LoadBody),
    "SystemSharedMemoryStatus": _Operation(
        "Regions of shared memory", pb.SystemSharedMemoryStatusResponse.RegionStatus, None, True
    ),
    "SystemSharedMemoryRegister": _Operation("Register a region of shared memory", None, handlers.RegionBody),
    "SystemSharedMemoryUnregister": _Operation("Unregister one region of shared memory, or all"),
    "CudaSharedMemoryStatus": _Operation(
        "Regions of CUDA memory", pb.CudaSharedMemoryStatusResponse.RegionStatus, None, True
    ),
    "CudaSharedMemoryRegister": _Operation("Register a region of CUDA memory", None, handlers.CudaRegionBody),
    "CudaSharedMemoryUnregister": _Operation("Unregister one region of CUDA memory, or all"),
    "DetectOne": _Operation("Detections in a JPEG or PNG", DetectAnswer),
    "LanguageModels": _Operation("The language models, as in OpenAI's protocol", _OBJECT),
    "Chat": _Operation("An answer to messages, as in OpenAI's protocol; events with `stream`", _OBJECT, ChatBody),
    "Complete": _Operation("The continuation of a prompt, as in OpenAI's protocol", _OBJECT, CompletionBody),
}
_TAGS = {"DetectOne": "Detection", "LanguageModels": "Language", "Chat": "Language", "Complete": "Language"}


def document(table: Sequence[tuple[str, tuple[str, ...], str]], rpcs: Mapping[str, str]) -> Schema:
    """Return the document of a table of routes. A row of the table is a gRPC method, the HTTP methods, and a path with
    {names} and [optional parts]. `rpcs` are the paths in gRPC of methods outside the Open Inference Protocol."""
    types, schemas = _types()
    paths: dict[str, Schema] = {}
    for rpc, methods, template in table:
        variants = list(_variants(template))
        common = set(_names(variants[0]))
        for path in variants:
            extra = "".join(name.capitalize() for name in _names(path) if name not in common)
            for method in methods:
                name = ("Set" if len(methods) > 1 and method == "POST" else "") + rpc
                each = _operation(rpc, method, path, types, rpcs)
                each["operationId"] = name + (f"Of{extra}" if extra else "")
                paths.setdefault(f"/{path}", {})[method.lower()] = each
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "edged over HTTP",
            "version": __version__,
            "description": "The Open Inference Protocol with Triton's extensions, detection in pictures, and OpenAI's"
            " protocol for language models.",
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {"Error": _response("An error", types[Error])},
        },
    }


def _types() -> tuple[dict[Any, Schema], Schema]:
    """Return a schema for each type that operations take or return, and the named schemas that these refer to."""
    named: Schema = {}
    found: dict[Any, Schema] = {}
    wanted: list[Any] = [Error]
    for operation in _OPERATIONS.values():
        for each in (operation.body, operation.answer):
            if isinstance(each, type) and issubclass(each, Message):
                found[each] = _message(each.DESCRIPTOR, named)
            elif isinstance(each, type):
                wanted.append(each)
    kinds = (RoboflowPrediction, ClassPrediction)  # items of one list; Python's types cannot express this union
    (*references, first, second), schemas = msgspec.json.schema_components((*wanted, *kinds), ref_template=_REFERENCE)
    schemas["DetectAnswer"]["properties"]["predictions"]["items"] = {"anyOf": [first, second]}
    return found | dict(zip(wanted, references, strict=True)), named | schemas


def _message(message: Any, named: Schema) -> Schema:
    """Return the schema of a message as `message_fields` writes it."""
    name = message.full_name.partition(".")[2]
    if name not in named:
        named[name] = {"type": "object"}
        fields = message.fields
        named[name]["properties"] = {field.name: _field(field, named) for field in fields}
        # The repository index leaves out empty fields, so none of its fields is required.
        if message is not pb.RepositoryIndexResponse.ModelIndex.DESCRIPTOR:
            named[name]["required"] = [field.name for field in fields if not field.has_presence]
    return {"$ref": _REFERENCE.format(name=name)}


def _field(field: FieldDescriptor, named: Schema) -> Schema:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return {"type": "object", "additionalProperties": _single(field.message_type.fields_by_name["value"], named)}
    each = _single(field, named)
    return {"type": "array", "items": each} if field.is_repeated else each


def _single(field: FieldDescriptor, named: Schema) -> Schema:
    if field.message_type is not None:
        return _message(field.message_type, named)
    if field.enum_type is not None:
        return {"type": "string", "enum": [value.name for value in field.enum_type.values]}
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return {"type": "boolean"}
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return {"type": "number"}
    if field.type == FieldDescriptor.TYPE_BYTES:
        return {"type": "string", "contentEncoding": "base64"}
    return {"type": "string" if field.cpp_type == FieldDescriptor.CPPTYPE_STRING else "integer"}


def _variants(template: str) -> Iterator[str]:
    """Yield a path without and with each of its optional parts, the shortest first."""
    start = template.find("[")
    if start < 0:
        yield template
        return
    depth = 0
    for end in range(start, len(template)):
        depth += {"[": 1, "]": -1}.get(template[end], 0)
        if depth == 0:
            break
    for rest in _variants(template[end + 1 :]):
        yield template[:start] + rest
        for part in _variants(template[start + 1 : end]):
            yield template[:start] + part + rest


def _names(path: str) -> list[str]:
    return re.findall(r"\{(\w+)\}", path)


def _operation(rpc: str, method: str, path: str, types: Mapping[Any, Schema], rpcs: Mapping[str, str]) -> Schema:
    operation = _OPERATIONS[rpc]
    parameters: list[Schema] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in _names(path)
    ]
    found: Schema = {
        "summary": operation.summary,
        "tags": [_TAGS.get(rpc, "Inference protocol")],
    }
    role = policy.least_role(rpcs.get(rpc, policy.INFERENCE + rpc))
    if role:
        found["description"] = f"Needs the role {role}."
    if rpc == "DetectOne":
        parameters += _query()
        contents: Schema = {kind: {"schema": {}} for kind in ("image/jpeg", "image/png")}
        found["requestBody"] = {"required": True, "content": contents}
    elif method == "POST" and operation.body is not None:
        body = operation.body if isinstance(operation.body, dict) else types[operation.body]
        found["requestBody"] = {"required": rpc == "ModelInfer", "content": {JSON: {"schema": body}}}
    answer = operation.answer
    schema = answer if answer is None or isinstance(answer, dict) else types[answer]
    response = _response("Success", {"type": "array", "items": schema} if operation.rows else schema)
    if rpc == "ModelInfer":  # the extension for binary tensors
        length = {"name": tensors.HEADER_LENGTH, "in": "header", "schema": {"type": "integer", "minimum": 0}}
        parameters.append({**length, "description": "Bytes of JSON before the raw contents of the tensors."})
        found["requestBody"]["content"][tensors.OCTETS] = response["content"][tensors.OCTETS] = {"schema": {}}
    if parameters:
        found["parameters"] = parameters
    return {**found, "responses": {"200": response, "default": {"$ref": "#/components/responses/Error"}}}


def _response(description: str, schema: Schema | None) -> Schema:
    return {"description": description} | ({} if schema is None else {"content": {JSON: {"schema": schema}}})


def _query() -> list[Schema]:
    schema = msgspec.json.schema(handlers.DetectQuery)["$defs"]["DetectQuery"]
    return [{"name": name, "in": "query", "schema": each} for name, each in schema["properties"].items()]
