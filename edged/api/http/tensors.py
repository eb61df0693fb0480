"""Converts bodies of inference over HTTP to the protocol's messages and back. Pure.

A body is JSON. Tensors with the parameter `binary_data_size` have their raw contents after the JSON, in the order of
the tensors. The header `Inference-Header-Content-Length` is then the size of the JSON in bytes.
Format: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec

from edged.api.http import values
from edged.api.http.exchange import JSON, HttpResponse, Part
from edged.api.http.values import Piece, set_aside
from edged.decoding import explain
from edged.errors import InvalidInput, InvalidTensor
from edged.files import NOT_JSON
from edged.proto import open_inference_pb2 as pb
from edged.tensors import DATATYPES

HEADER_LENGTH = "inference-header-content-length"
OCTETS = "application/octet-stream"
_REGION = "shared_memory_region"
_SIZE, _WANTED, _ALL_WANTED = "binary_data_size", "binary_data", "binary_data_output"
_LARGEST = (1 << 64) - 1
_LARGE = 1 << 18  # bytes; in larger JSON, long lists are decoded apart from the rest

Parameters: TypeAlias = dict[str, bool | int | float | str]


class InputBody(msgspec.Struct, frozen=True):
    name: str
    shape: Annotated[list[int], msgspec.Meta(max_length=64)]
    datatype: str
    parameters: Parameters = {}
    data: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)

    @property
    def text(self) -> bytes:
        """The values as JSON, empty if absent."""
        text = bytes(self.data)
        return b"" if text == b"null" else text


class OutputBody(msgspec.Struct, frozen=True):
    name: str
    parameters: Parameters = {}


class InferBody(msgspec.Struct, frozen=True):
    inputs: Annotated[list[InputBody], msgspec.Meta(max_length=1024)]
    id: str = ""
    parameters: Parameters = {}
    outputs: Annotated[list[OutputBody], msgspec.Meta(max_length=1024)] = []


class OutputFormat(msgspec.Struct, frozen=True):
    """How outputs are sent: as raw contents if `binary` is True for the name of the output, otherwise as JSON.
    `default` applies to outputs whose names are not in `binary`."""

    default: bool = False
    binary: Mapping[str, bool] = {}

    def is_binary(self, output: str) -> bool:
        return self.binary.get(output, self.default)


class InferRequest(msgspec.Struct, frozen=True):
    """A request: its message without contents, the contents of inputs that are not in shared memory, and the format of
    the answer."""

    message: pb.ModelInferRequest
    raw: tuple[Part, ...]
    format: OutputFormat


_decoder = msgspec.json.Decoder(InferBody)
_encoder = msgspec.json.Encoder()


def read(model: str, version: str, body: bytes, header_length: int | None) -> InferRequest:
    """Return the request in a body. Raises InvalidInput, naming the tensor. This function does not compare the shapes
    with those of the model."""
    if header_length is not None and header_length > len(body):
        raise InvalidInput(f"header {HEADER_LENGTH!r} is {header_length}, but the body has only {len(body)} bytes")
    request, lists = _decode(body if header_length is None else body[:header_length])
    behind = memoryview(body)[len(body) if header_length is None else header_length :]
    message = pb.ModelInferRequest(model_name=model, model_version=version, id=request.id)
    _set(message.parameters, request.parameters, _ALL_WANTED, "the request")
    raw: list[Part] = []
    position = 0
    for each in request.inputs:
        _add(message, each)
        size = each.parameters.get(_SIZE)
        if sum((size is not None, bool(each.text), _REGION in each.parameters)) > 1:
            raise InvalidInput(f"input {each.name!r} is sent in two ways; set one of 'data', {_SIZE!r} or {_REGION!r}")
        if size is not None:
            if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                raise InvalidTensor(f"input {each.name!r}: {_SIZE!r} is not a whole number, 0 or more")
            if size > len(behind) - position:
                left = len(behind) - position
                raise InvalidTensor(
                    f"input {each.name!r}: {_SIZE!r} is {size}, but only {left} bytes follow in the body"
                )
            raw.append(behind[position : position + size])
            position += size
        elif each.text:
            raw.append(values.read(each.name, each.datatype, each.shape, lists.get(each.text, each.text)))
        elif _REGION not in each.parameters:
            raise InvalidTensor(f"input {each.name!r} has no values; set 'data', {_SIZE!r} or {_REGION!r}")
    if position != len(behind):
        raise InvalidTensor(f"{len(behind)} bytes follow the JSON, but the inputs need {position}")
    binary: dict[str, bool] = {}
    for output in request.outputs:
        if _WANTED in output.parameters:
            binary[output.name] = _flag(output.parameters, _WANTED)
        asked = message.outputs.add(name=output.name)
        _set(asked.parameters, output.parameters, _WANTED, f"output {output.name!r}")
    return InferRequest(message, tuple(raw), OutputFormat(_flag(request.parameters, _ALL_WANTED), binary))


def raw_request(
    model: str, version: str, inputs: Sequence[pb.ModelMetadataResponse.TensorMetadata], body: bytes
) -> InferRequest:
    """Return the request for a header length of 0: the whole body is the only input of a model. Raises InvalidInput if
    the model has several inputs, or if its metadata do not determine the shape."""
    if len(inputs) != 1:
        raise InvalidInput(f"model {model!r} has {len(inputs)} inputs, but a body without JSON has only one; send JSON")
    spec = inputs[0]
    shape = list(spec.shape)
    contents: Part = body
    if spec.datatype == "BYTES":
        shape = [1 if dim < 0 else dim for dim in shape]
        contents = len(body).to_bytes(4, "little") + body
    else:
        shape = _completed(shape, values.item_size(spec.datatype), len(body), spec.name)
    message = pb.ModelInferRequest(model_name=model, model_version=version)
    message.inputs.add(name=spec.name, datatype=spec.datatype, shape=shape)
    return InferRequest(message, (contents,), OutputFormat(default=True))


def write(message: pb.ModelInferResponse, raw: Sequence[Part], format: OutputFormat) -> HttpResponse:
    """Return the response. `raw` has one entry for each output, empty for outputs in shared memory."""
    outputs: list[dict[str, Any]] = []
    behind: list[Part] = []
    for output, contents in zip(message.outputs, raw, strict=True):
        fields: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": list(output.shape)}
        parameters = _get(output.parameters)
        if _REGION not in parameters and format.is_binary(output.name):
            parameters[_SIZE] = len(contents)
            behind.append(contents)
        elif _REGION not in parameters:
            fields["data"] = msgspec.Raw(values.write(output.name, output.datatype, tuple(output.shape), contents))
        outputs.append({**fields, "parameters": parameters} if parameters else fields)
    head: dict[str, Any] = {"id": message.id} if message.id else {}
    head |= {"model_name": message.model_name, "model_version": message.model_version}
    if message.parameters:
        head["parameters"] = _get(message.parameters)
    text = _encoder.encode({**head, "outputs": outputs})
    if not behind:
        return HttpResponse(parts=(text,), headers=(("content-type", JSON),))
    length = (HEADER_LENGTH, str(len(text)))
    return HttpResponse(parts=(text, *behind), headers=(("content-type", OCTETS), length))


def _decode(text: bytes) -> tuple[InferBody, dict[bytes, Piece]]:
    """Return the request without its long lists of numbers, and these lists by name. In the request, each long list is
    replaced by its name. Raises InvalidInput."""
    try:
        if len(text) > _LARGE:
            short, lists = set_aside(text)
            with contextlib.suppress(*NOT_JSON):
                found = _decode_all(short)
                if sorted(lists) == sorted(each.text for each in found.inputs if each.text in lists):
                    return found, lists
        return _decode_all(text), {}
    except NOT_JSON as error:
        raise InvalidInput(f"cannot parse the request's JSON: {explain(error)}") from None


def _decode_all(text: bytes) -> InferBody:
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError:
        if not values.has_bare_words(text):
            raise
        return _decoder.decode(values.with_bare_words(text))


def _add(message: pb.ModelInferRequest, given: InputBody) -> None:
    if given.datatype not in DATATYPES:
        raise InvalidTensor(
            f"input {given.name!r} has the unknown datatype {given.datatype[:40]!r}; use one such as FP32"
        )
    if not all(-(1 << 63) <= dim < 1 << 63 for dim in given.shape):
        raise InvalidTensor(f"input {given.name!r} has a shape whose sizes do not fit 64 bits")
    tensor = message.inputs.add(name=given.name, datatype=given.datatype, shape=given.shape)
    _set(tensor.parameters, given.parameters, _SIZE, f"input {given.name!r}")


def _completed(shape: list[int], item: int, size: int, name: str) -> list[int]:
    """Return the shape with its dynamic dimension computed from the number of bytes. If two dimensions are dynamic and
    one of them is the first (the batch), the batch becomes 1."""
    free = [index for index, dim in enumerate(shape) if dim < 0]
    if len(free) == 2 and free[0] == 0:
        shape = [1, *shape[1:]]
        free = free[1:]
    fixed = item * math.prod(dim for dim in shape if dim >= 0)
    if len(free) > 1:
        raise InvalidTensor(f"input {name!r} has several open dimensions, {shape}; send JSON with the whole shape")
    if free and fixed:
        shape = [size // fixed if dim < 0 else dim for dim in shape]
    return shape


def _flag(parameters: Parameters, key: str) -> bool:
    value = parameters.get(key, False)
    if not isinstance(value, bool):
        raise InvalidInput(f"parameter {key!r} must be true or false")
    return value


def _set(parameters: Any, given: Parameters, own: str, whose: str) -> None:
    """Add parameters to a message's map of InferParameter, except the parameter `own` of the HTTP protocol."""
    for key, value in given.items():
        if key == own:
            continue
        if isinstance(value, bool):
            parameters[key].bool_param = value
        elif isinstance(value, str):
            parameters[key].string_param = value
        elif isinstance(value, float):
            parameters[key].double_param = value
        elif -(1 << 63) <= value < 1 << 63:
            parameters[key].int64_param = value
        elif 0 <= value <= _LARGEST:
            parameters[key].uint64_param = value
        else:
            raise InvalidInput(f"parameter {key!r} of {whose} does not fit 64 bits")


def _get(parameters: Mapping[str, pb.InferParameter]) -> Parameters:
    kinds = {key: parameter.WhichOneof("parameter_choice") for key, parameter in parameters.items()}
    return {key: getattr(parameters[key], kind) for key, kind in kinds.items() if kind is not None}
